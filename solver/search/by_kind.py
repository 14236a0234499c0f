"""Bounds for rows with layers of several kinds: is there room for the layers of each kind?

Every bound of ``bounds`` limits what the layers of one rank may cost, each layer by its kind, and so does
memory. Each chunk holds at least the smallest number of layers, and of those kinds that lie within its
reach: chunk c begins behind c smallest chunks and ends before those that follow. With so many layers
of the cheapest such kind set aside for every chunk, the ranks must have room for the rest, whatever the
order:
  the layers of each kind alone find a place, whole layers on every rank;
  all layers find a place if each cost as little as the cheapest kind;
  all layers, with none set aside, find a place if they were divisible.
Where one of these fails no split keeps the limit. That chunks of a rank are alike is used for memory
alone; the answer is weaker than the exact one, and valid.
"""

from __future__ import annotations

import numpy as np

from solver.columns import BoolArray, FloatArray
from solver.search.bounds import SAFETY, end_limit_s, least_tail_s
from solver.search.caps import by_rank, groups_of_shape, held_by_rank, room_bytes
from solver.search.fill import share_of
from solver.search.rows import Rows
from solver.search.watch import look

_ROUNDING = 1e-9
_BISECTIONS = 40


def have_room(rows: Rows, room: FloatArray, each: FloatArray) -> BoolArray:
    """Whether all layers may find a place, shape (n,).

    Args:
        rows: n rows of one shape.
        room: what the layers of each rank may cost, (n, p).
        each: what a layer of each kind costs on each rank, (n, p, K) or (n, 1, K).
    """
    cost = np.broadcast_to(each, (*room.shape, each.shape[-1]))
    counts = rows.layout.cumulative[-1].astype(np.float64)
    ample = room + _ROUNDING * np.abs(room)
    left = ample - _set_aside(rows, cost)
    able = (left >= 0.0).all(axis=1)
    left = np.maximum(left, 0.0)
    aside = rows.p * rows.v * rows.smallest_chunk
    able &= (np.floor(share_of(left[:, :, None], cost)).sum(axis=1) >= counts - aside[:, None]).all(axis=1)
    able &= np.floor(share_of(left, cost.min(axis=2))).sum(axis=1) >= rows.layout.num_layers - aside
    whole = np.maximum(ample, 0.0).sum(axis=1)
    return np.asarray(able & (whole >= cost.min(axis=1) @ counts * (1.0 - _ROUNDING)))


def _set_aside(rows: Rows, cost: FloatArray) -> FloatArray:
    """What the least layers of every chunk of a rank cost at least, (n, p)."""
    cheapest = np.where(_reachable_by_rank(rows), cost[:, None], np.inf).min(axis=3)
    return np.asarray(cheapest.sum(axis=1) * rows.smallest_chunk[:, None])


def _reachable_by_rank(rows: Rows) -> BoolArray:
    """``_reachable`` of the chunks of each rank, (1 or n, v, p, K); one row where all are alike."""
    one = rows.take([0]) if _are_alike(rows) else rows
    return by_rank(one, int(rows.p[0]), int(rows.v[0]), _reachable(one))


def _are_alike(rows: Rows) -> bool:
    """Whether all rows have chunks of the same least size, laid out alike."""
    same = (rows.smallest_chunk == rows.smallest_chunk[:1]).all() and (rows.in_a_v == rows.in_a_v[:1]).all()
    return bool(same) and len(rows) > 0


def _reachable(rows: Rows) -> BoolArray:
    """Whether each chunk can hold a layer of each kind, (n, C, K)."""
    cumulative, num_layers = rows.layout.cumulative, rows.layout.num_layers
    chunks, smallest = int(rows.p[0] * rows.v[0]), rows.smallest_chunk[:, None]
    chunk = np.arange(chunks)[None, :]
    begin = np.minimum(chunk * smallest, num_layers)
    end = np.maximum(num_layers - (chunks - 1 - chunk) * smallest, begin)
    there = cumulative[end] > cumulative[begin]
    return np.asarray(there | ~there.any(axis=2, keepdims=True))  # no layer is left: not a row of the space


def _with_ends(rows: Rows, values: FloatArray, first: FloatArray, last: FloatArray) -> FloatArray:
    """A value of every rank, (n, p), with what those of the embedding and of the head have beside it."""
    spread = np.repeat(values[:, None], int(rows.p[0]), axis=1)
    spread[:, 0] += first
    spread[np.arange(len(rows)), rows.head_rank] += last
    return spread


def can_beat_interleaved(rows: Rows, pp: int, vpp: int, step_s: FloatArray) -> BoolArray:
    """Whether rows of one shape may have a split that fits and simulates within ``step_s``."""
    fits = fits_by_kind(rows, pp, vpp)
    if not fits.any():
        return fits
    prices, m = rows.prices, rows.m[:, None]
    limit = end_limit_s(rows, step_s)[:, None]
    rank = np.arange(pp)[None, :]
    time = _with_ends(rows, vpp * rows.chunk_s, rows.embedding_s, rows.head_s)
    tail = _with_ends(rows, prices.rank_tail_s, prices.tail_s[:, -2], prices.tail_s[:, -1])
    shortest = rows.smallest_chunk * prices.forward_s[:, :-2].min(axis=1) + prices.transfer_s
    there = np.where(rank > 0, prices.forward_s[:, -2:-1], 0.0) + rank * shortest[:, None]
    both = rows.smallest_chunk * rows.layer_s.min(axis=1) + rows.chunk_s
    back = np.where(rank > 0, rows.embedding_s[:, None], 0.0) + rank * both[:, None]
    away = limit - tail - there - m * time
    able = have_room(rows, away, (m * rows.layer_s + prices.tail_s[:, :-2])[:, None, :])
    home = limit - least_tail_s(rows)[:, None] - back - m * time
    able &= have_room(rows, home, (m * rows.layer_s)[:, None, :])
    return fits & able & _late_room(rows, pp, vpp, limit - tail - m * time)


def can_be_busy(rows: Rows, pp: int, vpp: int, step_s: FloatArray) -> BoolArray:
    """The same for rows that split the backward pass: each rank works all its micro-batches, (E)."""
    limit = end_limit_s(rows, step_s)
    room, each = _busy_room(rows, rows.m)
    return have_room(rows, limit[:, None] + room, each) & fits_by_kind(rows, pp, vpp)


def _late_room(rows: Rows, pp: int, vpp: int, room_s: FloatArray) -> BoolArray:
    """Whether (D) leaves room: ranks first wait for all forward passes of the first micro-batch."""
    prices, held = rows.prices, rows.held[:, : pp * vpp].reshape(len(rows), vpp, pp)
    own, counts = held.astype(np.float64), rows.layout.cumulative[-1].astype(np.float64)
    wait = prices.forward_s[:, :-2] @ counts + prices.forward_s[:, -2] + prices.forward_s[:, -1]
    wait = wait + pp * vpp * prices.transfer_s
    early = own.sum(axis=1) * prices.transfer_s[:, None]
    early[:, 0] += own[:, 0, 0] * prices.forward_s[:, -2]
    early[:, -1] += own[:, -1, -1] * prices.forward_s[:, -1]
    each = rows.m[:, None, None] * rows.layer_s[:, None, :] + prices.tail_s[:, None, :-2]
    each = each - own.max(axis=1)[:, :, None] * prices.forward_s[:, None, :-2]
    return have_room(rows, room_s - wait[:, None] + early, each)


def fits_by_kind(rows: Rows, pp: int, vpp: int) -> BoolArray:
    """Whether the ranks' memory may hold all layers in their lightest chunks, shape (n,).

    Of n layers on a rank, in chunks that differ by at most one, the micro-batches in flight add up to
    ``slope * n - offset`` at least: later chunks keep fewer and are the larger ones, and the model's
    first chunk is as small as it may be. Each is counted with the kind that keeps least of those that
    the rank can hold; what a kind keeps beyond that, with the chunk that keeps fewest.
    """
    smallest = rows.smallest_chunk.astype(np.float64)
    held = held_by_rank(rows, pp, vpp)
    kept = rows.least_kept_bytes[:, :-2]
    kinds = _reachable_by_rank(rows).any(axis=1)
    least = np.where(kinds, kept[:, None, :], np.inf).min(axis=2)
    slope, offset = _lightest(held)
    if vpp > 1:
        mean, loose = _lightest(held[:, 1:, :1])
        slope[:, :1], offset[:, :1] = mean, loose + (mean - held[:, 0, :1]) * smallest[:, None]
    more = np.maximum(kept[:, None, :] - least[:, :, None], 0.0)
    each = rows.state_bytes[:, None, :-2] + (least * slope)[:, :, None]
    each = each + held.min(axis=1)[:, :, None] * more
    return have_room(rows, room_bytes(rows, held) + least * offset, each)


def _lightest(held: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Slope and offset of the micro-batches in flight of layers on a rank, (n, p) each.

    ``held`` is (n, chunks, p). With q layers in every chunk and one more in the last e of them they are
    q sum(held) + sum(last e).
    """
    chunks = held.shape[1]
    slope = held.mean(axis=1)
    last = np.cumsum(held[:, ::-1], axis=1)
    spared = (np.arange(1, chunks + 1)[None, :, None] * slope[:, None, :] - last).max(axis=1)
    return np.asarray(slope), np.asarray(np.maximum(spared, 0.0))


def may_reach_objective(rows: Rows, objective_s: float) -> BoolArray:
    """Whether a row may have a split that fits and whose closed form is at most that, shape (n,)."""
    able = np.zeros(len(rows), dtype=np.bool_)
    for pp, vpp, index in groups_of_shape(rows):
        look()
        group = rows.take(index)
        room, each = _busy_room(group, group.m - group.phi)
        share = end_limit_s(group, objective_s)
        share = share - group.phi * group.total_s
        able[index] = have_room(group, room + share[:, None], each) & fits_by_kind(group, pp, vpp)
    return able


def _busy_room(rows: Rows, passes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """What every rank's constants take from the time of the slowest, and what layers take of it.

    ``passes`` are micro-batches, shape (n,): m, or m - phi in the closed form.
    """
    prices, share = rows.prices, passes[:, None]
    const = share * _with_ends(rows, rows.v * rows.chunk_s, rows.embedding_s, rows.head_s)
    const = const + _with_ends(rows, prices.rank_tail_s, prices.tail_s[:, -2], prices.tail_s[:, -1])
    return -const, (share * rows.layer_s + prices.tail_s[:, :-2])[:, None, :]


def least_objective_s(rows: Rows) -> FloatArray:
    """Lower bound on the closed form over all splits of rows of one shape, shape (n,)."""
    prices = rows.prices
    room, each = _busy_room(rows, rows.m - rows.phi)
    low = -room.min(axis=1)
    high = low + each[:, 0] @ rows.layout.cumulative[-1].astype(np.float64)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        able = have_room(rows, middle[:, None] + room, each)
        low, high = np.where(able, low, middle), np.where(able, middle, high)
    return np.asarray((prices.straggler * (rows.phi * rows.total_s + low) + prices.fixed_s) * SAFETY)
