"""Which operators of a configuration have shapes beyond those that were measured on its GPU."""

from __future__ import annotations

import numpy as np

from profiles.operator_tables import load_operator_tables
from profiles.profile import Profile
from solver.columns import BoolArray, Columns
from solver.cost.compute import layer_gemms
from solver.cost.context import Context, context_of
from solver.cost.measured import flash_lookup
from solver.cost.prices import LayerLayout
from solver.problem import Problem


def extrapolated(problem: Problem, columns: Columns, profile: Profile) -> list[tuple[str, ...]]:
    """Names of what lies outside the measured range, for every row.

    ``operators``: nothing was measured on the GPU type itself, shares of its architecture are used.
    ``attention``, ``gemm``: a shape lies beyond the ends of the measured table.

    Raises:
        InvalidProblemError: a framework option is unknown or has a wrong value.
    """
    unmeasured = () if profile.gpu_operators.measured else ("operators",)
    beyond = _beyond(problem, context_of(problem, columns, profile))
    return [
        (*unmeasured, *(name for name, mask in beyond.items() if mask[row])) for row in range(len(columns))
    ]


def _beyond(problem: Problem, ctx: Context) -> dict[str, BoolArray]:
    """Masks of the rows whose shapes leave the tables; none where the GPU has no tables."""
    if not ctx.operators.tables:
        return {}
    gemm = load_operator_tables(ctx.operators.tables).find("gemm")
    sides = [
        (g.m, g.n, g.k)
        for kind in LayerLayout.of(problem.model).kinds
        for g in layer_gemms(ctx, kind)
        if not g.grouped
    ]
    masks = {"gemm": np.logical_or.reduce([gemm.extrapolated(*side) for side in sides])}
    if ctx.facts.flash:
        table, arguments = flash_lookup(ctx)
        masks["attention"] = table.extrapolated(*arguments)
    return masks
