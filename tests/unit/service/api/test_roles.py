"""Post-training over HTTP: placed by a real worker, read, exported and refused."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import select

from meshwright.service.db.database import Database
from meshwright.service.db.tables import plans
from meshwright.workers.runner import Runner
from meshwright_client.decoding import decoded
from meshwright_client.records import RolesAnswer
from tests.unit.service.post_training.test_request import REQUEST

NO_ROOM = {**REQUEST, "model": "llama-3.1-70b", "rollout": {"tp": 1}}


def submit(client: TestClient, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post("/v1/jobs", json=body)
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_roles_are_placed_by_a_worker_and_kept_in_sql(
    client: TestClient, worker: Runner, database: Database
) -> None:
    queued = submit(client, {**REQUEST, "labels": {"team": "rl"}})
    job_id = queued["id"]
    assert (queued["kind"], queued["state"]) == ("post_training", "queued")
    assert queued["title"] == "Qwen3 8B, GRPO on 16 × H100 SXM 80 GB, 2 nodes"
    assert client.get(f"/v1/jobs/{job_id}/plans").status_code == 409
    assert worker.run_next()
    assert client.get(f"/v1/jobs/{job_id}").json()["state"] == "succeeded"
    found = client.get(f"/v1/jobs/{job_id}/plans").json()
    first = found["plans"][0]
    assert (found["status"], found["deciding"]) == ("optimal", "mean")
    assert {role["group"] for role in first["rollout"]} == {"h100-sxm-80gb"}
    answer = decoded(RolesAnswer, found)
    assert answer.plans[0].parts_s == first["parts_s"]
    assert answer.plans[0].training.plan.config.tensor_parallel_size >= 1
    with database.read() as connection:
        rows = connection.execute(select(plans.c.rank, plans.c.num_gpus, plans.c.step_time_s)).all()
    assert [(row.num_gpus, row.step_time_s) for row in sorted(rows)] == [
        (plan["num_gpus"], plan["step_s"]) for plan in found["plans"]
    ]
    assert submit(client, REQUEST)["id"] == job_id  # the same question is answered already
    assert [one["job_id"] for one in client.get("/v1/plans?model=qwen3-8b").json()["plans"]] == [job_id] * 3


def test_a_placement_is_read_and_exported_by_its_id(client: TestClient, worker: Runner) -> None:
    job_id = submit(client, REQUEST)["id"]
    worker.run_next()
    first = client.get(f"/v1/jobs/{job_id}/plans").json()["plans"][0]
    at = f"/v1/plans/{first['plan_id']}"
    assert client.get(at).json()["plan"]["training"]["gpus"] == first["training"]["gpus"]
    assert sorted(client.get(f"{at}/export").json()["files"]) == ["nemo_rl_grpo.yaml", "run.sh"]
    other = client.get(f"{at}/export?launcher=verl").json()
    assert "async_training.staleness_threshold=1" in other["files"]["run.sh"]
    assert client.get(f"{at}/export?launcher=trl").status_code == 422
    assert client.get(f"{at}/timeline").status_code == 404  # of a search's plans alone
    assert "Who works, who waits" in client.get(f"/v1/jobs/{job_id}/report").text


def test_a_pool_without_room_ends_infeasible_with_the_field(client: TestClient, worker: Runner) -> None:
    job_id = submit(client, NO_ROOM)["id"]
    worker.run_next()
    assert client.get(f"/v1/jobs/{job_id}").json()["state"] == "infeasible"
    (fault,) = client.get(f"/v1/jobs/{job_id}/plans").json()["faults"]
    assert (fault["field"], fault["nearest"]) == ("/rollout/tp", "4")


def test_a_wrong_request_is_refused_at_once(client: TestClient) -> None:
    answer = client.post("/v1/jobs", json={**REQUEST, "launcher": "areal"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/launcher"
