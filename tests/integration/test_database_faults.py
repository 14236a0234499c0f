"""F12, F15, F22, F23: databases that crash, run full, or hold much, and what is read from them again."""

import resource
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from redis import Redis

from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from meshwright.service.jobs.answers import cache_key_of, versions_of
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.queue import QUEUE_NAME, CeleryQueue, PollingQueue
from meshwright.service.jobs.states import Outcome
from meshwright.service.jobs.submission import Submission
from meshwright.service.requests.parse import parse_problem
from tests.builders import a_problem
from tests.processes.pace import work_s
from tests.processes.postgres_server import PostgresServer
from tests.processes.servers import RedisServer, RunningServer, serving, until, working
from tests.reliability.figures import measured
from tests.served.job_records import TENANT, TINY_PROBLEM, add_job, add_tiny_job, claimed, job_in

FRESH = {"params": {"fresh": "true"}}
NUM_PLANS = 10_000


@pytest.fixture
def crashing() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


def status_of_post(server: RunningServer) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/jobs", json=TINY_PROBLEM, params=FRESH["params"], timeout=20)


def posts(server: RunningServer) -> Iterator[httpx.Response]:
    """As many as a log file of this size takes, and a few."""
    return (status_of_post(server) for _ in range(200))


def test_f12_a_crashed_database_is_a_503_and_costs_no_job(crashing: PostgresServer) -> None:
    url = crashing.new_database("jobs")
    database = Database(url)
    migrations.upgrade(database)
    settings = {"database_url": url, "workers": "0", "lease_s": "2", "sweep_s": "0.5"}
    with serving(settings) as server, working(settings):
        before = server.post_job(TINY_PROBLEM, **FRESH)["id"]
        crashing.crash()
        away = status_of_post(server)
        crashing.start()
        back_at = time.monotonic()
        after = server.post_job(TINY_PROBLEM, **FRESH)["id"]
        measured(12, "first POST after it came back", (time.monotonic() - back_at) * 1e3, "ms")
        ends = [server.finished_job(job)["state"] for job in (before, after)]
    database.close()
    assert away.status_code == 503
    assert int(away.headers["Retry-After"]) > 0
    assert away.headers["content-type"] == "application/problem+json"
    assert ends == ["succeeded", "succeeded"]
    measured(12, "jobs lost", 0)


def test_f12_hints_stay_queued_while_postgresql_is_away_and_the_log_stays_short(
    crashing: PostgresServer, redis: RedisServer
) -> None:
    url = crashing.new_database("hinted")
    database = Database(url)
    migrations.upgrade(database)
    settings = {"database_url": url, "redis_url": redis.url, "slow_poll_s": "0.5", "sweep_s": "600"}
    jobs, queue = [f"job-{number}" for number in range(4)], CeleryQueue(redis.url)
    lines: list[str] = []
    with (
        working(settings, "--celery", stderr=subprocess.PIPE) as worker,
        Redis.from_url(redis.url) as client,
    ):
        assert worker.stderr is not None
        reader = threading.Thread(target=lines.extend, args=(worker.stderr,))
        reader.start()
        until(lambda: any("ready" in line for line in lines))
        for job in jobs:
            add_tiny_job(database, job)
        before = len(lines)
        crashing.crash()
        for job in jobs:
            queue.wake(job)
        time.sleep(1.5)  # a worker that does not wait empties the queue in half a second
        assert client.llen(QUEUE_NAME) + client.hlen("unacked") == len(jobs)
        said = lines[before:]
        crashing.start()
        until(lambda: all(job_in(database, job).state == "succeeded" for job in jobs))
        until(lambda: client.llen(QUEUE_NAME) + client.hlen("unacked") == 0)
        worker.terminate()
        reader.join()
    database.close()
    ours = [line for line in said if "received" not in line]  # by Celery, of the one hint that is held
    assert len(ours) == 1
    assert "waiting for the database, which has not answered for 0 s (OperationalError)" in ours[0]
    assert len(ours[0]) < 200
    assert any("the database answers again after" in line for line in lines)


def test_f15_a_full_disk_is_a_503_not_ready_and_leaves_the_records_whole(tmp_path: Path) -> None:
    """Let no file grow: a refused request leaves no record, and freed space is noticed at once."""
    file = tmp_path / "jobs.db"
    with serving({"database_url": f"sqlite:///{file}", "workers": "0"}) as server:

        def ready() -> tuple[int, str]:
            answer = httpx.get(f"{server.url}/readyz", timeout=20)
            return answer.status_code, answer.json().get("database", answer.text)

        kept = [server.post_job(TINY_PROBLEM, **FRESH)["id"]]
        assert ready() == (200, "ok")
        largest = max(path.stat().st_size for path in tmp_path.iterdir())
        pid, no_limit = server.process.pid, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest, no_limit[1]))
        for answer in posts(server):
            if answer.status_code != 202:
                break
            kept.append(answer.json()["id"])
        assert answer.status_code == 503
        assert answer.json()["type"] == "urn:meshwright:problem:disk_full"  # SQLite calls it an I/O error
        assert int(answer.headers["Retry-After"]) > 0
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest // 2, no_limit[1]))  # no page is left
        until(lambda: ready() == (503, "read_only"))
        assert status_of_post(server).status_code == 503
        assert {server.job(job)["state"] for job in kept} == {"queued"}  # reading goes on
        resource.prlimit(pid, resource.RLIMIT_FSIZE, no_limit)
        room_at = time.monotonic()
        until(lambda: ready() == (200, "ok"))
        measured(15, "ready again after there was room", time.monotonic() - room_at, "s")
        kept.append(server.post_job(TINY_PROBLEM, **FRESH)["id"])
    database = Database(f"sqlite:///{file}")
    with database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
        stored = connection.exec_driver_sql("SELECT id FROM jobs").scalars()
        assert set(stored) == set(kept)
    database.close()


def jobs_over(database: Database, engine: JobEngine) -> Jobs:
    return Jobs(database, engine, PollingQueue(), queue_timeout_s=3600.0)


def test_f22_a_job_with_ten_thousand_plans_is_stored_and_read_in_pages(
    database: Database, engine: JobEngine
) -> None:
    add_job(database, "large")
    claim = claimed(engine)
    plans = [
        {"plan_id": f"plan-{rank}", "rank": rank, "body": "x" * 500} for rank in range(1, NUM_PLANS + 1)
    ]
    started, started_cpu_s = time.monotonic(), work_s()
    assert engine.complete(claim, Outcome(state="succeeded", answer={"status": "optimal"}, plans=plans))
    read: list[int] = []
    token: str | None = None
    while token is not None or not read:
        _, page = jobs_over(database, engine).plans(TENANT, "large", page_size=200, page_token=token)
        read += [plan["rank"] for plan in page.items]
        token = page.next_page_token
    assert read == list(range(1, NUM_PLANS + 1))
    assert work_s() - started_cpu_s < 15.0
    measured(22, "stored and read in 50 pages", time.monotonic() - started, "s", on=database.dialect)


def test_f23_an_answer_of_another_solver_version_is_not_given_again(
    database: Database, engine: JobEngine
) -> None:
    problem = a_problem(seed=23)
    submission = Submission(problem=problem, body={})
    first = jobs_over(database, engine).submit("f23", submission)
    claim = next(claim for claim in iter(lambda: claimed(engine), None) if claim.job_id == first.id)
    versions = versions_of(parse_problem(claim.request))
    older = cache_key_of("f23", claim.request, {**versions, "ortools": "9.14"})
    answer = {"status": "optimal", "versions": {**versions, "ortools": "9.14"}}
    assert engine.complete(claim, Outcome(state="succeeded", answer=answer, cache_key=older))
    assert jobs_over(database, engine).submit("f23", submission).id != first.id
    measured(23, "answers of the other version given again", 0, on=database.dialect)
