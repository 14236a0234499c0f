"""Fleets as pages: the list, a fleet that waits, its schedule, and why there is none."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

from meshwright.workers.runner import Runner
from tests.served.reports import Page
from tests.unit.service.post_training.test_request import REQUEST

PROBLEM = {
    "model": {"name": "llama-3.1-8b"}, "workload": {"global_batch_size": 64, "seq_length": 4096},
    "launcher": "megatron-lm",
}  # fmt: skip
CHAT: dict[str, Any] = {"name": "chat", "problem": PROBLEM, "steps": 1000, "nodes": 1, "due_hours": 0.5}
LONG: dict[str, Any] = {"name": "long", "problem": PROBLEM, "steps": 500, "nodes": 1, "after": ["chat"]}


def submit(browser: TestClient, *jobs: dict[str, Any], **fields: object) -> str:
    body = {"name": "team", "cluster": {"name": "dgx-h100", "num_nodes": 1}, "jobs": jobs, **fields}
    return str(browser.post("/v1/fleets", json=body).json()["id"])


def test_a_waiting_fleet_can_be_followed_and_cancelled(browser: TestClient) -> None:
    fleet_id = submit(browser, CHAT)
    page = browser.get(f"/fleets/{fleet_id}")
    assert f'data-follow="{fleet_id}"' in page.text
    answer = browser.post(f"/fleets/{fleet_id}/cancel")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/fleets/{fleet_id}")
    after = browser.get(f"/fleets/{fleet_id}").text
    assert "data-follow" not in after
    assert "The fleet was cancelled before it had a schedule." in Page(after).text


def test_a_schedule_has_its_proof_chart_table_and_links(browser: TestClient, worker: Runner) -> None:
    """Chat is due after half an hour and takes longer: the end of its bar is late."""
    fleet_id = submit(browser, CHAT, LONG)
    worker.run_next()
    text = browser.get(f"/fleets/{fleet_id}").text
    page = Page(text)
    assert "Optimal under the predicted durations" in page.text
    counts = text.count('class="run"'), text.count('class="late"'), text.count('class="due"')
    assert counts == (2 + 1, 1 + 1, 1 + 1)  # one of each in the legend
    planned = browser.get(f"/v1/fleets/{fleet_id}").json()["answer"]["jobs"]
    links = {link["href"] for link in page.all("a")}
    assert {f"/plans/{one['plan_id']}" for one in planned} <= links
    assert {f"/jobs/{one['job_id']}" for one in planned} <= links
    assert f"/v1/fleets/{fleet_id}/export.zip" in links
    assert browser.get(f"/jobs/{planned[0]['job_id']}").status_code == 200
    assert "Local search from the better of both: weighted lateness" in page.text


def test_the_plan_of_a_job_of_post_training_is_its_jobs_page(browser: TestClient, worker: Runner) -> None:
    problem = {name: value for name, value in REQUEST.items() if name != "cluster"}
    fleet_id = submit(browser, {**CHAT, "problem": {**problem, "model": "llama-3.2-1b"}})
    worker.run_next()
    (job,) = browser.get(f"/v1/fleets/{fleet_id}").json()["answer"]["jobs"]
    links = {link["href"] for link in Page(browser.get(f"/fleets/{fleet_id}").text).all("a")}
    assert f"/jobs/{job['job_id']}" in links
    assert f"/plans/{job['plan_id']}" not in links
    assert browser.get(f"/jobs/{job['job_id']}").status_code == 200


def test_fleets_are_in_their_list_and_among_the_jobs(browser: TestClient) -> None:
    assert "There are no fleets yet." in browser.get("/fleets").text
    fleet_id = submit(browser, CHAT)
    for path in ("/fleets", "/jobs"):
        page = Page(browser.get(path).text)
        assert f"/fleets/{fleet_id}" in {link["href"] for link in page.all("a")}
        assert "team, a fleet on 1 × dgx-h100" in page.text
    moved = browser.get(f"/jobs/{fleet_id}")
    assert (moved.status_code, moved.headers["location"]) == (303, f"/fleets/{fleet_id}")


def test_a_fleet_with_a_job_without_a_plan_names_it(browser: TestClient, worker: Runner) -> None:
    """Llama 3.1 405B does not fit on 8 GPUs of 80 GB: 405e9 parameters of 2 bytes alone take 810 GB."""
    large = {**CHAT, "problem": {**PROBLEM, "model": "llama-3.1-405b"}}
    fleet_id = submit(browser, large)
    worker.run_next()
    text = Page(browser.get(f"/fleets/{fleet_id}").text).text
    assert "Not every job can be planned." in text
    assert "no plan fits on 1 node" in text


def test_a_schedule_is_read_by_anyone_who_has_its_link_until_that_is_revoked(
    browser: TestClient, worker: Runner
) -> None:
    """The report has chart, table and proof in one file, and no way from there into the service."""
    fleet_id = submit(browser, CHAT, LONG)
    waiting = browser.get(f"/v1/fleets/{fleet_id}/report")
    assert waiting.status_code == 409
    assert "has no schedule" in waiting.json()["detail"]
    assert browser.post(f"/v1/jobs/{fleet_id}/share-links", json={}).status_code == 409
    worker.run_next()
    report = browser.get(f"/v1/fleets/{fleet_id}/report")
    assert "Optimal under the predicted durations" in Page(report.text).text
    assert (report.text.count('class="run"'), report.text.count('class="late"')) == (2 + 1, 1 + 1)
    link = browser.post(f"/v1/jobs/{fleet_id}/share-links", json={}).json()
    seen = browser.get(link["path"])
    assert seen.text == report.text
    assert not Page(seen.text).all("a")
    assert "noindex" in seen.headers["X-Robots-Tag"]
    links = {one["href"] for one in Page(browser.get(f"/fleets/{fleet_id}").text).all("a")}
    assert {f"/v1/fleets/{fleet_id}/report", f"/jobs/{fleet_id}/share"} <= links
    assert browser.delete(f"/v1/jobs/{fleet_id}/share-links/{link['id']}").status_code == 204
    assert browser.get(link["path"]).status_code == 404
