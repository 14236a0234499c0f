"""How CP-SAT is run: one thread, a seed, limits, and a complete hint."""

from __future__ import annotations

from typing import Protocol

from ortools.sat.python import cp_model


class Limits(Protocol):
    """What every request says about its run."""

    @property
    def seed(self) -> int:
        """Of the search."""
        ...

    @property
    def time_limit_s(self) -> float:
        """Wall clock."""
        ...

    @property
    def deterministic_limit(self) -> float:
        """CP-SAT's own clock."""
        ...


def solver_of(limits: Limits) -> cp_model.CpSolver:
    """One thread, the request's seed and limits; Ctrl-C is the parent's to handle."""
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = 1
    parameters.random_seed = limits.seed
    parameters.max_time_in_seconds = limits.time_limit_s
    parameters.max_deterministic_time = limits.deterministic_limit
    parameters.cp_model_probing_level = 0
    parameters.catch_sigint_signal = False
    return solver


def complete_the_hint(model: cp_model.CpModel, limits: Limits) -> None:
    """Hint every variable: those that follow from the incumbent's choices and boundaries as well.

    With the choices fixed what is left is propagation. An incumbent that the model refuses leaves the hint
    as it was: the verdict, another minimum than the exact program's, then says so.
    """
    solver = solver_of(limits)
    solver.parameters.fix_variables_to_their_hinted_value = True
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return
    values = list(solver.response_proto.solution)
    model.clear_hints()  # type: ignore[no-untyped-call]
    for index, value in enumerate(values):
        model.add_hint(model.get_int_var_from_proto_index(index), value)
