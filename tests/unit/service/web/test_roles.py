"""Pages of post-training: while it waits, its roles, and why there are none."""

from __future__ import annotations

from fastapi.testclient import TestClient

from meshwright.workers.runner import Runner
from tests.unit.service.api.test_roles import NO_ROOM
from tests.unit.service.post_training.test_request import REQUEST


def test_the_page_shows_who_works_and_who_waits(browser: TestClient, worker: Runner) -> None:
    job = browser.post("/v1/jobs", json=REQUEST).json()
    assert "Waiting for a worker" in browser.get(f"/jobs/{job['id']}").text
    assert "Qwen3 8B, GRPO on" in browser.get("/jobs").text
    assert worker.run_next()
    shown = browser.get(f"/jobs/{job['id']}").text
    assert "off policy" in shown
    assert shown.count('class="run"') >= 6  # parts of both roles
    first = browser.get(f"/v1/jobs/{job['id']}/plans").json()["plans"][0]
    moved = browser.get(f"/plans/{first['plan_id']}", follow_redirects=False)
    assert moved.headers["location"].endswith(f"/jobs/{job['id']}")


def test_the_page_names_the_field_that_leaves_no_room(browser: TestClient, worker: Runner) -> None:
    job = browser.post("/v1/jobs", json=NO_ROOM).json()
    assert worker.run_next()
    assert "/rollout/tp" in browser.get(f"/jobs/{job['id']}").text
