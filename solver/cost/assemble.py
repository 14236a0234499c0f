"""From prices and a split to stage times, stage memory and the closed-form objective.

The one place where parts are added up: the search, the prediction and the independent check all
call it. Vectorised over rows; ``stage_layers`` is (n, C), zero-padded behind pp * vpp chunks.
Chunk c of a row sits on pipeline rank ``c mod pp``; chunk 0 holds the embedding, the last one the
head. In a chunk the first ``recompute_layers`` layers are the fully recomputed ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.columns import BoolArray, Columns, FloatArray, IntArray
from solver.cost.prices import LayerLayout, RowPrices
from solver.cost.schedule import fill_share, in_flight

MEMORY_TERMS = (
    "weights", "gradients", "optimizer", "activations", "workspace", "buffers", "context", "reserve",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """What each chunk holds; shapes (n, C) or (n, C, P)."""

    valid: BoolArray  # (n, C)
    rank: IntArray  # (n, C)
    parts: FloatArray  # (n, C, P) number of each part
    replayed: FloatArray  # (n, C, P) fully recomputed ones among them


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Times in seconds and memory in bytes of every rank; shapes (n, C) and (n, R)."""

    chunk_forward_s: FloatArray  # (n, C) one micro-batch, transfer included
    chunk_backward_s: FloatArray  # (n, C)
    rank_time_s: FloatArray  # (n, R) forward and backward of one micro-batch, all chunks
    rank_tail_s: FloatArray  # (n, R)
    memory_bytes: dict[str, FloatArray]  # (n, R) each, by MEMORY_TERMS
    rank_valid: BoolArray  # (n, R)

    @property
    def peak_memory_bytes(self) -> FloatArray:
        """Memory of every rank, all terms, shape (n, R); 0 where a row has no such rank."""
        return np.where(self.rank_valid, np.sum(list(self.memory_bytes.values()), axis=0), 0.0)


def chunks_of(columns: Columns, layout: LayerLayout, stage_layers: IntArray) -> Chunks:
    """Count the parts of every chunk; ``stage_layers`` sums to the number of layers in each row."""
    pp = columns.pipeline_parallel_size[:, None]
    num_chunks = pp * columns.virtual_pipeline_size[:, None]
    index = np.arange(stage_layers.shape[1])[None, :]
    ends = np.minimum(np.cumsum(stage_layers, axis=1), layout.num_layers)
    starts = np.minimum(ends, np.maximum(ends - stage_layers, 0))
    replay_ends = np.minimum(starts + columns.recompute_layers[:, None], ends)
    shape = (*stage_layers.shape, len(layout.kinds) + 2)
    parts, replayed = np.zeros(shape), np.zeros(shape)
    parts[..., :-2] = layout.cumulative[ends] - layout.cumulative[starts]
    replayed[..., :-2] = layout.cumulative[replay_ends] - layout.cumulative[starts]
    parts[..., -2] = index == 0
    parts[..., -1] = index == num_chunks - 1
    return Chunks(valid=index < num_chunks, rank=index % pp, parts=parts, replayed=replayed)


def _by_rank(values: FloatArray, chunks: Chunks, num_ranks: int) -> FloatArray:
    """Add chunk values (n, C) up to ranks (n, R)."""
    n = len(values)
    flat = (np.arange(n)[:, None] * num_ranks + chunks.rank).ravel()
    weights = np.where(chunks.valid, values, 0.0).ravel()
    summed: FloatArray = np.bincount(flat, weights=weights, minlength=n * num_ranks).astype(np.float64)
    return summed.reshape(n, num_ranks)


def _priced(counts: FloatArray, price: FloatArray) -> FloatArray:
    """Counts (n, C, P) times prices (n, P), summed over parts: (n, C)."""
    priced: FloatArray = np.einsum("ncp,np->nc", counts, price)
    return priced


def _memory(
    prices: RowPrices, columns: Columns, chunks: Chunks, rank_valid: BoolArray
) -> dict[str, FloatArray]:
    """Bytes of every rank by term."""
    num_ranks = rank_valid.shape[1]
    counted = in_flight(columns)
    width = chunks.valid.shape[1]
    held = np.pad(counted, ((0, 0), (0, max(width - counted.shape[1], 0))))[:, :width].astype(np.float64)
    kept = _priced(chunks.parts - chunks.replayed, prices.activation_bytes)
    kept += _priced(chunks.replayed, prices.checkpoint_bytes)
    is_last = np.arange(num_ranks)[None, :] == columns.pipeline_parallel_size[:, None] - 1
    head = np.where(is_last, prices.head_workspace_bytes[:, None], 0.0)
    ones = rank_valid.astype(np.float64)
    terms = {
        "weights": _by_rank(_priced(chunks.parts, prices.weights_bytes), chunks, num_ranks),
        "gradients": _by_rank(_priced(chunks.parts, prices.gradients_bytes), chunks, num_ranks),
        "optimizer": _by_rank(_priced(chunks.parts, prices.optimizer_bytes), chunks, num_ranks),
        "activations": _by_rank(held * kept, chunks, num_ranks),
        "workspace": np.maximum(head, prices.replay_workspace_bytes[:, None]) * ones,
        "buffers": prices.buffer_bytes[:, None] * ones,
    }
    allocated = np.sum(list(terms.values()), axis=0)
    terms["context"] = prices.context_bytes[:, None] * ones
    terms["reserve"] = allocated * (prices.reserve[:, None] - 1.0)
    return terms


def assemble(prices: RowPrices, columns: Columns, layout: LayerLayout, stage_layers: IntArray) -> Stages:
    """Stage times and memory of every row under its split, shapes as in ``Stages``."""
    chunks = chunks_of(columns, layout, stage_layers)
    num_ranks = int(columns.pipeline_parallel_size.max(initial=1))
    rank_valid = np.arange(num_ranks)[None, :] < columns.pipeline_parallel_size[:, None]
    transfer = np.where(chunks.valid, prices.transfer_s[:, None], 0.0)
    forward = _priced(chunks.parts, prices.forward_s) + transfer
    backward = (
        _priced(chunks.parts, prices.backward_s) + _priced(chunks.replayed, prices.replay_s) + transfer
    )
    tail = _by_rank(_priced(chunks.parts, prices.tail_s), chunks, num_ranks)
    return Stages(
        chunk_forward_s=np.where(chunks.valid, forward, 0.0),
        chunk_backward_s=np.where(chunks.valid, backward, 0.0),
        rank_time_s=_by_rank(forward + backward, chunks, num_ranks),
        rank_tail_s=np.where(rank_valid, tail + prices.rank_tail_s[:, None], 0.0),
        memory_bytes=_memory(prices, columns, chunks, rank_valid),
        rank_valid=rank_valid,
    )


def objective_s(prices: RowPrices, columns: Columns, stages: Stages) -> FloatArray:
    """The closed-form step time that the search minimises, shape (n,).

    ``straggler * (phi * sum_r t_r + max_r ((m - phi) t_r + tail_r)) + fixed`` with phi of
    ``schedule.fill_share``: a sum and a maximum of stage prices, so exact programs can minimise it.
    """
    phi = fill_share(columns)
    m = columns.num_microbatches
    bottleneck = (m - phi)[:, None] * stages.rank_time_s + stages.rank_tail_s
    slowest = np.where(stages.rank_valid, bottleneck, 0.0).max(axis=1)
    pipeline = phi * stages.rank_time_s.sum(axis=1) + slowest
    step: FloatArray = prices.straggler * pipeline + prices.fixed_s
    return step
