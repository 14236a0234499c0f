"""Stage times, stage memory and the closed-form objective from prices and a split.

The one place where parts are added up: the search, the prediction and the independent check all
call it. Vectorised over rows; ``stage_layers`` is (n, C), zero-padded behind pp * vpp chunks.
Chunk c of a row sits on pipeline rank ``c mod pp`` (``schedule.rank_of_chunk``); chunk 0 holds the
embedding, the last one the head. In a chunk the first ``recompute_layers`` layers are the fully
recomputed ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache, reduce
from typing import Any, TypeVar

import numpy as np

from meshwright.profiles.model import LayerShape, ModelSpec
from meshwright.profiles.trained_layers import BELOW, FROZEN, TRAINED, LayerTraining
from meshwright.solver.configuration import BoolArray, Columns, FloatArray, Gathered, IntArray
from meshwright.solver.schedules.schedule import (
    fill_share,
    in_a_v,
    in_flight,
    rank_of_chunk,
)

# --------------------------------------------------------------------------------------------------
# The interface between the cost model and the search: linear prices of every row.
#
# A *row* is one configuration without its split. A *part* is something a pipeline stage can hold: one
# transformer layer of kind k (parts ``0 … K-1``, kinds in ``shapes`` order), the embedding (part
# ``K``, first chunk only) or the output head with its loss and multi-token-prediction layers (part ``K +
# 1``, last chunk only). Once a row is priced, time and memory of any split are sums of part prices; that
# linearity is what makes the search exact, so nothing non-linear in the split may hide here.


@dataclass(frozen=True, kw_only=True)
class LayerLayout:
    """Kind of each layer."""

    kinds: tuple[LayerShape, ...]  # the K kinds that occur
    cumulative: IntArray  # (L + 1, K): layers of each kind among the first l
    counts_ends: bool = False  # splits count the embedding and the head too: layers of two more kinds
    predicted: int = 0  # prediction layers, if splits count them too: as one layer of one more kind

    @cached_property
    def num_layers(self) -> int:
        """Return L, plus what else splits count."""
        return len(self.cumulative) - 1

    @cached_property
    def counts_prediction(self) -> bool:
        """Return whether splits count the prediction layers, all of them as one layer."""
        return self.predicted > 0

    @cached_property
    def num_kinds(self) -> int:
        """Return K, plus the kinds of what else splits count."""
        return int(self.cumulative.shape[1])

    @staticmethod
    @lru_cache(maxsize=64)
    def of(model: ModelSpec, training: tuple[LayerTraining, ...] = ()) -> LayerLayout:
        """Return the layout of a model, cached for all prices; it must not be changed.

        Where some layers are frozen, ``training`` says what becomes of each: kinds of their own.
        """
        sequence, kinds = model.layer_shapes(), model.shapes()
        if training:
            sequence = tuple(
                shape._replace(trains=each) for shape, each in zip(sequence, training, strict=True)
            )
            every = [shape._replace(trains=each) for each in (BELOW, FROZEN, TRAINED) for shape in kinds]
            kinds = tuple(shape for shape in every if shape in {*sequence})
        one_hot = np.array([[layer == kind for kind in kinds] for layer in sequence], dtype=np.int64)
        zeros = np.zeros((1, len(kinds)), dtype=np.int64)
        return LayerLayout(kinds=kinds, cumulative=np.concatenate([zeros, np.cumsum(one_hot, axis=0)]))

    def with_ends(self) -> LayerLayout:
        """Return the layout with the embedding as the first layer of all and the head as the last.

        A chunk then holds one of these at least, not a layer: either end may have a stage of its own.
        """
        layers, kinds = self.num_layers, self.num_kinds
        cumulative = np.zeros((layers + 3, kinds + 2), dtype=np.int64)
        cumulative[1:-1, :kinds], cumulative[-1, :kinds] = self.cumulative, self.cumulative[-1]
        cumulative[1:, kinds], cumulative[-1, kinds + 1] = 1, 1
        return replace(self, cumulative=cumulative, counts_ends=True)

    def without_ends(self) -> LayerLayout:
        """Undo ``with_ends``."""
        return replace(self, cumulative=self.cumulative[1:-1, :-2], counts_ends=False)

    def with_prediction(self, number: int) -> LayerLayout:
        """Return the layout with ``number`` prediction layers as one more last layer, of its own kind."""
        layers, kinds = self.num_layers, self.num_kinds
        cumulative = np.zeros((layers + 2, kinds + 1), dtype=np.int64)
        cumulative[:-1, :kinds], cumulative[-1, :kinds] = self.cumulative, self.cumulative[-1]
        cumulative[-1, kinds] = 1
        return replace(self, cumulative=cumulative, predicted=number)

    def without_end_counts(self, split: Sequence[int]) -> tuple[int, ...]:
        """Return what each chunk of a split holds, without the ends that it may count."""
        layers = list(split)
        if self.counts_ends:
            layers[0] -= 1
            layers[-1] -= 1
        return tuple(layers)

    def layers_of(self, split: Sequence[int]) -> tuple[int, ...]:
        """Return the layers of each chunk of a split, without what else it counts."""
        layers = list(self.without_end_counts(split))
        if self.counts_prediction:
            layers[-1 if layers[-1] else -2] -= 1
        return tuple(layers)

    @cached_property
    def last_trained(self) -> int:
        """Return the kind of trained layers with the most weights; the last one where all are frozen."""
        trained = [index for index, one in enumerate(self.kinds) if one.trains == TRAINED]
        return trained[-1] if trained else len(self.kinds) - 1

    @property
    def behind_prediction(self) -> int:
        """Return the boundary behind the prediction layers; 0 if splits do not count them.

        A chunk that ends there, before the head, holds nothing else.
        """
        return (self.num_layers - self.counts_ends) * self.counts_prediction


@dataclass(frozen=True, kw_only=True)
class RowPrices(Gathered):
    """Prices of n rows over P = K + 2 parts; seconds and bytes, float64, per rank.

    Times are per micro-batch and already hold every exposed collective inside the pipeline
    (tensor, context, expert, ZeRO-3 gathers) and what selective recomputation replays.
    """

    # Time by part, shape (n, P).
    forward_s: FloatArray
    backward_s: FloatArray
    replay_s: FloatArray  # added to the backward pass of a fully recomputed layer; 0 for K, K + 1
    weight_gradient_s: (
        FloatArray  # of backward_s: what a split backward pass puts off; 0 where none is split
    )
    tail_s: FloatArray  # once per step after the last micro-batch: exposed gradient / parameter
    #                     collectives and the optimizer, by part
    # The part that every rank has whatever it holds, shape (n,): ``OF_EVERY_RANK``, and ``buffer_bytes``.
    every_forward_s: FloatArray  # of each chunk and micro-batch: what the chunk hands on
    every_backward_s: FloatArray
    rank_tail_s: FloatArray  # once per step after the last micro-batch (latencies, norms)
    transfer_s: FloatArray  # exposed time of one message between stages, each direction; 0 if pp = 1
    fixed_s: FloatArray  # once per step
    straggler: FloatArray  # >= 1; multiplies everything but ``fixed_s``; holds the calibration factor
    # Memory by part, shape (n, P).
    weights_bytes: FloatArray
    gradients_bytes: FloatArray
    reduced_gradients_bytes: FloatArray  # what is left of them behind their chunk's last backward pass
    optimizer_bytes: FloatArray
    activation_bytes: FloatArray  # one micro-batch in flight; head: 0 (see head_workspace_bytes)
    checkpoint_bytes: FloatArray  # the same for a fully recomputed layer
    # Memory of the row, shape (n,).
    ranks_in_turn: FloatArray  # first ranks with chunks that have gradients one after the other
    head_workspace_bytes: FloatArray  # logits, loss and their gradients: last rank, once
    replay_workspace_bytes: FloatArray  # one layer's activations while it is replayed; 0 if none is
    buffer_bytes: FloatArray  # of every rank: communication and bucket buffers
    context_bytes: FloatArray  # driver context, libraries: outside the framework's allocator
    reserve: FloatArray  # >= 1; what the allocator cannot give back over allocated bytes
    # Of the head part, what prediction layers on another stage take, shape (n,) each: by the
    # names of prices by part and of causes; empty where they are on the head's stage.
    prediction: dict[str, FloatArray] = field(default_factory=dict)
    # Bytes on top of what parts keep, by moment of MOMENTS, shape (n,) each: of which
    # ``head_workspace_bytes`` and ``replay_workspace_bytes`` are the largest; empty where nobody asks when
    moments: dict[str, FloatArray] = field(default_factory=dict)
    # Breakdown of forward_s + backward_s by cause, shape (n, P) each; sums to their sum
    breakdown_s: dict[str, FloatArray]  # compute, tensor_parallel, context_parallel, …
    tail_breakdown_s: dict[str, FloatArray]  # data_parallel, optimizer; sums to tail_s

    def __len__(self) -> int:
        return len(self.transfer_s)

    @classmethod
    def partly(
        cls, rows: int, num_parts: int, known: Mapping[str, FloatArray], **apart: dict[str, FloatArray]
    ) -> RowPrices:
        """Return prices of which some are known; others are 0, and tables not in ``apart`` are empty."""
        one, each = np.zeros(rows), np.zeros((rows, num_parts))
        others = {name: each if name in _BY_PART else one for name in _ARRAYS}
        ones = dict.fromkeys(("straggler", "reserve"), np.ones(rows))
        every: dict[str, Any] = {**others, **ones, **known, **{name: {} for name in _APART}, **apart}
        return cls(**every)

    @classmethod
    def concatenate(cls, parts: Sequence[RowPrices]) -> RowPrices:
        """Return all rows, one after the other, without their breakdown."""
        if len(parts) == 1:
            return replace(parts[0], moments={}, breakdown_s={}, tail_breakdown_s={})
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS}
        apart = {
            name: np.concatenate([part.prediction[name] for part in parts])
            for name in _BY_PART
            if all(name in part.prediction for part in parts)
        }
        return cls(**arrays, prediction=apart, moments={}, breakdown_s={}, tail_breakdown_s={})

    def with_prediction(self) -> RowPrices:
        """Return prices for a layout that counts the prediction layers as a kind apart from the head.

        Both together are what they were: what they share, such as the start of an exchange, is the layers'.
        """

        def moved(values: FloatArray, name: str) -> FloatArray:
            own = np.minimum(self.prediction.get(name, np.zeros(len(self))), values[:, -1])
            found = np.insert(values, -2, own, axis=1)
            found[:, -1] -= own
            return found

        added = {name: moved(getattr(self, name), name) for name in _BY_PART}
        added["checkpoint_bytes"][:, -3] = added["activation_bytes"][:, -3]  # nothing replays them
        return replace(
            self,
            **added,
            prediction={},
            moments=self.moments,
            breakdown_s={name: moved(value, name) for name, value in self.breakdown_s.items()},
            tail_breakdown_s={
                name: moved(value, f"{name} of the tail") for name, value in self.tail_breakdown_s.items()
            },
        )

    def with_ends(self) -> RowPrices:
        """Return prices for a layout that counts the ends as kinds of layers, which nothing replays.

        What no split moves, the workspace of the head, stays with the last chunk, which always holds it.
        """
        added = {name: np.pad(getattr(self, name), ((0, 0), (0, 2))) for name in _BY_PART}
        added["checkpoint_bytes"][:, -4:-2] = self.activation_bytes[:, -2:]
        return replace(
            self, **added, prediction={}, moments=self.moments, breakdown_s={}, tail_breakdown_s={}
        )

    def without_ends(self) -> RowPrices:
        """Undo ``with_ends``."""
        left = {name: getattr(self, name)[:, :-2].copy() for name in _BY_PART}
        left["checkpoint_bytes"][:, -2:] = 0.0
        return replace(self, **left, prediction={}, moments=self.moments)

    @property
    def every_s(self) -> FloatArray:
        """Return the seconds of both passes that each chunk has whatever it holds, (n,)."""
        return self.every_forward_s + self.every_backward_s

    @cached_property
    def state_bytes(self) -> FloatArray:
        """Return weights, gradients and optimizer states of each part, (n, P): the least at a rank's peak.

        Where chunks have gradients in turn, the peak is not a sum of parts (``fullest_moment``): when the
        last chunk's come, first of all, it holds every activation, and of gradients at least the head's.
        """
        states = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        if (some := self.ranks_in_turn > 0).any():
            states[some, :-1] -= self.gradients_bytes[some, :-1]
        return states


_APART = ("prediction", "moments", "breakdown_s", "tail_breakdown_s")
_ARRAYS = tuple(f.name for f in fields(RowPrices) if f.name not in _APART)
OF_EVERY_RANK = (
    "every_forward_s", "every_backward_s", "rank_tail_s", "transfer_s", "fixed_s", "straggler",
)  # fmt: skip
_BY_PART = (
    "forward_s", "backward_s", "replay_s", "weight_gradient_s", "tail_s",
    "weights_bytes", "gradients_bytes", "reduced_gradients_bytes", "optimizer_bytes", "activation_bytes",
    "checkpoint_bytes",
)  # fmt: skip


# When a rank may hold most: with every activation at the end of a forward pass or in the loss's backward
# pass (both on the head's rank alone), in a layer's, when weights are updated and no activation is left, or
# where something is evaluated between steps. Of equal ones, the first counts.
MOMENTS = ("loss", "forward", "backward", "optimizer step", "evaluation")
LOSS, FORWARD, BACKWARD, UPDATE, EVALUATION = MOMENTS
OF_HEAD = (LOSS, FORWARD, EVALUATION)
ALLOCATED = ("weights", "gradients", "optimizer", "activations", "workspace", "buffers")  # in tensors
MEMORY_TERMS = (*ALLOCATED, "context", "reserve")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Contents of each chunk; shapes (n, C) or (n, C, P)."""

    valid: BoolArray  # (n, C)
    rank: IntArray  # (n, C)
    last: IntArray  # (n,) the last chunk
    head_rank: IntArray  # (n,) its rank
    parts: FloatArray  # (n, C, P) number of each part
    replayed: FloatArray  # (n, C, P) fully recomputed ones among them
    sent: FloatArray  # (n, C) hidden states that it hands on
    returned: FloatArray  # (n, C) gradients of such that it hands back
    hands_on_more: bool  # some chunk hands on more than one of them
    num_ranks: int  # R, of the longest pipeline
    regular: bool  # in every row chunk c sits on rank c mod R


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Times in seconds and memory in bytes of every rank; shapes (n, C) and (n, R)."""

    chunk_forward_s: FloatArray  # (n, C) one micro-batch, transfer included
    chunk_backward_s: FloatArray  # (n, C)
    chunk_weight_s: FloatArray  # (n, C) of the backward pass, the weight gradients; 0 where none is split
    rank_time_s: FloatArray  # (n, R) forward and backward of one micro-batch, all chunks
    rank_tail_s: FloatArray  # (n, R)
    memory_bytes: dict[str, FloatArray]  # (n, R) each, by MEMORY_TERMS
    rank_valid: BoolArray  # (n, R)

    @property
    def peak_memory_bytes(self) -> FloatArray:
        """Return the memory of every rank, all terms, shape (n, R); 0 where a row has no such rank."""
        return np.where(self.rank_valid, reduce(np.add, self.memory_bytes.values()), 0.0)

    def take(self, index: IntArray) -> Stages:
        """Return the stages of the rows at ``index``, in that order."""
        arrays = {f.name: getattr(self, f.name)[index] for f in fields(self) if f.name != "memory_bytes"}
        memory_bytes = {name: term[index] for name, term in self.memory_bytes.items()}
        return Stages(**arrays, memory_bytes=memory_bytes)


def chunks_of(
    columns: Columns, layout: LayerLayout, stage_layers: IntArray, replayed_layers: IntArray | None = None
) -> Chunks:
    """Count the parts of every chunk.

    Args:
        columns: the rows.
        layout: kinds of layers in their order.
        stage_layers: layers of each chunk, (n, C); a row's sum is the number of layers.
        replayed_layers: the most that each chunk recomputes, (n, C); None: ``recompute_layers`` of the row.
    """
    p, width = columns.pipeline_parallel_size, stage_layers.shape[1]
    num_chunks, num_ranks = p * columns.virtual_pipeline_size, int(p.max(initial=1))
    rank = rank_of_chunk(columns, width)
    # parts lead in memory, so that the counts of one kind lie together
    shape = (layout.num_kinds + 2, *stage_layers.shape)
    parts, replayed = (np.moveaxis(np.zeros(shape), 0, 2) for _ in range(2))
    limit = columns.recompute_layers[:, None] if replayed_layers is None else replayed_layers
    num_replayed = np.minimum(stage_layers, limit)
    parts[..., 0], replayed[..., 0] = stage_layers, num_replayed
    if layout.num_kinds > 1:  # all layers so far; those of other kinds leave
        starts = np.cumsum(stage_layers, axis=1) - stage_layers
        for kind in range(1, layout.num_kinds):
            up_to = layout.cumulative[:, kind].astype(np.float64)
            preceding = up_to[starts]
            parts[..., kind] = up_to[starts + stage_layers] - preceding
            replayed[..., kind] = up_to[starts + num_replayed] - preceding
            parts[..., 0] -= parts[..., kind]
            replayed[..., 0] -= replayed[..., kind]
    parts[:, 0, -2] = 1.0
    parts[np.arange(len(parts)), num_chunks - 1, -1] = 1.0
    valid = np.arange(width)[None, :] < num_chunks[:, None]
    sent = returned = valid.astype(np.float64)
    if layout.counts_prediction:
        # The head takes the hidden states of prediction layers from the last layer's, one behind another
        # (Megatron-LM d98e8a64 ``megatron/core/transformer/multi_token_prediction.py:976``).
        kind = layout.num_kinds - 1 - 2 * layout.counts_ends
        predictions = layout.predicted * parts[..., kind] * (np.arange(width) < num_chunks[:, None] - 1)
        sent, returned = valid + predictions, valid + np.roll(predictions, 1, axis=1)
    return Chunks(
        valid=valid,
        rank=rank,
        last=num_chunks - 1,
        head_rank=rank[np.arange(len(p)), num_chunks - 1],
        parts=parts,
        replayed=replayed,
        sent=sent,
        returned=returned,
        hands_on_more=layout.counts_prediction,
        num_ranks=num_ranks,
        regular=bool((p == num_ranks).all()) and not in_a_v(columns).any(),
    )


def _by_rank(values: FloatArray, chunks: Chunks) -> FloatArray:
    """Add chunk values (n, C), 0 where a row has no chunk, up to ranks (n, R)."""
    (n, width), num_ranks = values.shape, chunks.num_ranks
    if chunks.regular:
        rounds = -(-width // num_ranks)
        if rounds * num_ranks > width:
            values = np.pad(values, ((0, 0), (0, rounds * num_ranks - width)))
        blocks = values.reshape(n, rounds, num_ranks)
        return reduce(np.add, (blocks[:, number] for number in range(rounds)))
    flat = (np.arange(n)[:, None] * num_ranks + chunks.rank).ravel()
    summed = np.bincount(flat, weights=values.ravel(), minlength=n * num_ranks)
    return summed.astype(np.float64, copy=False).reshape(n, num_ranks)


def added_by_rank(values: FloatArray, chunks: Chunks) -> FloatArray:
    """Add up values of chunks, (n, C, X), over the chunks of each rank, (n, R, X)."""
    valid = chunks.valid
    each = [_by_rank(np.where(valid, values[..., at], 0.0), chunks) for at in range(values.shape[2])]
    return np.stack(each, axis=-1)


def _layers(counts: list[FloatArray], price: FloatArray) -> FloatArray:
    """Sum counts (n, X) of each kind of layer times prices (n, P): (n, X)."""
    total: FloatArray = counts[0] * price[:, :1]
    for kind, count in enumerate(counts[1:], start=1):
        total += count * price[:, kind, None]
    return total


def _whole(counts: list[FloatArray], price: FloatArray, head: IntArray) -> FloatArray:
    """Sum layers, the embedding at position 0, and the head at each row's position ``head``: (n, X)."""
    total = _layers(counts, price)
    total[:, 0] += price[:, -2]
    total[np.arange(len(total)), head] += price[:, -1]
    return total


def _of_every_chunk(
    prices: RowPrices, every_s: FloatArray, chunks: Chunks, messages: FloatArray
) -> FloatArray:
    """Return a pass's seconds of chunks without layers, (n, C), with what each sends beyond one message."""
    found: FloatArray = chunks.valid * every_s[:, None]
    if chunks.hands_on_more:
        found = found + (messages - chunks.valid) * prices.transfer_s[:, None]
    return found


def _kinds(counts: FloatArray) -> list[FloatArray]:
    return [counts[..., kind] for kind in range(counts.shape[2] - 2)]


# --------------------------------------------------------------------------------------------------
# Memory of a stage from what its parts keep. ``at`` picks rows of the prices: one row's number, or
# ``EACH_RANK`` for arrays (n, R).


EACH_RANK = np.s_[:, None]
Picked = int | tuple[slice, None]
# Of what the allocator holds idle, the share that it cannot give back when memory runs out, being pieces of
# blocks that are partly in use: blocks that are wholly free return to the driver before an allocation fails
# (torch c10/cuda/CUDACachingAllocator.cpp release_cached_blocks). What a failure's message calls "reserved
# but unallocated" are therefore such pieces. In eleven public ones they are .1, .1, .2, .9, 2.3, 2.8, 39,
# 43, 48, 68 and 78 % of what is allocated (LLaVA #812, unilm #137, sentence-transformers #3214, torchtune
# #2071, pytorch #111729, litgpt #1892, trl #3436, sd-scripts #2029, pretraining-with-human-feedback #5,
# litgpt #303, MGFN. #35): their median is half of the 5.5 % that are idle in runs which ended (SIMU-0005 to
# 0024: 4 to 7 %). Where pieces take a third, the layout does not show it.
FRAGMENTS = 0.5


def workspace_bytes(prices: RowPrices, at: Picked, has_head: BoolArray) -> FloatArray:
    """Return bytes that come and go in a pass: the head's if a stage has it, or a replayed layer's."""
    head: FloatArray = np.where(has_head, prices.head_workspace_bytes[at], 0.0)
    return np.maximum(head, prices.replay_workspace_bytes[at])


def stage_bytes(prices: RowPrices, at: Picked, parts_bytes: FloatArray, has_head: BoolArray) -> FloatArray:
    """Return the peak of stages with parts that keep ``parts_bytes``: states, activations in flight."""
    allocated = parts_bytes + workspace_bytes(prices, at, has_head)
    allocated = allocated + prices.buffer_bytes[at]
    return np.asarray(allocated * prices.reserve[at] + prices.context_bytes[at])


def parts_room_bytes(prices: RowPrices, budget_bytes: float) -> FloatArray:
    """Return a budget's bytes for parts and workspace of a stage, (n,): the inverse of ``stage_bytes``."""
    room = (budget_bytes - prices.context_bytes) / prices.reserve
    return room - prices.buffer_bytes


def layers_held(chunks: Chunks) -> list[FloatArray]:
    """Count the layers of each kind that every rank holds, (n, R) each."""
    return [_by_rank(count, chunks) for count in _kinds(chunks.parts)]


def fullest_moment(
    prices: RowPrices, columns: Columns, chunks: Chunks, held: list[FloatArray], kept: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return activations and gradients of every rank at the peak of their sum, (n, R) each.

    ``held`` as ``layers_held`` gives them; ``kept`` are the activations in flight of every chunk, (n, C).
    Where chunks have gradients in turn, from the last to the first, those before the current one
    keep their activations still, and those behind it what is left of their reduced gradients.
    """
    activations, gradients = _by_rank(kept, chunks), _whole(held, prices.gradients_bytes, chunks.head_rank)
    rows = np.flatnonzero(prices.ranks_in_turn > 0)
    if not len(rows):
        return activations, gradients
    some, counts = replace(chunks, rank=chunks.rank[rows]), _kinds(chunks.parts[rows])
    whole, left = (
        _whole(counts, each[rows], chunks.last[rows])
        for each in (prices.gradients_bytes, prices.reduced_gradients_bytes)
    )
    p = columns.pipeline_parallel_size[rows, None]
    turn, most = np.arange(kept.shape[1])[None, :] // p, np.zeros((2, len(rows), chunks.num_ranks))
    for now in range(int(columns.virtual_pipeline_size[rows].max())):
        moment = np.array([
            _by_rank(np.where(turn <= now, kept[rows], 0.0), some),
            _by_rank(np.where(turn == now, whole, np.where(turn > now, left, 0.0)), some),
        ])  # fmt: skip
        most = np.where(moment.sum(axis=0) > most.sum(axis=0), moment, most)
    these = np.arange(chunks.num_ranks)[None, :] < prices.ranks_in_turn[rows, None]
    activations[rows], gradients[rows] = np.where(these, most, (activations[rows], gradients[rows]))
    return activations, gradients


def _memory(
    prices: RowPrices, columns: Columns, chunks: Chunks, held: list[FloatArray], rank_valid: BoolArray
) -> dict[str, FloatArray]:
    has_head = np.arange(chunks.num_ranks)[None, :] == chunks.head_rank[:, None]
    ones, in_use = rank_valid.astype(np.float64), in_flight(columns)
    missing = chunks.valid.shape[1] - in_use.shape[1]
    if missing > 0:  # a split may be padded behind the longest row
        in_use = np.pad(in_use, ((0, 0), (0, missing)))
    replayed = _kinds(chunks.replayed)
    kept = [part - again for part, again in zip(_kinds(chunks.parts), replayed, strict=True)]
    each = _whole(kept, prices.activation_bytes, chunks.last)
    each += _layers(replayed, prices.checkpoint_bytes)
    activations, gradients = fullest_moment(prices, columns, chunks, held, each * in_use)
    terms = {
        "weights": _whole(held, prices.weights_bytes, chunks.head_rank),
        "gradients": gradients,
        "optimizer": _whole(held, prices.optimizer_bytes, chunks.head_rank),
        "activations": activations,
        "workspace": workspace_bytes(prices, EACH_RANK, has_head) * ones,
        "buffers": prices.buffer_bytes[:, None] * ones,
    }
    allocated = reduce(np.add, terms.values())
    terms["context"] = prices.context_bytes[:, None] * ones
    terms["reserve"] = allocated * (prices.reserve[:, None] - 1.0)
    return terms


def assemble(
    prices: RowPrices,
    columns: Columns,
    layout: LayerLayout,
    stage_layers: IntArray,
    replayed_layers: IntArray | None = None,
    *,
    with_memory: bool = True,
) -> Stages:
    """Return times and memory of every row's stages under its split, shapes as in ``Stages``.

    ``replayed_layers`` as in ``chunks_of``; ``with_memory`` false leaves ``memory_bytes`` empty: then
    one row may have several splits, n of them.
    """
    chunks = chunks_of(columns, layout, stage_layers, replayed_layers)
    rank_valid = np.arange(chunks.num_ranks)[None, :] < columns.pipeline_parallel_size[:, None]
    layers, replayed = _kinds(chunks.parts), _kinds(chunks.replayed)
    forward = _whole(layers, prices.forward_s, chunks.last)
    forward += _of_every_chunk(prices, prices.every_forward_s, chunks, chunks.sent)
    backward = _whole(layers, prices.backward_s, chunks.last)
    backward += _layers(replayed, prices.replay_s)
    backward += _of_every_chunk(prices, prices.every_backward_s, chunks, chunks.returned)
    weight = np.broadcast_to(0.0, forward.shape)
    if prices.weight_gradient_s.any():
        weight = np.minimum(_whole(layers, prices.weight_gradient_s, chunks.last), backward)
    held = layers_held(chunks)
    tail = _whole(held, prices.tail_s, chunks.head_rank) + prices.rank_tail_s[:, None]
    return Stages(
        chunk_forward_s=forward,
        chunk_backward_s=backward,
        chunk_weight_s=weight,
        rank_time_s=_by_rank(forward + backward, chunks),
        rank_tail_s=tail * rank_valid,
        memory_bytes=_memory(prices, columns, chunks, held, rank_valid) if with_memory else {},
        rank_valid=np.broadcast_to(rank_valid, tail.shape),
    )


def objective_s(prices: RowPrices, columns: Columns, stages: Stages) -> FloatArray:
    """Return the closed-form step time that the search minimises, shape (n,).

    ``straggler * (phi * sum_r t_r + max_r ((m - phi) t_r + tail_r)) + fixed`` with phi of
    ``schedule.fill_share``: a sum and a maximum of stage prices, so exact programs can minimise it.
    """
    phi = fill_share(columns)
    bottleneck = (columns.num_microbatches - phi)[:, None] * stages.rank_time_s + stages.rank_tail_s
    slowest = np.where(stages.rank_valid, bottleneck, 0.0).max(axis=1)
    pipeline = phi * stages.rank_time_s.sum(axis=1) + slowest
    return step_of_end_s(pipeline, prices.straggler, prices.fixed_s)


Seconds = TypeVar("Seconds", float, FloatArray)


def step_of_end_s(end_s: Seconds, straggler: Seconds, fixed_s: Seconds) -> Seconds:
    """Return the step in which the last rank ends its tail at ``end_s``, of whole rows or of one."""
    return straggler * end_s + fixed_s


def end_of_step_s(step_s: Seconds, straggler: Seconds, fixed_s: Seconds) -> Seconds:
    """Return when the last rank, with its tail, ends in a step of ``step_s``: the inverse."""
    return (step_s - fixed_s) / straggler
