"""The calibrated residual in the prices: one factor a row for its time and one for its memory.

A row's factor depends on the row alone, never on the split, so prices stay linear in the split.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from profiles.profile import Profile
from solver.columns import Columns
from solver.cost.prices import RowPrices
from solver.features import features
from solver.problem import Problem

_BYTES = (
    "weights_bytes", "gradients_bytes", "optimizer_bytes", "activation_bytes", "checkpoint_bytes",
    "head_workspace_bytes", "replay_workspace_bytes", "buffer_bytes", "context_bytes",
)  # fmt: skip


def with_residuals(prices: RowPrices, problem: Problem, columns: Columns, profile: Profile) -> RowPrices:
    """Prices times what the cluster's residual processes expect; the same prices without any."""
    if profile.residual is None and profile.memory_residual is None:
        return prices
    points = features(problem, columns)
    if profile.residual is not None:
        factor = np.exp(profile.residual.log_factor(points))
        prices = replace(prices, straggler=prices.straggler * factor, fixed_s=prices.fixed_s * factor)
    if profile.memory_residual is not None:
        factor = np.exp(profile.memory_residual.log_factor(points))
        scaled = {name: (getattr(prices, name).T * factor).T for name in _BYTES}
        prices = replace(prices, **scaled)
    return prices
