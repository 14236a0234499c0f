"""Why nothing fits."""

from __future__ import annotations

from profiles.profile import Profile
from solver.plan import Infeasibility
from solver.problem import Problem
from solver.search.rows import Rows
from solver.space import Space


def explain(problem: Problem, profile: Profile, space: Space, rows: Rows) -> Infeasibility:
    """Reasons of a proved infeasible answer."""
    del profile, rows
    legal = int(space.legal.sum())
    name = problem.model.title
    if legal:
        return Infeasibility(reasons=(f"none of {legal} legal configurations of {name} fits in memory",))
    return Infeasibility(reasons=("no configuration obeys all limits",))
