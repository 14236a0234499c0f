"""The client against a real server, while the server and the network between them fail."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from meshwright.service.auth.keys import Keys, NewKey
from meshwright.service.db.database import Database
from meshwright.service.db.usage_records import note_worker
from meshwright.service.jobs.engine import JobEngine
from meshwright.workers.outcome import outcome_of
from meshwright_client.answers import Job
from meshwright_client.client import Client
from meshwright_client.errors import (
    IdempotencyConflictError,
    InvalidRequestError,
    NotFoundError,
    NotReadyError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
    WaitTimeoutError,
)
from meshwright_client.records import Progress, State
from tests.builders import a_plan, an_answer
from tests.processes.faulty_proxy import faulty_proxy, lose_answer, refuse
from tests.processes.servers import RunningServer, Settings, free_port, serving, until
from tests.processes.warm import ROOT
from tests.served.job_records import SUCCESS, TINY_PROBLEM, claimed
from tests.served.migrated import migrated

LONG_S = 60.0  # longer than a long poll


class Waiter:
    """A launcher that waits for a job on a thread of its own."""

    def __init__(self, client: Client, job: Job) -> None:
        self.states: list[State] = []
        self.found: list[Job] = []
        self._thread = threading.Thread(target=self._wait, args=[client, job])
        self._thread.start()

    def heard(self, state: State, _progress: Progress | None) -> None:
        self.states.append(state)

    def job(self) -> Job:
        self._thread.join(30)
        assert self.found, "it waits for ever"
        return self.found[0]

    def _wait(self, client: Client, job: Job) -> None:
        self.found.append(client.wait(job, timeout_s=LONG_S, on_progress=self.heard))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return {
        "database_url": migrated(tmp_path / "jobs.db"),
        "workers": "0",
        "event_heartbeat_s": "0.3",
        "port": str(free_port()),
        "grace_s": "1",
    }


@pytest.fixture
def engine(settings: Settings) -> Iterator[JobEngine]:
    database = Database(settings["database_url"])
    yield JobEngine(database, lease_s=30.0)
    database.close()


@pytest.fixture
def server(settings: Settings, engine: JobEngine) -> Iterator[RunningServer]:
    del engine  # the database is there before the server
    with serving(settings) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with Client(server.url) as made:
        yield made


def test_the_example_submits_waits_and_writes_launch_files(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "problem.json").write_text(json.dumps(TINY_PROBLEM))
    with serving({**settings, "workers": "1"}) as server:
        variables = {"MESHWRIGHT_URL": server.url, "PYTHONPATH": str(ROOT / "client")}
        script = ROOT / "examples" / "launcher_client.py"
        words: list[str | Path] = [sys.executable, script, tmp_path / "problem.json", tmp_path / "run"]
        for _ in range(2):  # the second time it finds its job
            done = subprocess.run(
                words, env={**os.environ, **variables}, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
        with Client(server.url) as client:
            assert len(list(client.jobs())) == 1
    assert "optimal:" in done.stdout
    files = list((tmp_path / "run").iterdir())
    assert all(str(path) in done.stdout for path in files)
    assert any(os.access(path, os.X_OK) for path in files)


def test_a_server_killed_and_started_again_while_a_client_waits_costs_it_nothing(
    settings: Settings, engine: JobEngine
) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(serving(settings))
        client = stack.enter_context(Client(server.url))
        waiter = Waiter(client, client.submit(TINY_PROBLEM))
        until(lambda: waiter.states == ["queued"])
        server.process.kill()
        server.process.wait()
        claim = claimed(engine)
        engine.complete(claim, SUCCESS)  # while no server is there
        with serving(settings):
            assert waiter.job().state == "succeeded"
        assert waiter.states == ["queued", "succeeded"]  # each change is reported once


def test_a_long_poll_that_a_proxy_ends_is_asked_again(server: RunningServer, engine: JobEngine) -> None:
    with faulty_proxy(server.url) as proxy, Client(proxy.url) as client:
        job = client.submit(TINY_PROBLEM)
        proxy.then("wait=", refuse(503, retry_after="0"), lose_answer)
        waiter = Waiter(client, job)
        until(lambda: waiter.states == ["queued"])
        claim = claimed(engine)
        until(lambda: "running" in waiter.states)
        engine.complete(claim, SUCCESS)
        assert waiter.job().state == "succeeded"
        first, *later = [one for one in proxy.of(job.id) if one.method == "GET"]
        assert "if-none-match" not in first.headers  # how is it now?
        assert all("if-none-match" in one.headers for one in later)


def test_an_answer_lost_on_its_way_is_asked_for_again_with_the_same_key(server: RunningServer) -> None:
    with faulty_proxy(server.url) as proxy, Client(proxy.url) as client:
        proxy.then("/v1/jobs", lose_answer, lose_answer)
        job = client.submit(TINY_PROBLEM)
        assert [one.id for one in client.jobs()] == [job.id]
        posts = [one for one in proxy.seen if one.method == "POST"]
        assert len(posts) == 3
        assert len({one.headers["idempotency-key"] for one in posts}) == 1


@pytest.mark.parametrize("status", [429, 502, 503])
def test_the_client_comes_back_when_it_is_told_to(server: RunningServer, status: int) -> None:
    with faulty_proxy(server.url) as proxy, Client(proxy.url) as client:
        proxy.then("/v1/jobs", refuse(status, retry_after="1"))
        began = time.monotonic()
        assert client.submit(TINY_PROBLEM).state == "queued"
        assert time.monotonic() - began >= 1.0
        assert len(proxy.of("/v1/jobs")) == 2  # not once before it was told to


def test_a_service_that_stays_away_is_given_up_in_time(server: RunningServer) -> None:
    with faulty_proxy(server.url) as proxy, Client(proxy.url, retry_s=0.5) as client:
        proxy.then("/v1/jobs", *[refuse(503, retry_after="1")] * 9)
        with pytest.raises(ServerError) as refused:
            client.submit(TINY_PROBLEM)
        assert refused.value.problem.status == 503
        assert len(proxy.of("/v1/jobs")) == 1  # it does not come back before it was told to
    with Client(f"http://127.0.0.1:{free_port()}", retry_s=0.5) as nobody:
        began = time.monotonic()
        with pytest.raises(ServiceUnavailableError, match="ConnectError"):
            nobody.submit(TINY_PROBLEM)
        assert time.monotonic() - began < 20.0  # who is not told otherwise tries for longer


def test_one_key_makes_one_job_and_another_body_under_it_is_refused(client: Client) -> None:
    first = client.submit(TINY_PROBLEM, idempotency_key="run-7")
    assert client.submit(TINY_PROBLEM, idempotency_key="run-7").id == first.id
    assert [job.id for job in client.jobs()] == [first.id]
    with pytest.raises(IdempotencyConflictError) as refused:
        client.submit({**TINY_PROBLEM, "launcher": "deepspeed"}, idempotency_key="run-7")
    assert refused.value.problem.status == 422


def test_a_wrong_problem_is_refused_with_its_fields(client: Client) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        client.submit({**TINY_PROBLEM, "launcher": "megatron-ml"})
    (fault,) = refused.value.problem.errors or ()
    assert fault.pointer == "/launcher"
    assert "megatron-lm" in fault.message
    assert refused.value.problem.request_id
    assert "/launcher: " in str(refused.value)


def test_what_is_not_there_or_not_ready_has_errors_of_its_own(client: Client) -> None:
    with pytest.raises(NotFoundError):
        client.job("0" * 32)
    job = client.submit(TINY_PROBLEM)
    with pytest.raises(NotReadyError):
        client.plans(job)


def test_a_job_that_does_not_end_in_time_is_told_with_its_state_and_seldom_asked_for(
    settings: Settings, engine: JobEngine
) -> None:
    del engine  # the database is there before the server
    at_once = {**settings, "max_wait_s": "0.001"}  # or a proxy that answers in the service's place
    with serving(at_once) as server, faulty_proxy(server.url) as proxy, Client(proxy.url) as client:
        job = client.submit(TINY_PROBLEM)
        began = time.monotonic()
        with pytest.raises(WaitTimeoutError) as late:
            client.wait(job, timeout_s=1.5)
        assert 1.5 <= time.monotonic() - began < 20.0  # how long one long poll may take
        assert late.value.job.state == "queued"
        # how is it now, at once, after 1 s and at the end
        assert len([one for one in proxy.of(job.id) if one.method == "GET"]) <= 4


def test_a_client_reads_cpu_seconds_and_live_workers(client: Client, engine: JobEngine) -> None:
    job = client.submit(TINY_PROBLEM)
    engine.complete(claimed(engine), SUCCESS, cpu_s=3.0)
    (used,) = client.usage(days=1)
    assert (used.cpu_s, used.jobs, used.key_id) == (3.0, 1, None)
    assert abs(used.day - datetime.now(UTC).date()) <= timedelta(days=1)
    assert client.job(job).cpu_s == 3.0
    with engine._database.write() as connection:
        note_worker(connection, "node-7:4711", kind="search", version="0.1.0")
    (worker,) = client.workers()
    assert (worker.name, worker.busy, worker.job_id) == ("node-7:4711", False, None)


def test_a_cancelled_job_is_cancelled_as_often_as_one_likes(client: Client) -> None:
    job = client.submit(TINY_PROBLEM)
    assert {client.cancel(job).state, client.cancel(job.id).state} == {"cancelled"}
    assert client.wait(job, timeout_s=LONG_S).state == "cancelled"


def test_a_full_queue_is_an_error_of_its_own(settings: Settings, engine: JobEngine) -> None:
    del engine
    with serving({**settings, "max_queued_jobs": "1"}) as server, Client(server.url, retry_s=0.1) as client:
        client.submit(TINY_PROBLEM)
        with pytest.raises(TooManyRequestsError):
            client.submit({**TINY_PROBLEM, "launcher": "deepspeed"})


def test_a_key_opens_the_service_and_a_wrong_one_does_not(
    server: RunningServer, settings: Settings
) -> None:
    database = Database(settings["database_url"])
    _, token = Keys(database, actor="test").create(NewKey(tenant="launchers"))
    database.close()
    with Client(server.url, token) as own, Client(server.url, token[:-1] + "!") as other:
        assert own.submit(TINY_PROBLEM).state == "queued"
        with pytest.raises(UnauthorizedError):
            other.submit(TINY_PROBLEM)


def test_a_configuration_of_ones_own_is_priced(client: Client) -> None:
    priced = client.predict(
        MappingProxyType(TINY_PROBLEM),
        MappingProxyType({"tensor_parallel_size": 2, "data_parallel_size": 4}),
    )
    assert priced.config.tensor_parallel_size == 2
    low, high = priced.prediction.step_time_low_s, priced.prediction.step_time_high_s
    assert 0 < low < priced.prediction.step_time_s < high


def test_a_plan_is_priced_under_its_own_switches(client: Client, engine: JobEngine) -> None:
    job = client.submit(TINY_PROBLEM)
    alone: dict[str, Any] = {
        "tensor_parallel_size": 2, "pipeline_parallel_size": 1, "virtual_pipeline_size": 1,
        "data_parallel_size": 4, "zero_shard_size": 4, "micro_batch_size": 1, "num_microbatches": 4,
        "pipeline_schedule": "1f1b", "stage_layers": (24,),
    }  # fmt: skip
    found = an_answer(replace(a_plan(**alone), workload={"cuda_graph": "full_iteration"}))
    engine.complete(claimed(engine), outcome_of(found, cache_key="k", cancelled=False))
    (plan,) = client.plans(client.wait(job, timeout_s=LONG_S)).plans
    switched = client.predict(TINY_PROBLEM, plan).prediction.step_time_s
    assert switched < client.predict(TINY_PROBLEM, asdict(plan.config)).prediction.step_time_s


@pytest.mark.parametrize("most", [1, None])
def test_plans_are_read_page_by_page(
    client: Client, engine: JobEngine, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two plans on pages of one."""
    monkeypatch.setattr("meshwright_client.client.PAGE_SIZE", 1)
    job = client.submit(TINY_PROBLEM)
    found = an_answer(a_plan(plan_id="aaa"), a_plan(plan_id="bbb", rank=2))
    engine.complete(claimed(engine), outcome_of(found, cache_key="k", cancelled=False))
    answer = client.plans(client.wait(job, timeout_s=LONG_S), most=most)
    assert [plan.rank for plan in answer.plans] == ([1] if most else [1, 2])


def test_plans_of_all_jobs_are_found_by_their_figures(client: Client, engine: JobEngine) -> None:
    client.submit(TINY_PROBLEM)
    found = an_answer(a_plan(plan_id="aaa"), a_plan(plan_id="bbb", rank=2, tensor_parallel_size=4))
    engine.complete(claimed(engine), outcome_of(found, cache_key="k", cancelled=False))
    (plan,) = client.find_plans(
        max_peak_memory_bytes=60 * 2**30, tensor_parallel_size=4, sort="step_time_s"
    )
    assert (plan.plan_id, plan.cluster, plan.measured) == ("bbb", "dgx-h100", None)
    assert not list(client.find_plans(measured=True))
    with pytest.raises(InvalidRequestError, match="/query/max_memory"):
        list(client.find_plans(max_memory=60))


def test_a_fleet_is_submitted_waited_for_planned_again_and_exported(
    settings: Settings, tmp_path: Path
) -> None:
    """Once job a has ended, b alone is left; a launch of b that waits gets its new files."""
    problem = {name: TINY_PROBLEM[name] for name in TINY_PROBLEM if name not in {"cluster", "search"}}
    problem["launcher"] = "megatron-lm"
    jobs = [{"name": "a", "problem": problem, "steps": 1000}]
    jobs.append({"name": "b", "problem": problem, "steps": 500, "after": ["a"]})
    fleet = {"cluster": {"name": "dgx-h100", "num_nodes": 1}, "jobs": jobs}
    with serving({**settings, "workers": "1"}) as server, Client(server.url) as client:
        made = client.submit_fleet(fleet, labels={"team": "nlp"})
        assert client.wait(made, timeout_s=LONG_S).state == "succeeded"
        found = client.fleet(made)
        assert found.answer is not None
        a, b = found.answer.jobs
        assert (found.answer.status, b.start_hours) == ("optimal", a.end_hours)
        again = client.replan_fleet(made, {"now_hours": a.end_hours})
        assert client.fleet(made, newest=True).id == made.id  # the new one has no schedule yet
        client.wait(again, timeout_s=LONG_S)
        newest = client.fleet(made, newest=True)
        assert newest.answer is not None
        assert (newest.id, [one.name for one in newest.answer.jobs]) == (again.id, ["b"])
        files = client.export_fleet(newest, tmp_path / "b", job="b").files
        assert {path.name for path in (tmp_path / "b").iterdir()} == {*files}
        assert "a/submit.sbatch" not in client.export_fleet(newest).files
        assert [one.id for one in client.fleets(labels={"team": "nlp"})] == [again.id, made.id]
