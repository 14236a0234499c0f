"""One run of CP-SAT: build the model, hint the incumbent, solve, read the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ortools.sat.python import cp_model

from solver.search.cp.objective import slowest_rank_decides
from solver.search.cp.request import DECISIONS, Request, is_expressible
from solver.search.cp.rules import RULES
from solver.search.cp.solving import complete_the_hint, solver_of
from solver.search.cp.variables import Decision, chunks_of, declare


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What CP-SAT found; ``objective_us`` and ``bound_us`` are whole microseconds."""

    status: str  # OPTIMAL, FEASIBLE, INFEASIBLE, UNKNOWN, MODEL_INVALID
    objective_us: int | None = None
    bound_us: int | None = None
    row: int | None = None
    split: tuple[int, ...] | None = None


def judge(request: Request) -> Verdict:
    """The least objective over the rows of a request, in one thread and reproducibly.

    A request whose sums leave the exact range is refused: domains would be trimmed without a word.
    """
    if not is_expressible(request):
        return Verdict(status="MODEL_INVALID")
    decision = declare(request)
    for rule in RULES:
        rule(decision)
    slowest_rank_decides(decision)
    _hint(decision)
    if decision.model.validate():
        return Verdict(status="MODEL_INVALID")
    if request.hint_split:
        complete_the_hint(decision.model, request)
    solver = solver_of(request)
    status = solver.solve(decision.model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Verdict(status=solver.status_name(status))
    row = solver.value(decision.row)
    edges = [solver.value(bound) for bound in decision.bounds[: chunks_of(request, row) + 1]]
    return Verdict(
        status=solver.status_name(status),
        objective_us=round(solver.objective_value),
        bound_us=round(solver.best_objective_bound),
        row=row,
        split=tuple(end - start for start, end in pairwise(edges)),
    )


def _hint(decision: Decision) -> None:
    """The incumbent as a hint for every choice and boundary."""
    request, model, begin = decision.request, decision.model, 0
    model.add_hint(decision.row, request.hint_row)
    for i, literal in enumerate(decision.chosen):
        model.add_hint(literal, i == request.hint_row)
    for name in DECISIONS:
        model.add_hint(decision.choices[name], request.rows[request.hint_row].values[name])
    sizes = [*request.hint_split, *([0] * decision.num_chunks)]
    for bound, size in zip(decision.bounds, sizes, strict=False):
        model.add_hint(bound, begin)
        begin += size
