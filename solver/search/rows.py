"""Priced rows: the input of the bounds and the exact programs, with the split still open.

For a row with layers of one kind the time and the memory of a rank depend on the *number* of its
layers alone (chunks of a rank differ by at most one layer, earlier chunks are the larger ones).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np

from meshwright.solver.configuration import (
    ALL_LAYERS,
    PER_STAGE,
    BoolArray,
    Columns,
    Configuration,
    FloatArray,
    IntArray,
)
from meshwright.solver.cost.stages import (
    LayerLayout,
    RowPrices,
    Stages,
    assemble,
    objective_s,
    parts_room_bytes,
    step_of_end_s,
)
from meshwright.solver.schedules.schedule import fill_share, in_a_v, in_flight, makes_order, splits_backward
from meshwright.solver.splits import ANY_SPLIT, Prescribed

_LESS = 1.0 - 1e-12  # what rounding of sums may take


def share_of(room_s: FloatArray, each_s: FloatArray) -> FloatArray:
    """Return the layers in a time; without limit if they take none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(each_s > 0.0, room_s / each_s, np.where(room_s >= 0.0, np.inf, -1.0))


@dataclass(frozen=True, kw_only=True)
class InCommon:
    """Hold what all rows of a problem share."""

    layout: LayerLayout
    budget_bytes: float  # peak memory of every rank <= budget: feasible
    uneven_stages: bool = True  # the launcher runs stages of different size
    only_split: Prescribed = ANY_SPLIT  # of the request or the launcher; false: any split

    @cached_property
    def is_uniform(self) -> bool:
        """Return whether all layers are of one kind."""
        return self.layout.num_kinds == 1


@dataclass(frozen=True, kw_only=True)
class Rows(InCommon):
    """Columns, their prices, and the memory that a rank may use."""

    columns: Columns
    prices: RowPrices

    def __len__(self) -> int:
        return len(self.columns.zero_stage)

    def take(self, index: IntArray | list[int]) -> Rows:
        """Return the rows at ``index``, in that order."""
        picked = np.asarray(index, dtype=np.int64)
        if len(picked) == len(self) and np.array_equal(picked, np.arange(len(picked))):
            return self  # with all that is known of them
        return Rows(
            columns=self.columns.take(picked),
            prices=self.prices.take(picked),
            layout=self.layout,
            budget_bytes=self.budget_bytes,
            uneven_stages=self.uneven_stages,
            only_split=self.only_split,
        )

    def without_ends(self) -> Rows:
        """Return rows with splits of layers alone, of which the first and the last chunk may hold none."""
        if not self.layout.counts_ends:
            return self
        return replace(self, prices=self.prices.without_ends(), layout=self.layout.without_ends())

    def stages(self, splits: list[tuple[int, ...]] | IntArray, *, with_memory: bool = True) -> Stages:
        """Return every row's stages under its split; an array has 0 behind its last chunk."""
        if isinstance(splits, np.ndarray):
            padded = splits
        else:
            counts = np.array([len(split) for split in splits])
            padded = np.zeros((len(splits), int(counts.max())), dtype=np.int64)
            padded[np.arange(padded.shape[1]) < counts[:, None]] = np.fromiter(
                chain.from_iterable(splits), dtype=np.int64, count=int(counts.sum())
            )
        replayed = self.replayed_layers(padded)
        return assemble(self.prices, self.columns, self.layout, padded, replayed, with_memory=with_memory)

    def objective_s(self, splits: list[tuple[int, ...]]) -> FloatArray:
        """Return every row's closed form under its split, shape (n,)."""
        return objective_s(self.prices, self.columns, self.stages(splits, with_memory=False))

    def step_s(self, finish_s: FloatArray, stages: Stages) -> FloatArray:
        """Return steps of the first row from the ends of its ranks, (k, p), under k splits; shape (k,)."""
        last = (finish_s + stages.rank_tail_s[:, : finish_s.shape[1]]).max(axis=1)
        return np.asarray(step_of_end_s(last, self.prices.straggler[0], self.prices.fixed_s[0]))

    def replayed(self, splits: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return the recomputed layers of each stage of every row; () if stages share the row's count."""
        found: list[tuple[int, ...]] = [() for _ in splits]
        for row in np.flatnonzero(self.per_stage).tolist():
            counts = self.take([row]).replayed_layers(np.array([splits[row]]))
            found[row] = () if counts is None else tuple(counts[0].tolist())
        return found

    def configurations(self, splits: list[tuple[int, ...]]) -> list[Configuration]:
        """Return every row with its split."""
        counts, layers = self.replayed(splits), self.layout.layers_of
        return [
            self.columns.configuration(at, layers(split), counts[at]) for at, split in enumerate(splits)
        ]

    def replayed_layers(self, splits: IntArray) -> IntArray | None:
        """Return recomputed layers of every chunk, (n, C): the least that fit, for counts by stage.

        Those are the first of a stage, so the sum of what its first k layers spare decides. A byte more is
        asked for than needed, so that rounding does not. Where nothing has to be recomputed it is
        one layer, on the stage where that costs least: without any it would be another row.
        """
        if not self.per_stage.any():
            return None
        counts = np.repeat(self.columns.recompute_layers[:, None], splits.shape[1], axis=1)
        prices, nothing = self.prices, np.zeros_like(splits)
        stages = assemble(prices, self.columns, self.layout, splits, nothing)
        whole = stages.peak_memory_bytes
        held = self.held[:, : whole.shape[1]]
        with np.errstate(divide="ignore"):
            needed = (whole - self.budget_bytes + 1.0) / (prices.reserve[:, None] * held)
        spared = (prices.activation_bytes - prices.checkpoint_bytes)[:, :-2]
        sums = spared @ self.layout.cumulative.T.astype(np.float64)
        begin = np.cumsum(splits, axis=1) - splits
        for row in np.flatnonzero(self.per_stage):
            p = int(self.p[row])
            first = begin[row, :p]
            end = np.searchsorted(sums[row], sums[row, first] + needed[row, :p])
            counts[row] = 0
            counts[row, :p] = np.clip(end - first, 0, splits[row, :p])
            if not counts[row].any():
                counts[row, self._idlest(int(row), stages, begin[row, :p])] = 1
        return counts

    def _idlest(self, row: int, stages: Stages, begin: IntArray) -> int:
        p, share = len(begin), self.m[row] - self.phi[row]
        own = share * stages.rank_time_s[row, :p] + stages.rank_tail_s[row, :p]
        kinds = (np.diff(self.layout.cumulative, axis=0) > 0).argmax(axis=1)
        replay = self.prices.replay_s[row, kinds[begin]]
        later = self.phi[row] * replay + np.maximum(own.max(), own + share * replay)
        return int(later.argmin())

    @cached_property
    def m(self) -> FloatArray:
        """Return the micro-batches, shape (n,)."""
        return self.columns.num_microbatches.astype(np.float64)

    @cached_property
    def p(self) -> IntArray:
        """Return the pipeline ranks, shape (n,)."""
        return self.columns.pipeline_parallel_size

    @cached_property
    def v(self) -> IntArray:
        """Return the chunks of a rank, shape (n,)."""
        return self.columns.virtual_pipeline_size

    @cached_property
    def in_a_v(self) -> BoolArray:
        """Mark rows with chunks in a V over their ranks, so that rank 0 holds the head too, shape (n,)."""
        return in_a_v(self.columns)

    @cached_property
    def held(self) -> IntArray:
        """Return the micro-batches in flight of every chunk, (n, C) (``schedule.in_flight``)."""
        return in_flight(self.columns)

    @cached_property
    def head_rank(self) -> IntArray:
        """Return the rank of the model's last chunk, shape (n,)."""
        return np.where(self.in_a_v, 0, self.p - 1)

    @cached_property
    def splits_backward(self) -> BoolArray:
        """Mark rows with weight gradients as passes of their own, shape (n,)."""
        return splits_backward(self.columns)

    @cached_property
    def makes_order(self) -> BoolArray:
        """Mark rows with a schedule that makes its order for the times, shape (n,)."""
        return makes_order(self.columns)

    @cached_property
    def phi(self) -> FloatArray:
        """Return the share of a whole pass that filling the pipeline costs, shape (n,)."""
        return fill_share(self.columns)

    @cached_property
    def every_layer(self) -> FloatArray:
        """Return 1 if every layer is recomputed, else 0, shape (n,)."""
        return np.asarray(self.columns.recompute_layers == ALL_LAYERS).astype(np.float64)

    @cached_property
    def per_stage(self) -> BoolArray:
        """Mark rows with as many recomputed layers by stage as each needs (``per_stage``), shape (n,)."""
        return np.asarray(self.columns.recompute_layers == PER_STAGE)

    @cached_property
    def least_kept_bytes(self) -> FloatArray:
        """Return each part's least kept bytes of a micro-batch, (n, P), but for ``some_layers``."""
        light = (self.every_layer > 0) | self.per_stage
        return np.where(light[:, None], self.prices.checkpoint_bytes, self.prices.activation_bytes)

    @cached_property
    def some_layers(self) -> IntArray:
        """Return recomputed layers of each chunk if not all and not by stage, shape (n,)."""
        given = self.columns.recompute_layers
        return np.asarray(np.where(given >= ALL_LAYERS, 0, given))

    @cached_property
    def smallest_chunk(self) -> IntArray:
        """Return the least number of layers of a chunk, shape (n,)."""
        return np.maximum(self.some_layers, 1)

    @cached_property
    def layer_s(self) -> FloatArray:
        """Return a layer's passes of one micro-batch, (n, K); replay included if all replay."""
        prices = self.prices
        whole = prices.forward_s + prices.backward_s + self.every_layer[:, None] * prices.replay_s
        return np.asarray(whole[:, :-2])

    @cached_property
    def embedding_s(self) -> FloatArray:
        """Return forward and backward of the embedding, shape (n,)."""
        return self.prices.forward_s[:, -2] + self.prices.backward_s[:, -2]

    @cached_property
    def head_s(self) -> FloatArray:
        """Return forward and backward of head and loss, shape (n,)."""
        return self.prices.forward_s[:, -1] + self.prices.backward_s[:, -1]

    @cached_property
    def chunk_s(self) -> FloatArray:
        """Return a chunk's time without layers, shape (n,): what every one has, and the least replay."""
        least_replay = self.prices.replay_s[:, :-2].min(axis=1)
        return np.asarray(self.prices.every_s + self.some_layers * least_replay)

    @cached_property
    def total_s(self) -> FloatArray:
        """Return the ranks' least total time over all splits, (n,); every split's for uniform layers."""
        layers: FloatArray = self.layer_s @ self.layout.cumulative[-1].astype(np.float64)
        chunks_s = self.p * self.v * self.chunk_s
        return np.asarray(layers + self.embedding_s + self.head_s + chunks_s + self.longer_replay_s)

    @cached_property
    def longer_replay_s(self) -> FloatArray:
        """Return all chunks' least replay beyond ``chunk_s``, which counts the shortest one, (n,).

        The layers that they replay are different ones: no fewer than the quickest of the model.
        """
        asked = np.flatnonzero(self.some_layers > 0)
        longer = np.zeros(len(self))
        if self.is_uniform or not len(asked):
            return longer
        replay, number = self.prices.replay_s[asked, :-2], (self.p * self.v * self.some_layers)[asked]
        order = np.argsort(replay, axis=1, kind="stable")
        replay, counts = np.take_along_axis(replay, order, axis=1), self.layout.cumulative[-1][order]
        taken = np.clip(number[:, None] - (np.cumsum(counts, axis=1) - counts), 0, counts)
        beyond = (taken * replay).sum(axis=1) - number * replay[:, 0]
        longer[asked] = np.maximum(beyond, 0.0) * _LESS
        return longer

    @cached_property
    def path_s(self) -> FloatArray:
        """Return a micro-batch's least time through all chunks and back, weight gradients put off, (n,)."""
        weight = self.prices.weight_gradient_s
        layers: FloatArray = weight[:, :-2] @ self.layout.cumulative[-1].astype(np.float64)
        return np.asarray(self.total_s - (layers + weight[:, -2] + weight[:, -1]))

    @cached_property
    def input_gradient_s(self) -> FloatArray:
        """Return each part's backward pass without weight gradients, (n, P); replay if all replay."""
        prices = self.prices
        whole = prices.backward_s + self.every_layer[:, None] * prices.replay_s - prices.weight_gradient_s
        return np.asarray(whole)

    @cached_property
    def parts_room_bytes(self) -> FloatArray:
        """Return a rank's bytes for parts and workspace, shape (n,)."""
        return parts_room_bytes(self.prices, self.budget_bytes)


# --------------------------------------------------------------------------------------------------
# Sums of prices over the first layers of a model, and how far a rank reaches in them.
#
# The boundary leads in memory: to find one for hundreds of rows is an operation on rows side by side.


_ROUNDING = 1e-9


def sums_of(rows: Rows, price: FloatArray) -> FloatArray:
    """Return the sum of a price by kind of layer (n, K) over the first l layers, (L + 1, n)."""
    return np.asarray(rows.layout.cumulative.astype(np.float64) @ np.ascontiguousarray(price.T))


def at(sums: FloatArray, index: IntArray) -> FloatArray:
    """Return entry ``index`` of every row, (n,)."""
    return np.asarray(sums.take(index * sums.shape[1] + np.arange(sums.shape[1])))


def furthest(sums: FloatArray, start: IntArray, room: FloatArray) -> IntArray:
    """Return the last boundary with a sum up to ``room`` above that at ``start``, (n,); -1 if none."""
    limit = at(sums, start) + room
    return count_below(sums, limit + _ROUNDING * np.abs(limit)) - 1


def count_below(sums: FloatArray, limit: FloatArray) -> IntArray:
    """Return how many sums of every row are at most its limit, (n,)."""
    reached = (sums <= limit).view(np.uint8)
    return np.asarray(np.add.reduce(reached, axis=0, dtype=np.uint16), dtype=np.int64)


# --------------------------------------------------------------------------------------------------
# Time of one rank of every row in addition to its layers.


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCosts:
    """Costs of ranks apart from layers, (n, p); seconds of a micro-batch."""

    time_s: FloatArray
    forward_s: FloatArray
    tail_s: FloatArray

    @classmethod
    def of(cls, rows: Rows, chunk_s: FloatArray | None = None) -> RankCosts:
        """Return every rank's costs, of the row with most; ``chunk_s`` (n,) replaces the rows' own."""
        prices = rows.prices

        def spread(every: FloatArray, first: FloatArray, last: FloatArray) -> FloatArray:
            """Spread a value over all ranks, with extra values for the embedding and for the head."""
            values = np.repeat(every[:, None], int(rows.p.max(initial=1)), axis=1)
            values[:, 0] += first
            values[np.arange(len(rows)), rows.head_rank] += last
            return values

        return cls(
            time_s=spread(
                rows.v * (rows.chunk_s if chunk_s is None else chunk_s), rows.embedding_s, rows.head_s
            ),
            forward_s=spread(
                rows.v * prices.every_forward_s, prices.forward_s[:, -2], prices.forward_s[:, -1]
            ),
            tail_s=spread(prices.rank_tail_s, prices.tail_s[:, -2], prices.tail_s[:, -1]),
        )

    def objective_s(self, share: FloatArray) -> FloatArray:
        """Return a rank's part of the closed form: its time ``share`` (n,) times, and its tail."""
        return share[:, None] * self.time_s + self.tail_s
