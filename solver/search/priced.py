"""From columns to priced rows."""

from __future__ import annotations

from profiles.capabilities import launcher_capabilities
from profiles.profile import Profile
from solver.columns import Columns
from solver.cost.memory import memory_budget_bytes
from solver.cost.price import price
from solver.cost.prices import LayerLayout
from solver.problem import Problem
from solver.search.rows import Rows


def priced_rows(problem: Problem, profile: Profile, columns: Columns) -> Rows:
    """Rows of a problem with their prices and the memory that each rank may use."""
    return Rows(
        columns=columns,
        prices=price(problem, columns, profile),
        layout=LayerLayout.of(problem.model),
        budget_bytes=memory_budget_bytes(problem, profile, problem.options.max_out_of_memory_probability),
        uneven_stages=launcher_capabilities(problem.launcher).uneven_stages,
    )
