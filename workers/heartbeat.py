"""Keeps a claim alive while its search runs, reports progress, and learns when to stop.

A thread looks at the job several times a second and renews the lease every quarter of it. When the database
cannot be reached for a whole lease, the claim counts as lost, for good: another worker may run the job, and
the search was stopped too early to count as an answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from math import isfinite
from types import TracebackType
from typing import Self

from meshwright.service.db.database import DATABASE_AWAY
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.states import Beat, Claim
from meshwright.solver.problem import Progress
from meshwright.workers.outage import OUTAGE

LOOK_S = 0.25  # between two looks for a cancel, and between two progress writes


class Heartbeat:
    """A context that renews the claim; ``verdict`` is the action that the worker is to take."""

    def __init__(
        self, engine: JobEngine, claim: Claim, *, spent_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._engine = engine
        self._spent_s = spent_s  # CPU seconds on the job so far
        self._counted_s = 0.0  # of them, those that were written
        self._counting = threading.Lock()
        self._counts = True
        self._claim = claim
        self._verdict: Beat = "ok"
        self._lost = False  # once True it stays True, on whichever thread it was noticed
        self._latest: Progress | None = None
        self._written: Progress | None = None
        self._renewed_at = time.monotonic()  # of this process: only measures its own silence
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    @property
    def verdict(self) -> Beat:
        """Return ``ok``, ``cancel`` or ``lost``; lost also when the last renewal was a whole lease ago."""
        if time.monotonic() - self._renewed_at > self._engine.lease_s:
            self._lost = True
        return "lost" if self._lost else self._verdict

    def uncounted_s(self) -> float:
        """Return the CPU seconds that no beat has written; from now on none writes any."""
        with self._counting:
            self._counts = False
            return max(0.0, self._spent_s() - self._counted_s)

    def report(self, progress: Progress) -> None:
        """Remember the newest progress; it is written with the next beat."""
        self._latest = progress

    def last_progress(self) -> dict[str, object] | None:
        """Return the newest progress as stored: JSON has no infinity, and no report may cost the lease."""
        if self._latest is None:
            return None
        return {
            name: None if isinstance(one, float) and not isfinite(one) else one
            for name, one in asdict(self._latest).items()
        }

    def _run(self) -> None:
        while not self._over.wait(LOOK_S) and self.verdict != "lost":
            try:
                self._beat()
                OUTAGE.over()
            except DATABASE_AWAY as fault:
                OUTAGE.noticed(fault)

    def _newly_spent_s(self) -> float:
        with self._counting:
            new_s = max(0.0, self._spent_s() - self._counted_s) if self._counts else 0.0
            self._counted_s += new_s
        return new_s

    def _beat(self) -> None:
        """Write when there is progress or the lease is due, else only look."""
        started = time.monotonic()
        latest = self._latest
        due = started - self._renewed_at > self._engine.lease_s / 4
        if latest is self._written and not due:
            self._verdict = self._engine.look(self._claim)
            return
        new_s = self._newly_spent_s() if due else 0.0
        try:
            self._verdict = self._engine.heartbeat(self._claim, self.last_progress(), cpu_s=new_s)
        except DATABASE_AWAY:
            with self._counting:
                self._counted_s -= new_s
            raise
        self._renewed_at, self._written = started, latest
