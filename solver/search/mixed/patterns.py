"""Patterns of one row: what a stage may be, without its place in the pipeline.

A pattern is (option, layers of each kind, recomputed layers, role). A stage that is the k-th from the end
keeps min(m, k) micro-batches in flight, so a pattern fits at the places up to its ``deepest``. Times are
whole microseconds, rounded down, so that what is proved of patterns is no more than what plans take.

Where stages choose how many layers they recompute, r of them add at least the r quickest replays and spare
at most the r largest amounts that layers spare. Only numbers that fit at a place further from the end than
any smaller one make a pattern.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import BoolArray, FloatArray, IntArray
from meshwright.solver.cost.stages import LayerLayout
from meshwright.solver.search.mixed.rows import MixedRows, Transfers

US = 1e6
ANYWHERE = 1 << 20  # places: a pattern fits wherever the pipeline has a stage
ANY_SIZE = 1 << 20
Role = Literal["middle", "entry", "last", "last entry", "first"]
ROLES: tuple[Role, ...] = ("middle", "entry", "last", "last entry", "first")
ENTERS: tuple[Role, ...] = ("entry", "last entry")
ENDS: tuple[Role, ...] = ("last", "last entry")
_ROUNDING = 1.0 + 1e-9
_At: TypeAlias = tuple[IntArray, int]  # options of a row
_Before: TypeAlias = tuple[FloatArray, IntArray]  # transfers into options, and what is sent at most, (B,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patterns:
    """Patterns of a row, (N,) each."""

    option: IntArray  # among ``MixedRows.options``
    role: IntArray  # among ROLES
    counts: IntArray  # (N, K) layers of each kind
    replayed: IntArray  # layers that are recomputed, where stages choose how many
    time_us: IntArray  # of one micro-batch
    slowest_us: IntArray  # (m - 1) times that, and the tail
    deepest: IntArray  # the last place from the end where it fits, from 1; or ANYWHERE
    behind: IntArray  # size of what the stage before sends, at most, as ``MixedRows.sent``; or ANY_SIZE

    def __len__(self) -> int:
        """Return the number of patterns."""
        return len(self.option)

    def has_role(self, *roles: Role) -> IntArray:
        """Return the patterns of some roles."""
        return np.flatnonzero(np.isin(self.role, [ROLES.index(one) for one in roles]))


@lru_cache(maxsize=64)
def _windows(cumulative: bytes, layers: int, kinds: int) -> IntArray:
    """Return what consecutive layers hold of each kind, each once, by their number, (W, K)."""
    sums = np.frombuffer(cumulative, dtype=np.int64).reshape(layers + 1, kinds)
    found = [np.unique(sums[size:] - sums[: layers + 1 - size], axis=0) for size in range(1, layers + 1)]
    return np.concatenate(found)


def windows_of(layout: LayerLayout) -> IntArray:
    """Return what consecutive layers of a model hold of each kind, each once, (W, K)."""
    sums = np.ascontiguousarray(layout.cumulative, dtype=np.int64)
    return _windows(sums.tobytes(), layout.num_layers, layout.num_kinds)


def patterns_of(
    rows: MixedRows, row: int, most_us: float, range_at: int = 0, *, by_sender: bool = False
) -> Patterns:
    """Return the patterns of a row that end within a time.

    Args:
        rows: the priced rows.
        row: one of them.
        most_us: of ``slowest_us``.
        range_at: 0: priced for any number of stages; else for those of ``RANGES[range_at - 1]``.
        by_sender: an entry pattern for each size that the stage before it sends at most.
    """
    sums, found = rows.layout.cumulative, list[Patterns]()
    transfers = rows.transfers_of(row, range_at)
    held: dict[Role, IntArray] = dict.fromkeys(ROLES, windows_of(rows.layout))
    held["first"] = sums[1:-1]
    held |= dict.fromkeys(ENDS, sums[-1] - sums[1:-1])
    options = np.flatnonzero(rows.room[:, row] > 0)
    at = (options, row)
    inside = [(transfers.inside_s[options], np.full(len(options), ANY_SIZE))]
    entered = _entered(rows, at, transfers, by_sender=by_sender)
    for role, before in ((one, each) for one in ROLES for each in (entered if one in ENTERS else inside)):
        look()
        again = _Replays.none(held[role])
        one = _of(rows, at, role, before, transfers, again=again)
        if rows.by_stage[row]:
            again = _Replays.of(rows, at, held[role][(one.slowest_us <= most_us).any(axis=0)])
            one = _of(rows, at, role, before, transfers, again=again)
        kept = (one.deepest > 0) & (one.slowest_us <= most_us)
        most = 1 if role in ENDS else min(int(rows.most_stages[row]), int(rows.num_microbatches[row]))
        kept &= again.go_deeper(one.deepest, most, rows.always_recomputes)
        found.append(one.where(kept))
    every = _joined(found)
    return take(every, np.argsort(every.option, kind="stable"))


def patterns_of_any(parts: list[Patterns]) -> Patterns:
    """Return the patterns of several rows, without those that another one dominates."""
    every = _joined(parts)
    best, kept = dict[tuple[int, ...], list[int]](), list[int]()
    costs = np.stack([every.time_us, every.slowest_us, -every.deepest, -every.behind], axis=1)
    names = np.column_stack([every.option, every.role, every.counts]).tolist()
    for at in np.lexsort(costs.T[::-1]).tolist():
        look()
        same = best.setdefault(tuple(names[at]), [])
        if not (costs[same] <= costs[at]).all(axis=1).any():
            same.append(at)
            kept.append(at)
    return take(every, np.array(sorted(kept), dtype=np.int64))


def most_of(rows: MixedRows, row: int, patterns: Patterns) -> IntArray:
    """Return how many stages of each pattern there may be in a row, (N,)."""
    held = patterns.counts.sum(axis=1)
    most = np.minimum(rows.room[patterns.option, row], rows.layout.num_layers // held)
    return np.where(patterns.role == ROLES.index("middle"), np.maximum(most, 1), 1)


def behind_others(rows: MixedRows, row: int, patterns: Patterns) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the entries of a group that receive no more than a size, and the stages that may send it."""
    group, behind = rows.group_of[patterns.option], patterns.behind
    sends = np.where(np.isin(patterns.role, [ROLES.index(one) for one in ENDS]), ANY_SIZE,
                     rows.sent[patterns.option, row])  # fmt: skip
    limited = behind < ANY_SIZE
    for one, size in np.unique(np.stack([group, behind], axis=1)[limited], axis=0).tolist():
        entries = np.flatnonzero((group == one) & (behind <= size))
        yield entries, np.flatnonzero((group != one) & (sends <= size))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replays:
    """Windows of layers (W) with each number of recomputed ones (R), the numbers next to one another."""

    counts: IntArray  # (W R, K)
    number: IntArray  # (W R,) of recomputed layers, which may be more than the window has
    width: int  # R
    replay_s: FloatArray  # (B, W R) at least, or (1, W)
    spared_bytes: FloatArray  # (B, W R) of a micro-batch in flight, at most, or (1, W)

    @classmethod
    def none(cls, counts: IntArray) -> _Replays:
        """Return windows without recomputed layers."""
        nothing = np.zeros((1, len(counts)))
        return cls(
            counts=counts,
            number=nothing[0].astype(np.int64),
            width=1,
            replay_s=nothing,
            spared_bytes=nothing,
        )

    @classmethod
    def of(cls, rows: MixedRows, at: _At, counts: IntArray) -> _Replays:
        """Return windows with none to all of their layers recomputed, on some options."""
        width = int(counts.sum(axis=1).max(initial=0)) + 1
        spared = (rows.whole_kept_bytes[at] - rows.kept_bytes[at])[:, :-2]
        every = np.repeat(counts, width, axis=0)
        number = np.tile(np.arange(width), len(counts))
        return cls(
            counts=every, number=number, width=width,
            replay_s=_least_of(every, number, rows.replay_s[at]),
            spared_bytes=-_least_of(every, number, -spared),
        )  # fmt: skip

    def go_deeper(self, deepest: IntArray, most: int, always: bool) -> BoolArray:
        """Mark numbers that fit at a place up to ``most`` where no smaller number does, (B, W R).

        ``always``: one recomputed layer counts as much as none, being asked for.
        """
        reached = np.minimum(deepest, most).reshape(len(deepest), -1, self.width)
        before = np.maximum.accumulate(reached, axis=-1)
        deeper = np.ones_like(reached, dtype=np.bool_)
        deeper[..., 1:] = reached[..., 1:] > before[..., :-1]
        if always and self.width > 1:
            deeper[..., 1] = True
        whole = self.number <= self.counts.sum(axis=1)
        return np.asarray(deeper.reshape(deepest.shape) & whole)


def _least_of(counts: IntArray, number: IntArray, each: FloatArray) -> FloatArray:
    """Return the least sum of a price (B, K) over so many layers of every window, (B, N)."""
    order = np.argsort(each, axis=1, kind="stable")
    held = counts.T[order]  # (B, K, N)
    taken = np.clip(number - (np.cumsum(held, axis=1) - held), 0, held)
    return np.asarray((taken * np.take_along_axis(each, order, axis=1)[..., None]).sum(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnOptions:
    """Patterns of one role on some options, (B, N)."""

    options: IntArray
    role: Role
    again: _Replays
    time_us: IntArray
    slowest_us: IntArray
    deepest: IntArray
    behind: IntArray  # (B,)

    def where(self, kept: BoolArray) -> Patterns:
        """Return those that are marked."""
        option, at = np.nonzero(kept)
        return Patterns(
            option=self.options[option],
            role=np.full(len(at), ROLES.index(self.role)),
            counts=self.again.counts[at],
            replayed=self.again.number[at],
            time_us=self.time_us[kept],
            slowest_us=self.slowest_us[kept],
            deepest=self.deepest[kept],
            behind=self.behind[option],
        )


def _entered(rows: MixedRows, at: _At, transfers: Transfers, *, by_sender: bool) -> list[_Before]:
    """Return the least transfers into options from other groups, by what the stage before sends at most.

    A transfer takes as long as the larger of what both send, so that less than the option's own makes no
    difference.
    """
    options, row = at
    sent = rows.sent[at]
    hops_s = transfers.scale[options] * rows.hops_of(row)[np.ix_(options, options)]
    if not by_sender:
        return [(hops_s.min(axis=0), np.full(len(options), ANY_SIZE))]
    larger = np.maximum(sent[:, None], sent[None])
    return [
        (
            np.where(larger == size, hops_s, np.inf).min(axis=0),
            np.full(len(options), size if size < sent.max() else ANY_SIZE),
        )
        for size in np.unique(sent)
    ]


def _of(
    rows: MixedRows, at: _At, role: Role, before: _Before, transfers: Transfers, *, again: _Replays
) -> _OnOptions:
    counts, options = again.counts, at[0]
    held, m = counts.astype(np.float64), int(rows.num_microbatches[at[1]])
    first, last = role == "first", role in ENDS
    scale = transfers.scale[options][:, None]
    ends = first * rows.embedding_s[at] + last * rows.head_s[at]
    own = rows.layer_s[at] @ held.T + again.replay_s + ends[:, None]
    beside = before[0][:, None]
    beside_s = np.where(np.isfinite(beside), beside, 0.0) + transfers.further_s[options][:, None]
    time = scale * own + beside_s

    def parts_of(parts: FloatArray) -> FloatArray:
        ends = first * parts[:, -2] + last * parts[:, -1]
        return np.asarray(parts[:, :-2] @ held.T + ends[:, None])

    tail = scale * (rows.rank_tail_s[at][:, None] + parts_of(rows.tail_s[at]))
    space = (rows.head_room_bytes if last else rows.room_bytes)[at][:, None]
    free = space * _ROUNDING - parts_of(rows.state_bytes[at])
    kept = parts_of(rows.whole_kept_bytes[at]) - again.spared_bytes
    flight = np.floor(np.clip(free / np.maximum(kept, 1.0), 0, ANYWHERE))
    deepest = np.where(flight >= m, ANYWHERE, flight).astype(np.int64)
    deepest = np.where(np.isfinite(beside), deepest, 0)
    return _OnOptions(
        options=options, role=role, again=again, deepest=deepest, behind=before[1],
        time_us=np.floor(time * US).astype(np.int64),
        slowest_us=np.floor(((m - 1) * time + tail) * US).astype(np.int64),
    )  # fmt: skip


def take(one: Patterns, index: IntArray) -> Patterns:
    """Return some of the patterns."""
    return Patterns(**{name: getattr(one, name)[index] for name in Patterns.__slots__})


def _joined(parts: list[Patterns]) -> Patterns:
    return Patterns(
        **{name: np.concatenate([getattr(one, name) for one in parts]) for name in Patterns.__slots__}
    )
