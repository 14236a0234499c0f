"""Which rows with layers of several kinds could step faster than a given time.

One chunk a rank: ranks are filled one after the other (``mixed_fill``, ``mixed_split``). Several chunks a
rank: ``by_kind`` asks whether the ranks have room for the layers of each kind, in any order.
"""

from __future__ import annotations

import numpy as np

from solver.columns import BoolArray, FloatArray
from solver.search.bounds import SAFETY, split_s, whole_layers_s
from solver.search.by_kind import can_be_busy, can_beat_interleaved
from solver.search.caps import groups_of_shape
from solver.search.mixed_fill import reaches
from solver.search.mixed_split import can_beat_mixed_split
from solver.search.rows import Rows
from solver.search.stages import even_chunks
from solver.search.watch import look

_BATCH = 512
_MOST_RAISED, _CLOSE = 1.5, 0.005  # of a bound: what it is raised to at most, and how closely


def can_beat_mixed(rows: Rows, step_s: FloatArray, *, closely: bool = True) -> BoolArray:
    """Whether a row may have a split that fits and simulates to ``step_s`` or less; False is a proof.

    ``closely``: rank 0's tail is counted as that of its layers, at several times the cost.
    """
    answer = np.asarray(whole_layers_s(rows) * SAFETY <= step_s)
    for split in (False, True):
        kept = np.flatnonzero((rows.splits_backward == split) & answer)
        answer[kept] = _can_beat(rows.take(kept), step_s[kept], split=split, closely=closely)
    return answer


def _can_beat(rows: Rows, step_s: FloatArray, *, split: bool, closely: bool) -> BoolArray:
    """The same for rows whose backward pass is split, or in one."""
    answer = np.zeros(len(rows), dtype=np.bool_)
    for pp, vpp, members in groups_of_shape(rows):
        for start in range(0, len(members), _BATCH):
            index = members[start : start + _BATCH]
            look()
            group = rows.take(index)
            if not rows.uneven_stages:
                answer[index] = _only_split(group, pp * vpp, step_s[index])
            elif split and vpp > 1:
                answer[index] = can_be_busy(group, pp, vpp, step_s[index])
            elif split:
                answer[index] = can_beat_mixed_split(group, pp, step_s[index])
            elif vpp > 1:
                answer[index] = can_beat_interleaved(group, pp, vpp, step_s[index])
            else:
                answer[index] = reaches(group, pp, step_s[index], closely=closely)
    return answer


def tightened_s(rows: Rows, bound_s: FloatArray, limit_s: FloatArray) -> FloatArray:
    """Raise the bounds of rows to about what ``can_beat_mixed`` proves, shape (n,).

    To solve a row takes longer than to ask a few times about many. ``limit_s``: times that the rows may
    beat as far as is known; up to there, or to half as much again as their bounds, they are bisected.
    """
    low = bound_s.copy()
    high = np.minimum(np.maximum(limit_s, low), low * _MOST_RAISED)
    while len(index := np.flatnonzero(high - low > _CLOSE * low)):
        middle = (low[index] + high[index]) / 2.0
        able = can_beat_mixed(rows.take(index), middle, closely=False)
        low[index[~able]], high[index[able]] = middle[~able], middle[able]
    return low


def _only_split(group: Rows, chunks: int, step_s: FloatArray) -> BoolArray:
    """The same for rows of one shape that have a single split."""
    split = even_chunks(group, chunks)
    if split is None:
        return np.zeros(len(group), dtype=np.bool_)
    stages = group.stages([split] * len(group))
    fits = stages.peak_memory_bytes.max(axis=1) <= group.budget_bytes
    return np.asarray(fits & (group.smallest_chunk <= min(split)) & (split_s(group, stages) <= step_s))


def may_fit(rows: Rows) -> BoolArray:
    """Rows whose ranks together have the memory for all layers, shape (n,); False is a proof.

    Every chunk keeps at least one micro-batch in flight.
    """
    prices, layout = rows.prices, rows.layout
    kept = rows.least_kept_bytes
    spared = (prices.activation_bytes - prices.checkpoint_bytes)[:, :-2].max(axis=1)
    layers = (rows.state_bytes + kept)[:, :-2] @ layout.cumulative[-1].astype(np.float64)
    ends = (rows.state_bytes + kept)[:, -2:].sum(axis=1)
    least = layers + ends - rows.p * rows.v * rows.some_layers * spared
    room = (rows.budget_bytes - prices.context_bytes) / prices.reserve - prices.buffer_bytes
    return np.asarray(least <= rows.p * (room - prices.replay_workspace_bytes) * (1.0 + 1e-12))
