"""Ranks filled with layers of several kinds, one chunk a rank, within (A), (B), (H) and their memory.

Ranks are filled one after the other with as many layers as fit in a time, as in ``fill``; a layer before a
rank never makes room behind it smaller by more than itself, whatever its kind. The first layers of a stage
are replayed where the row asks for it, or as few of them as let it fit (``recompute_by_stage``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import BoolArray, FloatArray, IntArray, distinct
from meshwright.solver.cost.stages import step_of_end_s
from meshwright.solver.schedules.schedule import in_a_v, in_flight
from meshwright.solver.search.bounds import (
    SAFETY,
    end_limit_s,
    end_tail_s,
    in_turn,
    least_tail_s,
    split_s,
    whole_layers_s,
)
from meshwright.solver.search.memory_limits import (
    Values,
    by_rank,
    groups_of_shape,
    room_beside_ends_bytes,
    room_bytes,
)
from meshwright.solver.search.recompute_by_stage import FirstLayers, Replays
from meshwright.solver.search.rows import RankCosts, Rows, at, furthest, share_of, sums_of
from meshwright.solver.search.splits import even_chunks

_ROUNDING = 1e-9
_SHARES = (0.0, 0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.5)  # of an even share: where pieces begin


def _reaches(filling: _Filling, step_s: FloatArray, *, closely: bool) -> BoolArray:
    """Return whether filling all ranks within ``step_s`` places every layer, (n,); False is a proof.

    Rank 0's tail grows with its layers: ``closely`` tries rows that are not refuted with the least tail
    again in pieces, with at least so many layers on rank 0 and their tail, and at most so many.
    """
    rows, p, num_layers = filling.rows, filling.p, filling.rows.layout.num_layers
    alive = filling.places_all(1, num_layers, step_s)
    if not closely or p == 1:
        return alive
    left, able, kept = np.arange(len(rows)), np.zeros(len(rows), dtype=np.bool_), alive
    for low, high in _pieces(num_layers, p):
        if not kept.any():
            break
        if not kept.all():
            left, filling = left[kept], _Filling.of(filling.rows.take(np.flatnonzero(kept)), p)
        placed = filling.places_all(low, high, step_s[left])
        able[left[placed]] = True
        kept = ~placed
    return able


def _pieces(num_layers: int, p: int) -> list[tuple[int, int]]:
    """Return ranges over 1 … L - p + 1 layers on rank 0, fine around an even share, nearest first."""
    even, most = num_layers / p, num_layers - p + 1
    edges = sorted({min(max(round(even * share), 1), most) for share in _SHARES})
    pieces = [(low, high - 1) for low, high in zip(edges, [*edges[1:], most + 1], strict=True)]
    return sorted(pieces, key=lambda piece: max(piece[0] - even, even - piece[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """One rank of every row and the layer that it begins with; arrays are (n,)."""

    rank: int
    used: IntArray  # layers before it
    early: FloatArray  # w - 1
    turns: FloatArray  # m - w - 1
    free_bytes: FloatArray  # what its memory leaves for its layers
    chain_s: FloatArray  # what (A) leaves for a micro-batch of them
    back_s: FloatArray  # what (B) leaves for (m - 1) T - (w - 1) F
    steady_s: FloatArray  # what (H) leaves for (m - w - 1) T; +inf where it is not theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filling:
    """Rows of one pipeline size; sums over their first l layers are (L + 1, n)."""

    rows: Rows
    p: int
    time_s: FloatArray
    forward_s: FloatArray
    states_bytes: FloatArray
    kept_bytes: FloatArray  # of one micro-batch in flight
    held: FloatArray  # (p, n)
    room_bytes: FloatArray  # (p, n)
    rank_time_s: FloatArray  # of a micro-batch, apart from layers, (p, n)
    rank_forward_s: FloatArray
    in_turn: BoolArray  # (n,)
    first: FirstLayers | None  # None: no row recomputes some layers
    replays: Replays | None  # None: no row has counts by stage

    @classmethod
    def of(cls, rows: Rows, p: int) -> _Filling:
        prices, held, ranks = rows.prices, rows.held[:, :p].astype(np.float64), RankCosts.of(rows)
        return cls(
            rows=rows,
            p=p,
            time_s=sums_of(rows, rows.layer_s),
            forward_s=sums_of(rows, prices.forward_s[:, :-2]),
            states_bytes=sums_of(rows, prices.state_bytes[:, :-2]),
            kept_bytes=sums_of(rows, rows.least_kept_bytes[:, :-2]),
            held=np.ascontiguousarray(held.T),
            room_bytes=np.ascontiguousarray(room_bytes(rows, held[:, None, :]).T),
            rank_time_s=np.ascontiguousarray(ranks.time_s.T),
            rank_forward_s=np.ascontiguousarray(ranks.forward_s.T),
            in_turn=in_turn(rows),
            first=FirstLayers.of(rows) if rows.some_layers.any() else None,
            replays=Replays.of(rows) if rows.per_stage.any() else None,
        )

    def places_all(self, low: int, high: int, step_s: FloatArray) -> BoolArray:
        """Return whether every layer fits within ``step_s`` with ``low`` to ``high`` of them on rank 0."""
        rows, num_layers = self.rows, self.rows.layout.num_layers
        own_tail = rows.prices.tail_s[:, :-2] @ rows.layout.cumulative[low] + end_tail_s(rows)
        limit = end_limit_s(rows, step_s) - np.maximum(least_tail_s(rows), own_tail)
        used = np.zeros(len(rows), dtype=np.int64)
        alive = np.ones(len(rows), dtype=np.bool_)
        for rank in range(self.p):
            most = num_layers - (self.p - 1 - rank) * rows.smallest_chunk
            most = most if rank else np.minimum(most, high)
            end = np.minimum(self._end(self._stage(rank, used, limit), int(most.max())), most)
            alive &= end - used >= (rows.smallest_chunk if rank else np.maximum(low, rows.smallest_chunk))
            if not alive.any():
                break
            used = np.maximum(end, used)
        return np.asarray(alive & (used >= num_layers))

    def _stage(self, rank: int, used: IntArray, limit: FloatArray) -> _Stage:
        """Return a rank's limits behind ``used`` layers; ``limit`` is without rank 0's tail."""
        rows, forward = self.rows, self.rank_forward_s[rank]
        missing_bytes, longer_s = (0.0, 0.0) if self.first is None else self.first.beyond_least(used)
        own = self.rank_time_s[rank] + longer_s
        before = np.zeros(len(rows))
        if rank:
            before = at(self.time_s, used) + rows.embedding_s + rank * rows.chunk_s
        early = np.minimum(rows.m, self.p - rank) - 1.0
        turns = rows.m - early - 2.0
        least = rows.total_s - rows.longer_replay_s  # as ``before``: with the shortest replay of each stage
        steady = limit - rows.total_s - (least - before) - turns * own
        turns_back = limit - (rows.m - 1.0) * own + early * forward
        return _Stage(
            rank=rank,
            used=used,
            early=early,
            turns=np.maximum(turns, 0.0),
            free_bytes=self.room_bytes[rank] - self.held[rank] * missing_bytes,
            chain_s=(limit - before) / rows.m - own,
            back_s=turns_back - np.maximum(rows.total_s, least + longer_s),
            steady_s=np.where(self.in_turn & (turns >= 0.0), steady, np.inf),
        )

    def _end(self, stage: _Stage, most: int) -> IntArray:
        """Return the last layer, of the first ``most``, that a rank may hold, (n,)."""
        rows, used, held = self.rows, stage.used, self.held[stage.rank]
        least = int(used.min())
        begin, some = used * len(rows) + np.arange(len(rows)), slice(least, most + 1)
        time, forward = self.time_s[some], self.forward_s[some]
        time_then = self.time_s.take(begin)
        unlimited = np.where(stage.steady_s < 0.0, stage.steady_s, np.inf)  # (H) counts no layer there
        steady_s = np.divide(stage.steady_s, stage.turns, out=unlimited, where=stage.turns > 0.0)
        fits = time <= _ample(time_then + np.minimum(stage.chain_s, steady_s))
        late = (rows.m - 1.0) * time
        late -= stage.early * forward
        late_then = (rows.m - 1.0) * time_then - stage.early * self.forward_s.take(begin)
        fits &= late <= _ample(late_then + stage.back_s)
        weight = held * self.kept_bytes[some]
        weight += self.states_bytes[some]
        weight_then = held * self.kept_bytes.take(begin) + self.states_bytes.take(begin)
        fits &= weight <= _ample(weight_then + stage.free_bytes)
        end = least - 1 + np.add.reduce(fits.view(np.uint8), axis=0, dtype=np.int64)
        return end if self.replays is None else self._replayed_end(self.replays, stage, end)

    def _replayed_end(self, replays: Replays, stage: _Stage, end: IntArray) -> IntArray:
        """Return that with the layers replayed that a rank needs to fit, by bisection up to ``end``."""
        own = replays.own
        low, high = stage.used[own] - 1, np.maximum(end[own], stage.used[own] - 1)
        while (low < high).any():
            middle = (low + high + 1) // 2
            able = self._within(replays, stage, np.maximum(middle, stage.used[own]))
            low, high = np.where(able, middle, low), np.where(able, high, middle - 1)
        end = end.copy()
        end[own] = np.minimum(end[own], low)
        return end

    def _within(self, replays: Replays, stage: _Stage, end: IntArray) -> BoolArray:
        """Return whether rows with own counts keep (A), (B) and (H) with layers up to ``end``, (k,)."""
        own = replays.own
        m, used, held = self.rows.m[own], stage.used[own], self.held[stage.rank, own]
        again = replays.least_s(used, end, stage.free_bytes[own], held)
        width = self.time_s.shape[1]
        time = self.time_s.take(end * width + own) - self.time_s.take(used * width + own)
        forward = self.forward_s.take(end * width + own) - self.forward_s.take(used * width + own)
        able = time + again <= _ample(stage.chain_s[own])
        late = (m - 1.0) * time - stage.early[own] * forward + m * again
        able &= late <= _ample(stage.back_s[own])
        return np.asarray(able & (stage.turns[own] * (time + again) <= _ample(stage.steady_s[own])))


def _ample(room: FloatArray) -> FloatArray:
    return np.asarray(room + _ROUNDING * np.abs(room))


# --------------------------------------------------------------------------------------------------
# Bounds for rows with layers of several kinds: is there room for the layers of each kind?
#
# Every bound of ``bounds`` limits what the layers of one rank may cost, each layer by its kind, and so does
# memory. Each chunk holds at least the smallest number of layers, and of those kinds that lie within its
# reach: chunk c begins behind c smallest chunks and ends before those that follow. With so many layers
# of the cheapest such kind set aside for every chunk, the ranks must have room for the rest, whatever the
# order:
#   the layers of each kind alone find a place, whole layers on every rank;
#   all layers find a place if each cost as little as the cheapest kind;
#   all layers, with none set aside, find a place if they were divisible.
# Where one of these fails no split keeps the limit. That chunks of a rank are alike is used for memory
# alone; the answer is weaker than the exact one, and valid.


_BISECTIONS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelines:
    """The ranks of rows that have p each; chunks and schedules may differ.

    Rows with like pipelines share an entry of the tables: (p, g) by rank, (g,) of one chunk.
    """

    of_row: IntArray  # entry of each row, (n,)
    num_layers: int
    counts: FloatArray  # layers of each kind, (K, 1)
    aside_layers: IntArray  # that all chunks hold at least, (n,)
    smallest_layers: IntArray  # those of one chunk, (n,)
    held: FloatArray  # micro-batches in flight, of all chunks together
    least_held: FloatArray  # of the chunk with fewest
    most_held: FloatArray
    slope: FloatArray  # of n layers on a rank ``slope * n - offset`` are in flight at least
    offset: FloatArray
    first_held: FloatArray  # of the model's first chunk
    last_held: FloatArray
    kinds: BoolArray  # that a rank can hold, (K, p, g)
    chunks_of: tuple[tuple[BoolArray, FloatArray], ...]  # kinds (K,) and how many chunks can hold them

    @classmethod
    def of(cls, rows: Rows) -> Pipelines:
        """Return the pipelines of rows with p ranks each."""
        c, smallest = rows.columns, rows.smallest_chunk
        shape = [c.virtual_pipeline_size, c.num_microbatches, c.pipeline_schedule, smallest]
        first, of_row = distinct(shape)
        c, least, p = c.take(first), smallest[first], int(rows.p[0])
        v = c.virtual_pipeline_size
        chunks = p * int(v.max())

        def of_ranks(values: Values) -> Values:
            """Return chunks' values (g, C) by rank, (v, p, g); absent chunks are last."""
            return np.ascontiguousarray(by_rank(values, p, in_a_v(c)).transpose(1, 2, 0))

        there = np.arange(chunks) < (p * v)[:, None]
        by_chunk = in_flight(c).astype(np.float64)
        held, present = of_ranks(by_chunk), of_ranks(there)
        slope, offset = _lightest(held, v)
        several = np.flatnonzero(v > 1)
        if len(several):  # the model's first chunk is as small as it may be
            own = held[:, :1, several]
            mean, loose = _lightest(own[1:], v[several] - 1)
            slope[:1, several] = mean
            offset[:1, several] = loose + (mean - own[0]) * least[several]
        reachable = _reachable(rows, p * v, least, chunks)
        chosen, which = distinct([of_kind.ravel() for of_kind in reachable])
        which = of_ranks(np.where(there, which.reshape(there.shape), -1))
        masks = reachable.reshape(len(reachable), -1)[:, chosen].T
        number = [(which == at).sum(axis=0) for at in range(len(masks))]
        kinds = [mask[:, None, None] & (has > 0) for mask, has in zip(masks, number, strict=True)]
        return cls(
            of_row=of_row,
            num_layers=rows.layout.num_layers,
            counts=rows.layout.cumulative[-1].astype(np.float64)[:, None],
            aside_layers=rows.p * rows.v * smallest,
            smallest_layers=smallest,
            held=held.sum(axis=0),
            least_held=np.where(present, held, np.inf).min(axis=0),
            most_held=held.max(axis=0),
            slope=slope,
            offset=offset,
            first_held=by_chunk[:, 0],
            last_held=by_chunk[np.arange(len(v)), p * v - 1],
            kinds=np.logical_or.reduce(kinds),
            chunks_of=tuple(zip(masks, (has.astype(np.float64) for has in number), strict=True)),
        )

    def take(self, index: IntArray) -> Pipelines:
        """Return those of some of the rows."""
        return replace(
            self, of_row=self.of_row[index], aside_layers=self.aside_layers[index],
            smallest_layers=self.smallest_layers[index],
        )  # fmt: skip

    def of_rows(self, values: Values) -> Values:
        """Return a table's values of every row, (…, n)."""
        return values.take(self.of_row, axis=-1)


def _lightest(held: FloatArray, chunks: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return slope and offset of the micro-batches in flight of layers on a rank, (p, g) each.

    ``held`` is (v, p, g), 0 behind the last of a pipeline's ``chunks``, (g,). With q layers in every chunk
    and one more in the last e of them they are q sum(held) + sum(last e).
    """
    slope = held.sum(axis=0) / chunks
    spared = np.cumsum(held, axis=0) - np.arange(1, len(held) + 1)[:, None, None] * slope
    return slope, np.asarray(spared.max(axis=0, initial=0.0))


def _reachable(rows: Rows, chunks: IntArray, smallest: IntArray, most: int) -> BoolArray:
    """Return whether each of up to ``most`` chunks can hold a layer of each kind, (K, g, C).

    Args:
        rows: of the model.
        chunks: of each pipeline, (g,).
        smallest: number of layers of a chunk, (g,).
        most: C.
    """
    cumulative, num_layers = rows.layout.cumulative, rows.layout.num_layers
    chunk, smallest = np.arange(most), smallest[:, None]
    begin = np.minimum(chunk * smallest, num_layers)
    end = np.clip(num_layers - (chunks[:, None] - 1 - chunk) * smallest, begin, num_layers)
    there = (cumulative[end] > cumulative[begin]).transpose(2, 0, 1)
    return np.asarray(there | ~there.any(axis=0))  # no layer is left: not a row of the space


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Least cost of all layers of rows with p ranks each, on the ranks that hold them."""

    pipelines: Pipelines
    each: FloatArray  # what a layer of each kind costs on each rank, (K, p, n) or (K, 1, n)
    cheapest: FloatArray  # the least of the kinds', (p, n) or (1, n)
    aside: FloatArray  # what the least layers of every chunk of a rank cost, (p, n)
    whole: FloatArray  # all layers, each on the rank where it costs least, (n,)

    @classmethod
    def of(cls, pipelines: Pipelines, each: FloatArray) -> Needs:
        """Return the needs of rows with these pipelines."""
        least = [
            pipelines.of_rows(number) * each[kinds].min(axis=0) for kinds, number in pipelines.chunks_of
        ]
        return cls(
            pipelines=pipelines,
            each=each,
            cheapest=each.min(axis=0),
            aside=np.add.reduce(least) * pipelines.smallest_layers,
            whole=(each.min(axis=1) * pipelines.counts).sum(axis=0) * (1.0 - _ROUNDING),
        )

    def fit_in(self, room: FloatArray) -> BoolArray:
        """Return whether all layers may fit if a rank's may cost so much (p, n); shape (n,)."""
        pipelines = self.pipelines
        ample = _ample(room)
        left = ample - self.aside
        able = (left >= 0.0).all(axis=0)
        left = np.maximum(left, 0.0)
        alone = np.floor(share_of(left, self.each)).sum(axis=1)
        able &= (alone >= pipelines.counts - pipelines.aside_layers).all(axis=0)
        together = np.floor(share_of(left, self.cheapest)).sum(axis=0)
        able &= together >= pipelines.num_layers - pipelines.aside_layers
        return np.asarray(able & (np.maximum(ample, 0.0).sum(axis=0) >= self.whole))


def _by_kind(values: FloatArray) -> FloatArray:
    """Return values of layers (n, K) as (K, 1, n)."""
    return np.ascontiguousarray(values.T)[:, None]


Reach = Callable[..., BoolArray]  # (step_s, closely) -> whether rows may have a split that is not slower


def _interleaved(rows: Rows, pipelines: Pipelines) -> Reach:
    """Test rows with p ranks each, all of which may fit, for a split that simulates within a time."""
    prices, m = rows.prices, rows.m
    own = RankCosts.of(rows)
    own_time_s, own_tail_s = np.ascontiguousarray(own.time_s.T), np.ascontiguousarray(own.tail_s.T)
    rank = np.arange(len(own_time_s))[:, None]
    layer, tail = _by_kind(rows.layer_s), _by_kind(prices.tail_s[:, :-2])
    shortest = rows.smallest_chunk * prices.forward_s[:, :-2].min(axis=1) + prices.every_forward_s
    there = np.where(rank > 0, prices.forward_s[:, -2], 0.0) + rank * shortest
    both = rows.smallest_chunk * rows.layer_s.min(axis=1) + rows.chunk_s
    back = np.where(rank > 0, rows.embedding_s, 0.0) + rank * both
    busy = m * own_time_s
    wait, late = _late_needs(rows, pipelines)
    limits = (  # next to the end of the slowest rank
        (-own_tail_s - there - busy, Needs.of(pipelines, m * layer + tail)),
        (-least_tail_s(rows) - back - busy, Needs.of(pipelines, m * layer)),
        (-own_tail_s - busy - wait, late),
    )

    def able(step_s: FloatArray, **_: bool) -> BoolArray:
        limit, kept = end_limit_s(rows, step_s), np.ones(len(rows), dtype=np.bool_)
        for offset, needs in limits:
            if not kept.any():
                break
            kept = kept & needs.fit_in(limit + offset)
        return kept

    return able


def _busy(rows: Rows, pipelines: Pipelines) -> Reach:
    """Test rows that split the backward pass: each rank works all its micro-batches, (E)."""
    room, needs = _busy_needs(rows, pipelines, rows.m)
    return lambda step_s, **_: needs.fit_in(end_limit_s(rows, step_s) + room)


def _late_needs(rows: Rows, pipelines: Pipelines) -> tuple[FloatArray, Needs]:
    """Return (D): each rank's wait for the first micro-batch's forward passes (p, n), and the rest."""
    prices, counts = rows.prices, rows.layout.cumulative[-1].astype(np.float64)
    wait = prices.forward_s[:, :-2] @ counts + prices.forward_s[:, -2] + prices.forward_s[:, -1]
    wait = wait + rows.p * rows.v * prices.every_forward_s
    early = pipelines.of_rows(pipelines.held) * prices.every_forward_s
    early[0] += pipelines.of_rows(pipelines.first_held) * prices.forward_s[:, -2]
    early[-1] += pipelines.of_rows(pipelines.last_held) * prices.forward_s[:, -1]
    each = _by_kind(rows.m[:, None] * rows.layer_s + prices.tail_s[:, :-2])
    each = each - pipelines.of_rows(pipelines.most_held) * _by_kind(prices.forward_s[:, :-2])
    return wait - early, Needs.of(pipelines, each)


def fits_by_kind(rows: Rows, pipelines: Pipelines) -> BoolArray:
    """Return whether the ranks' memory may hold all layers in their lightest chunks, shape (n,).

    Of n layers on a rank, in chunks that differ by at most one, the micro-batches in flight add up to
    ``slope * n - offset`` at least: later chunks keep fewer and are the larger ones, and the model's
    first chunk is as small as it may be. Each is counted with the kind that keeps least of those that
    the rank can hold; what a kind keeps beyond that, with the chunk that keeps fewest.
    """
    each_row, kept = pipelines.of_rows, _by_kind(rows.least_kept_bytes[:, :-2])
    least = np.where(each_row(pipelines.kinds), kept, np.inf).min(axis=0)
    more = np.maximum(kept - least, 0.0)
    each = _by_kind(rows.prices.state_bytes[:, :-2]) + least * each_row(pipelines.slope)
    each = each + each_row(pipelines.least_held) * more
    held, first, last = map(each_row, (pipelines.held, pipelines.first_held, pipelines.last_held))
    room = np.ascontiguousarray(room_beside_ends_bytes(rows, held.T, first, last).T)
    return Needs.of(pipelines, each).fit_in(room + least * each_row(pipelines.offset))


def may_reach_objective(rows: Rows, objective_s: float) -> BoolArray:
    """Return whether a row may have a split that fits, with at most that closed form, shape (n,)."""
    able = np.zeros(len(rows), dtype=np.bool_)
    for index in _batches(rows):
        group = rows.take(index)
        pipelines = Pipelines.of(group)
        room, needs = _busy_needs(group, pipelines, group.m - group.phi)
        share = end_limit_s(group, objective_s)
        room = room + (share - group.phi * group.total_s)
        able[index] = needs.fit_in(room) & fits_by_kind(group, pipelines)
        if len(alone := np.flatnonzero(able[index] & (group.v == 1))):
            able[index[alone]] = _placed_in_turn(group.take(alone), room[:, alone])
    return able


def _placed_in_turn(rows: Rows, room_s: FloatArray) -> BoolArray:
    """Return whether ranks of one chunk, filled in turn, hold all layers within their memory, (n,).

    ``room_s``: of the closed form, what each rank's layers may take, (p, n).
    """
    p, num_layers, smallest = len(room_s), rows.layout.num_layers, rows.smallest_chunk
    filling, time_s = _Filling.of(rows, p), sums_of(rows, _busy_s(rows, rows.m - rows.phi))
    used, alive = np.zeros(len(rows), dtype=np.int64), np.ones(len(rows), dtype=np.bool_)
    for rank in range(p):
        held, room_bytes = filling.held[rank], filling.room_bytes[rank]
        missing_bytes = 0.0 if filling.first is None else filling.first.beyond_least(used)[0]
        weighs = filling.states_bytes + held * filling.kept_bytes
        end = furthest(weighs, used, room_bytes - held * missing_bytes)
        end = np.minimum(end, furthest(time_s, used, room_s[rank]))
        end = np.minimum(end, num_layers - (p - 1 - rank) * smallest)
        alive &= end - used >= smallest
        used = np.maximum(end, used)
    return np.asarray(alive & (used >= num_layers))


def _busy_s(rows: Rows, passes: FloatArray) -> FloatArray:
    """Return what a layer of each kind takes in so many passes, with its tail, (n, K)."""
    return np.asarray(passes[:, None] * rows.layer_s + rows.prices.tail_s[:, :-2])


def _busy_needs(rows: Rows, pipelines: Pipelines, passes: FloatArray) -> tuple[FloatArray, Needs]:
    """Return the ranks' constants within the slowest one's time, and the layers' needs of it.

    ``passes`` are micro-batches, shape (n,): m, or m - phi in the closed form.
    """
    room = np.ascontiguousarray(RankCosts.of(rows).objective_s(passes).T)
    return -room, Needs.of(pipelines, _by_kind(_busy_s(rows, passes)))


def least_objective_s(rows: Rows) -> FloatArray:
    """Return a lower bound on the closed form over all splits of rows with p ranks each, shape (n,)."""
    prices = rows.prices
    room, needs = _busy_needs(rows, Pipelines.of(rows), rows.m - rows.phi)
    low = -room.min(axis=0)
    high = low + needs.each[:, 0].T @ rows.layout.cumulative[-1].astype(np.float64)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        able = needs.fit_in(middle + room)
        low, high = np.where(able, low, middle), np.where(able, middle, high)
    ends: FloatArray = rows.phi * rows.total_s + low
    return step_of_end_s(ends, prices.straggler, prices.fixed_s) * SAFETY


# --------------------------------------------------------------------------------------------------
# Which rows of mixed layers that split the backward pass could step faster than a given time.
#
# Layers of several kinds, one chunk a rank: ranks are filled one after the other, as in ``_Filling``,
# with as many layers as (E), (F), (G) and their memory allow. Layers u … j - 1 on rank s
# are within (F) if
#
#   F(u, L) + I(j, L) + m T(u, j) - held_s F(u, j) + tail(u, j) + (what is not layers) <= Z.
#
# It grows with j, since m T >= held_s F + I of every layer, and falls with u, since m T >= (held_s - 1)
# F: a rank that begins a layer later reaches as far, so the fill reaches layer L if some split keeps the
# bounds.


def _split_reaches(fill: _Fill, step_s: FloatArray) -> BoolArray:
    """Return whether rows may have a fitting split within ``step_s``, (n,); False is a proof."""
    rows, p, limit = fill.rows, fill.p, end_limit_s(fill.rows, step_s)
    used = np.zeros(len(rows), dtype=np.int64)
    alive = np.ones(len(rows), dtype=np.bool_)
    for rank in range(p):
        end = np.minimum(fill.furthest(rank, used, limit), rows.layout.num_layers - (p - 1 - rank))
        alive &= end > used
        used = np.maximum(end, used)
    return np.asarray(alive & (used >= rows.layout.num_layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fill:
    """Sums over the first l layers, (L + 1, n), and their bounds."""

    rows: Rows
    p: int
    forward_s: FloatArray
    input_s: FloatArray  # input gradients
    busy_s: FloatArray  # all micro-batches of a layer, and its tail
    ranks: RankCosts
    states_bytes: FloatArray
    kept_bytes: FloatArray  # of one micro-batch in flight
    held: FloatArray  # (n, p) micro-batches in flight
    room_bytes: FloatArray  # (n, p)

    @classmethod
    def of(cls, rows: Rows, p: int) -> _Fill:
        prices = rows.prices
        held = rows.held[:, :p].astype(np.float64)
        return cls(
            rows=rows,
            p=p,
            forward_s=sums_of(rows, prices.forward_s[:, :-2]),
            input_s=sums_of(rows, _input_s(rows)[:, :-2]),
            busy_s=sums_of(rows, rows.m[:, None] * rows.layer_s + prices.tail_s[:, :-2]),
            ranks=RankCosts.of(rows),
            states_bytes=sums_of(rows, prices.state_bytes[:, :-2]),
            kept_bytes=sums_of(rows, rows.least_kept_bytes[:, :-2]),
            held=held,
            room_bytes=room_bytes(rows, held[:, None, :]),
        )

    def furthest(self, rank: int, used: IntArray, limit_s: FloatArray) -> IntArray:
        """Return the last layer that a rank may hold which begins behind ``used`` of them, (n,).

        ``limit_s``: end and tail of the slowest rank, (n,).
        """
        own, held = self.ranks, self.held[:, rank]
        busy = self.rows.m * own.time_s[:, rank] + own.tail_s[:, rank]
        left = limit_s - busy
        weighs = self.states_bytes + held * self.kept_bytes
        late = self.busy_s - held * self.forward_s - self.input_s
        wait = self._wait_s(rank, used) - held * own.forward_s[:, rank]
        ends = (
            furthest(weighs, used, self.room_bytes[:, rank]),
            furthest(self.busy_s, used, left),
            furthest(late, used, left - wait),
            self._return_end(rank, used, limit_s),
        )
        return np.asarray(np.minimum.reduce(ends))

    def _wait_s(self, rank: int, used: IntArray) -> FloatArray:
        """Return F and I of all layers behind ``used``, and other parts of the awaited passes, (n,)."""
        prices, behind = self.rows.prices, self.p - 1 - rank
        both = self.forward_s + self.input_s
        wait = both[-1] - at(both, used) + prices.every_forward_s + prices.forward_s[:, -1]
        wait = wait + behind * prices.every_s
        if rank == 0:
            wait = wait + prices.forward_s[:, -2]
        return np.asarray(wait + (behind > 0) * _input_s(self.rows)[:, -1])

    def _return_end(self, rank: int, used: IntArray, limit_s: FloatArray) -> IntArray:
        """Return the last layer of a rank under (G)."""
        rows, prices = self.rows, self.rows.prices
        both, ends = self.forward_s + self.input_s, prices.forward_s + _input_s(rows)
        own = prices.every_s + (rank == 0) * ends[:, -2] + (rank == self.p - 1) * ends[:, -1]
        before = at(both, used) + rank * prices.every_s + (rank > 0) * ends[:, -2]
        last = prices.weight_gradient_s[:, :-2].min(axis=1) + prices.weight_gradient_s[:, -2]
        tail = prices.tail_s[:, :-2].min(axis=1) + prices.rank_tail_s + prices.tail_s[:, -2]
        room = limit_s - before - last - tail - rows.m * own
        return furthest(rows.m * both, used, room)


def _input_s(rows: Rows) -> FloatArray:
    return np.asarray(rows.prices.backward_s - rows.prices.weight_gradient_s)


# --------------------------------------------------------------------------------------------------
# Which rows with layers of several kinds could step faster than a given time.
#
# One chunk a rank: ranks are filled one after the other (``_Filling``; ``_Fill`` where the backward pass is
# split). Several chunks a rank: ``Needs`` asks whether the ranks have room for the layers of each kind, in
# any order.


_BATCH = 1024
_RAISED, _CLOSE = 1.5, 0.005  # of a bound: what it is raised to at once, and how closely it is bisected


def can_beat_mixed(rows: Rows, step_s: FloatArray, *, closely: bool = True) -> BoolArray:
    """Return whether a row may have a fitting split of ``step_s`` or less; False is a proof.

    ``closely``: rank 0's tail is counted as that of its layers, at several times the cost.
    """
    answer = np.zeros(len(rows), dtype=np.bool_)
    for index, reach in _reaches_of(rows):
        answer[index] = reach(step_s[index], closely=closely)
    kept = np.flatnonzero(answer)
    answer[kept] = whole_layers_s(rows.take(kept)) * SAFETY <= step_s[kept]
    return answer


def _batches(rows: Rows) -> Iterator[IntArray]:
    """Yield rows with the same number of ranks, by their indices, few enough for the cache."""
    for p in np.unique(rows.p):
        index = np.flatnonzero(rows.p == p)
        for start in range(0, len(index), _BATCH):
            look()
            yield index[start : start + _BATCH]


def _reaches_of(rows: Rows) -> Iterator[tuple[IntArray, Reach]]:
    """Yield rows with the same number of ranks, by their indices, with their test (``Reach``).

    A test computes once what no step time changes, so ask it for as many times as needed.
    """
    for batch in _batches(rows):
        group = rows.take(batch)
        if not rows.uneven_stages:
            for pp, vpp, index in groups_of_shape(group):
                yield batch[index], _only_split(group.take(index), pp * vpp)
            continue
        pipelines = Pipelines.of(group)
        fits = fits_by_kind(group, pipelines)
        yield batch[~fits], lambda step_s, **_: np.zeros(len(step_s), dtype=np.bool_)
        for split, chunked in product((False, True), repeat=2):
            own = fits & (group.splits_backward == split) & ((group.v > 1) == chunked)
            if len(index := np.flatnonzero(own)):
                some = pipelines.take(index)
                yield batch[index], _reach(group.take(index), some, split=split, chunked=chunked)


def _reach(group: Rows, pipelines: Pipelines, *, split: bool, chunked: bool) -> Reach:
    if chunked:
        return _busy(group, pipelines) if split else _interleaved(group, pipelines)
    if split:
        fill = _Fill.of(group, int(group.p[0]))
        return lambda step_s, **_: _split_reaches(fill, step_s)
    return partial(_reaches, _Filling.of(group, int(group.p[0])))


def tightened_s(rows: Rows, bound_s: FloatArray, limit_s: FloatArray) -> FloatArray:
    """Raise the bounds of rows to about what ``can_beat_mixed`` proves, shape (n,).

    To solve a row takes longer than to ask a few times about many. ``limit_s``: times that the rows may
    beat as far as is known; up to there they are raised by half again and again, then bisected.
    """
    low, floor = bound_s.copy(), whole_layers_s(rows) * SAFETY
    most = np.maximum(limit_s, low)
    asked = np.flatnonzero(most - low > _CLOSE * low)
    for some, reach in _reaches_of(rows.take(asked)):
        index = asked[some]
        below, least, last = low[index], floor[index], most[index]
        above = np.minimum(last, below * _RAISED)
        found = above >= last  # that they may beat that is known
        while (wide := ~found | (above - below > _CLOSE * below)).any():
            look()
            middle = np.where(found, (below + above) / 2.0, above)
            able = reach(middle, closely=False) & (least <= middle)
            below, above = np.where(wide & ~able, middle, below), np.where(wide & able, middle, above)
            above = np.where(found | able, above, np.minimum(last, below * _RAISED))
            found |= able | (above >= last)
        low[index] = below
    return low


def _only_split(group: Rows, chunks: int) -> Reach:
    split = even_chunks(group, chunks)
    if split is None:
        return lambda step_s, **_: np.zeros(len(step_s), dtype=np.bool_)
    stages = group.stages([split] * len(group))
    fits = stages.peak_memory_bytes.max(axis=1) <= group.budget_bytes
    fits &= group.smallest_chunk <= min(split)
    own = split_s(group, stages)
    return lambda step_s, **_: np.asarray(fits & (own <= step_s))
