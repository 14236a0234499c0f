"""Best possible simulation of a row of interleaved chunks, by fixing its ranks one after the other.

A schedule fixes which pass waits for which, so a simulation is the longest path in a graph that does not
depend on the split, with a pass's seconds at its nodes. Longer passes never make a longest path shorter:
the simulation is monotone in the layers of every chunk, and so is every rank's tail. Hence a split of
which only some ranks are known, simulated with as few layers in the other ranks' chunks as they can hold,
bounds every split that has those ranks in common. Where ranks do not wait for one another between steps, a
rank's end less its start is not such a path, so that only rank 0's end counts, and the work of the others.
Orders made for the times grow no longer with every pass; there known ranks are held against the bounds, and
the splits that are left are simulated.

That is a branch and bound over the *patterns* of the ranks, the layers of a rank's chunks. They are few:
chunks of a rank differ by at most one layer, and a time to be beaten limits the layers of every rank to
``most``, because a rank works m t_r, and by the bounds of ``fill``; as the ranks together hold L layers, a
rank lacks at most ``spare = sum(most) - L`` of them, less what those that are known lack. Ranks far apart
are fixed first, the ends before all: what makes them wait for one another shows soonest there. All splits
that are not refuted are kept side by side and simulated together. A rank's patterns are tried
alone before they are crossed with those splits: most of them are too slow whatever the others are.

Memory is left aside until all ranks are known, so that a proof also holds for every row of the same shape
with passes that are no shorter (``dominators``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from typing import NamedTuple

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import SCHEDULES, BoolArray, FloatArray, IntArray
from meshwright.solver.cost.stages import OF_EVERY_RANK, Stages, assemble
from meshwright.solver.schedules.orders import automatic_finish_of_many_s
from meshwright.solver.schedules.schedule import AUTOMATIC, BYPASSES_SYNC
from meshwright.solver.schedules.simulate import finish_of_many_s
from meshwright.solver.search.bounds import SAFETY, end_limit_s, split_s
from meshwright.solver.search.fill import most_layers
from meshwright.solver.search.listed import patterns_of, shape_of, ways_of
from meshwright.solver.search.rows import Rows

# --------------------------------------------------------------------------------------------------
# How long splits take at least of which some ranks are known, many side by side.
#
# Where a schedule fixes the order of passes that is their simulation with the least layers elsewhere, as
# far as it only grows with them; where orders are made for the times it is the value of the bounds, and
# splits that are known whole are simulated in every order that ``simulate`` tries.


_AT_ONCE = 2**21  # passes simulated together


def passes_of(row: Rows) -> int:
    """Return the passes of a step, of all ranks together."""
    return (2 + int(row.splits_backward[0])) * int(row.p[0] * row.v[0]) * int(row.m[0])


def least_steps_s(row: Rows, sizes: IntArray, tick: Callable[[], object]) -> FloatArray:
    """Return every split's simulated step, rounded down, (k,); its bound if the row makes its order."""
    size = max(_AT_ONCE // passes_of(row), 1)
    found = []
    for start in range(0, len(sizes), size):
        look()
        tick()
        part = sizes[start : start + size]
        stages = assemble(row.prices, row.columns, row.layout, part, with_memory=False)
        if row.makes_order[0]:
            found.append(split_s(row.take(np.zeros(len(part), dtype=np.int64)), stages))
        else:
            found.append(row.step_s(_finish_s(row, stages), stages) * SAFETY)
    return np.concatenate(found) if found else np.zeros(0)


def _finish_s(row: Rows, stages: Stages) -> FloatArray:
    schedule, m = SCHEDULES[int(row.columns.pipeline_schedule[0])], int(row.m[0])
    finish = finish_of_many_s(
        stages.chunk_forward_s,
        stages.chunk_backward_s,
        weight_s=stages.chunk_weight_s,
        pp=int(row.p[0]),
        num_microbatches=m,
        schedule=schedule,
    )
    if schedule in BYPASSES_SYNC and schedule not in AUTOMATIC:
        # a later start does not mean a later end: their work is all that only grows
        finish[:, 1:] = m * stages.rank_time_s[:, 1:]
    return finish


def made_steps_s(row: Rows, sizes: IntArray) -> FloatArray:
    """Bound every split's simulated step if the order is made for the times, shape (k,).

    The least of all orders; ``simulate`` takes the one that ends first before the ranks' tails.
    """
    stages = assemble(row.prices, row.columns, row.layout, sizes, with_memory=False)
    forward, weight = stages.chunk_forward_s, stages.chunk_weight_s
    made = automatic_finish_of_many_s(
        forward,
        stages.chunk_backward_s - weight,
        weight,
        num_microbatches=int(row.m[0]),
        schedule=SCHEDULES[int(row.columns.pipeline_schedule[0])],
    )
    made = made - (np.cumsum(forward, axis=1) - forward)  # from each rank's own start
    steps = [row.step_s(finish, stages) for finish in (_finish_s(row, stages), *made)]
    return np.asarray(np.minimum.reduce(steps) * SAFETY)


def fits(row: Rows, sizes: IntArray) -> BoolArray:
    """Return which splits fit in memory, shape (k,)."""
    many = row.take(np.zeros(len(sizes), dtype=np.int64))
    stages = assemble(many.prices, many.columns, many.layout, sizes)
    return np.asarray(stages.peak_memory_bytes.max(axis=1) <= row.budget_bytes)


_MOST_PASSES = 2**15  # of a schedule with splits that are simulated side by side
_MOST_MADE = 2**10  # the same where the order is made on the way
_MOST_SPARE = 4  # layers that the ranks may lack together,
_MOST_WAYS = 5000  # or else ways to lack them
_MOST_TRIED = 2**18  # ranks times pairs of layer counts, up to which the bounds are asked for each
_MOST_PATTERNS = 2**14  # of one rank
_TOGETHER = 2**10  # patterns of several ranks that are tried side by side
_MOST_CROSSED = 2**23  # chunks of splits that are written down at once, 64 MiB
_FEW, _SLOWER = 64, 16  # making an order takes so many times as long as running one, of so many at least


@dataclass(slots=True)
class SimulationBudget:
    """Number of passes that may still be simulated; machine-independent, so that answers are too."""

    passes: int
    tick: Callable[[], object] = lambda: None  # called meanwhile
    reserve: int = 0  # passes that ``draw`` adds

    def takes(self, passes: int) -> bool:
        """Spend so many passes, if they are left."""
        able = passes <= self.passes
        self.passes -= passes if able else 0
        return able

    def draw(self) -> None:
        """Add the reserve, once."""
        self.passes, self.reserve = self.passes + self.reserve, 0

    def part(self, passes: int) -> SimulationBudget:
        """Set so many passes aside, or all that are left."""
        own = min(passes, self.passes)
        self.passes -= own
        return SimulationBudget(own, self.tick)


@dataclass(frozen=True, slots=True)
class _Partial:
    """Splits with some known ranks, (k, C), and the layers that those lack, (k,)."""

    sizes: IntArray
    lacking: IntArray

    def among(self, kept: BoolArray) -> _Partial:
        return _Partial(self.sizes[kept], self.lacking[kept])


def are_tried(rows: Rows) -> BoolArray:
    """Mark rows with free splits and few passes, shape (n,).

    No weight gradient may exceed a part's backward pass, so that more layers shorten no pass.
    """
    kinds = 2 + rows.splits_backward.astype(np.int64)
    passes = kinds * rows.p * rows.v * rows.columns.num_microbatches
    few = passes <= np.where(rows.makes_order, _MOST_MADE, _MOST_PASSES)
    even = (rows.prices.weight_gradient_s <= rows.prices.backward_s).all(axis=1)
    free = rows.is_uniform and rows.uneven_stages and not rows.only_split
    return np.asarray(few & even & (rows.p > 1) & ~rows.per_stage & free)


def is_branchable(row: Rows, target_s: float) -> bool:
    """Return whether a row's patterns are few enough to be tried against a time."""
    if not are_tried(row)[0]:
        return False
    most = most_layers_of(row, target_s)
    spare = _spare(most, row)
    return spare <= _MOST_SPARE or comb(spare + len(most), spare) <= _MOST_WAYS


def _spare(most: IntArray, row: Rows) -> int:
    """Return how many extra layers the ranks could hold; below 0 none can beat the time."""
    return int(most.sum()) - row.layout.num_layers


def dominators(rows: Rows, row: int) -> BoolArray:
    """Mark the rows on which no split takes longer than on ``row``, (n,)."""
    columns, prices, layers = rows.columns, rows.prices, rows.columns.recompute_layers
    same = ("pipeline_parallel_size", "virtual_pipeline_size", "num_microbatches", "pipeline_schedule")
    each = [getattr(columns, name) for name in same]
    alike = np.logical_and.reduce([values == values[row] for values in each])
    alike &= ~rows.makes_order & ((layers == 0) | (layers == layers[row]))
    index = np.flatnonzero(alike)
    names = ("forward_s", "backward_s", "weight_gradient_s", "tail_s", *OF_EVERY_RANK)
    seconds = [getattr(prices, name) for name in names]
    seconds.append(prices.backward_s - prices.weight_gradient_s)
    seconds.append(np.where(layers[:, None] == 0, 0.0, prices.replay_s))
    for one in (values.reshape(len(rows), -1) for values in seconds):
        index = index[(one[index] <= one[row]).all(axis=1)]
    found = np.zeros(len(rows), dtype=np.bool_)
    found[index] = True
    return found


class SplitBound(NamedTuple):
    """Bound that holds for every split of a row."""

    step_s: float  # none simulates faster
    for_all: bool  # nor does one of any row with passes that are no shorter: memory decided nothing


def least_simulation_s(row: Rows, target_s: float, effort: SimulationBudget) -> SplitBound:
    """Bound the simulation of every split of one branchable row; ``target_s``: none beats that.

    What is refuted counts as ``target_s``, what is left when the effort is spent as what it simulates to
    with the ranks that are known.
    """
    most = most_layers_of(row, target_s)
    spare, chunks = _spare(most, row), int(row.p[0] * row.v[0])
    if spare < 0:
        return SplitBound(target_s, for_all=True)
    growth, order = _Growth(row, most, spare, effort), _far_apart(int(row.p[0]))
    left, steps = _Partial(np.zeros((1, chunks), dtype=np.int64), np.zeros(1, dtype=np.int64)), np.zeros(1)
    alone, lacking = list[_Partial](), np.zeros(len(most), dtype=np.int64)
    for at in range(len(order)):
        if at == len(alone):  # what is too slow whatever the other ranks are is crossed with none of theirs
            alone += growth.alone(order, at, target_s)
            lacking[order[: len(alone)]] = [ways.lacking.min(initial=spare + 1) for ways in alone]
            if lacking.sum() > spare:
                return SplitBound(target_s, for_all=True)
        grown = growth.steps_s(left, order[: at + 1], alone[at], lacking) if at < len(alone) else None
        if grown is None:
            return SplitBound(min(float(steps.min()), target_s), for_all=True)
        left, steps = grown[0].among(grown[1] < target_s), grown[1][grown[1] < target_s]
        if not len(steps):
            return SplitBound(target_s, for_all=True)
    if row.makes_order[0] and effort.takes(max(len(steps), _FEW) * passes_of(row) * _SLOWER):
        steps = made_steps_s(row, left.sizes)
    least = min(float(steps.min()), target_s)
    fitting = min(float(steps[fits(row, left.sizes)].min(initial=np.inf)), target_s)
    return SplitBound(fitting, for_all=fitting == least)


@dataclass(frozen=True, slots=True)
class _Growth:
    """Growth of a row's splits by one rank: the most layers of each, and the total that may be lacking."""

    row: Rows
    most: IntArray
    spare: int
    effort: SimulationBudget

    def ways(self, rank: int) -> _Partial | None:
        """Return the patterns of a rank and what they lack; None if they are too many."""
        counts = range(int(self.most[rank]) - self.spare, int(self.most[rank]) + 1)
        if number_of_patterns(self.row, rank, counts) > _MOST_PATTERNS:
            return None
        own = patterns_of(shape_of(self.row, 0), rank, counts)
        sizes = np.zeros((len(own), int(self.row.p[0] * self.row.v[0])), dtype=np.int64)
        sizes[:, _chunks_of(self.row, rank)] = own
        return _Partial(sizes, self.most[rank] - own.sum(axis=1))

    def alone(self, order: list[int], at: int, target_s: float) -> list[_Partial]:
        """Return patterns that may beat a time with one rank known, of the ranks from ``at`` on.

        Of as many ranks as have few together, and of one at least, as far as the effort goes.
        """
        found, tried = list[_Partial](), 0
        for rank in order[at:]:
            ways = self.ways(rank)
            tried += 0 if ways is None else len(ways.lacking)
            if ways is None or (found and tried > _TOGETHER):
                break
            if not self.effort.takes(len(ways.lacking) * passes_of(self.row)):
                break
            _fill_up(self.row, ways, self.most - self.spare, [other for other in order if other != rank])
            found.append(ways)
        if not found:
            return []
        every = least_steps_s(self.row, np.concatenate([ways.sizes for ways in found]), self.effort.tick)
        steps = np.split(every, np.cumsum([len(ways.lacking) for ways in found])[:-1])
        return [ways.among(own_s < target_s) for ways, own_s in zip(found, steps, strict=True)]

    def steps_s(
        self, before: _Partial, ranks: list[int], ways: _Partial, lacking: IntArray
    ) -> tuple[_Partial, FloatArray] | None:
        """Extend splits by every way for the last of ``ranks``, and bound their time from below.

        ``lacking``: the least that each rank lacks. None where the effort is spent.
        """
        others = [rank for rank in range(len(self.most)) if rank not in ranks]
        spare = self.spare - int(lacking[others].sum())
        few = np.searchsorted(np.sort(ways.lacking), spare - before.lacking, side="right")
        count = int(few.sum())
        too_many = count * before.sizes.shape[1] > _MOST_CROSSED
        if too_many or not self.effort.takes(count * passes_of(self.row)):
            return None
        lacked = before.lacking[:, None] + ways.lacking[None, :]
        split, way = np.nonzero(lacked <= spare)
        sizes, chunks = before.sizes[split], _chunks_of(self.row, ranks[-1])
        sizes[:, chunks] = ways.sizes[way[:, None], chunks]
        tried = _Partial(sizes, lacked[split, way])
        _fill_up(self.row, tried, self.most - (spare + lacking), others)
        return tried, least_steps_s(self.row, tried.sizes, self.effort.tick)


def most_layers_of(row: Rows, target_s: float) -> IntArray:
    """Return the most layers that each rank can hold within ``target_s``, (p,), by work and bounds.

    Where ranks and layers are many, only its work is counted.
    """
    prices, p = row.prices, int(row.p[0])
    other_s = np.full(p, row.m[0] * row.v[0] * row.chunk_s[0] + prices.rank_tail_s[0])
    other_s[0] += row.m[0] * row.embedding_s[0] + prices.tail_s[0, -2]
    other_s[row.head_rank[0]] += row.m[0] * row.head_s[0] + prices.tail_s[0, -1]
    each = row.m[0] * row.layer_s[0, 0] + prices.tail_s[0, 0]
    limit = float(end_limit_s(row, target_s)[0])
    most = np.asarray(np.floor((limit - other_s) / each)).astype(np.int64)
    if _spare(most, row) < 0 or p * (row.layout.num_layers + 1) ** 2 > _MOST_TRIED:
        return most
    return np.minimum(most, most_layers(row, target_s))


def _far_apart(p: int) -> list[int]:
    """Order all ranks: the last, the first, then the middle of each widest gap."""
    step = 1 << (p - 1).bit_length()
    order = [p - 1, 0]
    while step > 1:
        order += range(step // 2, p - 1, step)
        step //= 2
    return list(dict.fromkeys(order))


def number_of_patterns(row: Rows, rank: int, counts: range) -> int:
    """Return in how many ways the chunks of one rank hold one of ``counts`` layers."""
    shape = shape_of(row, 0)
    return sum(comb(way.alike, way.more) for held in counts for way in ways_of(shape, rank, held))


def _chunks_of(row: Rows, rank: int) -> list[int]:
    p, v = int(row.p[0]), int(row.v[0])
    return [rank, 2 * p - 1 - rank] if row.in_a_v[0] else list(range(rank, p * v, p))


def _fill_up(row: Rows, branches: _Partial, least: IntArray, ranks: list[int]) -> None:
    """Give unknown ranks the fewest layers that they can hold, as many as the others lack.

    ``least``: of every rank where the known ones lack nothing. Chunks of n layers hold at least n // v
    of them, but for the model's first and last, which hold the smallest number.
    """
    v, smallest, last = int(row.v[0]), int(row.smallest_chunk[0]), branches.sizes.shape[1] - 1
    for rank in ranks:
        each = np.maximum((least[rank] + branches.lacking) // v, smallest)
        for chunk in _chunks_of(row, rank):
            branches.sizes[:, chunk] = smallest if v > 1 and chunk in (0, last) else each
