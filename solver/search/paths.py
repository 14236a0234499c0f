"""Bound of a row by averages of longest paths: for many chunks that are as small as chunks get.

A simulation is the longest path in a graph that no split changes (``branch``), and the seconds of a path
are linear in the layers of the chunks. So an average of paths, with any weights, is at most the longest
one: its least value over a set of splits bounds all of them. Over a *box*, lo <= n <= hi and sum n = L,
that is found by giving layers to the chunks where they cost least, one chunk after the other.

One box has a weak bound: where 128 layers are on 96 chunks, all of them hold 4/3 layers in it, but a chunk
of two layers works m of them in sequence. So splits are sorted by their first large chunk. With u =
ceil(L / C), some chunk holds u layers or more: either one holds more than u, or none does and some holds u.
In both cases one box is made for each place of the first such chunk; the chunks before it hold less.

The weights are found by fictitious play (Robinson 1951, An iterative method of solving a game): the longest
path of the average split joins the average of paths, and the split that is best against that average joins
the average of splits. Every average on the way is a valid bound, the largest one counts. All boxes, and all
rows with pipelines of one shape, begin with the averages of the row before them.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwright.solver.configuration import SCHEDULES, BoolArray, FloatArray, IntArray
from meshwright.solver.cost.stages import assemble, step_of_end_s
from meshwright.solver.schedules.schedule import BYPASSES_SYNC, rank_of_chunk
from meshwright.solver.schedules.simulate import Waves, longest_paths, waves_of
from meshwright.solver.search.bounds import SAFETY, end_limit_s
from meshwright.solver.search.branch import SimulationBudget, are_tried, most_layers_of, passes_of
from meshwright.solver.search.rows import Rows

_ROUNDS = 24  # longest paths that join the averages of a row before the next one is taken
_MOST_ROUNDS = 480  # of one row
_ALONE = 2**19  # passes that are simulated in the time that one call takes whatever it simulates
_DEAR = 2  # times as long as simulating passes: finding the longest paths as well
_BYPASSES = np.array([name in BYPASSES_SYNC for name in SCHEDULES])


def are_averaged(rows: Rows) -> BoolArray:
    """Mark rows with steps that are longest paths, (n,)."""
    return np.asarray(are_tried(rows) & ~_BYPASSES[rows.columns.pipeline_schedule])


class Shape(NamedTuple):
    """Sizes and schedule of a row, from which its paths and boxes follow."""

    pp: int
    vpp: int
    num_microbatches: int
    schedule: str
    num_layers: int
    smallest_chunk: int

    @classmethod
    def of(cls, row: Rows) -> Shape:
        """Return the shape of one row."""
        c, layers = row.columns, row.layout.num_layers
        schedule, m = SCHEDULES[int(c.pipeline_schedule[0])], int(c.num_microbatches[0])
        return cls(int(row.p[0]), int(row.v[0]), m, schedule, layers, int(row.smallest_chunk[0]))

    @property
    def chunks(self) -> int:
        """Return the number of chunks."""
        return self.pp * self.vpp


@dataclass(frozen=True, slots=True)
class Boxes:
    """Sets of splits: chunks of at least ``low`` and at most ``high`` layers, (k, C), ``layers`` in all."""

    low: FloatArray
    high: FloatArray
    layers: int
    number: IntArray  # (k,): alike for all rows of a shape, below twice its chunks

    @classmethod
    def of(cls, row: Rows, most: IntArray) -> Boxes:
        """Return boxes that together hold every split of a row; ``most`` layers of each rank, (p,)."""
        chunks, layers = int(row.p[0] * row.v[0]), row.layout.num_layers
        least = np.full(chunks, float(row.smallest_chunk[0]))
        most_of = _most_of_chunks(row, most)
        level = float(-(-layers // chunks))
        found = [
            _first_at(least, np.minimum(most_of, top), at)
            for at, top in ((level + 1, np.inf), (level, level))
        ]
        low, high = (np.concatenate(values) for values in zip(*found, strict=True))
        there = (low <= high).all(axis=1) & (low.sum(axis=1) <= layers) & (high.sum(axis=1) >= layers)
        return cls(low[there], high[there], layers, np.flatnonzero(there))

    def __len__(self) -> int:
        """Return the number of boxes."""
        return len(self.low)

    def take(self, index: IntArray) -> Boxes:
        """Return some of the boxes."""
        return Boxes(self.low[index], self.high[index], self.layers, self.number[index])

    def best(self, each_s: FloatArray) -> FloatArray:
        """Return the split of each box with the least sum of layers times their seconds, (k, C)."""
        order = np.argsort(each_s, axis=1, kind="stable")
        room = np.take_along_axis(self.high - self.low, order, axis=1)
        left = self.layers - self.low.sum(axis=1, keepdims=True) - (np.cumsum(room, axis=1) - room)
        split = np.empty_like(self.low)
        np.put_along_axis(split, order, np.clip(left, 0.0, room), axis=1)
        return split + self.low


def _first_at(least: FloatArray, most: FloatArray, level: float) -> tuple[FloatArray, FloatArray]:
    """Return a box for each place of the first chunk of at least ``level`` layers, (C, C) each."""
    chunk = np.arange(len(least))
    low = np.where(chunk == chunk[:, None], np.maximum(least, level), least)
    return low, np.where(chunk < chunk[:, None], np.minimum(most, level - 1.0), most)


def _most_of_chunks(row: Rows, most: IntArray) -> FloatArray:
    """Return the most layers of each chunk, (C,), where its rank holds at most ``most``.

    Chunks of a rank differ by one layer at most; the first and the last of the model may hold fewer. In a V
    both are on rank 0, with any sizes.
    """
    chunks, v, least = int(row.p[0] * row.v[0]), int(row.v[0]), int(row.smallest_chunk[0])
    rank = rank_of_chunk(row.columns, chunks)[0]
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


@dataclass(frozen=True, slots=True)
class _Game:
    """Averages of paths and splits in each box of a shape; rows of the shape go on with them."""

    waves: Waves
    paths: FloatArray  # (K, X + p)
    splits: FloatArray  # (K, C)
    turns: IntArray  # (K,): of how many paths the average is

    @classmethod
    def of(cls, shape: Shape, width: int) -> _Game:
        boxes, waves = 2 * shape.chunks, waves_of(*shape[:4])
        splits, turns = np.zeros((boxes, shape.chunks)), np.zeros(boxes, dtype=np.int64)
        return cls(waves, np.zeros((boxes, width)), splits, turns)


@dataclass(slots=True)
class _Row:
    """One row, its boxes, and what bounds them so far."""

    line: _Line
    boxes: Boxes
    limit_s: float  # the end that is refuted
    game: _Game
    passes: int
    end_s: FloatArray  # (k,): no split of a box ends before
    rounds: int = 0

    def play(self, effort: SimulationBudget) -> bool:
        """Raise the bounds of boxes below the limit; return whether more may follow."""
        for _ in range(_ROUNDS):
            effort.tick()
            open_ = np.flatnonzero(self.end_s < self.limit_s)
            if not len(open_) or not effort.takes(_ALONE + _DEAR * len(open_) * self.passes):
                return False
            self._play(open_)
        self.rounds += _ROUNDS
        return self.rounds < _MOST_ROUNDS

    def begin(self) -> None:
        """Bound the boxes by the averages of other rows of the shape."""
        known, game = self.game.turns[self.boxes.number] > 0, self.game
        fresh, boxes = np.flatnonzero(~known), self.boxes.take(np.flatnonzero(~known))
        room, left = boxes.high - boxes.low, boxes.layers - boxes.low.sum(axis=1, keepdims=True)
        share = left / np.maximum(room.sum(axis=1, keepdims=True), 1.0)
        game.splits[boxes.number] = boxes.low + room * share
        self.end_s[fresh] = -np.inf
        if known.any():
            self._bound(np.flatnonzero(known))

    def _play(self, index: IntArray) -> None:
        game, number = self.game, self.boxes.number[index]
        share = (2.0 / (game.turns[number] + 2.0))[:, None]
        found = self.line.longest(game.splits[number], game.waves)
        game.paths[number] += share * (found - game.paths[number])
        game.splits[number] += share * (self._bound(index) - game.splits[number])
        game.turns[number] += 1

    def _bound(self, index: IntArray) -> FloatArray:
        """Bound boxes by their average path, and return the best splits against it."""
        boxes = self.boxes.take(index)
        paths = self.game.paths[boxes.number]
        each_s = self.line.of_layers_s(paths)
        best = boxes.best(each_s)
        end_s = self.line.other_s(paths) + (each_s * best).sum(axis=1)
        self.end_s[index] = np.maximum(self.end_s[index], end_s)
        return best


def least_average_s(rows: Rows, low_s: FloatArray, target_s: float, effort: SimulationBudget) -> float:
    """Bound the simulation of every split of rows, up to ``target_s``.

    ``low_s``: a known bound of each row, (n,). The row with the least bound is raised first, so that the
    least of all is as high as the effort allows. Memory is left aside.
    """
    games, begun = dict[Shape, _Game](), dict[int, _Row]()
    waiting: list[tuple[float, int]] = [(bound, at) for at, bound in enumerate(low_s.tolist())]
    heapq.heapify(waiting)
    while waiting and waiting[0][0] < target_s:
        bound, at = waiting[0]
        row = rows.take([at])
        if at not in begun:
            boxes, line, shape = Boxes.of(row, most_layers_of(row, target_s)), _Line.of(row), Shape.of(row)
            width = len(line.pass_s) + len(line.tail_s)
            game = games[shape] = games.get(shape) or _Game.of(shape, width)
            limit_s, end_s = float(end_limit_s(row, target_s)[0]), np.full(len(boxes), -np.inf)
            begun[at] = _Row(line, boxes, limit_s, game, passes_of(row), end_s)
            begun[at].begin()
            more = True
        else:
            more = begun[at].play(effort)
        end_s = begun[at].end_s.min(initial=np.inf)
        step_s = float(step_of_end_s(end_s, row.prices.straggler[0], row.prices.fixed_s[0]) * SAFETY)
        if not more and step_s < target_s:
            return max(bound, step_s)
        heapq.heapreplace(waiting, (max(bound, step_s), at))
    return target_s
