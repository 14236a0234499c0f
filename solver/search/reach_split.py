"""What the bounds of split backward passes leave a rank, for layers of one kind (``fill``).

Ranks take as many layers as (E), (F), (G) and (K) of ``split_backward`` and their memory allow. f, i, w
and t are a layer's forward pass, input gradient, weight gradient and whole time; n layers on rank s lie
behind ``used`` others; what is not layers is left out here.

(E) m n t + tail_s <= Z by itself.
(F) (L - used) f + (L - used - n) i + m n t - held n f + tail_s <= Z without chunks: more layers before the
    rank leave it more room. With chunks in loops, where ranks also wait for one another between steps, all
    forward passes of a micro-batch, the least last chunks behind, and what can have run early (``Early``).
    In a V the ranks before a rank hold first chunks before its own and second chunks behind them, those of
    the least number y of layers: (L - used + y) f + y i pass before the rank's own work.
(G) used (f + i) + m n (f + i) + w_0 + tail_0 <= Z without chunks; with chunks the least first chunks of the
    ranks before. One layer more there is worth 1 / m of a layer here.
(K) L f + (L - n) i + m n (f + i) - held n f + w_0 + tail_0 <= Z without chunks, whatever lies before; in
    a V ``used`` takes the place of L - n, as each rank before has its chunks on both sides; one layer more
    of those is worth one layer here at most, as m i >= i of it is left. In loops the least first chunks
    before and the least last ones behind.
"""

from __future__ import annotations

import numpy as np

from solver.columns import SCHEDULES, FloatArray, IntArray
from solver.cost.schedule import BYPASSES_SYNC
from solver.search.early import Early
from solver.search.fill import Fill, share_of
from solver.search.rank_costs import RankCosts, column
from solver.search.rows import Rows

_BYPASSES = np.array([name in BYPASSES_SYNC for name in SCHEDULES])


def room_of_split(fill: Fill, rank: int, used: FloatArray, own: RankCosts) -> FloatArray:
    """Layers that (E), (F), (G) and (K) let a rank hold behind ``used`` layers, (n, L)."""
    rows, shaped = fill.rows, column(fill.rows.in_a_v) > 0.0
    early = Early.of(rows, rank)
    late = np.minimum(
        _late_layers(fill, rank, own, used, early), _home_layers(fill, rank, own, used, early)
    )
    if shaped.any():
        early = Early.in_a_v(rows, rank)
        in_a_v = _late_in_a_v(fill, rank, own, used, early)
        in_a_v = np.minimum(in_a_v, _home_in_a_v(fill, rank, own, used, early))
        late = np.where(shaped, in_a_v, late)
    return np.minimum(np.minimum(_busy_layers(fill, rank, own), late), _chain_layers(fill, rank, own, used))


def _start_s(rows: Rows, rank: int) -> FloatArray:
    """The least time before a rank's first pass, (n, 1); 0 where it counts from its own."""
    shortest = rows.smallest_chunk * rows.prices.forward_s[:, 0] + rows.prices.transfer_s
    start = rank * shortest + (rank > 0) * rows.prices.forward_s[:, -2]
    return column(np.where(_BYPASSES[rows.columns.pipeline_schedule], 0.0, start))


def _busy_layers(fill: Fill, rank: int, own: RankCosts) -> FloatArray:
    """Layers that (E) lets a rank hold, (n, 1)."""
    rows, m = fill.rows, column(fill.rows.m)
    room = fill.limit_s - _start_s(rows, rank) - own.tail_s - m * own.time_s
    return np.asarray(room / (m * column(rows.layer_s[:, 0]) + column(rows.prices.tail_s[:, 0])))


def _late_layers(fill: Fill, rank: int, own: RankCosts, used: FloatArray, early: Early) -> FloatArray:
    """Layers that (F) lets a rank hold behind others, (n, L), where chunks lie in loops or not at all."""
    rows, prices, m = fill.rows, fill.rows.prices, column(fill.rows.m)
    single, forward = column(rows.v) == 1.0, column(prices.forward_s[:, 0])
    back, behind = _input_gradient_s(rows), np.maximum(column(rows.p) - rank - 1.0, 0.0)
    left = rows.layout.num_layers - np.where(single, used, 0.0)
    layers = np.where(single, left, behind * column(rows.smallest_chunk))
    wait = left * forward + layers * back + _passed_s(rows, np.where(rows.v == 1, rank, 0))
    end = wait + _back_s(rows, behind, head=behind > 0.0) + m * own.time_s
    end = end - early.beside_s - forward * early.offset
    slope = m * column(rows.layer_s[:, 0]) - forward * early.slope - np.where(single, back, 0.0)
    return share_of(fill.limit_s - own.tail_s - end, slope + column(prices.tail_s[:, 0]))


def _late_in_a_v(fill: Fill, rank: int, own: RankCosts, used: FloatArray, early: Early) -> FloatArray:
    """The same in a V: first chunks of the ranks before lie before its own, second ones behind."""
    rows, prices, m = fill.rows, fill.rows.prices, column(fill.rows.m)
    forward, least, ahead = column(prices.forward_s[:, 0]), rank * column(rows.smallest_chunk), float(rank)
    wait = (rows.layout.num_layers - used + least) * forward + least * _input_gradient_s(rows)
    wait = wait + _passed_s(rows, np.full(len(rows), rank)) + _start_s(rows, rank)
    wait = wait + _back_s(rows, np.full_like(m, ahead), head=np.full_like(m, ahead) > 0.0)
    end = wait + m * own.time_s - early.beside_s - forward * early.offset
    slope = m * column(rows.layer_s[:, 0]) - forward * early.slope + column(prices.tail_s[:, 0])
    return share_of(fill.limit_s - own.tail_s - end, slope)


def _chain_layers(fill: Fill, rank: int, own: RankCosts, used: FloatArray) -> FloatArray:
    """Layers that (G) lets a rank hold behind others, (n, L)."""
    rows, prices, m = fill.rows, fill.rows.prices, column(fill.rows.m)
    both = column(prices.forward_s[:, 0]) + _input_gradient_s(rows)
    passed = fill.first_chunks(rank, used) * both
    if rank:
        passed = passed + column(prices.forward_s[:, -2] + rank * prices.transfer_s)
        passed = passed + _back_s(rows, np.full_like(m, float(rank)), embedding=np.ones_like(m) > 0.0)
    end = passed + m * _own_beside_s(rows, rank, own) + _last_weight_s(fill)
    return share_of(fill.limit_s - fill.tail_s - end, m * both)


def _home_layers(fill: Fill, rank: int, own: RankCosts, used: FloatArray, early: Early) -> FloatArray:
    """Layers that (K) lets a rank hold behind others, (n, L), where chunks lie in loops or not at all."""
    rows, prices, m = fill.rows, fill.rows.prices, column(fill.rows.m)
    single, forward = column(rows.v) == 1.0, column(prices.forward_s[:, 0])
    back, behind = _input_gradient_s(rows), np.maximum(column(rows.p) - rank - 1.0, 0.0)
    layers, several = float(rows.layout.num_layers), behind * column(rows.smallest_chunk)
    passed = np.where(single, layers, several + fill.first_chunks(rank, used))
    ends = _back_s(rows, behind + rank, head=behind > 0.0, embedding=np.full_like(behind, rank) > 0.0)
    end = layers * forward + passed * back + _passed_s(rows, np.zeros(len(rows), dtype=np.int64)) + ends
    end = end + m * _own_beside_s(rows, rank, own) - early.beside_s - forward * early.offset
    end = end + _last_weight_s(fill)
    slope = m * (forward + back) - forward * early.slope - np.where(single, back, 0.0)
    return share_of(fill.limit_s - fill.tail_s - end, slope)


def _home_in_a_v(fill: Fill, rank: int, own: RankCosts, used: FloatArray, early: Early) -> FloatArray:
    """The same in a V: every chunk of the ranks before lies before its own or behind them."""
    rows, prices, m = fill.rows, fill.rows.prices, column(fill.rows.m)
    forward, back = column(prices.forward_s[:, 0]), _input_gradient_s(rows)
    ends = np.full_like(m, float(rank))
    end = (
        rows.layout.num_layers * forward
        + used * back
        + _passed_s(rows, np.zeros(len(rows), dtype=np.int64))
    )
    end = end + _back_s(rows, 2.0 * ends, head=ends > 0.0, embedding=ends > 0.0)
    end = end + m * _own_beside_s(rows, rank, own) - early.beside_s - forward * early.offset
    slope = m * (forward + back) - forward * early.slope
    return share_of(fill.limit_s - fill.tail_s - end - _last_weight_s(fill), slope)


def _input_gradient_s(rows: Rows) -> FloatArray:
    """Input gradient of a layer, (n, 1)."""
    prices = rows.prices
    return column(rows.layer_s[:, 0] - prices.forward_s[:, 0] - prices.weight_gradient_s[:, 0])


def _own_beside_s(rows: Rows, rank: int, own: RankCosts) -> FloatArray:
    """A rank's time of a micro-batch without layers and weight gradients, (n, 1)."""
    weight = rows.prices.weight_gradient_s
    head = np.where(rows.head_rank == rank, weight[:, -1], 0.0)
    return own.time_s - column(head + (rank == 0) * weight[:, -2])


def _last_weight_s(fill: Fill) -> FloatArray:
    """The least weight gradient of the model's first chunk, (n, L)."""
    rows, prices = fill.rows, fill.rows.prices
    layers = np.where(column(rows.v) == 1.0, fill.tries, column(rows.smallest_chunk))
    whole = np.minimum(prices.weight_gradient_s, prices.backward_s)
    return np.asarray(layers * column(whole[:, 0]) + column(whole[:, -2]))


def _passed_s(rows: Rows, ahead: IntArray) -> FloatArray:
    """What is not layers of the first micro-batch's forward passes but for ``ahead`` chunks, (n, 1)."""
    prices = rows.prices
    passed = (rows.p * rows.v - ahead) * prices.transfer_s + prices.forward_s[:, -1]
    return column(passed + np.where(ahead == 0, prices.forward_s[:, -2], 0.0))


def _back_s(
    rows: Rows,
    chunks: FloatArray,
    *,
    head: FloatArray | bool | np.ndarray = False,
    embedding: FloatArray | bool | np.ndarray = False,
) -> FloatArray:
    """What is not layers of the input gradients of so many chunks, (n, 1), with the head's or not."""
    prices = rows.prices
    ends = prices.backward_s - prices.weight_gradient_s
    back = chunks * column(prices.transfer_s) + head * column(ends[:, -1])
    return np.asarray(back + embedding * column(ends[:, -2]))
