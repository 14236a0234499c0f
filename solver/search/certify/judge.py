"""CP-SAT as independent judge of the closed-form minimum, in a child process.

The child starts with the search, so that loading OR-Tools costs no time of its own. It is asked for the
least objective over the first plan's row and up to MAX_RIVALS rows that its objective does not rule out,
for the first plan's row alone where another has the least, and for each further plan's row
(``cp-sat-all``). Its proved minimum must be the exact program's, to the
microsecond it counts in; another value is a bug and raises. No answer in time means not certified.
Searches one after the other may take turns with one child (``kept_child``), and leave their certificates
to whoever shows the plans first (``certified_later``).
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from meshwright.solver.answer import Answer, Plan
from meshwright.solver.clock import Watch
from meshwright.solver.problem import ProofMismatchError, SearchOptions
from meshwright.solver.search.certify.processes import Child, copied, started
from meshwright.solver.search.certify.request import Request, is_expressible
from meshwright.solver.search.certify.row_request import row_request
from meshwright.solver.search.frontier import Frontier
from meshwright.solver.search.rows import Rows

MAX_RIVALS = 7  # rows in addition to the first plan's that CP-SAT chooses among
_DETERMINISTIC_LIMIT = 8.0  # CP-SAT's own clock: the same verdict on a busy machine
_POLL_S = 0.05
_GRACE_S = 0.3
_ROUNDING_S = 2e-6  # one microsecond of the objective, and nanosecond coefficients
_RELATIVE = 1e-9
_CP_SAT = ("cp-sat",)


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
    order: tuple[int, ...]  # ranked rows


def inquiry_of(frontier: Frontier, survivors: tuple[int, ...], options: SearchOptions) -> Inquiry | None:
    """Return the questions on the first plan's row (the first of ``survivors``), and on all K on request.

    None: nothing is proved that could be judged, or no judge is asked for.
    """
    if options.certify == "none" or not survivors or not frontier.finished:
        return None
    among = survivors[: 1 + MAX_RIVALS]
    order = tuple(one.row for one in frontier.ranked)
    rows = order if options.certify == "cp-sat-all" else order[:1]
    overall = _question(frontier, among, options)
    least = min(among, key=lambda row: frontier.solved[row].objective_s)
    ranked = {row: None if row == least else _question(frontier, (row,), options) for row in rows}
    return Inquiry(overall=overall, ranked=ranked, order=order)


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
        self._child = copied() if later() is not None else started()

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
                    status = verdict["status"]
                    if status not in ("OPTIMAL", "UNKNOWN", "FEASIBLE"):
                        raise ProofMismatchError(f"CP-SAT calls a model with a known solution {status}")
                    return verdict if status == "OPTIMAL" else None
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


# --------------------------------------------------------------------------------------------------
# Certificates that are waited for after the plans are shown.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owed:
    inquiry: Inquiry
    plan_ids: Mapping[int, str]  # of ranked rows
    options: SearchOptions
    watch: Watch


@dataclass(frozen=True, slots=True)
class Later:
    """Certificates that the searches of a block have not waited for."""

    _owed: list[_Owed] = field(default_factory=list)

    def owe(self, inquiry: Inquiry, plans: Sequence[Plan], options: SearchOptions, watch: Watch) -> None:
        """Remember what is to be judged of one search; ``plans`` are its ranked rows in order."""
        ids = dict(zip(inquiry.order, (plan.plan_id for plan in plans), strict=False))
        self._owed.append(_Owed(inquiry=inquiry, plan_ids=ids, options=options, watch=watch))

    def owes(self, answer: Answer) -> bool:
        """Return whether a certificate of the answer's plans is still to come."""
        return bool(self._of(answer))

    def settle(self, answer: Answer) -> Answer:
        """Return the answer with its certificates, waiting for them.

        Raises:
            ProofMismatchError: CP-SAT proves another minimum than the exact program.
        """
        owed, certified, warnings, rows = self._of(answer), set[str](), list[str](), 0
        for one in owed:
            with Judge(one.options, lazy=True) as judge:
                certificate = judge.answer(one.inquiry, one.watch)
            certified |= {one.plan_ids[row] for row in certificate.rows if row in one.plan_ids}
            warnings += certificate.warnings
            rows += len(certificate.rows)
        plans = tuple(
            replace(plan, certified_by=(*plan.certified_by, *_CP_SAT[: plan.plan_id in certified]))
            for plan in answer.plans
        )
        first = bool(answer.certified_by) and answer.plans[0].plan_id in certified
        return replace(
            answer,
            plans=plans,
            certified_by=(*answer.certified_by, *_CP_SAT[:first]),
            counts={**answer.counts, "certified": answer.counts.get("certified", 0) + rows},
            warnings=(*answer.warnings, *warnings),
        )

    def _of(self, answer: Answer) -> list[_Owed]:
        listed = {plan.plan_id for plan in answer.plans}
        return [one for one in self._owed if not listed.isdisjoint(one.plan_ids.values())]


_LATER: ContextVar[Later | None] = ContextVar("later", default=None)


@contextmanager
def certified_later() -> Iterator[Later]:
    """Let the searches of this block leave their certificates to ``Later.settle``."""
    before = _LATER.set(later := Later())
    try:
        with kept_child():
            yield later
    finally:
        _LATER.reset(before)


def later() -> Later | None:
    """Return what the certificates of this block are left to; None: a search waits for its own."""
    return _LATER.get()
