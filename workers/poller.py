"""The loops of a worker process: look for jobs, and sweep. Both outlive a database that is away."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from meshwright.service.db.database import DATABASE_AWAY, Database
from meshwright.service.db.usage_records import forget_worker, note_worker
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.queue import WakeUpQueue
from meshwright.service.jobs.retention import Retention
from meshwright.service.jobs.sweeps import Sweeps
from meshwright.solver.answer import version_of
from meshwright.workers.outage import MAX_PAUSE_S, OUTAGE
from meshwright.workers.runner import Runner

STATISTICS_S = 600.0  # between two looks; a connection to SQLite lives as long
LEAD_SWEEPS = 1.5  # a leader that is silent for longer than a sweep is replaced
_log = logging.getLogger(__name__)


def poll(runner: Runner, *, every_s: float, leaving: threading.Event, min_age_s: float = 0.0) -> None:
    """Run queued jobs one after another until ``leaving``; look again ``every_s`` when there is none."""
    repeat(lambda: runner.run_next(min_age_s=min_age_s), every_s=every_s, leaving=leaving)


def sweep(
    engine: JobEngine,
    queue: WakeUpQueue,
    sweeps: Sweeps,
    *,
    worker: str,
    every_s: float,
    leaving: threading.Event,
) -> None:
    """Sweep while this worker leads, and publish again what waits: this is the outbox of submitting."""
    lead_s = LEAD_SWEEPS * every_s
    repeat(
        lambda: engine.leads(worker, lead_s) and sweep_once(engine, queue, sweeps),
        every_s=every_s,
        leaving=leaving,
    )


def sweep_once(engine: JobEngine, queue: WakeUpQueue, sweeps: Sweeps) -> bool:
    """Return one sweep; False, as there is never a reason to repeat it at once."""
    swept = engine.sweep()
    sweeps.join_ready()
    for job_id in swept.waiting:
        queue.wake(job_id)
    if swept.requeued or swept.poisoned:
        _log.warning("sweep: %d jobs queued again, %d given up", swept.requeued, swept.poisoned)
    return False


def prune(
    engine: JobEngine, retention: Retention, *, worker: str, every_s: float, leaving: threading.Event
) -> None:
    """Forget what is too old while this worker leads, a batch at a time."""
    repeat(
        lambda: engine.leads(worker, LEAD_SWEEPS * every_s) and retention.prune().may_be_more,
        every_s=every_s,
        leaving=leaving,
    )


def note_statistics(
    engine: JobEngine, database: Database, *, worker: str, sweep_s: float, leaving: threading.Event
) -> None:
    """Let the database look at its tables now and then while this worker leads."""

    def step() -> bool:
        if engine.leads(worker, LEAD_SWEEPS * sweep_s):
            database.note_statistics()
        return False

    repeat(step, every_s=STATISTICS_S, leaving=leaving)


def note_presence(
    database: Database, name: str, *, kind: str, every_s: float, leaving: threading.Event
) -> None:
    """Note now and then that this worker is alive, and at the end that it is gone."""
    version = version_of("meshwright")

    def step() -> bool:
        with database.write() as connection:
            note_worker(connection, name, kind=kind, version=version)
        return False

    repeat(step, every_s=every_s, leaving=leaving)
    with suppress(*DATABASE_AWAY), database.write() as connection:
        forget_worker(connection, name)


def repeat(step: Callable[[], bool], *, every_s: float, leaving: threading.Event) -> None:
    """Call ``step`` until ``leaving``: at once after True, after a pause else, slower after failures."""
    pause_s = every_s
    while not leaving.is_set():
        try:
            again = step()
            OUTAGE.over()
            if again:
                continue
            pause_s = every_s
        except DATABASE_AWAY as fault:
            pause_s = min(MAX_PAUSE_S, 2 * pause_s)
            OUTAGE.noticed(fault)
        leaving.wait(pause_s)
