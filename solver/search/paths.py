"""Bound of a row by averages of longest paths: for many chunks that are as small as chunks get.

A simulation is the longest path in a graph that no split changes (``branch``), and the seconds of a path
are linear in the layers of the chunks. So an average of paths, with any weights, is at most the longest
one: its least value over a set of splits bounds all of them. Over a *box*, lo <= n <= hi and sum n = L,
that is found by giving layers to the chunks where they cost least, one chunk after the other.

One box has a weak bound: where 128 layers are on 96 chunks, all of them hold 4/3 layers in it, but a chunk
of two layers works m of them in sequence. So splits are sorted by their chains of large chunks. With u =
ceil(L / C), some chunk holds u layers or more: either one holds more than u, or none does and some holds u.
In both cases one box is made for each place of the first such chunk; the chunks before it hold less. A box
that stays open is divided by the next such chunk, at least p chunks after the one before, or by its
absence: the rank of a large chunk works all its micro-batches on it, then turns to the chunk p later.

The weights are found by fictitious play (Robinson 1951, An iterative method of solving a game): the longest
path of the average split joins the average of paths, and the split that is best against that average joins
the average of splits. Every average on the way is a valid bound, so the largest one counts. Parts of a box
begin with its averages, and rows with pipelines of one shape with those of the row before them. A row
starts from the largest bound of the rows that dominate it (``branch.dominators``).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import SCHEDULES, BoolArray, FloatArray, IntArray
from meshwright.solver.cost.stages import assemble, step_of_end_s
from meshwright.solver.schedules.schedule import bypasses_sync, rank_of_chunk
from meshwright.solver.schedules.simulate import Waves, longest_paths, waves_of
from meshwright.solver.search.bounds import SAFETY, end_limit_s
from meshwright.solver.search.branch import (
    SimulationBudget,
    are_tried,
    dominators,
    most_layers_of,
    passes_of,
)
from meshwright.solver.search.rows import Rows

_ROUNDS = 24  # longest paths that join the averages of a row before the next one is taken
_MOST_ROUNDS = 480  # of one row
_DIVIDED = 60  # paths in the average of a box before it is divided
_INHERITED = 24  # paths that this average counts for in the parts
_NEARER = 0.1  # share of the way from the best average to the latest, where the bound is usually higher
# The reserve is drawn on where fewer passes are left, if the least bound rose by this share of its way.
_LITTLE, _RISEN = 2**25, 0.1
_TOGETHER = 2**19  # passes that stay in the cache
_ALONE = 2**19  # passes that are simulated in the time that one call takes whatever it simulates


def are_averaged(rows: Rows) -> BoolArray:
    """Mark rows with steps that are longest paths, (n,)."""
    return np.asarray(are_tried(rows) & ~bypasses_sync(rows.columns))


class PathShape(NamedTuple):
    """Sizes and schedule of a row, from which its paths and boxes follow."""

    pp: int
    vpp: int
    num_microbatches: int
    schedule: str
    num_layers: int
    smallest_chunk: int

    @classmethod
    def of(cls, row: Rows) -> PathShape:
        """Return the shape of one row."""
        c, layers = row.columns, row.layout.num_layers
        schedule, m = SCHEDULES[int(c.pipeline_schedule[0])], int(c.num_microbatches[0])
        return cls(int(row.p[0]), int(row.v[0]), m, schedule, layers, int(row.smallest_chunk[0]))

    @property
    def chunks(self) -> int:
        """Return the number of chunks."""
        return self.pp * self.vpp

    def boxes(self) -> Boxes:
        """Return boxes that together hold every split, by their first large chunk."""
        low = np.full((1, self.chunks), float(self.smallest_chunk))
        high, level = (
            np.full_like(low, self.num_layers),
            np.array([float(-(-self.num_layers // self.chunks) + 1)]),
        )
        start = np.zeros(1, dtype=np.int64)
        larger, _ = Boxes(low, high, level, start, self.num_layers, self.pp).divided(start)
        last = len(larger) - 1  # no chunk holds more than u
        return larger.take(np.arange(last)).joined(larger.divided(np.array([last]))[0])


@dataclass(frozen=True, slots=True)
class Boxes:
    """Sets of splits: chunks of at least ``low`` and at most ``high`` layers, (k, C), ``layers`` in all."""

    low: FloatArray
    high: FloatArray
    level: FloatArray  # (k,): layers of a large chunk
    start: IntArray  # (k,): chunk from which the next large one is sought; C where none is
    layers: int
    period: int  # chunks from one large chunk of a chain to the next, at least

    def __len__(self) -> int:
        return len(self.low)

    def take(self, index: IntArray) -> Boxes:
        """Return some of the boxes."""
        return replace(
            self,
            low=self.low[index],
            high=self.high[index],
            level=self.level[index],
            start=self.start[index],
        )

    def joined(self, other: Boxes) -> Boxes:
        """Return these boxes and others."""
        return replace(
            self,
            low=np.concatenate([self.low, other.low]),
            high=np.concatenate([self.high, other.high]),
            level=np.concatenate([self.level, other.level]),
            start=np.concatenate([self.start, other.start]),
        )

    def within(self, most: FloatArray) -> Boxes:
        """Return the boxes without chunks above ``most``, (C,)."""
        return replace(self, high=np.minimum(self.high, most))

    def are_there(self) -> BoolArray:
        """Mark boxes that hold a split."""
        enough = (self.low.sum(axis=1) <= self.layers) & (self.high.sum(axis=1) >= self.layers)
        return np.asarray(enough & (self.low <= self.high).all(axis=1))

    def divided(self, index: IntArray) -> tuple[Boxes, IntArray]:
        """Divide boxes by their next large chunk; return the parts, and which box each is of.

        The last part of a box has no further chunk of its level. Where that is the one above u, large
        chunks of u layers are sought from the first chunk on.
        """
        chunks = self.low.shape[1]
        of, place = np.nonzero(np.arange(chunks + 1) >= self.start[index][:, None])
        low, high, level = self.low[index][of], self.high[index][of], self.level[index][of]
        at, start = np.arange(chunks), self.start[index][of][:, None]
        before = (at >= start) & (at < place[:, None])
        low = np.where(at == place[:, None], np.maximum(low, level[:, None]), low)
        high = np.where(before, np.minimum(high, level[:, None] - 1.0), high)
        none, lowest = place == chunks, float(-(-self.layers // chunks))
        onward = np.where(
            none, np.where(level > lowest, 0, chunks), np.minimum(place + self.period, chunks)
        )
        parts = Boxes(low, high, np.where(none, lowest, level), onward, self.layers, self.period)
        there = np.flatnonzero(parts.are_there())
        return parts.take(there), np.asarray(index[of[there]])

    def best(self, each_s: FloatArray) -> FloatArray:
        """Return the split of each box with the least sum of layers times their seconds, (k, C)."""
        order = np.argsort(each_s, axis=1, kind="stable")
        room = np.take_along_axis(self.high - self.low, order, axis=1)
        left = self.layers - self.low.sum(axis=1, keepdims=True) - (np.cumsum(room, axis=1) - room)
        split = np.empty_like(self.low)
        np.put_along_axis(split, order, np.clip(left, 0.0, room), axis=1)
        return split + self.low


def most_of_chunks(row: Rows, target_s: float) -> FloatArray:
    """Return the most layers of each chunk, (C,), within a time.

    Chunks of a rank differ by one layer at most; the first and the last of the model may hold fewer. In a V
    both are on rank 0, with any sizes.
    """
    chunks, v, least = int(row.p[0] * row.v[0]), int(row.v[0]), int(row.smallest_chunk[0])
    rank, most = rank_of_chunk(row.columns, chunks)[0], most_layers_of(row, target_s)
    loose = (v > 1) & ((rank == 0) | (rank == rank[-1]))
    alike = np.where(loose, max(v - 1, 1), v)
    return np.asarray((most[rank] - np.where(loose, least, 0) - 1) // alike + 1.0)


@dataclass(frozen=True, slots=True)
class _Line:
    """Seconds of one row that are linear in the layers of its chunks."""

    pass_s: FloatArray  # (X,): forward, backward and weight gradient of each chunk, without layers
    each_s: FloatArray  # (X,): of a layer
    tail_s: FloatArray  # (p,)
    tail_each_s: FloatArray  # (p,)
    rank: IntArray  # (C,) of each chunk

    @classmethod
    def of(cls, row: Rows) -> _Line:
        p, v, least = int(row.p[0]), int(row.v[0]), int(row.smallest_chunk[0])
        chunks = p * v
        sizes, two = np.repeat([[least], [least + 1]], chunks, axis=1), row.take([0, 0])
        stages = assemble(two.prices, two.columns, two.layout, sizes, with_memory=False)
        weight = stages.chunk_weight_s
        parts = [stages.chunk_forward_s, stages.chunk_backward_s - weight]
        passes = np.concatenate([*parts, weight] if row.splits_backward[0] else parts, axis=1)
        each, tail = passes[1] - passes[0], stages.rank_tail_s[:, :p]
        tail_each = (tail[1] - tail[0]) / v
        return cls(
            pass_s=passes[0] - least * each,
            each_s=each,
            tail_s=tail[0] - least * v * tail_each,
            tail_each_s=tail_each,
            rank=rank_of_chunk(row.columns, chunks)[0],
        )

    def longest(self, splits: FloatArray, waves: Waves) -> FloatArray:
        """Return the longest path of each split, (k, X + p): passes of each kind, and where it ends."""
        p, kinds = len(self.tail_s), len(self.pass_s) // len(self.rank)
        on_rank = (self.rank[:, None] == np.arange(p)).astype(np.float64)
        durations = self.pass_s + self.each_s * np.tile(splits, kinds)
        tails = self.tail_s + self.tail_each_s * (splits @ on_rank)
        counts, last = longest_paths(durations, tails, waves)
        return np.concatenate([counts, np.eye(p)[last]], axis=1)

    def of_layers_s(self, paths: FloatArray) -> FloatArray:
        """Return what a layer of each chunk adds to paths, (k, C)."""
        counts, ends = np.split(paths, [len(self.pass_s)], axis=1)
        by_chunk = (counts * self.each_s).reshape(len(paths), -1, len(self.rank)).sum(axis=1)
        return np.asarray(by_chunk + (ends * self.tail_each_s)[:, self.rank])

    def other_s(self, paths: FloatArray) -> FloatArray:
        """Return what paths take without layers, (k,)."""
        return np.asarray(paths @ np.concatenate([self.pass_s, self.tail_s]))


@dataclass(slots=True)
class _Game:
    """Boxes of a shape, and averages of paths and splits in each; rows of the shape go on with them."""

    waves: Waves
    boxes: Boxes
    paths: FloatArray  # (K, X + p)
    splits: FloatArray  # (K, C)
    turns: IntArray  # (K,): number of paths in the average
    best: FloatArray  # (K, X + p): the average with the highest bound
    parent: IntArray  # (K,): the box that this is a part of
    whole: BoolArray  # (K,): not divided yet

    @classmethod
    def of(cls, shape: PathShape, width: int) -> _Game:
        boxes = shape.boxes()
        room, left = boxes.high - boxes.low, boxes.layers - boxes.low.sum(axis=1, keepdims=True)
        splits = boxes.low + room * left / np.maximum(room.sum(axis=1, keepdims=True), 1.0)
        turns, paths = np.zeros(len(boxes), dtype=np.int64), np.zeros((len(boxes), width))
        whole = np.ones(len(boxes), dtype=np.bool_)
        return cls(waves_of(*shape[:4]), boxes, paths, splits, turns, paths.copy(), turns - 1, whole)

    def divide(self, index: IntArray) -> None:
        parts, parent = self.boxes.divided(index)
        self.whole[index] = False
        self.boxes = self.boxes.joined(parts)
        self.paths = np.concatenate([self.paths, self.paths[parent]])
        self.splits = np.concatenate([self.splits, self.splits[parent]])
        self.turns = np.concatenate([self.turns, np.minimum(self.turns[parent], _INHERITED)])
        self.best = np.concatenate([self.best, self.best[parent]])
        self.parent = np.concatenate([self.parent, parent])
        self.whole = np.concatenate([self.whole, np.ones(len(parts), dtype=np.bool_)])


@dataclass(slots=True)
class _Row:
    """One row, and what bounds it so far in each box of its shape."""

    line: _Line
    most: FloatArray  # (C,): most layers of a chunk
    game: _Game
    passes: int
    end_s: FloatArray  # (k,): no split ends before, for the first k boxes
    rounds: int = 0

    @property
    def least_s(self) -> float:
        """Return a time before which no split ends."""
        return float(self.end_s[self.game.whole[: len(self.end_s)]].min(initial=np.inf))

    def raised(self, limit_s: float, effort: SimulationBudget) -> bool:
        """Raise the bounds of boxes below a limit; return whether more may follow."""
        known_s = self.least_s if len(self.end_s) else -np.inf
        whole = self.game.whole[: len(self.end_s)]
        self._bound_by_best(np.flatnonzero(whole & (self.end_s < limit_s)))
        self._follow(limit_s)
        if self.least_s > known_s:
            return True
        for _ in range(_ROUNDS):
            effort.tick()
            open_ = np.flatnonzero(self.game.whole & (self.end_s < limit_s))
            if not len(open_) or not effort.takes(_ALONE + len(open_) * self.passes):
                return False
            for some in np.array_split(open_, -(-len(open_) * self.passes // _TOGETHER)):
                look()
                self._play(some)
            left = open_[(self.game.turns[open_] >= _DIVIDED) & (self.end_s[open_] < limit_s)]
            left = left[self.game.boxes.start[left] < len(self.most)]
            if len(left):
                self.game.divide(left)
                self._follow(limit_s)
        self.rounds += _ROUNDS
        return self.rounds < _MOST_ROUNDS

    def _follow(self, limit_s: float) -> None:
        """Bound new boxes by their parents' bounds, and those below a limit by the best averages."""
        game = self.game
        while (known := len(self.end_s)) < len(game.boxes):
            late = np.flatnonzero(game.parent[known:] >= known)  # parts of boxes that are new themselves
            new = np.arange(known, known + late[0] if len(late) else len(game.boxes))
            inherited = self.end_s[game.parent[new]] if known else np.full(len(new), -np.inf)
            there = game.boxes.take(new).within(self.most).are_there()
            self.end_s = np.concatenate([self.end_s, np.where(there, inherited, np.inf)])
            self._bound_by_best(new[there & (inherited < limit_s)])

    def _bound_by_best(self, index: IntArray) -> None:
        index = index[self.game.turns[index] > 0]
        if not len(index):
            return
        end_s, _ = self._bounds_of(self._boxes(index), self.game.best[index])
        self.end_s[index] = np.maximum(self.end_s[index], end_s)

    def _play(self, index: IntArray) -> None:
        """Add the longest paths of the average splits to the averages."""
        game = self.game
        share = (2.0 / (game.turns[index] + 2.0))[:, None]
        found = self.line.longest(game.splits[index], game.waves)
        game.paths[index] += share * (found - game.paths[index])
        boxes = self._boxes(index)
        end_s, splits = self._bounds_of(boxes, game.paths[index])
        game.splits[index] += share * (splits - game.splits[index])
        game.turns[index] += 1
        self._keep(index, end_s, game.paths[index])
        nearer = game.best[index] + _NEARER * (game.paths[index] - game.best[index])
        self._keep(index, self._bounds_of(boxes, nearer)[0], nearer)

    def _keep(self, index: IntArray, end_s: FloatArray, paths: FloatArray) -> None:
        """Keep averages of paths that raise the bounds of boxes."""
        better = end_s > self.end_s[index]
        self.end_s[index[better]] = end_s[better]
        self.game.best[index[better]] = paths[better]

    def _boxes(self, index: IntArray) -> Boxes:
        return self.game.boxes.take(index).within(self.most)

    def _bounds_of(self, boxes: Boxes, paths: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the bounds of boxes by averages of paths, and the splits that are best against them."""
        each_s = self.line.of_layers_s(paths)
        best = boxes.best(each_s)
        return self.line.other_s(paths) + (each_s * best).sum(axis=1), best


def least_average_s(rows: Rows, low_s: FloatArray, target_s: float, effort: SimulationBudget) -> float:
    """Bound the simulation of every split of rows, up to ``target_s``.

    ``low_s``: a known bound of each row, (n,). The row with the least bound is raised first, so that the
    least of all is as high as the effort allows. Memory is left aside.
    """
    games, begun = dict[PathShape, _Game](), dict[int, _Row]()
    average_s = np.zeros(len(rows))  # bounds by averages, which hold for the rows that a row dominates
    waiting: list[tuple[float, int]] = [(bound, at) for at, bound in enumerate(low_s.tolist())]
    heapq.heapify(waiting)
    risen_s = float(low_s.min(initial=target_s)) * (1.0 - _RISEN) + target_s * _RISEN
    while waiting and waiting[0][0] < target_s:
        bound, at = waiting[0]
        if bound > risen_s and effort.passes < _LITTLE:
            effort.draw()
        row = rows.take([at])
        if at not in begun and (dominated_s := float(average_s[dominators(rows, at)].max())) > bound:
            heapq.heapreplace(waiting, (dominated_s, at))
            continue
        if at not in begun:
            line, shape = _Line.of(row), PathShape.of(row)
            width = len(line.pass_s) + len(line.tail_s)
            game = games[shape] = games.get(shape) or _Game.of(shape, width)
            begun[at] = _Row(line, most_of_chunks(row, target_s), game, passes_of(row), np.zeros(0))
        more = begun[at].raised(float(end_limit_s(row, target_s)[0]), effort)
        end_s, prices = begun[at].least_s, row.prices
        step_s = float(step_of_end_s(end_s, prices.straggler[0], prices.fixed_s[0]) * SAFETY)
        if not more and step_s < target_s:  # the others are bounded as far as that takes no effort
            target_s = max(bound, step_s)
        average_s[at] = step_s
        heapq.heapreplace(waiting, (max(bound, step_s), at))
    return target_s
