"""CP-SAT as independent judge of the closed-form minimum, in a child process.

The child starts with the search, so that loading OR-Tools costs no time of its own. It is asked for the
least objective over the first plan's row and up to MAX_RIVALS rows that its objective does not rule out,
for the first plan's row alone where another has the least, and for each further plan's row
(``cp-sat-all``). Its proved minimum must be the exact program's, to the
microsecond it counts in; another value is a bug and raises. No answer in time means not certified.
Searches one after the other may take turns with one child (``kept_child``). The same child decides among
the rows that bounds leave (``meshwright.solver.search.decision``).
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from meshwright.solver.clock import Watch
from meshwright.solver.problem import ProofMismatchError, SearchOptions
from meshwright.solver.search.certify.processes import Child, copied, started
from meshwright.solver.search.certify.request import Request, is_expressible
from meshwright.solver.search.certify.row_request import row_request
from meshwright.solver.search.decision import question as decision
from meshwright.solver.search.frontier import Frontier
from meshwright.solver.search.rows import Rows

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Rows, the request for their least objective, and what the exact program found it to be."""

    rows: Rows
    request: Request
    least_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """All questions on one search."""

    overall: Question  # over the first plan's row and its rivals
    ranked: Mapping[int, Question | None]  # by row to certify; None: the overall answer is its own


def inquiry_of(frontier: Frontier, survivors: tuple[int, ...], options: SearchOptions) -> Inquiry | None:
    """Return the questions on the first plan's row, the first of ``survivors``, and on those of all plans.

    None: nothing is proved that could be judged, or every plan's certificate is not asked for.
    """
    if options.certify != "cp-sat-all" or not survivors or not frontier.finished:
        return None
    among = survivors[: 1 + MAX_RIVALS]
    rows = tuple(one.row for one in frontier.ranked)
    overall = _question(frontier, among, options)
    least = min(among, key=lambda row: frontier.solved[row].objective_s)
    ranked = {row: None if row == least else _question(frontier, (row,), options) for row in rows}
    return Inquiry(overall=overall, ranked=ranked)


def _question(frontier: Frontier, rows: tuple[int, ...], options: SearchOptions) -> Question:
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
        seed=options.seed,
        time_limit_s=0.0,
        deterministic_limit=_DETERMINISTIC_LIMIT,
    )
    return Question(rows=asked, request=request, least_s=best.objective_s)


_KEPT: ContextVar[list[Child] | None] = ContextVar("kept", default=None)
os.register_at_fork(after_in_child=lambda: _KEPT.set(None))  # it is the parent's


_FORKS: ContextVar[bool] = ContextVar("forks", default=False)


@contextmanager
def forked_child() -> Iterator[None]:
    """Let the child of this block be a copy of this process, which has loaded most of what it needs."""
    before = _FORKS.set(True)
    try:
        with kept_child():
            yield
    finally:
        _FORKS.reset(before)


@contextmanager
def kept_child() -> Iterator[None]:
    """Share one child among the searches of this block; it ends with the outermost block."""
    if _KEPT.get() is not None:
        yield
        return
    waiting = list[Child]()
    before = _KEPT.set(waiting)
    try:
        yield
    finally:
        _KEPT.reset(before)
        for child in waiting:
            _end(child)


def _end(child: Child) -> None:
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
        self._child: Child | None = None

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
        self._child = copied() if _FORKS.get() else started()

    def answer(self, inquiry: Inquiry, watch: Watch) -> Certificate:
        """Judge what an inquiry asks.

        Raises:
            ProofMismatchError: CP-SAT proves another minimum than the exact program.
        """
        if self._lazy:
            self._start()
        if self._child is None:
            return Certificate()
        watch.report("certifying", now=True)
        overall, rows = self._confirms(inquiry.overall, watch), inquiry.ranked
        confirmed = {
            row for row, own in rows.items() if overall and (own is None or self._confirms(own, watch))
        }
        missing = len(rows) - len(confirmed)
        warning = f"CP-SAT did not finish in time for {missing} of {len(rows)} certificates"
        return Certificate(rows=frozenset(confirmed), warnings=(warning,) if missing else ())

    def decide(self, question: decision.Question, watch: Watch) -> Mapping[str, Any] | None:
        """Return CP-SAT's proved decision, or that no row keeps every limit; None if it comes too late."""
        if self._lazy and self._child is None:
            self._start()
        watch.report("certifying", now=True)
        verdict = self._asked(question.to_json(), watch)
        return verdict if verdict and verdict["status"] in ("OPTIMAL", "INFEASIBLE") else None

    def _confirms(self, question: Question, watch: Watch) -> bool:
        request = replace(question.request, time_limit_s=max(watch.left_s, _POLL_S))
        if not is_expressible(request):
            return False
        verdict = self.ask(request.to_json(), watch)
        if verdict is None:
            return False
        _compare(question, verdict)
        return True

    def ask(self, request: Mapping[str, Any], watch: Watch) -> Mapping[str, Any] | None:
        """Return the child's proved verdict; None if it is stopped, out of time or gone.

        Raises:
            ProofMismatchError: CP-SAT finds that a model with a known solution has none.
        """
        verdict = self._asked(request, watch)
        if verdict is not None and verdict["status"] not in ("OPTIMAL", "UNKNOWN", "FEASIBLE"):
            raise ProofMismatchError(f"CP-SAT calls a model with a known solution {verdict['status']}")
        return verdict if verdict and verdict["status"] == "OPTIMAL" else None

    def _asked(self, request: Mapping[str, Any], watch: Watch) -> Mapping[str, Any] | None:
        """Return the child's verdict; None if it is stopped, out of time or gone, which ends it."""
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
                    verdict: Mapping[str, Any] = json.loads(line)
                    return verdict
                break
            watch.report("certifying")
        self._stop()
        return None

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            _end(child)


def _compare(question: Question, verdict: Mapping[str, Any]) -> None:
    """Compare the verdict with the exact program: its value, and its split under our own formulas.

    Raises:
        ProofMismatchError: they differ.
    """
    exact_s, proved_s = question.least_s, verdict["objective_us"] * 1e-6
    found = question.rows.take([verdict["row"]]).without_ends()
    again_s = float(found.objective_s([tuple(verdict["split"])])[0])
    allowed = _ROUNDING_S + _RELATIVE * exact_s
    if max(abs(again_s - exact_s), abs(proved_s - exact_s)) > allowed:
        raise ProofMismatchError(
            f"exact program: {exact_s!r} s; CP-SAT: {proved_s!r} s, which its split makes {again_s!r} s"
        )
