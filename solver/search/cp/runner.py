"""One run of CP-SAT: build the model, hint the incumbent, solve, read the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ortools.sat.python import cp_model

from solver.search.cp.objective import slowest_rank_decides
from solver.search.cp.request import DECISIONS, Request, is_expressible
from solver.search.cp.rules import RULES
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
    _complete_the_hint(decision)
    solver = _solver(request)
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


def _solver(request: Request) -> cp_model.CpSolver:
    """One thread, the request's seed and limits; Ctrl-C is the parent's to handle."""
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = 1
    parameters.random_seed = request.seed
    parameters.max_time_in_seconds = request.time_limit_s
    parameters.max_deterministic_time = request.deterministic_limit
    parameters.cp_model_probing_level = 0
    parameters.catch_sigint_signal = False
    return solver


def _complete_the_hint(decision: Decision) -> None:
    """Hint every variable: those that follow from the incumbent's choices and boundaries as well.

    With the choices fixed what is left is propagation. An incumbent that the model refuses leaves the hint
    as it was: the verdict, another minimum than the exact program's, then says so.
    """
    if not decision.request.hint_split:
        return
    solver = _solver(decision.request)
    solver.parameters.fix_variables_to_their_hinted_value = True
    if solver.solve(decision.model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return
    values = list(solver.response_proto.solution)
    decision.model.clear_hints()  # type: ignore[no-untyped-call]
    for index, value in enumerate(values):
        decision.model.add_hint(decision.model.get_int_var_from_proto_index(index), value)


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
