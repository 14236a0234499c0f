"""PostgreSQL, Redis, a real API process and real Celery worker processes."""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest
from celery import Celery
from sqlalchemy import delete

from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from meshwright.service.db.tables import jobs
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.queue import QUEUE_NAME, TASK_NAME, CeleryQueue
from meshwright.service.verify.environments import FOLDER_VARIABLE, MEGATRON_LM
from meshwright.workers.celery_app import make_app
from tests.processes.quiet_clock import quiet_seconds
from tests.processes.servers import (
    HANGS_S,
    SERVE,
    RedisServer,
    RunningServer,
    Settings,
    free_port,
    serving,
    until,
    working,
)
from tests.reliability.figures import measured
from tests.served.job_records import TINY_PROBLEM, TINY_SEARCH, add_tiny_job, job_in
from tests.served.migrated import migrated

PROVED = {**TINY_SEARCH, "top_k": 3, "certify": "cp-sat"}
SLOW, ODD = "tests.processes.slow_worker", "tests.processes.odd_worker"
# Killed when the row is committed and the hint is not sent yet.
DYING_API = f"""
import os
from meshwright.service.jobs.queue import CeleryQueue
CeleryQueue.wake = lambda *_: os.kill(os.getpid(), 9)
{SERVE}
"""
FRESH = {"params": {"fresh": "true"}}  # not the answer that an earlier test got


@pytest.fixture(scope="module")
def settings(postgres: Database, redis: RedisServer) -> Settings:
    return {
        "database_url": postgres.url.render_as_string(hide_password=False),
        "redis_url": redis.url,
        "workers": "0",
        "lease_s": "2",
        "sweep_s": "0.5",
        "slow_poll_s": "1",
    }


@pytest.fixture(scope="module")
def server(settings: Settings) -> Iterator[RunningServer]:
    with serving(settings) as running:
        yield running


def test_a_celery_worker_answers_what_the_api_took_in(server: RunningServer, settings: Settings) -> None:
    ready = httpx.get(f"{server.url}/readyz").json()
    assert ready == {"ready": True, "database": "ok", "migration": "current", "queue": "ok"}
    with working({**settings, "slow_poll_s": "60"}, "--celery"):  # only a hint can start it this soon
        job = server.finished_job(server.post_job({**TINY_PROBLEM, "search": PROVED}, **FRESH)["id"])
    assert (job["state"], job["attempts"]) == ("succeeded", 1)
    answer = httpx.get(server.url + job["links"]["plans"]).json()
    assert answer["status"] == "optimal"
    assert len(answer["plans"]) == 3


def test_a_celery_worker_of_its_own_verifies_a_plan_that_was_asked_for(
    server: RunningServer, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsharded = {**TINY_PROBLEM, "search": {**PROVED, "forbid": {"zero_stage": [2, 3]}}}  # need a GPU
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    python = MEGATRON_LM.python
    python.parent.mkdir(parents=True)
    (MEGATRON_LM.folder / "ready").write_text(MEGATRON_LM.stamp)
    refusal = '{"refusal": "no GPU"}'
    python.write_text(f"#!/bin/sh\ncat >/dev/null; echo '{refusal}'\n")  # a launcher that will not
    python.chmod(0o755)
    with working({**settings, "slow_poll_s": "60"}, "--celery"):
        job = server.finished_job(server.post_job(unsharded, **FRESH)["id"])
    plan = httpx.get(server.url + job["links"]["plans"]).json()["plans"][0]["plan_id"]
    with (
        serving({**settings, "verify_elsewhere": "true"}) as trusting,
        working({**settings, "slow_poll_s": "60"}, "--celery", "--verify"),  # only a hint can start it
    ):
        asked = httpx.post(f"{trusting.url}/v1/plans/{plan}:verify").json()
        assert asked["state"] in ("queued", "running")  # a worker may be quick
        told: dict[str, Any] = {}

        def is_done() -> bool:
            told.update(httpx.get(f"{trusting.url}/v1/plans/{plan}/verification").json())
            return bool(told["state"] == "done")

        until(is_done)
    assert (told["verdict"], told["reasons"]) == ("not built", ["no GPU"])


def test_f02_without_redis_a_job_is_taken_in_at_once_and_still_runs(
    server: RunningServer, settings: Settings, redis: RedisServer
) -> None:
    redis.stop()
    try:
        started = time.monotonic()
        job = server.post_job(TINY_PROBLEM, **FRESH)
        took_s = time.monotonic() - started
        with working(settings, "--celery"):
            assert server.finished_job(job["id"])["state"] == "succeeded"
        assert httpx.get(f"{server.url}/readyz").json()["queue"] == "degraded"
    finally:
        redis.start()
    measured(2, "POST took", took_s * 1e3, "ms")


@pytest.fixture
def hinted(tmp_path: Path) -> Iterator[tuple[Database, Settings, RedisServer]]:
    """A Redis of a test's own, and jobs that only its hints can start."""
    redis = RedisServer(port=free_port(), folder=tmp_path)
    redis.start()
    database = Database(migrated(tmp_path / "jobs.db"))
    settings = {"database_url": str(database.url), "redis_url": redis.url}
    yield database, {**settings, "slow_poll_s": "60", "sweep_s": "60"}, redis
    database.close()
    redis.stop()


def hint(redis: RedisServer, *job_ids: str) -> None:
    queue = CeleryQueue(redis.url)
    for job_id in job_ids:
        queue.wake(job_id)


def test_f02_a_worker_goes_on_after_redis_died_at_its_acknowledgement(
    hinted: tuple[Database, Settings, RedisServer],
) -> None:
    database, settings, redis = hinted
    add_tiny_job(database, "first", batch=13)
    with working(settings, "redis-dies", "--celery", module=ODD) as worker:
        hint(redis, "first")
        until(lambda: job_in(database, "first").state == "succeeded")
        assert redis.process is not None
        redis.process.wait(HANGS_S)
        redis.start()
        add_tiny_job(database, "second")
        hint(redis, "second")
        until(lambda: job_in(database, "second").state == "succeeded")
        assert worker.poll() is None
        worker.terminate()
        assert worker.wait(HANGS_S) == 0


def test_f02_a_channel_with_an_open_hint_closes_after_its_connection_is_gone(redis: RedisServer) -> None:
    with make_app(redis.url).connection_for_read() as connection:
        queue = connection.SimpleQueue("hints")
        queue.put("job")
        assert queue.get(timeout=HANGS_S).payload == "job"  # not acknowledged
        connection.transport.client = None
        connection.default_channel.close()  # type: ignore[attr-defined]


def test_f02_a_worker_that_redis_refuses_its_acknowledgement_ends_as_failed(
    hinted: tuple[Database, Settings, RedisServer],
) -> None:
    database, settings, redis = hinted
    add_tiny_job(database)
    with working(settings, "demoted", "--celery", module=ODD, stderr=subprocess.DEVNULL) as worker:
        hint(redis, "job")
        assert worker.wait(HANGS_S) == 1  # a supervisor starts it again
    assert job_in(database).state == "succeeded"


def test_f03_what_a_restarted_redis_lost_is_published_again(
    server: RunningServer, settings: Settings, redis: RedisServer
) -> None:
    job = server.post_job(TINY_PROBLEM, **FRESH)
    redis.stop()
    redis.start()  # it keeps nothing
    restarted_at = time.monotonic()
    with working({**settings, "slow_poll_s": "60"}, "--celery"):
        assert server.finished_job(job["id"])["state"] == "succeeded"
    measured(
        3, "done after Redis came back, a worker's start included", time.monotonic() - restarted_at, "s"
    )


def test_f04_a_job_runs_once_however_often_its_hint_is_delivered(
    server: RunningServer, settings: Settings, redis: RedisServer
) -> None:
    job = server.post_job(TINY_PROBLEM, **FRESH)
    queue = CeleryQueue(redis.url)
    for _ in range(5):
        queue.wake(job["id"])
    publisher = Celery(broker=redis.url, set_as_current=False)
    publisher.send_task(TASK_NAME, args=["no such job"], queue=QUEUE_NAME, ignore_result=True)
    with working(settings, "--celery"), working(settings, "--celery"):
        done = server.finished_job(job["id"])
        last = server.finished_job(server.post_job(TINY_PROBLEM, **FRESH)["id"])  # after all those hints
    assert (done["state"], done["attempts"]) == ("succeeded", 1)
    measured(4, "attempts after six deliveries", done["attempts"])
    assert server.job(job["id"])["finished_at"] == done["finished_at"]
    assert last["state"] == "succeeded"


def test_f04_a_second_delivery_that_finds_nothing_to_do_takes_less_than_50_ms(postgres: Database) -> None:
    engine = JobEngine(postgres, lease_s=2.0)
    with postgres.write() as connection:
        connection.execute(delete(jobs))
    took_s = []
    for _ in range(20):
        started = time.monotonic()
        assert engine.claim_one("again") is None
        took_s.append(time.monotonic() - started)
    assert min(took_s) < 0.05  # the others may have waited for a processor
    measured(4, "a delivery that finds nothing", median(took_s) * 1e3, "ms")


def test_f01_an_api_killed_between_commit_and_publish_loses_no_job(
    settings: Settings, server: RunningServer
) -> None:
    with serving(settings, start=DYING_API) as dying, pytest.raises(httpx.HTTPError):
        dying.post_job(TINY_PROBLEM, **FRESH)
    (job,) = [job for job in httpx.get(f"{server.url}/v1/jobs").json()["jobs"] if job["state"] == "queued"]
    killed_at = time.monotonic()
    with working({**settings, "slow_poll_s": "600"}, "--celery"):  # only a hint can start it
        until(lambda: server.job(job["id"])["state"] != "queued")
        took_s = time.monotonic() - killed_at
        measured(1, "started after, a worker's start included", took_s, "s")
        assert server.finished_job(job["id"])["state"] == "succeeded"


def test_f05_worker_sigkill_mid_solve_another_celery_worker_does_the_job(
    server: RunningServer, settings: Settings
) -> None:
    job = server.post_job(TINY_PROBLEM, **FRESH)
    with working(settings, "--celery", module=SLOW) as first:
        until(lambda: server.job(job["id"])["state"] == "running")
        first.kill()
        first.wait()
    with working(settings, "--celery"):
        done = server.finished_job(job["id"])
    assert (done["state"], done["attempts"]) == ("succeeded", 2)


def test_f06_a_frozen_celery_worker_that_wakes_up_changes_nothing(
    server: RunningServer, settings: Settings
) -> None:
    job = server.post_job(TINY_PROBLEM, **FRESH)
    with working(settings, "--celery", module=SLOW) as first:
        until(lambda: server.job(job["id"])["state"] == "running")
        first.send_signal(signal.SIGSTOP)
        with working(settings, "--celery"):
            done = server.finished_job(job["id"])
            first.send_signal(signal.SIGCONT)
            time.sleep(1.0)  # time enough to write, were it allowed to
            assert server.job(job["id"]) == done
    assert (done["state"], done["attempts"]) == ("succeeded", 2)


def test_f10_sigterm_celery_worker_gives_its_job_back_uncounted(
    server: RunningServer, settings: Settings
) -> None:
    job = server.post_job(TINY_PROBLEM, **FRESH)
    with working(settings, "--celery", module=SLOW) as worker:
        until(lambda: server.job(job["id"])["state"] == "running")
        worker.terminate()  # amid a search that never ends
        assert worker.wait(HANGS_S) == 0
        assert (server.job(job["id"])["state"], server.job(job["id"])["attempts"]) == ("queued", 0)
    with working(settings, "--celery"):
        assert server.finished_job(job["id"])["attempts"] == 1


def test_an_idle_worker_told_to_leave_does_so_within_two_seconds(
    redis: RedisServer, tmp_path: Path
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    migrations.upgrade(database)
    add_tiny_job(database)
    settings = {"database_url": str(database.url), "redis_url": redis.url, "slow_poll_s": "0.2"}
    with working(settings, "--celery") as worker:
        until(lambda: job_in(database).state == "succeeded")
        with quiet_seconds() as clock:
            worker.terminate()
            assert worker.wait(HANGS_S) == 0
        assert clock.took_s < 2.0


def test_f09_a_running_job_shows_progress_and_is_cancelled(
    server: RunningServer, settings: Settings
) -> None:
    job = server.post_job(TINY_PROBLEM, **FRESH)
    with working(settings, "--celery", module=SLOW):
        until(lambda: (server.job(job["id"]).get("progress") or {}).get("explored", 0) > 0)
        assert httpx.post(f"{server.url}/v1/jobs/{job['id']}:cancel").status_code == 200
        done = server.finished_job(job["id"])
    assert done["state"] == "cancelled"
    kept = httpx.get(f"{server.url}/v1/jobs/{job['id']}/plans").json()
    assert (kept["status"], len(kept["plans"])) == ("feasible", 1)


def test_a_polling_worker_needs_no_queue(server: RunningServer, settings: Settings) -> None:
    polling = {name: value for name, value in settings.items() if name != "redis_url"}
    with working(polling):
        assert server.finished_job(server.post_job(TINY_PROBLEM, **FRESH)["id"])["state"] == "succeeded"
