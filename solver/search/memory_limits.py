"""Number of layers that the memory of each rank takes, for rows with layers of one kind.

Chunks of a rank differ by at most one layer, in any order; the model's first and last chunk may hold
fewer. A layer costs least in the chunk that keeps fewest micro-batches in flight, and that is the
later one of two chunks of a rank (``schedule.in_flight``). In a V rank 0 holds the first and the last
chunk of the model, so that both may be of any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import BoolArray, FloatArray, IntArray
from meshwright.solver.cost.stages import EACH_RANK, workspace_bytes
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


Values = TypeVar("Values", FloatArray, BoolArray)
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


def by_rank(rows: Rows, pp: int, vpp: int, values: Values) -> Values:
    """Rearrange chunks' values in model order, (n, C, …), by the chunks of each rank, (n, v, p, …).

    The second half of a V runs back over the ranks.
    """
    apart = values[:, : pp * vpp].reshape(len(values), vpp, pp, *values.shape[2:])
    if rows.in_a_v.any():
        apart = apart.copy()
        apart[rows.in_a_v, 1] = apart[rows.in_a_v, 1, ::-1]
    return apart


def held_by_rank(rows: Rows, pp: int, vpp: int) -> FloatArray:
    """Return micro-batches in flight of the chunks of each rank, (n, v, p)."""
    return by_rank(rows, pp, vpp, rows.held.astype(np.float64))


def room_bytes(rows: Rows, held: FloatArray) -> FloatArray:
    """Return bytes that each rank has left for its layers, (n, p); ``held`` is ``held_by_rank``.

    What partial recomputation spares is added at its most (exact for layers of one kind).
    """
    prices, every = rows.prices, np.arange(len(held))
    kept, states, last = prices.activation_bytes, prices.state_bytes, (every, rows.head_rank)
    workspace = workspace_bytes(prices, EACH_RANK, np.array([[False, True]]))
    without_head, with_head = (rows.parts_room_bytes[:, None] - workspace).T
    room = np.repeat(without_head[:, None], held.shape[2], axis=1)
    room[last] = with_head
    room[:, 0] -= states[:, -2] + kept[:, -2] * held[:, 0, 0]
    room[last] -= states[:, -1] + kept[:, -1] * held[every, rows.v - 1, rows.head_rank]
    spared = (kept[:, :-2] - prices.checkpoint_bytes[:, :-2]).max(axis=1)
    room += held.sum(axis=1) * (rows.some_layers * spared)[:, None]
    return np.asarray(room)


def _most_layers(rows: Rows, pp: int) -> IntArray:
    """Return the layers that fit on each rank in its lightest chunks, (n, pp); -1 if too few fit.

    Rows have one chunk per rank on up to pp ranks, or several on pp ranks; rows may differ in their number.
    """
    width, least = int(rows.v.max(initial=1)), rows.smallest_chunk
    held = held_by_rank(rows, pp, width)
    kept = rows.least_kept_bytes[:, 0]
    each = rows.prices.state_bytes[:, 0, None, None] + kept[:, None, None] * held
    each *= (np.arange(width)[None, :] < rows.v[:, None])[:, :, None]
    room = room_bytes(rows, held) * _SAFETY
    most = _balanced(each, room, rows.v, rows.layout.num_layers)
    if width > 1 and rows.uneven_stages:  # the model's first chunk may hold fewer than its rank's others
        first = room[:, :1] - (least * each[:, 0, 0])[:, None]
        others = _balanced(each[:, 1:, :1], first, rows.v - 1, rows.layout.num_layers)
        most[:, :1] = least[:, None] + others
        most[:, 0] = np.where(first[:, 0] < 0.0, -1, most[:, 0])
    return np.where(room < 0.0, -1, np.minimum(most, rows.layout.num_layers))


def _balanced(each: FloatArray, room: FloatArray, chunks: IntArray, num_layers: int) -> IntArray:
    """Count fitting layers if chunks differ by at most one and later ones, which hold less, are larger.

    Args:
        each: bytes of a layer in each chunk of each rank, (n, C, ranks); 0 behind a rank's last.
        room: bytes that each rank has left, (n, ranks).
        chunks: of a rank, (n,).
        num_layers: of the model; no more are counted.
    """
    round_bytes, count = np.maximum(each.sum(axis=1), 1.0), chunks[:, None]  # absent ranks may hold 0
    rounds = np.minimum(np.floor(np.maximum(room, 0.0) / round_bytes), num_layers)
    rest = room - rounds * round_bytes
    taken, more = np.zeros_like(room), np.zeros(room.shape, dtype=np.int64)
    for chunk in range(each.shape[1] - 1, -1, -1):
        taken += each[:, chunk]
        more += taken <= rest
    more = np.clip(more - (each.shape[1] - count), 0, count - 1)
    return np.asarray(rounds.astype(np.int64) * count + more)


def _alike(rows: Rows) -> Iterator[tuple[int, IntArray]]:
    """Yield pp with some rows: of up to pp ranks with one chunk each, or of pp ranks with several.

    They are few enough for the cache.
    """
    keys = np.where(rows.v > 1, rows.p, 0)
    order = np.lexsort((rows.v, rows.p, keys))
    for index in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(order) else ():
        for start in range(0, len(index), _TOGETHER):
            some = index[start : start + _TOGETHER]
            yield int(rows.p[some[-1]]), some


def layer_caps(rows: Rows) -> Caps:
    """Return least and most layers of every rank of every row, for layers of one kind.

    Of all ways to lay a number of layers out over a rank's chunks the lightest counts; its memory grows
    with the number of layers, so that one number is the whole limit. Absent ranks hold 0.
    """
    least = np.zeros((len(rows), int(rows.p.max(initial=1))), dtype=np.int64)
    most = np.zeros_like(least)
    for pp, index in _alike(rows):
        look()
        group = rows.take(index)
        low, high = (group.v * group.smallest_chunk)[:, None], _most_layers(group, pp)
        if not rows.uneven_stages:
            each, rest = np.divmod(rows.layout.num_layers, group.p * group.v)
            low = (group.v * each)[:, None]
            high = np.minimum(high, np.where(rest > 0, -1, group.v * each)[:, None])
        there = np.arange(pp) < group.p[:, None]
        least[index, :pp], most[index, :pp] = np.where(there, low, 0), np.where(there, high, 0)
    return Caps(least=least, most=most)


def have_room(rows: Rows) -> BoolArray:
    """Mark rows with layers of one kind that have a split that fits, shape (n,)."""
    return layer_caps(rows).feasible(rows.layout.num_layers)
