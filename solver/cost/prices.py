"""The interface between the cost model and the search: linear prices of every row.

A *row* is one configuration without its split. A *part* is something a pipeline stage can hold:
one transformer layer of kind k (parts ``0 … K-1``, kinds in ``layer_kinds`` order), the embedding
(part ``K``, first chunk only) or the output head with its loss and multi-token-prediction layers
(part ``K + 1``, last chunk only). Once a row is priced, time and memory of any split are sums of
part prices; that linearity is what makes the search exact, so nothing non-linear in the split may
hide here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from profiles.model import LayerKind, ModelSpec
from solver.columns import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLayout:
    """Which kind each layer has."""

    kinds: tuple[LayerKind, ...]  # the K kinds that occur
    cumulative: IntArray  # (L + 1, K): layers of each kind among the first l

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.cumulative) - 1

    @classmethod
    def of(cls, model: ModelSpec) -> LayerLayout:
        """The layout of a model."""
        sequence = model.layer_kinds()
        kinds = tuple(sorted(set(sequence)))
        one_hot = np.array([[layer == kind for kind in kinds] for layer in sequence], dtype=np.int64)
        zeros = np.zeros((1, len(kinds)), dtype=np.int64)
        return cls(kinds=kinds, cumulative=np.concatenate([zeros, np.cumsum(one_hot, axis=0)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPrices:
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
    # Time of the row, shape (n,).
    transfer_s: FloatArray  # exposed point-to-point time of a chunk, each direction; 0 if pp = 1
    rank_tail_s: FloatArray  # tail that every rank has whatever it holds (latencies, norms)
    fixed_s: FloatArray  # once per step
    straggler: FloatArray  # >= 1; multiplies everything but ``fixed_s``; holds the calibration factor
    # Memory by part, shape (n, P).
    weights_bytes: FloatArray
    gradients_bytes: FloatArray
    optimizer_bytes: FloatArray
    activation_bytes: FloatArray  # one micro-batch in flight; head: 0 (see head_workspace_bytes)
    checkpoint_bytes: FloatArray  # the same for a fully recomputed layer
    # Memory of the row, shape (n,).
    head_workspace_bytes: FloatArray  # logits, loss and their gradients: last rank, once
    replay_workspace_bytes: FloatArray  # one layer's activations while it is replayed; 0 if none is
    buffer_bytes: FloatArray  # communication and bucket buffers of a rank
    context_bytes: FloatArray  # driver context, libraries: outside the framework's allocator
    reserve: FloatArray  # >= 1; allocator's reserved over allocated bytes
    # Breakdown of forward_s + backward_s by cause, shape (n, P) each; sums to their sum
    breakdown_s: dict[str, FloatArray]  # compute, tensor_parallel, context_parallel, …
    tail_breakdown_s: dict[str, FloatArray]  # data_parallel, optimizer; sums to tail_s

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.transfer_s)

    @classmethod
    def concatenate(cls, parts: Sequence[RowPrices]) -> RowPrices:
        """All rows, one after the other, without their breakdown."""
        if len(parts) == 1:
            return replace(parts[0], breakdown_s={}, tail_breakdown_s={})
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS}
        return cls(**arrays, breakdown_s={}, tail_breakdown_s={})

    def take(self, index: IntArray | BoolArray | slice) -> RowPrices:
        """The rows at ``index``, in that order."""
        if not isinstance(index, slice):  # ``take`` gathers rows several times faster than brackets
            index = np.flatnonzero(index) if index.dtype == np.bool_ else index
        picked = {name: _at(getattr(self, name), index) for name in _ARRAYS}
        return RowPrices(
            **picked,
            breakdown_s={name: _at(value, index) for name, value in self.breakdown_s.items()},
            tail_breakdown_s={name: _at(value, index) for name, value in self.tail_breakdown_s.items()},
        )


_ARRAYS = tuple(f.name for f in fields(RowPrices) if not f.name.endswith("breakdown_s"))


def _at(values: FloatArray, index: IntArray | BoolArray | slice) -> FloatArray:
    """The rows of ``values`` at ``index``."""
    return values[index] if isinstance(index, slice) else values.take(index, axis=0)


def columns_of(parts: list[FloatArray]) -> FloatArray:
    """P arrays (n,) as one (n, P)."""
    return np.stack(parts, axis=1)
