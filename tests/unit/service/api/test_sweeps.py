"""Sweeps, priorities and deadlines over HTTP."""

from datetime import datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient

from meshwright.service.db.database import Database
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.sweeps import Sweeps
from tests.builders import a_plan, an_answer
from tests.served.api_client import BODY, PROBLEM_TYPE, submit
from tests.served.sweep_jobs import answer_child

SWEEP = {"num_nodes": [2, 4], "global_batch_size": [256]}


def get(client: TestClient, path: str) -> Any:  # noqa: ANN401 - JSON
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_sweep_is_one_job_with_children_and_one_joined_answer(
    client: TestClient, engine: JobEngine, database: Database
) -> None:
    job_id = submit(client, sweep=SWEEP)
    job = get(client, f"/v1/jobs/{job_id}")
    assert (job["state"], job["links"]["children"]) == ("running", f"/v1/jobs/{job_id}/children")
    assert job["request"]["sweep"] == SWEEP
    page = get(client, f"/v1/jobs/{job_id}/children?page_size=1")
    assert [child["values"] for child in page["children"]] == [{"num_nodes": 2, "global_batch_size": 256}]
    rest = get(client, f"/v1/jobs/{job_id}/children?page_token={page['next_page_token']}")
    child = rest["children"][0]
    assert (child["point"], child["state"], child["reused"]) == (1, "queued", False)
    assert child["links"]["parent"] == f"/v1/jobs/{job_id}"
    assert client.get(f"/v1/jobs/{job_id}/plans").status_code == 409
    answers = an_answer(a_plan(plan_id="aaa")), an_answer(a_plan(plan_id="bbb", data_parallel_size=8))
    for answer in answers:
        answer_child(engine, answer)
        Sweeps(database, engine, worker="w").child_ended(job_id)
    whole = get(client, f"/v1/jobs/{job_id}/plans")
    assert (whole["state"], whole["status"]) == ("succeeded", "optimal")
    assert [(plan["rank"], plan["point"], plan["plan_id"]) for plan in whole["plans"]] == [
        (1, 1, "bbb"),  # twice the GPUs at the same rate of each
        (2, 0, "aaa"),
    ]
    assert [row["job_id"] for row in whole["points"]] == [
        one["id"] for one in [*page["children"], *rest["children"]]
    ]
    assert get(client, "/v1/plans/bbb")["job_id"] == child["id"]
    refused = client.get(f"/v1/jobs/{job_id}/report")
    assert (refused.status_code, "one of its points" in refused.json()["detail"]) == (404, True)


def test_a_job_that_is_no_sweep_has_no_children(client: TestClient) -> None:
    job_id = submit(client)
    assert get(client, f"/v1/jobs/{job_id}/children") == {"children": []}
    assert "children" not in get(client, f"/v1/jobs/{job_id}")["links"]
    assert client.get("/v1/jobs/nothing/children").status_code == 404


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"sweep": {"num_nodes": [2, 0]}}, "/sweep/num_nodes/1"),
        ({"sweep": {"nodes": [2]}}, "/sweep/nodes"),
        ({"sweep": []}, "/sweep"),
        ({"sweep": {"num_nodes": [1, 2], "seq_length": [*range(1, 200)]}}, "/sweep"),
        ({"priority": 10}, "/priority"),
        ({"priority": True}, "/priority"),
        ({"deadline_s": 0}, "/deadline_s"),
        ({"deadline_s": "soon"}, "/deadline_s"),
    ],
)
def test_what_is_wrong_beside_the_problem_is_pointed_at(
    client: TestClient, change: dict[str, object], at: str
) -> None:
    answer = client.post("/v1/jobs", json={**BODY, **change})
    assert (answer.status_code, answer.headers["content-type"]) == (422, PROBLEM_TYPE)
    assert [error["pointer"] for error in answer.json()["errors"]] == [at]


def test_priority_and_deadline_are_the_jobs_and_no_part_of_its_problem(
    client: TestClient, engine: JobEngine
) -> None:
    low, high = submit(client, priority=9), submit(client, priority=0, deadline_s=30)
    job = get(client, f"/v1/jobs/{high}")
    waits = datetime.fromisoformat(job["expires_at"]) - datetime.fromisoformat(job["created_at"])
    assert waits.total_seconds() == pytest.approx(30.0, abs=1.0)
    assert job["priority"] == 0
    assert answer_child(engine) == high
    assert submit(client, priority=3) == high  # the same problem: answered
    assert get(client, f"/v1/jobs/{low}")["priority"] == 9
