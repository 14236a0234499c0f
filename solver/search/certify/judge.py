"""CP-SAT as independent judge of the closed-form minimum, in a child process.

The child starts with the search, so that loading OR-Tools costs no time of its own. It is asked for the
least objective over the first plan's row and up to MAX_RIVALS rows that its objective does not rule out,
for the first plan's row alone where another has the least, and for each further plan's row
(``cp-sat-all``). Its proved minimum must be the exact program's, to the
microsecond it counts in; another value is a bug and raises. No answer in time means not certified.
Searches one after the other may take turns with one child (``kept_child``).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from meshwright.solver.clock import Watch
from meshwright.solver.cost.stages import objective_s
from meshwright.solver.problem import ProofMismatchError, SearchOptions
from meshwright.solver.search.certify.request import Request, is_expressible
from meshwright.solver.search.certify.row_request import row_request
from meshwright.solver.search.frontier import Frontier

MAX_RIVALS = 7  # rows in addition to the first plan's that CP-SAT chooses among
_DETERMINISTIC_LIMIT = 8.0  # CP-SAT's own clock: the same verdict on a busy machine
_POLL_S = 0.05
_GRACE_S = 0.3
_ROUNDING_S = 2e-6  # one microsecond of the objective, and nanosecond coefficients
_RELATIVE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Rows with a closed-form minimum that CP-SAT confirmed, and the reasons why others lack it."""

    rows: frozenset[int] = frozenset()
    warnings: tuple[str, ...] = ()


_KEPT: ContextVar[list[subprocess.Popen[bytes]] | None] = ContextVar("kept", default=None)
os.register_at_fork(after_in_child=lambda: _KEPT.set(None))  # it is the parent's


@contextmanager
def kept_child() -> Iterator[None]:
    """Share one child among the searches of this block; it ends with the outermost block."""
    if _KEPT.get() is not None:
        yield
        return
    waiting = list[subprocess.Popen[bytes]]()
    before = _KEPT.set(waiting)
    try:
        yield
    finally:
        _KEPT.reset(before)
        for child in waiting:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a child; it holds nothing worth saving."""
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:  # what was still buffered is not read
                continue


class Judge:
    """Child process of a search; a context manager that always ends it."""

    def __init__(self, options: SearchOptions, *, lazy: bool = False) -> None:
        """Create a judge; ``lazy`` starts the child when there is something to judge, not beforehand."""
        self._options, self._lazy = options, lazy
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if not self._lazy:
            self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        kept = _KEPT.get()
        if kind is None and kept is not None and self._child is not None:  # it waits for a question
            kept.append(self._child)
            self._child = None
        self._stop()

    def _start(self) -> None:
        """Start the child, or take a waiting one, if anything is to be judged."""
        if self._options.certify == "none":
            return
        kept = _KEPT.get()
        while kept:
            self._child = kept.pop()
            if self._child.poll() is None:
                return
            _end(self._child)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "meshwright.solver.search.certify.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )

    def certify(self, frontier: Frontier, survivors: tuple[int, ...], watch: Watch) -> Certificate:
        """Judge the first plan's row (the first of ``survivors``), and all K on request.

        Raises:
            ProofMismatchError: CP-SAT proves another minimum than the exact program.
        """
        if not survivors or not frontier.finished:
            return Certificate()
        if self._lazy:
            self._start()
        if self._child is None:
            return Certificate()
        watch.report("certifying", now=True, incumbent_s=frontier.ranked[0].score_s)
        among = survivors[: 1 + MAX_RIVALS]
        overall = self._confirms(frontier, among, watch)
        rows = [one.row for one in frontier.ranked]
        if self._options.certify != "cp-sat-all":
            rows = rows[:1]
        least = min(among, key=lambda row: frontier.solved[row].objective_s)
        judged = {least} if overall else set()
        confirmed = {
            row for row in rows if overall and (row in judged or self._confirms(frontier, (row,), watch))
        }
        missing = len(rows) - len(confirmed)
        warning = f"CP-SAT did not finish in time for {missing} of {len(rows)} certificates"
        return Certificate(rows=frozenset(confirmed), warnings=(warning,) if missing else ())

    def _confirms(self, frontier: Frontier, rows: tuple[int, ...], watch: Watch) -> bool:
        """Return whether CP-SAT proves the exact program's minimum over ``rows``; False: not in time."""
        solved = frontier.solve(list(rows))
        best = min(solved, key=lambda s: (s.objective_s, s.row))
        asked = frontier.rows.take([s.row for s in solved])
        layout = asked.without_ends().layout
        request = Request(
            num_layers=layout.num_layers,
            cumulative=layout.cumulative.T.tolist(),
            rows=[row_request(asked, at) for at in range(len(solved))],
            hint_row=solved.index(best),
            hint_split=asked.layout.without_end_counts(best.split),
            seed=self._options.seed,
            time_limit_s=max(watch.left_s, _POLL_S),
            deterministic_limit=_DETERMINISTIC_LIMIT,
        )
        if not is_expressible(request):
            return False
        verdict = self.ask(request.to_json(), watch)
        if verdict is None:
            return False
        _compare(frontier, [s.row for s in solved], verdict, best.objective_s)
        return True

    @property
    def runs(self) -> bool:
        """Return whether a child is running."""
        return self._child is not None

    def ask(self, request: Mapping[str, Any], watch: Watch) -> Mapping[str, Any] | None:
        """Return the child's proved verdict; None if it is stopped, out of time or gone.

        Raises:
            ProofMismatchError: CP-SAT finds that a model with a known solution has none.
        """
        child = self._child
        if child is None or child.stdin is None or child.stdout is None:
            return None
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            self._stop()
            return None
        deadline = time.monotonic() + watch.left_s + _GRACE_S
        while time.monotonic() < deadline and not (watch.interrupted() and watch.left_s > 0.0):
            if select.select([child.stdout], [], [], _POLL_S)[0]:
                line = child.stdout.readline()
                if line:
                    return _proved(json.loads(line))
                break
            watch.report("certifying")
        self._stop()
        return None

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            _end(child)


def _proved(verdict: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if verdict["status"] in ("UNKNOWN", "FEASIBLE"):
        return None
    if verdict["status"] != "OPTIMAL":
        raise ProofMismatchError(f"CP-SAT calls a model with a known solution {verdict['status']}")
    return verdict


def _compare(frontier: Frontier, rows: list[int], verdict: Mapping[str, Any], exact_s: float) -> None:
    """Compare the verdict with the exact program: its value, and its split under our own formulas.

    Raises:
        ProofMismatchError: they differ.
    """
    found = frontier.rows.take([rows[verdict["row"]]]).without_ends()
    stages = found.stages([tuple(verdict["split"])])
    again_s = float(objective_s(found.prices, found.columns, stages)[0])
    proved_s = verdict["objective_us"] * 1e-6
    allowed = _ROUNDING_S + _RELATIVE * exact_s
    if max(abs(again_s - exact_s), abs(proved_s - exact_s)) > allowed:
        raise ProofMismatchError(
            f"exact program: {exact_s!r} s; CP-SAT: {proved_s!r} s, which its split makes {again_s!r} s"
        )
