"""Fleets over HTTP: planned by a real worker, listed, exported, cancelled, resumed and refused."""

from __future__ import annotations

import io
import threading
import zipfile
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from meshwright.service.db.database import Database
from meshwright.service.db.tables import jobs
from meshwright.service.jobs.engine import JobEngine
from meshwright.solver.problem import Progress
from meshwright.workers.fleet import FleetWork
from meshwright.workers.runner import Runner
from tests.draws import seldom
from tests.served.commands import answer_once
from tests.served.job_records import claimed
from tests.unit.service.post_training.test_request import REQUEST

PROBLEM = {
    "model": {"name": "llama-3.1-8b"}, "workload": {"global_batch_size": 64, "seq_length": 4096},
    "launcher": "megatron-lm",
}  # fmt: skip


def job(name: str, **fields: object) -> dict[str, Any]:
    return {"name": name, "problem": PROBLEM, "steps": 1000, **fields}


def fleet(*jobs: dict[str, Any], **fields: object) -> dict[str, Any]:
    return {"name": "team", "cluster": {"name": "dgx-h100", "num_nodes": 2}, "jobs": list(jobs), **fields}


TWO = fleet(job("a", nodes=1), job("b", nodes=1, after=["a"]), begin="2026-01-05T20:00")


def submit(client: TestClient, body: dict[str, Any], **headers: str) -> str:
    answer = client.post("/v1/fleets", json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def get(client: TestClient, path: str) -> Any:  # noqa: ANN401 - JSON
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_fleet_is_planned_by_a_worker_and_names_a_plan_for_each_job(
    client: TestClient, worker: Runner
) -> None:
    """Job b waits for a, so that it starts when a ends; equal problems have one plan."""
    fleet_id = submit(client, {**TWO, "labels": {"team": "nlp"}})
    queued = get(client, f"/v1/fleets/{fleet_id}")
    assert (queued["state"], queued["kind"], queued["name"]) == ("queued", "fleet", "team")
    assert queued["links"]["cancel"] == f"/v1/fleets/{fleet_id}:cancel"
    assert client.get(f"/v1/fleets/{fleet_id}/export").status_code == 409
    assert worker.run_next()
    done = get(client, f"/v1/fleets/{fleet_id}?wait=1")
    assert (done["state"], done["answer"]["status"]) == ("succeeded", "optimal")
    assert done["progress"]["explored"] == 1  # equal problems are searched once
    a, b = done["answer"]["jobs"]
    assert (a["start_hours"], b["start_hours"]) == (0.0, a["end_hours"])
    assert a["plan_id"] == b["plan_id"]
    assert get(client, f"/v1/plans/{a['plan_id']}")["job_id"] == b["job_id"]  # the newest that has it
    plans = get(client, f"/v1/jobs/{a['job_id']}/plans")
    assert [one["plan_id"] for one in plans["plans"]] == [a["plan_id"]]
    children = get(client, f"/v1/jobs/{fleet_id}/children")["children"]
    assert [one["values"] for one in children] == [{"job": "a"}, {"job": "b"}]
    assert client.get(f"/v1/jobs/{fleet_id}/plans").status_code == 404
    assert submit(client, TWO) == fleet_id  # the answer is known


def test_the_files_of_a_fleet_are_those_of_the_command(client: TestClient, worker: Runner) -> None:
    fleet_id = submit(client, TWO)
    worker.run_next()
    made = get(client, f"/v1/fleets/{fleet_id}/export")
    start = made["files"]["start.sh"]
    assert "--job-name=a --nodes=1" in start
    assert '--begin=2026-01-05T20:00:00 "$@"' in start
    assert '--dependency="afterok:${job_0}"' in start
    packed = client.get(f"/v1/fleets/{fleet_id}/export.zip")
    assert packed.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == made["files"]
        assert archive.getinfo("start.sh").external_attr >> 16 == 0o755
        assert {name.split("/")[0] for name in archive.namelist()} == {"a", "b", "start.sh"}


def test_a_stored_fleet_that_lists_several_batches_counts_in_the_batch_of_its_plans(
    client: TestClient, database: Database, worker: Runner
) -> None:
    """Earlier releases took several sizes; each job was then scheduled with the batch that its plan has."""
    fleet_id = submit(client, TWO)
    worker.run_next()
    made = get(client, f"/v1/fleets/{fleet_id}/export")
    with database.write() as connection:
        own = jobs.c.id == fleet_id
        stored = connection.execute(select(jobs.c.request).where(own)).scalar_one()
        for one in stored["jobs"]:
            one["problem"]["workload"]["global_batch_size"] = [32, 64]
        connection.execute(update(jobs).where(own).values(request=stored))
    assert get(client, f"/v1/fleets/{fleet_id}/export") == made
    again = client.post(f"/v1/fleets/{fleet_id}:replan", json={"now_hours": 1.0})
    assert again.status_code == 202, again.text
    asked = [one["problem"]["workload"]["global_batch_size"] for one in again.json()["request"]["jobs"]]
    assert asked == [64, 64]


def test_fleets_are_listed_by_state_and_label_and_apart_from_other_jobs(client: TestClient) -> None:
    first = submit(client, {**TWO, "labels": {"team": "nlp"}})
    second = submit(client, fleet(job("c")))
    client.post("/v1/jobs", json={**PROBLEM, "cluster": {"name": "dgx-h100", "num_nodes": 1}})
    page = get(client, "/v1/fleets")
    assert [one["id"] for one in page["fleets"]] == [second, first]
    assert (page["fleets"][0]["name"], page["fleets"][0]["num_nodes"]) == ("team", 2)
    one = get(client, "/v1/fleets?page_size=1")
    assert [it["id"] for it in one["fleets"]] == [second]
    rest = get(client, f"/v1/fleets?page_token={one['next_page_token']}")
    assert [it["id"] for it in rest["fleets"]] == [first]
    assert [it["id"] for it in get(client, "/v1/fleets?labels=team%3Dnlp")["fleets"]] == [first]
    assert get(client, "/v1/fleets?state=running&labels=team%3Dnlp")["fleets"] == []
    assert [it.get("kind") for it in get(client, "/v1/jobs")["jobs"]] == [None, "fleet", "fleet"]


def test_a_repeated_request_makes_one_fleet_and_another_one_is_refused(client: TestClient) -> None:
    key = {"Idempotency-Key": "k"}
    fleet_id = submit(client, TWO, **key)
    assert submit(client, TWO, **key) == fleet_id
    other = client.post("/v1/fleets", json=fleet(job("c")), headers=key)
    assert (other.status_code, other.json()["type"]) == (422, "urn:meshwright:problem:idempotency_conflict")


@seldom
def test_jobs_that_share_uplinks_are_planned_and_replanned_under_their_switches(
    client: TestClient, worker: Runner
) -> None:
    """Four nodes are under two switches of two: a job on all of them has all of their uplinks."""
    levels = [{"nodes": 2, "oversubscription": 4}]
    group = {"gpu": "h100-sxm-80gb", "num_nodes": 4, "links": {"levels": levels}}
    body = {**fleet(job("a", nodes=4), job("b", nodes=2, after=["a"])), "cluster": {"groups": [group]}}
    fleet_id = submit(client, body)
    worker.run_next()
    answer = get(client, f"/v1/fleets/{fleet_id}")["answer"]
    assert answer["switches"] == {"nodes": [2, 2], "oversubscription": 4.0, "shared_by": []}
    a, b = answer["jobs"]
    assert (a["switches"], a["uplinks"], len(b["switches"]), b["uplinks"]) == (
        {"0": 2, "1": 2},
        1.0,
        1,
        0.0,
    )
    stored = get(client, f"/v1/jobs/{a['job_id']}")["request"]["cluster"]["groups"][0]
    assert stored["links"]["levels"] == [{"nodes": 2, "oversubscription": 4.0}]
    start = get(client, f"/v1/fleets/{fleet_id}/export")["files"]["start.sh"]
    assert "--switches=2" in start
    later = {"now_hours": (a["start_hours"] + a["end_hours"]) / 2}
    again = client.post(f"/v1/fleets/{fleet_id}:replan", json=later)
    assert again.status_code == 202, again.text
    (state,) = again.json()["request"]["states"]
    assert state["jobs"]["a"]["switches"] == {"0": 2, "1": 2}
    lost = client.post(f"/v1/fleets/{fleet_id}:replan", json={**later, "lost_nodes": 1})
    assert lost.json()["errors"][0]["pointer"] == "/lost_nodes"


def test_a_job_of_post_training_is_planned_stored_exported_and_replanned(
    client: TestClient, worker: Runner
) -> None:
    roles = job("roles", nodes=1) | {"problem": {**REQUEST, "model": "llama-3.2-1b"}}
    del roles["problem"]["cluster"]
    body = {**TWO, "jobs": [roles, *TWO["jobs"]]}
    fleet_id = submit(client, body)
    worker.run_next()
    done = get(client, f"/v1/fleets/{fleet_id}")
    first = done["answer"]["jobs"][0]
    assert (first["name"], first["launcher"]) == ("roles", "nemo-rl")
    assert first["mode"] in {"colocated", "apart", "async"}
    stored = get(client, f"/v1/jobs/{first['job_id']}")
    assert (stored["kind"], stored["request"]["cluster"]["groups"][0]["num_nodes"]) == ("post_training", 1)
    found = get(client, f"/v1/jobs/{first['job_id']}/plans")
    assert (found["plans"][0]["plan_id"], found["plans"][0]["step_s"]) == (
        first["plan_id"],
        first["step_time_s"],
    )
    assert get(client, f"/v1/plans/{first['plan_id']}/export")["plan_id"] == first["plan_id"]
    files = get(client, f"/v1/fleets/{fleet_id}/export")["files"]
    assert {"roles/nemo_rl_grpo.yaml", "roles/run.sh", "roles/launch.sbatch"} <= set(files)
    again = client.post(f"/v1/fleets/{fleet_id}:replan", json={"now_hours": 0.1})
    assert again.status_code == 202, again.text
    worker.run_next()
    left = get(client, f"/v1/fleets/{again.json()['id']}")
    assert left["answer"]["jobs"][0]["plan_id"] == first["plan_id"]


@pytest.mark.parametrize(
    ("body", "at"),
    [
        (fleet(job("a", least_nodes=3)), "/jobs/0/least_nodes"),
        (fleet(job("a", after=["b"]), job("b", after=["a"])), "/jobs/0/after"),
        (fleet(job("a", as_many_nodes_as="a")), "/jobs/0/as_many_nodes_as"),
        (fleet(job("a", release_hours=3, due_hours=2)), "/jobs/0/release_hours"),
        (fleet(), "/jobs"),
        ({"jobs": [job("a")]}, "/cluster"),
        (fleet(job("a"), effort=0), "/effort"),
        (fleet(job("a"), time_limit_s=1e9), "/time_limit_s"),
        (fleet(job("a"), priority=10), "/priority"),
        (fleet(job("a"), states=[{}]), "/states/0/now_hours"),
        (fleet(job("a"), states=[{"now_hours": 1, "arrived": [job("a")]}]), "/states/0/arrived/0/name"),
        (fleet(job("a"), states={}), "/states"),
    ],
)
def test_a_fault_is_a_422_that_points_at_job_and_field(
    client: TestClient, body: dict[str, Any], at: str
) -> None:
    answer = client.post("/v1/fleets", json=body)
    assert answer.status_code == 422, answer.text
    assert at in [one["pointer"] for one in answer.json()["errors"]]


def test_a_job_without_a_plan_makes_the_fleet_infeasible_unless_it_may_be_left_out(
    client: TestClient, worker: Runner
) -> None:
    """Llama 3.1 405B does not fit on 8 GPUs of 80 GB: 405e9 parameters of 2 bytes alone take 810 GB."""
    large = job("large", nodes=1) | {"problem": {**PROBLEM, "model": "llama-3.1-405b"}}
    both = fleet(job("small", nodes=1), large)
    refused, rest = submit(client, both), submit(client, {**both, "skip_impossible": True})
    while worker.run_next():
        pass
    failed = get(client, f"/v1/fleets/{refused}")
    assert failed["state"] == "infeasible"
    (fault,) = failed["answer"]["faults"]
    assert (fault["field"], "no plan fits on" in fault["message"]) == (
        "/jobs/1/problem",
        True,
    )
    planned = get(client, f"/v1/fleets/{rest}")["answer"]
    assert ([one["name"] for one in planned["jobs"]], list(planned["left_out"])) == (["small"], ["large"])


def test_a_cancelled_fleet_ends_and_a_deleted_one_takes_its_plans_along(
    client: TestClient, worker: Runner
) -> None:
    waiting = submit(client, TWO)
    assert client.post(f"/v1/fleets/{waiting}:cancel").json()["state"] == "cancelled"
    fleet_id = submit(client, TWO)
    worker.run_next()
    part = get(client, f"/v1/fleets/{fleet_id}")["answer"]["jobs"][0]
    assert client.delete(f"/v1/jobs/{part['job_id']}").status_code == 409
    assert client.delete(f"/v1/fleets/{fleet_id}").status_code == 204
    assert client.get(f"/v1/fleets/{fleet_id}").status_code == 404
    assert client.get(f"/v1/plans/{part['plan_id']}").status_code == 404


def test_an_address_of_fleets_finds_no_other_job(client: TestClient) -> None:
    other = client.post("/v1/jobs", json={**PROBLEM, "cluster": {"name": "dgx-h100", "num_nodes": 1}})
    for path in ("", "/export", "/export.zip"):
        assert client.get(f"/v1/fleets/{other.json()['id']}{path}").status_code == 404
    assert client.delete("/v1/fleets/nothing").status_code == 404


def test_a_worker_that_leaves_passes_its_searches_on(
    client: TestClient, database: Database, engine: JobEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second worker has the answers of the first, and searches only what that did not."""
    answer_once(monkeypatch)
    fleet_id = submit(client, fleet(job("a", nodes=1), job("b", nodes=2)))
    claim, stop = claimed(engine), threading.Event()
    first = FleetWork.on(database, claim)

    def stop_in_the_second(progress: Progress) -> None:
        if progress.explored == 2:
            stop.set()

    first.do(on_progress=stop_in_the_second, should_stop=stop.is_set)
    assert not first.is_proved
    found = first.passed_on()
    assert found is not None
    assert len(found["answers"]) == 1
    assert engine.release(claim, found)
    reports: list[int] = []
    second = FleetWork.on(database, claimed(engine))
    second.do(on_progress=lambda one: reports.append(one.explored), should_stop=lambda: False)
    assert reports == [1]
    assert get(client, f"/v1/fleets/{fleet_id}")["state"] == "running"


def test_a_fleet_is_planned_again_with_jobs_as_planned_where_nothing_is_said(
    client: TestClient, worker: Runner
) -> None:
    """Halfway through a on 1 of 2 nodes a node is lost: a has half its steps done, and b waits for it."""
    fleet_id = submit(client, {**fleet(job("a", nodes=1), job("b", nodes=1)), "labels": {"team": "nlp"}})
    path = f"/v1/fleets/{fleet_id}:replan"
    assert client.post(path, json={"now_hours": 1}).status_code == 409
    worker.run_next()
    planned = get(client, f"/v1/fleets/{fleet_id}")["answer"]["jobs"][0]
    assert planned["start_hours"] == 0.0
    half = {"now_hours": planned["end_hours"] / 2, "lost_nodes": 1}
    refused = client.post(path, json=half)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/jobs")
    assert "running jobs hold 2 of 1 nodes (a 1, b 1)" in refused.text
    state = {**half, "jobs": {"b": {"state": "failed", "steps_done": 100}}}
    again = client.post(path, json=state, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["labels"]) == (202, {"team": "nlp"})
    new_id = again.json()["id"]
    assert client.post(path, json=state, headers={"Idempotency-Key": "k"}).json()["id"] == new_id
    assert get(client, f"/v1/fleets/{fleet_id}")["replanned_as"] == new_id
    worker.run_next()
    jobs = {one["name"]: one for one in get(client, f"/v1/fleets/{new_id}")["answer"]["jobs"]}
    assert (jobs["a"]["steps"], jobs["b"]["steps"]) == (500, 900)
    assert (jobs["a"]["start_hours"], jobs["b"]["start_hours"]) == (0.0, jobs["a"]["end_hours"])
    later = client.post(f"/v1/fleets/{new_id}:replan", json={"now_hours": jobs["a"]["end_hours"]})
    assert later.status_code == 202
    worker.run_next()
    (left,) = get(client, f"/v1/fleets/{later.json()['id']}")["answer"]["jobs"]
    assert (left["name"], left["steps"]) == ("b", 900)


def test_a_fault_of_a_state_points_into_it(client: TestClient, worker: Runner) -> None:
    fleet_id = submit(client, fleet(job("a", nodes=1), job("b", nodes=1)))
    worker.run_next()
    faults: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "/now_hours"),
        ({"now_hours": 1, "jobs": {"c": {}}}, "/jobs/c"),
        ({"now_hours": 1, "jobs": {"a": {"state": "lost"}}}, "/jobs/a/state"),
        ({"now_hours": 1, "arrived": [job("c", least_nodes=9)]}, "/arrived/0/least_nodes"),
        ({"now_hours": 1, "arrived": [job("b")]}, "/arrived/0/name"),
        ({"now_hours": 0, "lost_nodes": 2}, "/lost_nodes"),
    )
    for state, at in faults:
        answer = client.post(f"/v1/fleets/{fleet_id}:replan", json=state)
        assert answer.status_code == 422, (at, answer.text)
        assert at in [one["pointer"] for one in answer.json()["errors"]]


def test_states_plan_a_running_fleet_again_with_running_jobs_pinned(
    client: TestClient, worker: Runner
) -> None:
    """After an hour a runs on its node, b has grown, and c has arrived; one node is left for both."""
    known = {"a": {"nodes": 1, "steps_done": 400}, "b": {"state": "waiting", "steps": 2000}}
    state = {"now_hours": 1, "jobs": known, "arrived": [job("c", nodes=1)]}
    fleet_id = submit(client, {**fleet(job("a", nodes=1), job("b", nodes=1)), "states": [state]})
    worker.run_next()
    done = get(client, f"/v1/fleets/{fleet_id}")
    jobs = {one["name"]: one for one in done["answer"]["jobs"]}
    assert {name: one["steps"] for name, one in jobs.items()} == {"a": 600, "b": 2000, "c": 1000}
    assert jobs["a"]["start_hours"] == 0.0
    again = client.post("/v1/fleets", json=done["request"])  # the canonical request is one itself
    assert (again.status_code, again.json()["id"]) == (202, fleet_id)
    start = get(client, f"/v1/fleets/{fleet_id}/export")["files"]["start.sh"]
    assert ("--job-name=b" in start, "--job-name=a" in start) == (True, False)
