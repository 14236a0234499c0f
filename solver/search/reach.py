"""Which rows could step faster than a given time: whole layers, memory, and the bounds (A) and (B).

For layers of one kind. Given a time Z, ranks are filled one after the other with as many layers as
(A), (B) and their memory allow. More layers before a rank never leave fewer for it and those before
it together: one layer more before it lengthens (A)'s prefix by at most one layer's time, which costs
the rank at most 1 / m of a layer. So the fill reaches layer L exactly if some split keeps every bound
below Z. Rank 0's tail depends on its layers, so every number of them is tried side by side.

Where chunks interleave, the first chunk of a rank holds at least 1 / v of its layers (earlier chunks
are the larger ones); (A) then uses that share and (B) is left out, which is weaker and still valid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.columns import BoolArray, FloatArray, IntArray
from solver.search.bounds import SAFETY, end_tail_s
from solver.search.caps import Caps, layer_caps
from solver.search.mixed import can_beat_mixed
from solver.search.rows import Rows

_BATCH = 256
_BISECTIONS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fill:
    """One batch of rows, columns of shape (n, 1), and the tries of rank 0's layers, (1, L)."""

    rows: Rows
    caps: Caps
    tries: FloatArray

    def column(self, values: FloatArray | IntArray) -> FloatArray:
        """(n,) as (n, 1) floats."""
        return values.astype(np.float64)[:, None]


def _rank_constant_s(fill: _Fill, rank: int) -> FloatArray:
    """Time of a rank beside its layers, (n, 1)."""
    rows = fill.rows
    constant = rows.v * rows.chunk_s
    if rank == 0:
        constant = constant + rows.embedding_s
    return fill.column(constant + np.where(rows.p == rank + 1, rows.head_s, 0.0))


def _chain_layers(fill: _Fill, rank: int, used: FloatArray, limit_s: FloatArray) -> FloatArray:
    """Layers that (A) lets a rank hold behind ``used`` layers."""
    rows = fill.rows
    prefix = used * fill.column(rows.layer_s[:, 0] / rows.v)
    if rank:
        prefix = prefix + fill.column(rows.embedding_s + rank * rows.chunk_s)
    busy = (limit_s - prefix) / fill.column(rows.m)
    return (busy - _rank_constant_s(fill, rank)) / fill.column(rows.layer_s[:, 0])


def _return_layers(fill: _Fill, rank: int, limit_s: FloatArray) -> FloatArray:
    """Layers that (B) lets a rank hold; unlimited where chunks interleave."""
    rows, prices = fill.rows, fill.rows.prices
    before = np.minimum(rows.m, rows.p - rank) - 1.0
    forward = prices.transfer_s + np.where(rows.p == rank + 1, prices.forward_s[:, -1], 0.0)
    if rank == 0:
        forward = forward + prices.forward_s[:, -2]
    fixed = fill.column(rows.total_s - before * forward)
    fixed = fixed + fill.column(rows.m - 1.0) * _rank_constant_s(fill, rank)
    slope = fill.column((rows.m - 1.0) * rows.layer_s[:, 0] - before * prices.forward_s[:, 0])
    with np.errstate(divide="ignore", invalid="ignore"):
        layers = np.where(slope > 0.0, (limit_s - fixed) / slope, np.where(limit_s >= fixed, np.inf, -1.0))
    return np.where(fill.column(rows.v) == 1.0, layers, np.inf)


def _limit_s(fill: _Fill, step_s: FloatArray) -> FloatArray:
    """What (A) and (B) may reach for each number of rank 0's layers, (n, L)."""
    prices = fill.rows.prices
    pipeline = (step_s / SAFETY**2 - prices.fixed_s) / prices.straggler - end_tail_s(fill.rows)
    return fill.column(pipeline) - fill.tries * fill.column(prices.tail_s[:, 0])


def _can_beat(fill: _Fill, step_s: FloatArray) -> BoolArray:
    """Whether the bounds leave a split of a row that steps within ``step_s``, shape (n,)."""
    rows, caps, num_layers = fill.rows, fill.caps, fill.rows.layout.num_layers
    limit = _limit_s(fill, step_s)
    used = np.zeros_like(limit)
    alive: BoolArray = np.ones(limit.shape, dtype=np.bool_)
    for rank in range(int(rows.p.max(initial=1))):
        present = (rows.p > rank)[:, None]
        low, high = fill.column(caps.least[:, rank]), fill.column(caps.most[:, rank])
        room = np.minimum(_chain_layers(fill, rank, used, limit), _return_layers(fill, rank, limit))
        behind = fill.column(caps.least[:, rank + 1 :].sum(axis=1))
        take = np.floor(np.minimum(np.minimum(room + 1e-9, high), num_layers - behind - used))
        if rank == 0:
            alive = np.asarray((fill.tries <= take) & (fill.tries >= low))
            take = np.broadcast_to(fill.tries, take.shape)
        alive = alive & np.asarray((take >= low) | ~present)
        used = used + np.where(present & alive, take, 0.0)
    return np.asarray((alive & (used >= num_layers)).any(axis=1))


def _batches(rows: Rows) -> list[IntArray]:
    """Index batches of rows with like pipelines."""
    order = np.argsort(rows.p, kind="stable")
    return [order[start : start + _BATCH] for start in range(0, len(order), _BATCH)]


def _fill(rows: Rows) -> _Fill:
    """One batch, ready to fill."""
    tries = np.arange(1, rows.layout.num_layers + 1, dtype=np.float64)[None, :]
    return _Fill(rows=rows, caps=layer_caps(rows), tries=tries)


def can_beat(rows: Rows, step_s: FloatArray) -> BoolArray:
    """Whether a row may have a split that simulates to ``step_s`` or less; False is a proof."""
    if not rows.is_uniform:
        return can_beat_mixed(rows, step_s)
    answer = np.zeros(len(rows), dtype=np.bool_)
    for index in _batches(rows):
        answer[index] = _can_beat(_fill(rows.take(index)), step_s[index])
    return answer


def least_bound_s(rows: Rows, low_s: float, high_s: float) -> float:
    """Third tier over several rows: no split of any of them simulates faster; at most ``high_s``.

    Bisects between ``low_s``, a valid bound of all of them, and ``high_s``. Rows that cannot beat the
    middle while others can are left behind: their own bound is above the answer.
    """
    low, high = low_s, high_s
    left = rows.take(np.flatnonzero(can_beat(rows, np.full(len(rows), high))))
    if not len(left):
        return high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        able = np.flatnonzero(can_beat(left, np.full(len(left), middle)))
        if len(able):
            left, high = left.take(able), middle
        else:
            low = middle
    return low
