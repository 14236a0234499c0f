"""Lower bounds on the simulated step time, in tiers; each holds for every split of a row.

Notation: rank s of p runs v chunks; chunk c = j p + s; F_c, B_c forward and backward time of a
micro-batch; T_c = F_c + B_c; t_s = sum of T over the rank's chunks; m micro-batches; held_c forward
passes of chunk c before its rank's first backward pass (``schedule.in_flight``). A rank runs its
passes one at a time in a fixed order, and

(A) rank s starts after chunks 0 … s-1 passed the first micro-batch forward, works m t_s, and its
    last pass is the backward pass of chunk s for the last micro-batch, which chunks s-1 … 0 must
    still pass backward: end_0 >= sum_{u<s} T_u + m t_s.
(B) the first backward pass of rank s, of chunk (v-1) p + s, waits for all forward passes of the
    first micro-batch and the backward passes behind it. Only held_c forward passes of each own chunk
    c came before: end_0 >= sum F + sum_{c > (v-1) p + s} B_c + sum_{own c} ((m - held_c) F_c + m B_c)
    + sum_{u<s} B_u. For v = 1: sum T + (m-1) T_s - (w_s - 1) F_s with w_s = min(m, p - s).
(C) as (A) without the way back: end_s >= sum_{u<s} F_u + m t_s.
(D) as (B) without the way back: end_s >= (B) - sum_{u<s} B_u.
(H) where v = 1 and a rank runs passes in turn (1F1B) with w_s = min(m, p - s) < m: from its first backward
    pass to its last forward pass it runs m - w_s of each, and that micro-batch still goes all the way
    down and back: end_0 >= sum T + (m - w_s) T_s + sum_{u>s} T_u, end_s >= that - sum_{u<s} B_u.
(B') where all forward passes come first (gpipe, looped_bfs): rank s has run all of its own before the last
    micro-batch passes the chunks behind it forward, and works backward after they come back:
    end_0 >= sum_{u<s} T_u + m t_s + sum_{c > (v-1) p + s} T_c. For v = 1: sum T + (m-1) T_s.
(P) chunk c runs m forward and m backward passes; the first micro-batch passes all before c, the last one
    all behind it: end_0 >= sum T + (m-1) max(F_c, B_c), and where all forward passes come first
    end_0 >= sum T + (m-1) (F_c + B_d) for any two chunks.

The step is ``straggler * max_s (end_s + tail_s) + fixed``: (A), (B), (H) and (P) bound it with tail_0, (C),
(D) and (H) without the way back with tail_s; one split is also bounded with the tail of every rank on the
way back (``split_s``). Schedules that split the backward pass have (E) to (G), (K), (P) instead.

Tiers, each at most the next (``tests/property/test_bounds.py``):
  fractional     layers are divisible (``fractional_s``)
  whole layers   some rank holds at least ceil(L / p) of them (``whole_layers_s``)
  fill           whole layers on every rank, under its memory (``fill.can_beat``): for layers of one
                 kind without interleaving the least (A)-(D), (H) over all splits that fit, without the
                 tails of ranks between the first and the last of a way back
  split          (A)-(D), (H) of one split (``split_s``); at most its simulation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import BoolArray, Columns, FloatArray, IntArray
from meshwright.solver.cost.price import SharedPasses
from meshwright.solver.cost.stages import Stages, end_of_step_s, step_of_end_s
from meshwright.solver.schedules.schedule import (
    bypasses_sync,
    rank_of_chunk,
    runs_all_forward_first,
    splits_backward,
)
from meshwright.solver.search.memory_limits import Runs
from meshwright.solver.search.rows import Rows

# --------------------------------------------------------------------------------------------------
# What a rank can have run forward before its first backward pass.


class Early(NamedTuple):
    """Forward passes of each rank before its first backward pass, (n, p).

    Of n layers at most ``slope * n + offset`` passes, and ``other_s`` of all that is not layers.
    """

    slope: FloatArray
    offset: FloatArray
    other_s: FloatArray

    @classmethod
    def of(cls, rows: Rows) -> Early:
        """Return the most that can have run early.

        Chunks that differ by at most one layer hold most early passes when the first ones, which keep most
        micro-batches in flight, are the larger ones. The last chunk of the last rank may be smaller still:
        there every layer is counted as if it sat in the first.
        """
        runs, prices, v = Runs.of(rows), rows.prices, rows.v[:, None]
        rank, first = np.arange(int(rows.p.max(initial=1)))[None, :], runs.held[:, 0]
        passes, last = runs.in_flight, rows.p[:, None] == rank + 1
        so_far, chunks = np.cumsum(runs.held * runs.chunks, axis=1), np.cumsum(runs.chunks, axis=1)
        more = (so_far - chunks * (passes / v)[:, None]).max(axis=1)
        loose, final = last & (v > 1), runs.last_held[:, None] * prices.forward_s[:, -1:]
        other_s = prices.every_forward_s[:, None] * passes + np.where(last, final, 0.0)
        return cls(
            slope=np.where(loose, first, passes / v),
            offset=np.where(loose, 0.0, more),
            other_s=other_s + (rank == 0) * first * prices.forward_s[:, -2:-1],
        )

    @classmethod
    def in_a_v(cls, rows: Rows) -> Early:
        """Return that of rows with chunks in a V, where a rank's first chunk keeps no fewer.

        Chunks differ by one layer at most; those of rank 0, the model's first and last, may have any size.
        """
        held, prices = rows.held.astype(np.float64), rows.prices
        rank = np.arange(int(rows.p.max(initial=1)))[None, :]
        other = np.clip(2 * rows.p[:, None] - 1 - rank, 0, held.shape[1] - 1)
        first = held[:, rank[0]]
        second = np.take_along_axis(held, other, axis=1)
        ends = first * prices.forward_s[:, -2:-1] + second * prices.forward_s[:, -1:]
        spared = (first - second) * rows.smallest_chunk[:, None]
        return cls(
            slope=np.where(rank == 0, first, (first + second) / 2.0),
            offset=np.where(rank == 0, -spared, (first - second) / 2.0),
            other_s=(first + second) * prices.every_forward_s[:, None] + (rank == 0) * ends,
        )


# --------------------------------------------------------------------------------------------------
# Lower bounds for schedules that run weight gradients as passes of their own (the zero-bubble family).
#
# Notation of ``bounds``, and I_c, W_c for the input and the weight gradient of chunk c: B_c = I_c + W_c.
# Rank s holds chunks from a_s, its first in model order, to z_s, its last; a pass of chunk c waits for
# the one of chunk c - 1 (forward) or c + 1 (input gradient), a weight gradient for its own input
# gradient. Whatever the order of a rank's passes,
#
# (E) it works m t_s once it has started: end_s - start_s >= m t_s.
# (F) its first input gradient waits for the first micro-batch to pass the chunks from a_s on forward and
#     those behind z_s backward. At most held_c forward passes of each own chunk came before (the room of
#     its memory, ``schedule.in_flight``), and no weight gradient:
#     end_s - start_s >= sum_{c >= a_s} F_c + sum_{c > z_s} I_c + sum_{own c} ((m - held_c) F_c + m B_c).
# (G) when its last input gradient of chunk a_s ends, all its forward passes and input gradients are done,
#     because a micro-batch passes its other chunks behind a_s forward and before a_s backward. The chunks
#     a_s - 1 ... a_u of a rank u <= s, with a first chunk a_u before a_s, still pass that micro-batch
#     backward, and rank u has that weight gradient left:
#     end_u >= start_s + sum_{own c of s} m (F_c + I_c) + sum_{a_u <= c < a_s} I_c + W_{a_u}.
# (K) the same from its first input gradient on, which waits as in (F): end_u >= start_s +
#     sum_{c >= a_s} F_c + sum_{c > z_s} I_c + sum_{own c of s} ((m - held_c) F_c + m I_c)
#     + sum_{a_u <= c < a_s} I_c + W_{a_u}.
#
# start_s >= sum_{c < a_s} F_c. Schedules that leave out the synchronisation of ranks between steps
# (``BYPASSES_SYNC``) count a rank's time from its own start, as ``simulate`` does, and start as early as
# they can: (G) and (K) less sum_{c < a_u} F_c. For those of the others that start counts as well.


def least_end_s(rows: Rows, stages: Stages) -> FloatArray:
    """Return (E) to (G), (K): the least end of every rank of rows with split backward passes, (n, R)."""
    forward, weight = stages.chunk_forward_s, stages.chunk_weight_s
    back = stages.chunk_backward_s - weight
    num_ranks, width = stages.rank_valid.shape[1], forward.shape[1]
    chunks, rank = np.arange(width)[None, :], rank_of_chunk(rows.columns, width)
    there = chunks < (rows.p * rows.v)[:, None]
    own = (rank[:, None, :] == np.arange(num_ranks)[None, :, None]) & there[:, None, :]
    first = np.where(own, chunks[:, None, :], width).min(axis=2)
    last = np.where(own, chunks[:, None, :], -1).max(axis=2)
    passed, backed = _sums(forward), _sums(back)
    ahead, behind, returned = _first(passed, first), _first(backed, last + 1), _first(backed, first)
    m, held = rows.m[:, None], rows.held[:, :width]
    spared = (own * (held * forward)[:, None, :]).sum(axis=2)
    wait = forward.sum(axis=1, keepdims=True) - ahead + back.sum(axis=1, keepdims=True) - behind
    busy = m * stages.rank_time_s
    end = np.maximum(busy, wait + busy - spared)
    done = m * (own * (forward + back)[:, None, :]).sum(axis=2)
    done = ahead + np.maximum(done, wait + done - spared) + returned
    done = np.where(stages.rank_valid, done, -np.inf)
    done = np.maximum.accumulate(done[:, ::-1], axis=1)[:, ::-1]
    last_weight = np.take_along_axis(weight, np.minimum(first, width - 1), axis=1)
    end = np.maximum(end, done - returned + last_weight - ahead)
    end = end + np.where(bypasses_sync(rows.columns)[:, None], 0.0, ahead)
    return np.asarray(np.where(stages.rank_valid, end, 0.0))


SAFETY = 1.0 - 1e-10  # what float rounding may move a sum of up to 10^5 terms


class Bounds:
    """Lower bounds of n rows; rows without one have +inf, take no memory and are skipped.

    Each is stored as its bits XOR those of +inf: memory pages that stay zero are never allocated.
    """

    __slots__ = ("_bits", "_set")
    _NEVER = np.float64(np.inf).view(np.int64)

    def __init__(self, count: int) -> None:
        self._bits = np.zeros(count, dtype=np.int64)
        self._set = [np.zeros(0, dtype=np.int64)]  # rows that were

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._bits)

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - as arrays have it: a number or an array
        """Return the bounds at an index, as of an array."""
        return (self._bits[index] ^ self._NEVER).view(np.float64)

    def __setitem__(self, index: IntArray | int, values: FloatArray | float) -> None:
        """Set some of the bounds."""
        rows = np.atleast_1d(np.asarray(index, dtype=np.int64))
        self._set.append(rows[self._bits[rows] == 0])
        self._bits[index] = np.asarray(values, dtype=np.float64).view(np.int64) ^ self._NEVER

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:  # noqa: ANN401
        """Return all bounds as an array."""
        return np.asarray(self[:], dtype=dtype)

    def below(self, limit: float) -> IntArray:
        """Return the rows with a lower bound, which is not +inf, in ascending order."""
        look()
        if len(self._set) > 1:
            self._set = [np.unique(np.concatenate(self._set))]
        return np.asarray(self._set[0][self[self._set[0]] < limit])

    def least(self) -> float:
        """Return the least bound of all; +inf if there is none."""
        return min(float(self[rows].min(initial=np.inf)) for rows in self._set)


def end_limit_s(rows: Rows, step_s: FloatArray | float) -> FloatArray:
    """Return when the last rank, with its tail, must end for a step within ``step_s``, (n,)."""
    most = np.asarray(step_s / SAFETY**2)
    return end_of_step_s(most, rows.prices.straggler, rows.prices.fixed_s)


def _step_s(rows: Rows, pipeline_s: FloatArray) -> FloatArray:
    """Return a whole step from a bound on end_0 + tail_0."""
    return step_of_end_s(pipeline_s, rows.prices.straggler, rows.prices.fixed_s) * SAFETY


def end_tail_s(rows: Rows) -> FloatArray:
    """Return the tail of rank 0 without its layers, shape (n,)."""
    tail = rows.prices.tail_s
    return np.asarray(rows.prices.rank_tail_s + tail[:, -2] + np.where(rows.p == 1, tail[:, -1], 0.0))


def least_tail_s(rows: Rows) -> FloatArray:
    """Return rank 0's tail with the fewest layers, of the kind with the shortest tail, (n,)."""
    layers = rows.v * rows.smallest_chunk * rows.prices.tail_s[:, :-2].min(axis=1)
    return np.asarray(end_tail_s(rows) + layers)


def _tail_rate(rows: Rows) -> FloatArray:
    """Return the least seconds of tail for each second of layer time, shape (n,)."""
    return np.asarray((rows.prices.tail_s[:, :-2] / rows.layer_s).min(axis=1))


def _tail_at_s(rows: Rows, rank_time_s: FloatArray) -> FloatArray:
    """Return rank 0's tail if its time is at least ``rank_time_s``."""
    replay = rows.some_layers * rows.prices.replay_s[:, :-2].max(axis=1)
    other_s = rows.embedding_s + rows.v * (rows.prices.every_s + replay)
    layers_s = np.where(rows.p == 1, rank_time_s - rows.head_s, rank_time_s) - other_s
    coupled = end_tail_s(rows) + _tail_rate(rows) * layers_s
    return np.asarray(np.maximum(coupled, least_tail_s(rows)))


def _chain_s(rows: Rows) -> FloatArray:
    """Bound (A) for one chunk a rank, divisible layers: t_s <= (Z - P_s) / m, P_{s+1} = P_s + t_s.

    It reaches ``P_p = Z (1 - q^p)`` with ``q = 1 - 1 / m``, and must reach the total. A shorter
    rank 0 would have a shorter tail, but lengthens the chain by more while the tail rate is below
    ``q^(p-1) / (1 - q^(p-1))``; elsewhere only the least tail is counted. Where chunks interleave,
    ``_average_s`` is tighter.
    """
    q = 1.0 - 1.0 / rows.m
    chain = rows.total_s / (1.0 - q**rows.p)
    left = q ** (rows.p - 1)
    worth = _tail_rate(rows) * (1.0 - left) <= left
    chain = chain + np.where(worth, _tail_at_s(rows, chain / rows.m), least_tail_s(rows))
    return np.where((rows.v == 1) & ~rows.splits_backward, chain, -np.inf)


def _average_s(rows: Rows) -> FloatArray:
    """Return the mean over the ranks of (A), and of (C), with the least first chunks, shape (n,).

    The largest of p numbers is at least their mean. Rank s waits for the embedding and s chunks of at
    least the smallest number of layers. Where the backward pass is split (``Rows.splits_backward``), the
    waiting is left out: that is the mean of (E).
    """
    prices, ends = rows.prices, (rows.p - 1.0) / rows.p
    passed = rows.smallest_chunk * rows.layer_s.min(axis=1) + rows.chunk_s
    there = rows.smallest_chunk * prices.forward_s[:, :-2].min(axis=1) + prices.every_forward_s
    busy = rows.m * rows.total_s / rows.p
    back = busy + ends * (rows.embedding_s + passed * rows.p / 2.0) + least_tail_s(rows)
    tails = prices.tail_s[:, :-2] @ rows.layout.cumulative[-1].astype(np.float64)
    tails = (tails + prices.tail_s[:, -2] + prices.tail_s[:, -1]) / rows.p + prices.rank_tail_s
    away = busy + ends * (prices.forward_s[:, -2] + there * rows.p / 2.0) + tails
    return np.asarray(np.where(rows.splits_backward, busy + tails, np.maximum(back, away)))


def _path_s(rows: Rows, most: FloatArray | IntArray) -> FloatArray:
    """Return (P) for a chunk of at least ``most`` layers and the head's, with the least tail, (n,)."""
    prices, whole = rows.prices, rows.input_gradient_s
    least, tail = rows.smallest_chunk, least_tail_s(rows)
    forward, back = prices.forward_s[:, :-2].min(axis=1), whole[:, :-2].min(axis=1)
    other_s = rows.chunk_s - prices.every_forward_s
    there = np.maximum(most * forward, least * forward + prices.forward_s[:, -1])
    there = there + prices.every_forward_s
    home = np.maximum(most * back, least * back + whole[:, -1]) + other_s
    again = np.where(runs_all_forward_first(rows.columns), there + home, np.maximum(there, home))
    last = np.minimum(prices.weight_gradient_s, prices.backward_s)
    last = least * last[:, :-2].min(axis=1) + last[:, -2]
    return np.asarray(rows.path_s + (rows.m - 1.0) * again + last + tail)


def _kappa(rows: Rows) -> tuple[FloatArray, FloatArray]:
    """Return (B) for v = 1 as ``total + kappa t_s - offset`` with the most favourable rank's constants."""
    share = (rows.prices.forward_s[:, :-2] / rows.layer_s).max(axis=1)
    overlap = np.minimum(rows.m, rows.p) - 1.0
    offset = overlap * (rows.prices.every_forward_s + rows.prices.forward_s[:, -2])
    return np.asarray(rows.m - 1.0 - overlap * share), offset


def _return_s(rows: Rows, rank_time_s: FloatArray, tail_s: FloatArray) -> FloatArray:
    """Return (B) for a rank of at least ``rank_time_s``; -inf where chunks interleave."""
    kappa, offset = _kappa(rows)
    bound = rows.total_s + kappa * rank_time_s - offset + tail_s
    return np.where((rows.v == 1) & ~rows.splits_backward, bound, -np.inf)


def in_turn(rows: Rows) -> BoolArray:
    """Mark rows with one chunk a rank and passes in turn, so that (H) holds, (n,)."""
    together = rows.splits_backward | runs_all_forward_first(rows.columns)
    return np.asarray((rows.v == 1) & ~together)


def _steady_s(rows: Rows, rank_time_s: FloatArray) -> FloatArray:
    """Return (H) of all ranks, m > p: end_0 >= 2 sum T + (m - p - 1) x, one chunk a rank, (n,).

    x is the mean of the ranks' times: were all (H) within Z = 2 sum T + (m - p - 1) x', then by induction
    sum_{u<s} T_u <= s x', since (m - p + s - 1) T_s <= Z - 2 sum T + sum_{u<s} T_u, so that x <= x'. For
    layers of one kind x is also ``rank_time_s``, that of the first rank with ceil(L / p) of them: those
    before it hold fewer. It may have the embedding before it. Under (B') all of this holds a fortiori.
    """
    spare = rows.m - rows.p - 1.0
    longest = rows.total_s / rows.p
    if rows.is_uniform:
        early_s = np.maximum(rows.embedding_s - rows.layer_s[:, 0], 0.0)
        longest = np.maximum(longest, rank_time_s - early_s / np.maximum(spare, 1.0))
    bound = 2.0 * rows.total_s + spare * longest + least_tail_s(rows)
    return np.where((spare >= 0.0) & (rows.v == 1) & ~rows.splits_backward, bound, -np.inf)


def fractional_s(rows: Rows) -> FloatArray:
    """Return the first tier: layers are divisible and memory is free, shape (n,)."""
    average = rows.total_s / rows.p
    kappa, _ = _kappa(rows)
    worth = _tail_rate(rows) * np.maximum(rows.p - 1, 1) <= kappa
    tail = np.where(worth & (rows.v == 1), _tail_at_s(rows, average), least_tail_s(rows))
    steady = _steady_s(rows, np.zeros(len(rows)))
    ways = (_chain_s(rows), _return_s(rows, average, tail), _average_s(rows), steady)
    return _step_s(rows, np.maximum.reduce(ways))


def whole_layers_s(rows: Rows) -> FloatArray:
    """Return the second tier: some rank holds ceil(L / p) layers, shape (n,)."""
    most = -(-rows.layout.num_layers // rows.p)
    rank_time = most * rows.layer_s.min(axis=1) + rows.v * rows.chunk_s
    tail = least_tail_s(rows)
    own_tail = most * rows.prices.tail_s[:, :-2].min(axis=1) + rows.prices.rank_tail_s
    own_tail = np.where(rows.splits_backward, own_tail, np.maximum(tail, own_tail))
    busy = rows.m * rank_time + own_tail
    path = _path_s(rows, -(-rows.layout.num_layers // (rows.p * rows.v)))
    ways = (busy, _return_s(rows, rank_time, tail), _steady_s(rows, rank_time), path)
    return np.maximum(fractional_s(rows), _step_s(rows, np.maximum.reduce(ways)))


def least_of_kind_s(rows: Rows) -> FloatArray:
    """Bound all rows of a kind (``kinds``) from its quickest representative, before all tiers, (n,).

    Every term grows with the number of chunks and with what is recomputed: the mean of (A) or of (C), (A)
    for divisible layers, the busiest rank's own work, (B) for that rank, and (H); tails are the least.
    """
    most = -(-rows.layout.num_layers // rows.p)
    rank_time = most * rows.layer_s.min(axis=1) + rows.v * rows.chunk_s
    tail = least_tail_s(rows)
    chain = rows.total_s / (1.0 - (1.0 - 1.0 / rows.m) ** rows.p) + tail
    chain = np.where((rows.v == 1) & ~rows.splits_backward, chain, -np.inf)
    busy = rows.m * rank_time + np.where(rows.splits_backward, rows.prices.rank_tail_s, tail)
    path = _path_s(rows, np.where(rows.v == 1, most, rows.smallest_chunk))
    steady = _steady_s(rows, rank_time)
    ways = (chain, busy, _average_s(rows), _return_s(rows, rank_time, tail), steady, path)
    return _step_s(rows, np.maximum.reduce(ways))


def filled_and_emptied(m: FloatArray, p: IntArray) -> FloatArray:
    """Return the pipelines' passes that a step takes at least, by (A) and (H) of all ranks, (n,).

    With one chunk a rank and whole backward passes; m micro-batches on p ranks, layers divisible.
    """
    chain = 1.0 / (1.0 - (1.0 - 1.0 / m) ** p)
    return np.maximum(chain, np.where(m > p, 2.0 + (m - p - 1.0) / p, 0.0))


class PassBounds:
    """``least_of_kind_s`` and ``objective_bound_s`` from passes alone, for many rows at little cost.

    A pipeline takes m of the mean of its ranks' passes. With one chunk a rank and whole backward passes it
    also takes (A) for divisible layers, (H), and (P) for ceil(L / p) layers.

    Args:
        columns: a kind's quickest row each, (n,).
        num_layers: of the model.
        phi: the least share of a pass that filling costs a row of each kind, (n,).
    """

    def __init__(self, columns: Columns, num_layers: int, phi: FloatArray) -> None:
        m, p = columns.num_microbatches.astype(np.float64), columns.pipeline_parallel_size
        self._alone = (columns.virtual_pipeline_size == 1) & ~splits_backward(columns)
        self._of_whole = np.maximum(m / p, np.where(self._alone, filled_and_emptied(m, p), 0.0))
        self._again = np.where(self._alone, (m - 1.0) * -(-num_layers // p), 0.0)
        self._of_closed_form = phi + (m - phi) / p

    def pipeline_s(self, passes: SharedPasses) -> FloatArray:
        """Return what no pipeline with these passes takes less than, (n,)."""
        path = passes.whole_s + self._again * np.maximum(passes.forward_s, passes.backward_s)
        return np.maximum(self._of_whole * passes.whole_s, np.where(self._alone, path, 0.0))

    def closed_form_s(self, passes: SharedPasses) -> FloatArray:
        """Return the same of its closed form, (n,)."""
        return np.asarray(self._of_closed_form * passes.whole_s)


def objective_bound_s(rows: Rows, phi: FloatArray | None = None) -> FloatArray:
    """Return a lower bound on the closed-form objective over all splits, shape (n,).

    It grows with ``phi``, the rows' own where it is not given, and as ``least_of_kind_s``.
    """
    phi, tail = rows.phi if phi is None else phi, rows.prices.tail_s
    layers = rows.layout.cumulative[-1].astype(np.float64)
    tails = tail[:, :-2] @ layers + tail[:, -2] + tail[:, -1]
    whole = (rows.m - phi) * rows.total_s + tails
    most = -(-rows.layout.num_layers // rows.p)
    rank = most * ((rows.m - phi)[:, None] * rows.layer_s + tail[:, :-2]).min(axis=1)
    rank += (rows.m - phi) * rows.v * rows.chunk_s
    slowest = np.maximum(whole / rows.p, rank) + rows.prices.rank_tail_s
    return _step_s(rows, phi * rows.total_s + slowest)


def _sums(chunks: FloatArray) -> FloatArray:
    """Return the sums of the first 0, 1, … C chunks, (n, C + 1)."""
    sums = np.zeros((len(chunks), chunks.shape[1] + 1))
    np.cumsum(chunks, axis=1, out=sums[:, 1:])
    return sums


def _first(sums: FloatArray, end: IntArray) -> FloatArray:
    """Return the sum of the first ``end`` chunks, (n, R), from ``_sums``."""
    return np.take_along_axis(sums, np.minimum(end, sums.shape[1] - 1), axis=1)


def _own_work_s(rows: Rows, stages: Stages) -> FloatArray:
    """Return every rank's work from its first backward pass on, (n, R): the sum in (B)'s third term."""
    forward, backward = stages.chunk_forward_s, stages.chunk_backward_s
    chunk = np.arange(forward.shape[1])[None, :]
    held = rows.held[:, : forward.shape[1]]
    m, num_ranks = rows.m[:, None], stages.rank_valid.shape[1]
    own = np.where(chunk < (rows.p * rows.v)[:, None], (m - held) * forward + m * backward, 0.0)
    slots = np.arange(len(rows))[:, None] * num_ranks + chunk % rows.p[:, None]
    work = np.bincount(slots.ravel(), weights=own.ravel(), minlength=len(rows) * num_ranks)
    return work.reshape(len(rows), num_ranks).astype(np.float64)


def _steady_end_s(rows: Rows, stages: Stages, rank: IntArray) -> FloatArray:
    """Return (H) without the way back for one split of each row, (n, R); -inf where it does not apply."""
    m, num_ranks = rows.m[:, None], rank.shape[1]
    passed = np.cumsum(stages.rank_time_s, axis=1)
    backward = stages.chunk_backward_s[:, :num_ranks]
    way_back = np.cumsum(backward, axis=1) - backward
    early = np.minimum(m, rows.p[:, None] - rank)
    turns = (m - early) * stages.rank_time_s
    end = 2.0 * passed[:, -1:] - passed + turns - way_back
    return np.where(in_turn(rows)[:, None] & (early < m), end, -np.inf)


def split_s(rows: Rows, stages: Stages) -> FloatArray:
    """Return the last tier: (A)-(D), (H), or (E)-(G), (P), of one split for each row, (n,).

    The last micro-batch passes ranks s-1 … u backward before rank u ends, so the way back counts up to
    whichever rank u <= s has the longest sum of what is left of it and its own tail.
    """
    forward, backward = stages.chunk_forward_s, stages.chunk_backward_s
    passed, returned = _sums(forward), _sums(backward)
    rank = np.broadcast_to(np.arange(stages.rank_valid.shape[1])[None, :], stages.rank_valid.shape)
    last = (rows.v[:, None] - 1) * rows.p[:, None] + rank
    there, way_back = passed[:, : rank.shape[1]], returned[:, : rank.shape[1]]
    chain = there + rows.m[:, None] * stages.rank_time_s
    behind = returned[:, -1:] - _first(returned, last + 1)
    late = passed[:, -1:] + behind + _own_work_s(rows, stages)
    end = np.maximum.reduce([chain, late, _steady_end_s(rows, stages, rank)])
    forward_first = runs_all_forward_first(rows.columns)
    if forward_first.any():
        all_first = chain + passed[:, -1:] - _first(passed, last + 1) + behind
        end = np.where(forward_first[:, None], np.maximum(end, all_first), end)
    step = end + way_back + np.maximum.accumulate(stages.rank_tail_s - way_back, axis=1)
    if rows.splits_backward.any():
        apart = least_end_s(rows, stages) + stages.rank_tail_s
        step = np.where(rows.splits_backward[:, None], apart, step)
    slowest = np.where(stages.rank_valid, step, 0.0).max(axis=1)
    home = backward - stages.chunk_weight_s
    longest = forward.max(axis=1), home.max(axis=1)
    again = np.where(forward_first, sum(longest), np.maximum(*longest))
    path = forward.sum(axis=1) + home.sum(axis=1) + (rows.m - 1.0) * again  # (P)
    return _step_s(rows, np.maximum(slowest, path + stages.chunk_weight_s[:, 0] + stages.rank_tail_s[:, 0]))
