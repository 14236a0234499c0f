"""SQLite writers of one process: one at a time, and those that wait share the next commit.

A commit syncs the file, which costs more than everything else in a small transaction. The thread that
gets its turn does the waiting work of the others too, each in a savepoint of its own, and commits once.
Success is reported only after that commit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import TimeoutError  # noqa: A004 - the pool's: the database is busy

MAX_GROUP = 16
Made = TypeVar("Made")


class WritersTimeoutError(TimeoutError):
    """Other threads of this process hold the database."""


class _Entry(Generic[Made]):
    """One thread's work: done when ``settled``, and then made, or failed."""

    def __init__(self, work: Callable[[Connection], Made]) -> None:
        self.work = work
        self.settled = False
        self.given_up = False  # no thread waits for it any more
        self.made: list[Made] = []
        self.fault: Exception | None = None

    def attempt(self, connection: Connection) -> None:
        """Do the work in a savepoint: what it refuses, or fails at, is its own.

        Raises:
            Exception: what ended the whole transaction (a full disk does).
        """
        driver = connection.connection.driver_connection
        connection.exec_driver_sql("SAVEPOINT entry")  # begin_nested takes four times as long
        try:
            self.made = [self.work(connection)]
        except Exception as fault:
            self.fault = fault
            if driver is None or not driver.in_transaction:
                raise
            connection.exec_driver_sql("ROLLBACK TO entry")
        connection.exec_driver_sql("RELEASE entry")

    def outcome(self) -> Made:
        """Return the result of the work.

        Raises:
            Exception: what it failed with.
        """
        if self.fault is not None:
            raise self.fault
        return self.made[0]


class Grouping:
    """The writers of one SQLite file in one process."""

    def __init__(self, engine: Engine, *, timeout_s: float) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._turn = threading.Lock()
        self._waiting: deque[_Entry[object]] = deque()

    @contextmanager
    def turn(self, *, within_s: float | None = None) -> Iterator[None]:
        """Wait for this thread's turn to write; SQLite would let it sleep, up to 0.1 s, between two tries.

        Raises:
            WritersTimeoutError: others hold the database for too long.
        """
        if not self._turn.acquire(timeout=self._timeout_s if within_s is None else within_s):
            raise WritersTimeoutError("other writers of this process hold the database")
        try:
            yield
        finally:
            self._turn.release()

    def write(self, work: Callable[[Connection], Made]) -> Made:
        """Return the result of ``work`` after a commit, which the work of other threads may share.

        Raises:
            Exception: what the work, or the commit, failed with; then nothing of it is kept.
        """
        entry = _Entry(work)
        self._waiting.append(entry)  # type: ignore[arg-type] # results of every type wait here
        try:
            with self.turn():
                if not entry.settled:
                    self._settle(
                        [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_GROUP))]
                    )
                    if not entry.settled:  # more than a group waited before it
                        self._settle([entry])  # type: ignore[list-item]
        except TimeoutError:
            entry.given_up = True
            raise
        return entry.outcome()

    def _settle(self, found: list[_Entry[object]]) -> None:
        """Do the work of a group and commit it once; what ends the transaction is everybody's fault."""
        group = [entry for entry in found if not entry.settled and not entry.given_up]
        try:
            with self._engine.begin() as connection:
                if len(group) == 1:
                    group[0].made = [group[0].work(connection)]
                else:
                    for entry in group:
                        entry.attempt(connection)
        except Exception as fault:  # noqa: BLE001 - each thread of the group raises it
            for entry in group:
                entry.fault = fault
        for entry in group:
            entry.settled = True
