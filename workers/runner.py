"""Runs one job: claim it, do its work on a helper thread, store how it ended.

The calling thread waits on an Event (never ``threading.Thread.join``: on Python 3.11 an exception inside it
marks a live thread as finished) and decides; the work only ever sees ``should_stop``.

limits, in order: the search's own time limit · soft (it is asked to stop) · hard (it is given up)
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sqlalchemy.exc import SQLAlchemyError

from meshwright.service.db.database import DATABASE_AWAY
from meshwright.service.jobs.answers import cache_key_of, versions_of
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.states import FLEET, Claim, Outcome
from meshwright.service.requests.fields import POST_TRAINING
from meshwright.service.requests.parse import parse_problem
from meshwright.service.telemetry import about, span
from meshwright.solver.answer import Answer
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import OnProgress, Problem, ShouldStop
from meshwright.workers.checkpoint import known_in, passed_on, resumed
from meshwright.workers.heartbeat import Heartbeat
from meshwright.workers.outage import OUTAGE
from meshwright.workers.outcome import outcome_of, outcome_without_answer

SOFT_LIMIT_S = 0.5  # beyond the search's own limit
HARD_LIMIT_S = 10.0  # beyond the search's own limit
STOP_WAIT_S = 2.0  # a stopped search is waited for this long before its job is settled without it
TICK_S = 0.05
STORE_RETRY_S = 0.5

_log = logging.getLogger(__name__)


class SearchCall(Protocol):
    """A callable that answers a problem, reports progress and stops on request."""

    def __call__(
        self,
        problem: Problem,
        *,
        on_progress: OnProgress,
        should_stop: ShouldStop,
        known: Sequence[Configuration],
        compared: bool,
    ) -> Answer:
        """Search, beginning with ``known`` configurations; called on a thread of its own.

        ``compared``: with changes that train faster, which take as long as the search.
        """
        ...


class JobWork(Protocol):
    """The work of one job; a thread does it, and another asks for the rest, also before it is done."""

    def do(self, *, on_progress: OnProgress, should_stop: ShouldStop) -> None:
        """Find the answer, and keep it."""

    @property
    def is_proved(self) -> bool:
        """Return whether there is an answer that no more time would change."""

    def passed_on(self) -> dict[str, Any] | None:
        """Return the checkpoint for the next worker; None: nothing worth it was found."""

    def outcome(self, error: BaseException | None, *, cancelled: bool) -> Outcome:
        """Return how the job ends; ``error`` is what the work raised."""


@dataclass(slots=True)
class SearchWork:
    """The search of one problem."""

    claim: Claim
    search: SearchCall
    cache_key: str = ""  # of the question and of this worker's versions
    answer: Answer | None = None

    def do(self, *, on_progress: OnProgress, should_stop: ShouldStop) -> None:
        """Search, beginning with what an earlier worker had found."""
        claim = self.claim
        problem, is_part = parse_problem(claim.request), claim.parent_id is not None
        self.cache_key = cache_key_of(claim.tenant, claim.request, versions_of(problem), is_part=is_part)
        self.answer = self.search(
            problem,
            on_progress=on_progress,
            should_stop=should_stop,
            known=known_in(claim.checkpoint),
            compared=not is_part,  # a sweep's table shows none
        )

    @property
    def is_proved(self) -> bool:
        """Return whether the answer is optimal, or proves that nothing fits."""
        return self.answer is not None and self.answer.status in {"optimal", "infeasible"}

    def passed_on(self) -> dict[str, Any] | None:
        """Return the best plans so far."""
        return passed_on(self.answer, self.claim.checkpoint)

    def outcome(self, error: BaseException | None, *, cancelled: bool) -> Outcome:
        """Return the outcome of the search, or the checkpoint where that is better."""
        if self.answer is None:
            found = outcome_without_answer(error, cancelled=cancelled)
        else:
            found = outcome_of(self.answer, cache_key=self.cache_key, cancelled=cancelled)
        return resumed(found, self.claim.checkpoint)


@dataclass(slots=True)
class _Running:
    """One job's work while it runs: its thread fills in the error, then sets ``done``."""

    work: JobWork
    stop: threading.Event
    done: threading.Event
    began_cpu_s: float = field(default_factory=lambda: _cpu_s())  # noqa: PLW0108 - defined below
    error: BaseException | None = None


def _cpu_s() -> float:
    """Return CPU seconds of this process, which runs one job at a time, and of its child processes."""
    spent = os.times()
    return time.process_time() + spent.children_user + spent.children_system


class Runner:
    """Runs jobs one at a time; several callers in one process take turns."""

    def __init__(
        self,
        engine: JobEngine,
        search: SearchCall,
        *,
        worker: str,
        leaving: threading.Event,
        on_child_ended: Callable[[str], None] = lambda _parent_id: None,
        fleet: Callable[[Claim], JobWork] | None = None,
        roles: Callable[[Claim], JobWork] | None = None,
    ) -> None:
        self._engine = engine
        self._search = search
        self._fleet = fleet  # makes the work of a fleet; None: the embedding has no fleets
        self._roles = roles  # the same of post-training
        self._worker = worker
        self._leaving = leaving  # set by SIGTERM: stop, give the job back
        self._on_child_ended = on_child_ended  # gets the id of its sweep
        self._turn = threading.Lock()

    def run_next(self, *, min_age_s: float = 0.0) -> bool:
        """Claim and run the queued job that is next; False: there is none."""
        with self._turn:
            if self._leaving.is_set():
                return False
            claim = self._engine.claim_one(self._worker, min_age_s=min_age_s)
            if claim is None:
                return False
            ids = {"job_id": claim.job_id, "tenant": claim.tenant}
            with about(**ids, request_id=claim.request_id), span("job", claim.traceparent, ids):
                _log.info("job %s: claimed, attempt %d", claim.job_id, claim.attempts)
                self._run(claim)
            return True

    def wait_idle(self) -> None:
        """Wait until no caller runs a job any more."""
        with self._turn:
            return

    def _run(self, claim: Claim) -> None:
        running = _Running(work=self._work(claim), stop=threading.Event(), done=threading.Event())
        with Heartbeat(self._engine, claim, spent_s=lambda: _cpu_s() - running.began_cpu_s) as heartbeat:
            _start(claim, running, heartbeat)
            self._wait(claim, running, heartbeat)
            self._store(claim, self._settlement(claim, running, heartbeat), heartbeat)
        if claim.parent_id is not None:
            self._on_child_ended(claim.parent_id)
        if not running.done.is_set():
            _log.error("job %s: its search does not stop; this worker exits", claim.job_id)
            self._leaving.set()

    def _work(self, claim: Claim) -> JobWork:
        if claim.kind == FLEET and self._fleet is not None:
            return self._fleet(claim)
        if claim.kind == POST_TRAINING and self._roles is not None:
            return self._roles(claim)
        return SearchWork(claim, self._search)

    def _wait(self, claim: Claim, running: _Running, heartbeat: Heartbeat) -> None:
        soft_at = time.monotonic() + claim.time_limit_s + SOFT_LIMIT_S
        give_up_at = soft_at - SOFT_LIMIT_S + HARD_LIMIT_S
        while not running.done.wait(TICK_S):
            now = time.monotonic()
            if self._leaving.is_set() or heartbeat.verdict != "ok":
                give_up_at = min(give_up_at, now + STOP_WAIT_S)
                running.stop.set()
            elif now > soft_at:
                running.stop.set()
            if now > give_up_at:
                return

    def _settlement(self, claim: Claim, running: _Running, heartbeat: Heartbeat) -> Callable[[], bool]:
        engine, work, spent_s = self._engine, running.work, heartbeat.uncounted_s()
        cancelled = heartbeat.verdict == "cancel"
        proved = work.is_proved
        if heartbeat.verdict == "lost" and not proved:
            return lambda: engine.abandon(claim)  # the result of a stopped search is not an answer
        if isinstance(running.error, DATABASE_AWAY) and not cancelled:
            return lambda: False  # it did not get its profile; the sweeper takes the job, three times
        if self._leaving.is_set() and not cancelled and not proved:
            found = work.passed_on()
            return lambda: engine.release(claim, found, cpu_s=spent_s)
        last = replace(work.outcome(running.error, cancelled=cancelled), progress=heartbeat.last_progress())
        return lambda: engine.complete(claim, last, cpu_s=spent_s)

    def _store(self, claim: Claim, settle: Callable[[], bool], heartbeat: Heartbeat) -> None:
        while True:
            try:
                if not settle():
                    _log.warning("job %s: the claim was lost, its result is dropped", claim.job_id)
            except DATABASE_AWAY as fault:
                OUTAGE.noticed(fault)
                if heartbeat.verdict == "lost":
                    return
                time.sleep(STORE_RETRY_S)
            except SQLAlchemyError:
                _log.exception("job %s: its result cannot be stored", claim.job_id)
                self._engine.fail(claim, code="internal_error", detail="its result could not be stored")
                return
            else:
                return


def _start(claim: Claim, running: _Running, heartbeat: Heartbeat) -> None:
    def body() -> None:
        try:
            running.work.do(on_progress=heartbeat.report, should_stop=running.stop.is_set)
        except BaseException as fault:  # noqa: BLE001 - whatever it is, the job must end
            running.error = fault
        finally:
            running.done.set()

    threading.Thread(target=body, name=f"search-{claim.job_id[:8]}", daemon=True).start()
