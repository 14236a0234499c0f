"""Ranks filled with layers of several kinds, one chunk a rank, within (A), (B), (H) and their memory.

Ranks are filled one after the other with as many layers as fit in a time, as in ``reach``; a layer before a
rank never makes room behind it smaller by more than itself, whatever its kind. The first layers of a stage
are replayed where the row says so (``first_layers``), or as few of them as let it fit
(``per_stage.Replays``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.columns import BoolArray, FloatArray, IntArray
from solver.search.bounds import end_limit_s, end_tail_s, in_turn, least_tail_s
from solver.search.caps import room_bytes
from solver.search.first_layers import FirstLayers
from solver.search.layer_sums import at, furthest, sums_of
from solver.search.per_stage import Replays
from solver.search.rows import Rows

_SHARES = (0.0, 0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.5)  # of an even share: where pieces begin


def reaches(rows: Rows, p: int, step_s: FloatArray, *, closely: bool) -> BoolArray:
    """Whether filling ``p`` ranks within ``step_s`` places every layer, shape (n,); False is a proof.

    Rank 0's tail grows with its layers: ``closely`` tries rows that are not refuted with the least tail
    again in pieces, with at least so many layers on rank 0 and their tail, and at most so many.
    """
    num_layers = rows.layout.num_layers
    alive = _Filling.of(rows, p, step_s).places_all(1, num_layers)
    if not closely or p == 1:
        return alive
    left, able = np.flatnonzero(alive), np.zeros(len(rows), dtype=np.bool_)
    for low, high in _pieces(num_layers, p):
        if not len(left):
            break
        placed = _Filling.of(rows.take(left), p, step_s[left]).places_all(low, high)
        able[left[placed]] = True
        left = left[~placed]
    return able


def _pieces(num_layers: int, p: int) -> list[tuple[int, int]]:
    """Ranges that cover 1 … L - p + 1 layers on rank 0, fine around an even share."""
    even, most = num_layers / p, num_layers - p + 1
    edges = sorted({min(max(round(even * share), 1), most) for share in _SHARES})
    return [(low, high - 1) for low, high in zip(edges, [*edges[1:], most + 1], strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """One rank of every row and the layer that it begins with; arrays are (n,)."""

    rank: int
    used: IntArray  # layers before it
    free_bytes: FloatArray  # what its memory leaves for its layers
    chain_s: FloatArray  # what (A) leaves for a micro-batch of them
    back_s: FloatArray  # what (B) leaves for (m - 1) T - (w - 1) F
    steady_s: FloatArray  # what (H) leaves for (m - w - 1) T; +inf where it is not theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filling:
    """Rows of one pipeline size; sums over their first l layers are (L + 1, n)."""

    rows: Rows
    p: int
    limit_s: FloatArray  # (n,) end and tail of the slowest rank
    time_s: FloatArray
    forward_s: FloatArray
    states_bytes: FloatArray
    kept_bytes: FloatArray  # of one micro-batch in flight
    held: FloatArray  # (n, p)
    room_bytes: FloatArray  # (n, p)
    first: FirstLayers
    replays: Replays

    @classmethod
    def of(cls, rows: Rows, p: int, step_s: FloatArray) -> _Filling:
        """Ready to fill within ``step_s``."""
        prices, held = rows.prices, rows.held[:, :p].astype(np.float64)
        return cls(
            rows=rows,
            p=p,
            limit_s=end_limit_s(rows, step_s),
            time_s=sums_of(rows, rows.layer_s),
            forward_s=sums_of(rows, prices.forward_s[:, :-2]),
            states_bytes=sums_of(rows, rows.state_bytes[:, :-2]),
            kept_bytes=sums_of(rows, rows.least_kept_bytes[:, :-2]),
            held=held,
            room_bytes=room_bytes(rows, held[:, None, :]),
            first=FirstLayers.of(rows),
            replays=Replays.of(rows),
        )

    def places_all(self, low: int, high: int) -> BoolArray:
        """Whether every layer finds a place with ``low`` to ``high`` of them on rank 0, (n,)."""
        rows, num_layers = self.rows, self.rows.layout.num_layers
        own_tail = sums_of(rows, rows.prices.tail_s[:, :-2])[low] + end_tail_s(rows)
        limit = self.limit_s - np.maximum(least_tail_s(rows), own_tail)
        used = np.zeros(len(rows), dtype=np.int64)
        alive = np.ones(len(rows), dtype=np.bool_)
        for rank in range(self.p):
            end = self._end(self._stage(rank, used, limit))
            end = np.minimum(end, num_layers - (self.p - 1 - rank) * rows.smallest_chunk)
            least = rows.smallest_chunk if rank else np.maximum(low, rows.smallest_chunk)
            end = end if rank else np.minimum(end, high)
            alive &= end - used >= least
            if not alive.any():
                break
            used = np.maximum(end, used)
        return np.asarray(alive & (used >= num_layers))

    def _stage(self, rank: int, used: IntArray, limit: FloatArray) -> _Stage:
        """What the bounds leave a rank behind ``used`` layers; ``limit`` is without rank 0's tail."""
        rows, prices = self.rows, self.rows.prices
        own, forward = rows.chunk_s, prices.transfer_s
        before = np.zeros(len(rows))
        if rank == 0:
            own, forward = own + rows.embedding_s, forward + prices.forward_s[:, -2]
        else:
            before = at(self.time_s, used) + rows.embedding_s + rank * rows.chunk_s
        if rank == self.p - 1:
            own, forward = own + rows.head_s, forward + prices.forward_s[:, -1]
        longer = self.first.longer_s(used)
        own, early = own + longer, np.minimum(rows.m, self.p - rank)
        turns = rows.m - early - 1.0
        steady = limit - 2.0 * rows.total_s + before - turns * own
        total = limit - rows.total_s - (rows.m - 1.0) * own + (early - 1.0) * forward
        return _Stage(
            rank=rank,
            used=used,
            free_bytes=self.room_bytes[:, rank] - self.held[:, rank] * self.first.missing_bytes(used),
            chain_s=(limit - before) / rows.m - own,
            back_s=total - longer,
            steady_s=np.where(in_turn(rows) & (turns >= 0.0), steady, np.inf),
        )

    def _end(self, stage: _Stage) -> IntArray:
        """The last layer that a rank may hold, (n,)."""
        rows, used, held = self.rows, stage.used, self.held[:, stage.rank]
        early = np.minimum(rows.m, self.p - stage.rank)
        turns = np.maximum(rows.m - early - 1.0, 0.0)
        weighs = self.states_bytes + held * self.kept_bytes
        late = (rows.m - 1.0) * self.time_s - (early - 1.0) * self.forward_s
        ends = (
            furthest(weighs, used, stage.free_bytes),
            furthest(self.time_s, used, stage.chain_s),
            furthest(late, used, stage.back_s),
            furthest(turns * self.time_s, used, stage.steady_s),
        )
        end = np.minimum.reduce(ends)
        return self._replayed_end(stage, end) if len(self.replays.own) else end

    def _replayed_end(self, stage: _Stage, end: IntArray) -> IntArray:
        """The same with what the layers of a rank must replay to fit, by bisection up to ``end``."""
        own = self.replays.own
        low, high = stage.used[own] - 1, np.maximum(end[own], stage.used[own] - 1)
        while (low < high).any():
            middle = (low + high + 1) // 2
            able = self._within(stage, np.maximum(middle, stage.used[own]))
            low, high = np.where(able, middle, low), np.where(able, high, middle - 1)
        end = end.copy()
        end[own] = np.minimum(end[own], low)
        return end

    def _within(self, stage: _Stage, end: IntArray) -> BoolArray:
        """Whether rows with counts of their own keep (A), (B) and (H) with layers up to ``end``, (k,)."""
        own = self.replays.own
        m, used = self.rows.m[own], stage.used[own]
        early = np.minimum(m, self.p - stage.rank)
        held = self.held[own, stage.rank]
        again = self.replays.least_s(used, end, stage.free_bytes[own], held)
        width = self.time_s.shape[1]
        time = self.time_s.take(end * width + own) - self.time_s.take(used * width + own)
        forward = self.forward_s.take(end * width + own) - self.forward_s.take(used * width + own)
        able = time + again <= _ample(stage.chain_s[own])
        late = (m - 1.0) * time - (early - 1.0) * forward + m * again
        turns = np.maximum(m - early - 1.0, 0.0)
        able &= late <= _ample(stage.back_s[own])
        return np.asarray(able & (turns * (time + again) <= _ample(stage.steady_s[own])))


def _ample(room: FloatArray) -> FloatArray:
    """A room with what rounding may take."""
    return np.asarray(room + 1e-9 * np.abs(room))
