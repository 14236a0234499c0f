"""Which rows with layers of several kinds could step faster than a given time.

One chunk a rank: ranks are filled one after the other with as many layers as (A), (B), (H) (``bounds``) and
their memory allow, as in ``reach``; a layer before a rank never makes room behind it smaller by more
than itself, whatever its kind. The first layers of a stage are replayed where the row says so
(``first_layers``), or as few of them as let it fit (``per_stage.Replays``). Several chunks a rank:
``by_kind`` asks whether the ranks have room for the layers of each kind, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.columns import BoolArray, FloatArray, IntArray
from solver.cost.schedule import in_flight
from solver.search.bounds import SAFETY, end_tail_s, in_turn, least_tail_s, split_s, whole_layers_s
from solver.search.by_kind import can_be_busy, can_beat_interleaved
from solver.search.caps import groups_of_shape, room_bytes
from solver.search.first_layers import FirstLayers
from solver.search.per_stage import Replays
from solver.search.rows import Rows
from solver.search.stages import even_chunks

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
            group = rows.take(index)
            if not rows.uneven_stages:
                answer[index] = _only_split(group, pp * vpp, step_s[index])
            elif split:
                answer[index] = can_be_busy(group, pp, vpp, step_s[index])
            elif vpp > 1:
                answer[index] = can_beat_interleaved(group, pp, vpp, step_s[index])
            else:
                answer[index] = _Filling(group, pp).reaches(step_s[index], closely=closely)
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


@dataclass(slots=True)
class _Filling:
    """Rows of one pipeline size, one chunk a rank."""

    rows: Rows
    p: int

    def _sums(self, price: FloatArray) -> FloatArray:
        """Sum of a layer price (n, K) over the first l layers, (n, L + 1)."""
        return np.asarray(price @ self.rows.layout.cumulative.T.astype(np.float64))

    def reaches(self, step_s: FloatArray, *, closely: bool) -> BoolArray:
        """Whether filling within ``step_s`` places every layer, shape (n,).

        Rank 0's tail grows with its layers: rows that are not refuted with the least tail are tried
        again in pieces, with at least so many layers on rank 0 and their tail, and at most so many.
        """
        alive = self._places_all(step_s, 1, self.rows.layout.num_layers)
        index = np.flatnonzero(alive)
        if closely and len(index) and self.p > 1:
            again, steps = _Filling(self.rows.take(index), self.p), step_s[index]
            pieces = _pieces(self.rows.layout.num_layers, self.p)
            alive[index] = np.any([again._places_all(steps, low, high) for low, high in pieces], axis=0)
        return alive

    def _places_all(self, step_s: FloatArray, low: int, high: int) -> BoolArray:
        """The same with ``low`` to ``high`` layers on rank 0."""
        rows, prices = self.rows, self.rows.prices
        tail = np.maximum(least_tail_s(rows), end_tail_s(rows) + self._sums(prices.tail_s[:, :-2])[:, low])
        limit = (step_s / SAFETY**2 - prices.fixed_s) / prices.straggler - tail
        time, forward = self._sums(rows.layer_s), self._sums(prices.forward_s[:, :-2])
        kept = rows.least_kept_bytes[:, :-2]
        states, kept = self._sums(rows.state_bytes[:, :-2]), self._sums(kept)
        held = in_flight(rows.columns)[:, : self.p].astype(np.float64)
        room, replays = room_bytes(rows, held[:, None, :]), Replays.of(rows)
        first = FirstLayers.of(rows)
        used = np.zeros(len(rows), dtype=np.int64)
        alive = np.ones(len(rows), dtype=np.bool_)
        for rank in range(self.p):
            free, longer = room[:, rank] - held[:, rank] * first.missing_bytes(used), first.longer_s(used)
            end = _furthest(states + held[:, rank, None] * kept, used, free)
            again = replays.least_s(used, free, held[:, rank])
            chain, back = self._room_s(rank, _at(time, used), limit)
            end = np.minimum(end, _furthest(time + again, used, chain - longer))
            early = np.minimum(rows.m, self.p - rank) - 1.0
            slope = (rows.m - 1.0)[:, None] * time - early[:, None] * forward + rows.m[:, None] * again
            end = np.minimum(end, _furthest(slope, used, back - rows.m * longer))
            end = np.minimum(end, self._steady_end(rank, time, used, limit))
            end = np.minimum(end, rows.layout.num_layers - (self.p - 1 - rank) * rows.smallest_chunk)
            end = np.minimum(end, high) if rank == 0 else end
            alive &= end - used >= (
                np.maximum(low, rows.smallest_chunk) if rank == 0 else rows.smallest_chunk
            )
            if not alive.any():
                break
            used = np.maximum(end, used)
        return alive & (used >= rows.layout.num_layers)

    def _steady_end(self, rank: int, time: FloatArray, used: IntArray, limit: FloatArray) -> IntArray:
        """Where (H) ends a rank: (m - w_s - 1) T_s <= Z - tail_0 - 2 sum T + sum_{u<s} T_u."""
        rows = self.rows
        turns = rows.m - np.minimum(rows.m, self.p - rank) - 1.0
        before = _at(time, used) + rows.embedding_s + rank * rows.chunk_s if rank else 0.0
        own = rows.chunk_s + (rank == 0) * rows.embedding_s + (rank == self.p - 1) * rows.head_s
        room = limit - 2.0 * rows.total_s + before - turns * own
        theirs = in_turn(rows) & (turns >= 0.0)
        end = _furthest(np.maximum(turns, 0.0)[:, None] * time, used, room)
        return np.where(theirs, end, rows.layout.num_layers)

    def _room_s(self, rank: int, passed: FloatArray, limit: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What (A) leaves for the layers' time, and (B) for (m - 1) time - (w - 1) forward."""
        rows, prices = self.rows, self.rows.prices
        own, forward = rows.chunk_s.copy(), prices.transfer_s.copy()
        before = np.zeros(len(rows))
        if rank == 0:
            own, forward = own + rows.embedding_s, forward + prices.forward_s[:, -2]
        else:
            before = passed + rows.embedding_s + rank * rows.chunk_s
        if rank == self.p - 1:
            own, forward = own + rows.head_s, forward + prices.forward_s[:, -1]
        early = np.minimum(rows.m, self.p - rank) - 1.0
        back = limit - rows.total_s - (rows.m - 1.0) * own + early * forward
        return (limit - before) / rows.m - own, back


def _pieces(num_layers: int, p: int) -> list[tuple[int, int]]:
    """Ranges that cover 1 … L - p + 1 layers on rank 0, fine around an even share."""
    even, most = num_layers / p, num_layers - p + 1
    edges = sorted(
        {min(max(round(even * share), 1), most) for share in (0, 0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.5)}
    )
    return [(low, high - 1) for low, high in zip(edges, [*edges[1:], most + 1], strict=True)]


def _at(sums: FloatArray, index: IntArray) -> FloatArray:
    """Entry ``index`` of every row."""
    return np.take_along_axis(sums, index[:, None], axis=1)[:, 0]


def _furthest(sums: FloatArray, start: IntArray, room: FloatArray) -> IntArray:
    """Last boundary whose sum is at most ``room`` above the sum at ``start``, (n,); -1 if none is."""
    limit = _at(sums, start) + room
    reached = sums <= (limit + 1e-9 * np.abs(limit))[:, None]
    return np.asarray(reached.sum(axis=1) - 1)


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
