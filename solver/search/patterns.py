"""How fast a row of interleaved chunks can simulate at best: its ranks are fixed one after the other.

A schedule fixes which pass waits for which, so a simulation is the longest path in a graph that does not
depend on the split, with a pass's seconds at its nodes. Longer passes never make a longest path shorter:
the simulation is monotone in the layers of every chunk, and so is every rank's tail. Hence a split of
which only some ranks are known, simulated with as few layers in the other ranks' chunks as they can hold,
bounds every split that has those ranks in common.

That is a branch and bound over the *patterns* of the ranks, the layers of a rank's chunks. They are few:
chunks of a rank differ by at most one layer, and a time to be beaten limits the layers of every rank to
``most``, because a rank works m t_r; as the ranks together hold L layers, a rank lacks at most
``spare = sum(most) - L`` of them. Ranks far apart are fixed first, the ends before all: what
makes them wait for one another shows soonest there. All splits that are not refuted are kept side by side
and simulated together (``wavefront``).

Memory is left aside, so that a bound also holds for every row of the same shape whose passes are no
shorter (``dominates``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from solver.columns import SCHEDULES, FloatArray, IntArray
from solver.cost.assemble import assemble
from solver.search.bounds import SAFETY
from solver.search.rows import Rows
from solver.search.wavefront import finish_of_many_s

_MOST_PASSES = 2**15  # of a schedule whose splits are simulated side by side
_MOST_SPARE = 4  # layers that the ranks may lack together
_MOST_PATTERNS = 2**12  # of one rank
_AT_ONCE = 2**21  # passes simulated together


@dataclass(slots=True)
class Effort:
    """Passes that may still be simulated; the same on every machine, so that answers are too."""

    passes: int
    tick: Callable[[], object] = lambda: None  # called meanwhile


@dataclass(frozen=True, slots=True)
class _Partial:
    """Splits of which some ranks are known, (k, C), and the layers that those lack, (k,)."""

    sizes: IntArray
    lacking: IntArray


def is_branchable(row: Rows, target_s: float) -> bool:
    """Whether the patterns of a row's ranks are few enough to be tried against a time."""
    able = row.is_uniform and row.uneven_stages and not row.only_split and not row.per_stage[0]
    passes = 2 * int(row.p[0] * row.v[0]) * int(row.m[0])
    if not able or row.p[0] == 1 or row.splits_backward[0] or passes > _MOST_PASSES:
        return False
    return _spare(row, target_s) <= _MOST_SPARE


def _spare(row: Rows, target_s: float) -> int:
    """How many layers more than there are the ranks could hold; below 0 none can beat the time."""
    return int(_most_layers(row, target_s).sum()) - row.layout.num_layers


def dominates(rows: Rows, one: int, other: int) -> bool:
    """Whether no split takes less time on row ``other`` than it takes on row ``one``."""
    columns, prices = rows.columns, rows.prices
    same = ("pipeline_parallel_size", "virtual_pipeline_size", "num_microbatches", "pipeline_schedule")
    alike = all(getattr(columns, name)[one] == getattr(columns, name)[other] for name in same)
    layers = columns.recompute_layers
    if not alike or layers[one] not in (0, layers[other]):
        return False
    names = ("forward_s", "backward_s", "tail_s", "transfer_s", "rank_tail_s", "straggler", "fixed_s")
    shorter = all(
        bool((getattr(prices, name)[one] <= getattr(prices, name)[other]).all()) for name in names
    )
    return shorter and bool(layers[one] == 0 or (prices.replay_s[one] <= prices.replay_s[other]).all())


def least_simulation_s(row: Rows, target_s: float, effort: Effort) -> float:
    """A bound on the simulation of every split of one branchable row; ``target_s``: none beats that.

    What is refuted counts as ``target_s``, what is left when the effort is spent as what it simulates to
    with the ranks that are known.
    """
    most, spare, chunks = _most_layers(row, target_s), _spare(row, target_s), int(row.p[0] * row.v[0])
    if spare < 0:
        return target_s
    nothing = np.full((1, chunks), row.smallest_chunk[0], dtype=np.int64)
    left, steps = _Partial(nothing, np.zeros(1, dtype=np.int64)), np.zeros(1)
    for rank in _far_apart(int(row.p[0])):
        counts = range(int(most[rank]) - spare, int(most[rank]) + 1)
        if number_of_patterns(row, rank, counts) > _MOST_PATTERNS:
            return min(float(steps.min()), target_s)
        ways = patterns(row, rank, counts)
        branches = _branched(row, left, rank, _Partial(ways, most[rank] - ways.sum(axis=1)), spare)
        cost = len(branches.lacking) * 2 * chunks * int(row.m[0])
        if cost > effort.passes:
            return min(float(steps.min()), target_s)
        effort.passes -= cost
        steps = _steps_s(row, branches.sizes, effort.tick)
        alive = steps < target_s
        left, steps = _Partial(branches.sizes[alive], branches.lacking[alive]), steps[alive]
        if not len(steps):
            return target_s
    return min(float(steps.min()), target_s)


def _most_layers(row: Rows, target_s: float) -> IntArray:
    """Most layers that each rank can hold and work all its micro-batches by ``target_s``, shape (p,)."""
    prices, p = row.prices, int(row.p[0])
    beside = np.full(p, row.m[0] * row.v[0] * row.chunk_s[0] + prices.rank_tail_s[0])
    beside[0] += row.m[0] * row.embedding_s[0] + prices.tail_s[0, -2]
    beside[-1] += row.m[0] * row.head_s[0] + prices.tail_s[0, -1]
    each = row.m[0] * row.layer_s[0, 0] + prices.tail_s[0, 0]
    limit = (target_s / SAFETY**2 - prices.fixed_s[0]) / prices.straggler[0]
    return np.asarray(np.floor((limit - beside) / each)).astype(np.int64)


def _far_apart(p: int) -> list[int]:
    """All ranks: the last, the first, then whatever lies in the middle of the widest gap."""
    step = 1 << (p - 1).bit_length()
    order = [p - 1, 0]
    while step > 1:
        order += range(step // 2, p - 1, step)
        step //= 2
    return list(dict.fromkeys(order))


def patterns(row: Rows, rank: int, counts: range) -> IntArray:
    """Layers of the chunks of one rank that add up to one of ``counts``, (k, v).

    Chunks differ by at most one layer; the model's first chunk, on the first rank, and its last one, on the
    last, may hold fewer.
    """
    found = []
    for way in _ways(row, rank, counts):
        for larger in combinations(range(way.alike), way.more):
            inner = [way.each + (at in larger) for at in range(way.alike)]
            own = inner if way.end is None else [way.end, *inner] if rank == 0 else [*inner, way.end]
            found.append(own)
    return np.array(found, dtype=np.int64).reshape(-1, int(row.v[0]))


def number_of_patterns(row: Rows, rank: int, counts: range) -> int:
    """How many ``patterns`` there are."""
    return sum(comb(way.alike, way.more) for way in _ways(row, rank, counts))


class _Way(NamedTuple):
    """Patterns of a rank that are alike: ``more`` of ``alike`` chunks hold a layer beyond ``each``."""

    each: int
    alike: int
    more: int
    end: int | None  # layers of the model's first or last chunk


def _ways(row: Rows, rank: int, counts: range) -> Iterator[_Way]:
    """All patterns of a rank, those that are alike together."""
    v, least = int(row.v[0]), int(row.smallest_chunk[0])
    loose = v > 1 and rank in (0, int(row.p[0]) - 1)
    alike = v - int(loose)
    for each in range(least, counts[-1] // max(alike, 1) + 1):
        for more in range(alike):
            for end in range(least, each + 2) if loose else (None,):
                if each * alike + more + (end or 0) in counts:
                    yield _Way(each, alike, more, end)


def _branched(row: Rows, known: _Partial, rank: int, ways: _Partial, spare: int) -> _Partial:
    """Every known split with every pattern of one more rank, as far as the lacking layers allow."""
    lacking = known.lacking[:, None] + ways.lacking[None, :]
    split, way = np.nonzero(lacking <= spare)
    sizes = known.sizes[split]
    sizes[:, rank :: int(row.p[0])] = ways.sizes[way]
    return _Partial(sizes, lacking[split, way])


def _steps_s(row: Rows, sizes: IntArray, tick: Callable[[], object]) -> FloatArray:
    """Simulated step of every split, rounded down, shape (k,)."""
    p, m = int(row.p[0]), int(row.m[0])
    schedule = SCHEDULES[int(row.columns.pipeline_schedule[0])]
    size = max(_AT_ONCE // (2 * sizes.shape[1] * m), 1)
    found = []
    for start in range(0, len(sizes), size):
        tick()
        part = sizes[start : start + size]
        many = row.take(np.zeros(len(part), dtype=np.int64))
        stages = assemble(many.prices, many.columns, many.layout, part)
        finish = finish_of_many_s(
            stages.chunk_forward_s, stages.chunk_backward_s, pp=p, num_microbatches=m, schedule=schedule
        )
        last = (finish + stages.rank_tail_s).max(axis=1)
        found.append((row.prices.straggler[0] * last + row.prices.fixed_s[0]) * SAFETY)
    return np.concatenate(found) if found else np.zeros(0)
