"""How long a GPU computes in a step, the mean over all of them: what its energy hangs on."""

from __future__ import annotations

import numpy as np

from profiles.profile import Profile
from solver.columns import ALL_LAYERS, PER_STAGE, Columns, FloatArray
from solver.cost.price import price
from solver.cost.prices import LayerLayout
from solver.problem import Problem

_CHUNK = 16384
_COMPUTING = ("compute", "recompute")


def busy_s(problem: Problem, profile: Profile, columns: Columns) -> FloatArray:
    """Computing and recomputing seconds of a step, averaged over the ranks, shape (n,).

    It does not depend on the split where layers are of one kind; where k layers of every chunk are
    recomputed and layers differ, the cheapest kind is counted.
    """
    found = np.zeros(len(columns))
    for start in range(0, len(columns), _CHUNK):
        piece = slice(start, start + _CHUNK)
        found[piece] = _busy_s(problem, profile, columns.take(piece))
    return found


def _busy_s(problem: Problem, profile: Profile, columns: Columns) -> FloatArray:
    """The same for a few rows."""
    prices, layout = price(problem, columns, profile), LayerLayout.of(problem.model)
    parts = np.concatenate([layout.cumulative[-1], [1, 1]]).astype(np.float64)
    computing = sum(prices.breakdown_s[name] @ parts for name in _COMPUTING)
    p, v = columns.pipeline_parallel_size, columns.virtual_pipeline_size
    replay = prices.replay_s[:, :-2]
    every = replay @ parts[:-2]
    counts = np.where(columns.recompute_layers == PER_STAGE, 0, columns.recompute_layers)  # at least none
    some = counts * p * v * replay.min(axis=1)
    again = np.where(columns.recompute_layers == ALL_LAYERS, every, some)
    return np.asarray(columns.num_microbatches * (computing + again) / p)
