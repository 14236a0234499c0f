"""``python -m meshwright.workers``: one worker process, polling or, with ``--celery``, next to a queue."""

from __future__ import annotations

import argparse
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service import telemetry
from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from meshwright.service.errors import remedy_of
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.queue import (
    QUEUE_NAME,
    TASK_NAME,
    VERIFY_QUEUE_NAME,
    VERIFY_TASK_NAME,
    password_refusal,
    queue_for,
)
from meshwright.service.jobs.retention import Retention
from meshwright.service.jobs.sweeps import Sweeps
from meshwright.service.settings import Settings, settings_with
from meshwright.service.stores.verifications import Verifications
from meshwright.workers.fleet import FleetWork
from meshwright.workers.outage import patiently
from meshwright.workers.poller import note_presence, note_statistics, poll, prune, repeat, sweep
from meshwright.workers.roles import RolesWork
from meshwright.workers.runner import Runner, SearchCall
from meshwright.workers.search import StoredSearch
from meshwright.workers.verifying import verify_next

PARENT_LOOK_S = 1.0
PRESENCE_S = 10.0  # between two signs of life
PRESENCE_WAIT_S = 1.0  # for the last one
VERIFY_LOOK_S = 1.0  # of a worker that searches, at plans to be verified


def main(argv: list[str] | None = None, *, search: SearchCall | None = None) -> int:
    """Run until SIGTERM or Ctrl-C; a running job is then given back.

    Returns:
        The exit code: 0 after a signal or the end of the parent process, else 1: a supervisor then starts
        this worker again.
    """
    arguments = _arguments(argv)
    given = {"database_url": arguments.database_url, "redis_url": arguments.redis_url}
    try:
        settings = settings_with({name: value or None for name, value in given.items()})
    except InvalidProblemError as fault:
        said = [f"error: {one.sentence()}" for one in fault.errors]
        remedies = [f"tip: {one}" for one in map(remedy_of, fault.errors) if one]
        raise SystemExit("\n".join([*said, *remedies])) from None
    gc.freeze()  # what is loaded stays: no search looks through it for garbage
    telemetry.configure_logging(settings.log_format)
    telemetry.configure()
    if settings.worker_memory_bytes is not None:  # so that one search takes none from the others
        resource.setrlimit(resource.RLIMIT_DATA, (settings.worker_memory_bytes,) * 2)
    if arguments.celery and not settings.redis_url:
        raise SystemExit("error: --celery needs --redis-url or MESHWRIGHT_REDIS_URL")
    if arguments.celery and (refusal := password_refusal(settings.queue_url)) is not None:
        raise SystemExit(f"error: {refusal}")
    leaving = Leaving()
    if arguments.install:
        _on_signals(lambda *_: sys.exit(0))  # the first process of a container is ended in no other way
        _install()
    _on_signals(lambda *_: leaving.ask())
    if arguments.parent_pid is not None:
        _start(lambda: _watch_parent(arguments.parent_pid, leaving), leaving)
    if arguments.verify:
        _verify(settings, leaving, celery=arguments.celery)
    else:
        _work(settings, search, leaving, celery=arguments.celery)
    return os.EX_OK if leaving.asked else 1


class Leaving(threading.Event):
    """Set when this process is to end, for whatever reason."""

    asked = False  # by a signal or the end of the parent process

    def ask(self) -> None:
        """Set the event, on a request from outside."""
        self.asked = True
        self.set()


def _on_signals(act: Callable[..., None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, act)


def _work(settings: Settings, search: SearchCall | None, leaving: Leaving, *, celery: bool) -> None:
    """Sweep and poll on threads next to Celery, or sweep on a thread and poll here."""
    database = Database(settings.database_url)
    _require_schema(database, leaving)
    engine = JobEngine(
        database,
        lease_s=settings.lease_s,
        max_running_jobs=settings.max_running_jobs,
        max_cpu_s_per_day=settings.max_cpu_s_per_day,
    )
    queue = queue_for(settings.queue_url)
    name = _name()
    present = _present(settings, database, "search", leaving)
    sweeps = Sweeps(database, engine, worker=name)
    runner = Runner(
        engine,
        search or StoredSearch(database),
        worker=name,
        leaving=leaving,
        on_child_ended=sweeps.child_ended,
        fleet=partial(FleetWork.on, database),
        roles=partial(RolesWork.on, database),
    )
    _start(
        lambda: sweep(engine, queue, sweeps, worker=name, every_s=settings.sweep_s, leaving=leaving),
        leaving,
    )
    retention = Retention(
        database, keep_jobs_days=settings.keep_jobs_days, idempotency_ttl_s=settings.idempotency_ttl_s
    )
    _start(
        lambda: prune(engine, retention, worker=name, every_s=settings.sweep_s, leaving=leaving), leaving
    )
    _start(
        lambda: note_statistics(engine, database, worker=name, sweep_s=settings.sweep_s, leaving=leaving),
        leaving,
    )
    if celery:
        slow = settings.slow_poll_s
        _start(lambda: poll(runner, every_s=slow, leaving=leaving, min_age_s=slow), leaving)
        _follow_hints(settings, TASK_NAME, QUEUE_NAME, runner.run_next, leaving)
    else:
        following = _following(settings, database, leaving)
        _start(lambda: repeat(following, every_s=VERIFY_LOOK_S, leaving=leaving), leaving)
        poll(runner, every_s=settings.poll_s, leaving=leaving)
        following()  # takes nothing any more, after the one that gives its plan back
    runner.wait_idle()
    present.join(PRESENCE_WAIT_S)
    database.close()


def _name() -> str:
    return f"{socket.gethostname()[:96]}:{os.getpid()}"


def _present(settings: Settings, database: Database, kind: str, leaving: Leaving) -> threading.Thread:
    """Start noting that this worker is alive."""
    every_s = min(settings.sweep_s, PRESENCE_S)
    return _start(
        lambda: note_presence(database, _name(), kind=kind, every_s=every_s, leaving=leaving), leaving
    )


def _verify(settings: Settings, leaving: Leaving, *, celery: bool) -> None:
    database = Database(settings.database_url)
    _require_schema(database, leaving)
    present = _present(settings, database, "verify", leaving)
    following = _following(settings, database, leaving)
    if celery:
        _start(lambda: repeat(following, every_s=settings.slow_poll_s, leaving=leaving), leaving)
        _follow_hints(settings, VERIFY_TASK_NAME, VERIFY_QUEUE_NAME, following, leaving)
        following()  # takes nothing any more, after the one that gives its plan back
    else:
        repeat(following, every_s=settings.poll_s, leaving=leaving)
    present.join(PRESENCE_WAIT_S)
    database.close()


def _follow_hints(
    settings: Settings, task: str, queue: str, step: Callable[[], bool], leaving: Leaving
) -> None:
    """Call ``step`` at every hint of a queue, until this process is to end."""
    from meshwright.workers.celery_app import run_celery  # noqa: PLC0415 - embedded workers do without Celery
    from meshwright.workers.tasks import register  # noqa: PLC0415 - the same

    run_celery(
        settings.queue_url or "",
        lambda app: register(app, task, step, leaving),
        queue=queue,
        leaving=leaving,
        leave=leaving.ask,
    )
    leaving.set()


def _install() -> None:
    from meshwright.service.verify.environments import make  # noqa: PLC0415 - searching workers do without it
    from meshwright.service.verify.verify import BUILDERS  # noqa: PLC0415 - the same

    for name, environment in BUILDERS.items():
        try:
            make(environment)
        except subprocess.CalledProcessError as fault:
            raise SystemExit(f"error: the environment of {name}: {fault.stderr or fault}") from None


def _following(settings: Settings, database: Database, leaving: threading.Event) -> Callable[[], bool]:
    """Verify the plan that waits longest; several callers in one process take turns."""
    engine = JobEngine(database, lease_s=settings.lease_s)
    queue = queue_for(settings.queue_url)
    jobs = Jobs(database, engine, queue, queue_timeout_s=settings.queue_timeout_s)
    store = Verifications(
        database, jobs, queue, lease_s=settings.lease_s, max_attempts=settings.verify_attempts
    )
    turn = threading.Lock()

    def following() -> bool:
        with turn:
            return verify_next(
                store,
                memory_bytes=settings.verify_memory_bytes,
                time_s=settings.verify_time_s,
                leaving=leaving,
            )

    return following


def _require_schema(database: Database, leaving: threading.Event) -> None:
    """Wait for the database; refuse a schema that this code cannot serve.

    Raises:
        SystemExit: the schema is another one.
    """
    try:
        patiently(lambda: migrations.require(database), leaving)
    except migrations.UnsupportedSchemaError as fault:
        raise SystemExit(f"error: {fault}") from None


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m meshwright.workers", description="Run Meshwright's searches."
    )
    parser.add_argument("--database-url", help="default: MESHWRIGHT_DATABASE_URL")
    parser.add_argument("--redis-url", help="default: MESHWRIGHT_REDIS_URL")
    parser.add_argument(
        "--celery", action="store_true", help="wait for wake-ups from Redis and poll slowly"
    )
    parser.add_argument("--verify", action="store_true", help="only verify plans")
    parser.add_argument("--install", action="store_true", help="install the launchers' environments first")
    parser.add_argument("--parent-pid", type=int, help="exit when this parent process ends")
    return parser.parse_args(argv)


def _watch_parent(parent_pid: int, leaving: Leaving) -> None:
    while not leaving.wait(PARENT_LOOK_S):
        if os.getppid() != parent_pid:
            leaving.ask()


def _start(body: Callable[[], None], leaving: threading.Event) -> threading.Thread:
    """Run ``body`` on a thread; a process without one of its loops must not linger, so it leaves."""

    def run() -> None:
        try:
            body()
        finally:
            leaving.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


if __name__ == "__main__":
    raise SystemExit(main())
