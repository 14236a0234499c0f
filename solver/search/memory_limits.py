"""Number of layers that the memory of each rank takes, for rows with layers of one kind.

Chunks of a rank differ by at most one layer, in any order; the model's first and last chunk may hold
fewer. A layer costs least in the chunk that keeps fewest micro-batches in flight, and that is the
later one of two chunks of a rank (``schedule.in_flight``). In a V rank 0 holds the first and the last
chunk of the model, so that both may be of any size. Chunks that have gradients in turn weigh otherwise
(``InTurn``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import TypeVar

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import SCHEDULES, BoolArray, FloatArray, IntArray
from meshwright.solver.cost.stages import EACH_RANK, workspace_bytes
from meshwright.solver.schedules.schedule import V_SHAPED, least_in_flight, most_in_flight, shapes_of
from meshwright.solver.search.rows import Rows


def may_fit(rows: Rows) -> BoolArray:
    """Mark rows with enough memory on all ranks together for all layers, (n,); False is a proof.

    Every chunk keeps at least one micro-batch in flight.
    """
    prices, layout = rows.prices, rows.layout
    kept = rows.least_kept_bytes
    spared = (prices.activation_bytes - prices.checkpoint_bytes)[:, :-2].max(axis=1)
    layers = (prices.state_bytes + kept)[:, :-2] @ layout.cumulative[-1].astype(np.float64)
    ends = (prices.state_bytes + kept)[:, -2:].sum(axis=1)
    least = layers + ends - rows.p * rows.v * rows.some_layers * spared
    room = rows.parts_room_bytes - prices.replay_workspace_bytes
    return np.asarray(least <= rows.p * room * (1.0 + 1e-12))


def kinds_may_fit(lightest: Rows) -> BoolArray:
    """Mark kinds, by their lightest rows, with enough memory on each rank for all layers, (n,).

    False is a proof for every row of the kind (``least_in_flight``). Of layers of one kind only all ranks
    together are asked here: ``have_room`` is exact, and as quick.
    """
    able = may_fit(lightest)
    if lightest.is_uniform:
        return able
    left = np.flatnonzero(able & ((lightest.v == 1) | ~lightest.splits_backward))
    by_ranks = left[np.argsort(lightest.p[left], kind="stable")]
    for start in range(0, len(by_ranks), _TOGETHER):
        look()
        index = by_ranks[start : start + _TOGETHER]
        able[index] = _ranks_may_hold(lightest.take(index))
    return able


def _ranks_may_hold(rows: Rows) -> BoolArray:
    """Return whether the layers of each kind alone find a place, and all if each weighed least, (n,)."""
    least, slope, offset = least_in_flight(rows.columns)
    kept, states = rows.least_kept_bytes[:, :-2], rows.prices.state_bytes[:, :-2]
    lightest = kept.min(axis=1)[:, None]
    last = least[np.arange(len(rows)), rows.head_rank]
    room = room_beside_ends_bytes(rows, least, least[:, 0], last) + lightest * offset
    there = np.arange(room.shape[1]) < rows.p[:, None]
    room = np.where(there, np.maximum(room, 0.0) / _SAFETY, 0.0)
    cheapest, able = np.full(room.shape, np.inf), np.ones(len(rows), dtype=np.bool_)
    for kind, count in enumerate(rows.layout.cumulative[-1].tolist()):
        beyond = kept[:, kind, None] - lightest
        each = np.maximum(states[:, kind, None] + lightest * slope + beyond * least, 1.0)
        able &= np.floor(room / each).sum(axis=1) >= count
        cheapest = np.minimum(cheapest, each)
    return np.asarray(able & (np.floor(room / cheapest).sum(axis=1) >= rows.layout.num_layers))


Values = TypeVar("Values", FloatArray, IntArray, BoolArray)
_TOGETHER = 1024  # rows with caps that are found side by side
_SAFETY = 1.0 - 1e-12  # sums of a few terms, added in another order than ``assemble`` adds them


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Least and most layers of each rank, (n, R); R is the largest pp, absent ranks hold 0."""

    least: IntArray
    most: IntArray  # below ``least`` where a rank cannot hold what it must

    def take(self, index: IntArray, num_ranks: int) -> Caps:
        """Return the caps of the rows at ``index``, of which none has more than ``num_ranks`` ranks."""
        return Caps(least=self.least[index, :num_ranks], most=self.most[index, :num_ranks])

    def feasible(self, num_layers: int) -> BoolArray:
        """Mark rows with a split that fits, shape (n,)."""
        holds = (self.most >= self.least).all(axis=1)
        enough = (self.least.sum(axis=1) <= num_layers) & (self.most.sum(axis=1) >= num_layers)
        return np.asarray(holds & enough)


def groups_of_shape(rows: Rows) -> Iterator[tuple[int, int, IntArray]]:
    """Yield (pp, vpp, rows of that shape), in ascending order."""
    width = int(rows.v.max(initial=1)) + 1
    keys = rows.p * width + rows.v
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
    for index in np.split(order, starts[1:]) if len(order) else ():
        pp, vpp = divmod(int(keys[index[0]]), width)
        yield pp, vpp, index


def by_rank(values: Values, p: int, in_a_v: BoolArray) -> Values:
    """Return chunks' values in model order, (n, C), by the chunks of each of p ranks, (n, v, p).

    The second half of a V runs back over the ranks; ``in_a_v`` is (n,).
    """
    apart = values.reshape(len(values), values.shape[1] // p, p).copy()
    apart[in_a_v, 1:2] = apart[in_a_v, 1:2, ::-1]
    return apart


def held_by_rank(rows: Rows, pp: int, vpp: int) -> FloatArray:
    """Return micro-batches in flight of the chunks of each rank, (n, v, p)."""
    return by_rank(rows.held[:, : pp * vpp].astype(np.float64), pp, rows.in_a_v)


def room_bytes(rows: Rows, held: FloatArray) -> FloatArray:
    """Return bytes that each rank has left for its layers, (n, p); ``held`` is ``held_by_rank``."""
    last = held[np.arange(len(held)), rows.v - 1, rows.head_rank]
    return room_beside_ends_bytes(rows, held.sum(axis=1), held[:, 0, 0], last)


def room_beside_ends_bytes(
    rows: Rows, held: FloatArray, first_held: FloatArray, last_held: FloatArray
) -> FloatArray:
    """Return bytes that each rank has left for its layers, (n, p).

    What partial recomputation spares is added at its most (exact for layers of one kind).

    Args:
        rows: with up to p ranks.
        held: micro-batches in flight of all chunks of a rank, (n, p).
        first_held: of the model's first chunk, (n,).
        last_held: of its last chunk, (n,).
    """
    prices, last = rows.prices, (np.arange(len(rows)), rows.head_rank)
    kept, states = prices.activation_bytes, prices.state_bytes
    workspace = workspace_bytes(prices, EACH_RANK, np.array([[False, True]]))
    without_head, with_head = (rows.parts_room_bytes[:, None] - workspace).T
    room = np.repeat(without_head[:, None], held.shape[1], axis=1)
    room[last] = with_head
    room[:, 0] -= states[:, -2] + kept[:, -2] * first_held
    room[last] -= states[:, -1] + kept[:, -1] * last_held
    spared = (kept[:, :-2] - prices.checkpoint_bytes[:, :-2]).max(axis=1)
    room += held * (rows.some_layers * spared)[:, None]
    return np.asarray(room)


def _most_layers(rows: Rows) -> IntArray:
    """Return the layers that fit on each rank in its lightest chunks, (n, R); -1 if too few fit."""
    runs, least, num_layers = Runs.of(rows), rows.smallest_chunk, rows.layout.num_layers
    kept = rows.least_kept_bytes[:, 0]
    states = rows.prices.state_bytes[:, :1] + _at_once(rows) * rows.prices.gradients_bytes[:, :1]
    each = states[:, None] + kept[:, None, None] * runs.held
    room = room_beside_ends_bytes(rows, runs.in_flight, runs.held[:, 0, 0], runs.last_held) * _SAFETY
    most = _balanced(each, runs.chunks, room, num_layers)
    several = rows.v > 1
    if rows.uneven_stages and several.any():
        # the model's first chunk may hold fewer than its rank's others
        first, others = room[:, :1] - (least * each[:, 0, 0])[:, None], runs.chunks[:, :, :1].copy()
        others[:, 0] -= 1.0
        more = _balanced(each[:, :, :1], others, first, num_layers)[:, 0]
        most[:, 0] = np.where(several, np.where(first[:, 0] < 0.0, -1, least + more), most[:, 0])
    most = np.where(room < 0.0, -1, np.minimum(most, num_layers))
    some = np.flatnonzero(rows.prices.ranks_in_turn)
    for _, _, index in groups_of_shape(rows.take(some)):
        ranks = InTurn.of(rows.take(some[index]))
        most[some[index][ranks.row], ranks.rank] = ranks.most(num_layers)
    return most


@dataclass(frozen=True)
class Runs:
    """Chunks of each rank in runs with the same number of micro-batches in flight, in model order.

    There are at most two: chunks of an interleaved rank hold p each, but for more in the first (early
    ranks) or fewer in the last (late ranks).
    """

    held: FloatArray  # (n, H, R) micro-batches in flight of each chunk of a run
    chunks: FloatArray  # (n, H, R) chunks of each run; 0: no such run
    last_held: FloatArray  # (n,) of the model's last chunk

    @cached_property
    def in_flight(self) -> FloatArray:
        """Return the micro-batches in flight of all chunks of each rank, (n, R)."""
        return np.asarray((self.held * self.chunks).sum(axis=1))

    @classmethod
    def of(cls, rows: Rows) -> Runs:
        """Return the runs of all ranks of rows."""
        shapes, shape = shapes_of(rows.columns)
        found = [_runs_of(*one) for one in shapes.tolist()]
        size = max(len(held) for held, _, _ in found), int(rows.p.max())
        held, chunks = np.zeros((2, len(found), *size))
        for at, (own, number, _) in enumerate(found):
            held[at, : len(own), : own.shape[1]] = own
            chunks[at, : len(own), : own.shape[1]] = number
        last = np.array([one for _, _, one in found])
        return cls(
            held=np.minimum(held.take(shape, axis=0), rows.m[:, None, None]),
            chunks=chunks.take(shape, axis=0),
            last_held=np.minimum(last.take(shape), rows.m),
        )


@cache
def _runs_of(p: int, v: int, schedule: int) -> tuple[FloatArray, FloatArray, float]:
    """Return ``Runs`` of one shape of pipeline, with no limit on the number of micro-batches."""
    most = most_in_flight(*np.array([[p], [v], [schedule]])).astype(np.float64)
    (every,) = by_rank(most, p, np.array([v > 1 and SCHEDULES[schedule] in V_SHAPED]))
    run = np.cumsum(np.diff(every, axis=0, prepend=-1.0) != 0.0, axis=0) - 1  # (v, p)
    runs = run == np.arange(int(run.max()) + 1)[:, None, None]
    return (runs * every).max(axis=1), runs.sum(axis=1, dtype=np.float64), float(most[0, -1])


def _at_once(rows: Rows) -> BoolArray:
    """Mark ranks with all gradients at once, in rows with others that have them in turn, (n, p)."""
    in_turn = rows.prices.ranks_in_turn[:, None]
    return np.asarray((in_turn > 0) & (np.arange(int(rows.p.max(initial=1))) >= in_turn))


def _balanced(each: FloatArray, chunks: FloatArray, room: FloatArray, num_layers: int) -> IntArray:
    """Count fitting layers if chunks differ by at most one and later ones, which hold less, are larger.

    Args:
        each: bytes of a layer in each chunk of a run of each rank, (n, H, R).
        chunks: of each run, (n, H, R); 0: no such run.
        room: bytes that each rank has left, (n, R).
        num_layers: of the model; no more are counted.
    """
    whole, each = each * chunks, np.maximum(each, 1.0)  # absent ranks may hold 0
    round_bytes, count = np.maximum(whole.sum(axis=1), 1.0), chunks.sum(axis=1)
    rounds = np.minimum(np.floor(np.maximum(room, 0.0) / round_bytes), num_layers)
    rest, more = room - rounds * round_bytes, np.zeros_like(room)
    for run in range(each.shape[1] - 1, -1, -1):
        more += np.clip(np.floor(rest / each[:, run]), 0.0, chunks[:, run])
        rest -= whole[:, run]
    return np.asarray(rounds * count + np.clip(more, 0.0, count - 1), dtype=np.int64)


def layer_caps(rows: Rows) -> Caps:
    """Return least and most layers of every rank of every row, for layers of one kind.

    Of all ways to lay a number of layers out over a rank's chunks the lightest counts; its memory grows
    with the number of layers, so that one number is the whole limit. Absent ranks hold 0.
    """
    least = np.zeros((len(rows), int(rows.p.max(initial=1))), dtype=np.int64)
    most = np.zeros_like(least)
    order = np.argsort(rows.p, kind="stable")
    for start in range(0, len(order), _TOGETHER):
        look()
        index = order[start : start + _TOGETHER]
        group = rows.take(index)
        low, high, ranks = (group.v * group.smallest_chunk)[:, None], _most_layers(group), int(group.p[-1])
        if not rows.uneven_stages:
            each, rest = np.divmod(rows.layout.num_layers, group.p * group.v)
            low = (group.v * each)[:, None]
            high = np.minimum(high, np.where(rest > 0, -1, group.v * each)[:, None])
        there = np.arange(ranks) < group.p[:, None]
        least[index, :ranks], most[index, :ranks] = np.where(there, low, 0), np.where(there, high, 0)
    return Caps(least=least, most=most)


def have_room(rows: Rows) -> BoolArray:
    """Mark rows with layers of one kind that have a split that fits, shape (n,)."""
    return layer_caps(rows).feasible(rows.layout.num_layers)


# --------------------------------------------------------------------------------------------------
# Ranks with chunks that have gradients in turn, from the last to the first (``stages.fullest_moment``).
#
# While chunk t has whole gradients, g of each of its x_t layers, it and the chunks before it keep
# activations, e of each of their P_t layers, but e' in the last chunk, and those behind it what is left of
# their gradients, g'. With N layers on the rank, each with w of weights and optimizer states,
#
#   w N + e P_t + g x_t + g' (N - P_t) <= room_t       for all chunks but the last,
#   w N + e (N - x_t) + (e' + g) x_t <= room_t         for the last one.
#
# Regular chunks hold q or q + 1 layers; the model's first and last chunk z, at most one more than the
# others, or on rank 0 of a V any number. For one z the possible P_t are a range: a chunk that holds one
# layer more leaves out sums at one end of it alone.


_Range = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class InTurn:
    """Ranks with as many chunks each; bytes, shape (x,) where nothing else is said."""

    row: IntArray
    rank: IntArray
    each: FloatArray  # w
    gradients: FloatArray  # g
    reduced: FloatArray  # g'
    kept: FloatArray  # e
    last_kept: FloatArray  # e'
    room: FloatArray  # (x, v)
    smallest: IntArray  # layers of a chunk
    first: BoolArray  # the rank's first chunk is the model's
    last: BoolArray  # its last one is

    @classmethod
    def of(cls, rows: Rows) -> InTurn:
        """Return all such ranks of rows of one shape."""
        prices, p, v = rows.prices, int(rows.p[0]), int(rows.v[0])
        held, every = held_by_rank(rows, p, v), np.arange(len(rows))
        row, rank = np.nonzero(np.arange(p) < prices.ranks_in_turn[:, None])
        room = np.repeat(room_bytes(rows, held)[:, None], v, axis=1)  # with the last chunk's gradients
        room[:, 0, 0] -= prices.gradients_bytes[:, -2]
        freed = (prices.gradients_bytes - prices.reduced_gradients_bytes)[:, -1]
        freed = freed + prices.activation_bytes[:, -1] * held[every, -1, rows.head_rank]
        room[every, :-1, rows.head_rank] += freed[:, None]
        spared = rows.some_layers * (prices.activation_bytes - prices.checkpoint_bytes)[:, 0]
        room -= (held.sum(axis=1, keepdims=True) - held.cumsum(axis=1)) * spared[:, None, None]
        kept = rows.least_kept_bytes[row, 0]
        return cls(
            row=row,
            rank=rank,
            each=prices.state_bytes[row, 0],
            gradients=prices.gradients_bytes[row, 0],
            reduced=prices.reduced_gradients_bytes[row, 0],
            kept=kept * held[row, 0, rank],
            last_kept=kept * held[row, -1, rank],
            room=room[row, :, rank] * _SAFETY,
            smallest=rows.smallest_chunk[row],
            first=rows.uneven_stages & (rank == 0),
            last=rows.uneven_stages & (rank == rows.head_rank[row]),
        )

    def take(self, index: IntArray | list[int]) -> InTurn:
        """Return some of the ranks."""
        return replace(self, **{one.name: getattr(self, one.name)[index] for one in fields(self)})

    def most(self, num_layers: int) -> IntArray:
        """Return the most layers that each rank holds in its lightest chunks, (x,); -1 if too few fit."""
        found, ends = np.full(len(self.smallest), -1), self.first + 2 * self.last
        for alike in np.unique(ends):
            index = np.flatnonzero(ends == alike)
            found[index] = self.take(index).most_alike(num_layers)
        return found

    def most_alike(self, num_layers: int) -> IntArray:
        """Return that of ranks that hold the same ends of the model."""
        least = self.smallest * self.room.shape[1]
        low, high = least - 1, np.full(len(least), num_layers)
        while (low < high).any():
            look()
            middle = (low + high + 1) // 2
            able = self.can_hold(middle)
            low, high = np.where(able, middle, low), np.where(able, high, middle - 1)
        return np.where(low < least, -1, low)

    def can_hold(self, count: IntArray) -> BoolArray:
        """Mark ranks with room for so many layers, (x,); all hold the same ends of the model."""
        legal, sizes = self._sizes(count)
        _, before = self._ranges(sizes, count)
        return np.asarray((legal & self._ends(sizes[-1], count, before)).any(axis=(0, 1)))

    def lightest_chunks(self, count: int) -> list[int]:
        """Return the layers of each chunk of one rank, so that it has room for ``count`` of them."""
        whole, left = np.array([count]), count
        legal, sizes = self._sizes(whole)
        upto, before = self._ranges(sizes, whole)
        able = (legal & self._ends(sizes[-1], whole, before))[:, :, 0]
        if not able.any():
            return []
        at = int(able.any(axis=0).argmax())  # the largest end of the model
        held = [int(sizes[-1][able[:, at].argmax(), at, 0])]
        for size, (low, high) in zip(sizes[-2::-1], upto[::-1], strict=True):
            left -= held[-1]
            fits = (low[:, at, 0] <= left) & (left <= high[:, at, 0])
            held.append(int(size[fits.argmax(), at, 0]))
        return held[::-1]

    def _sizes(self, count: IntArray) -> tuple[BoolArray, list[IntArray]]:
        """Return which ranks may have each size of the model's first or last chunk, (ends, x).

        With the sizes that each of a rank's chunks may have then, (sizes, ends, x). All ranks hold the same
        ends of the model.
        """
        first, last, chunks = bool(self.first[0]), bool(self.last[0]), self.room.shape[1]
        regular = chunks - first - last
        own = np.arange(int(count.max(initial=0)), 0, -1)[:, None] if first or last else np.array([[0]])
        rest = count - own
        each = rest // max(regular, 1)
        legal = (each >= self.smallest) & (own >= self.smallest * (first or last))
        legal &= (own <= each + 1) | (regular == 0)
        there = legal.any(axis=1)
        own, rest, each = (np.broadcast_to(one, rest.shape)[there][None] for one in (own, rest, each))
        sizes = [np.concatenate([each, each + 1])] * chunks
        sizes[0] = own if first else sizes[0]
        sizes[-1] = (rest if first else own) if last else sizes[-1]
        return legal[there], sizes

    def _ranges(self, sizes: Sequence[IntArray], count: IntArray) -> tuple[list[_Range], _Range]:
        """Return the least and most layers up to each chunk but the last, by its size, (sizes, ends, x).

        With those before the last chunk, (ends, x). -inf is the most where there is none.
        """
        slope = self.kept - self.reduced
        rising, falling = slope > 0.0, slope < 0.0
        divisor, fixed = np.where(slope == 0.0, 1.0, slope), (self.each + self.reduced) * count
        low = high = np.zeros(sizes[-1].shape[1:])
        upto = list[_Range]()
        for turn, size in enumerate(sizes[:-1]):
            left = self.room[:, turn] - fixed - self.gradients * size
            edge = left / divisor
            most = np.where(rising, np.floor(edge), np.where(falling | (left >= 0.0), np.inf, -np.inf))
            least = np.maximum(low + size, np.where(falling, np.ceil(edge), -np.inf))
            most = np.minimum(high + size, most)
            upto.append((least, most))
            able = least <= most
            low = np.where(able, least, np.inf).min(axis=0)
            high = np.where(able, most, -np.inf).max(axis=0)
        return upto, (low, high)

    def _ends(self, sizes: IntArray, count: IntArray, before: _Range) -> BoolArray:
        """Return which sizes of the last chunk complete a rank, (sizes, ends, x)."""
        left = self.room[:, -1] - (self.each + self.kept) * count
        more = self.last_kept + self.gradients - self.kept
        rest = count - sizes
        return np.asarray((before[0] <= rest) & (rest <= before[1]) & (more * sizes <= left))
