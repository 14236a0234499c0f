"""Host memory that offloading takes: what one GPU's rank keeps in its node's memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solver.columns import ALL_LAYERS, SCHEDULES, Columns, FloatArray, IntArray
from solver.cost.adapters import trained_parts
from solver.cost.context import Context
from solver.cost.memory_prices import memory_prices
from solver.cost.parameters import part_weights
from solver.cost.prices import LayerLayout
from solver.cost.schedule import in_flight


def host_bytes(ctx: Context) -> FloatArray:
    """Bytes on the host for the fullest rank of an even split, shape (n,); 0 where nothing is offloaded.

    Optimizer states and fp32 copies leave the GPU, and gradients have a buffer where they arrive
    (ZeRO-Offload, arXiv:2101.06840, section 4.1: 14 of 16 bytes a weight); activations of every micro-batch
    in flight, or what recomputation keeps of them. The fullest rank has ``ceil(L / pp)`` layers of the
    larger kind and the larger end of the model, or both ends.
    """
    layout = LayerLayout.of(ctx.model)
    here = replace(ctx, columns=replace(ctx.columns, offload=np.zeros_like(ctx.columns.offload)))
    weights = part_weights(here, layout.kinds)
    memory = memory_prices(here, layout, weights, trained_parts(here, layout.kinds, weights))
    layers = np.ceil(layout.num_layers / ctx.p)
    states = _fullest(memory["optimizer_bytes"], layers, ctx)
    states = states * (1.0 + ctx.facts.gradient_bytes / ctx.facts.optimizer_bytes)
    return np.where(ctx.offloads_optimizer, states, 0.0) + np.where(
        ctx.offloads_activations, _activations(ctx, memory, layers), 0.0
    )


def _fullest(price: FloatArray, layers: FloatArray, ctx: Context) -> FloatArray:
    """A part price (n, P) summed over the fullest rank."""
    ends = np.where(ctx.p > 1, price[:, -2:].max(axis=1), price[:, -2:].sum(axis=1))
    return np.asarray(layers * price[:, :-2].max(axis=1) + ends)


def _activations(ctx: Context, memory: dict[str, FloatArray], layers: FloatArray) -> FloatArray:
    """Those of the first rank, which has most micro-batches in flight."""
    c = ctx.columns
    held = _held_first(c)
    of_layer = memory["activation_bytes"][:, :-2].max(axis=1)
    kept = np.where(
        c.recompute_layers == ALL_LAYERS, memory["checkpoint_bytes"][:, :-2].max(axis=1), of_layer
    )
    return np.asarray(layers / c.virtual_pipeline_size * held * kept)


def _held_first(c: Columns) -> IntArray:
    """Micro-batches that all chunks of the first rank hold, shape (n,); rows share few pipelines."""
    p, v, m = c.pipeline_parallel_size, c.virtual_pipeline_size, c.num_microbatches
    sizes = (len(SCHEDULES), int(p.max()) + 1, int(v.max()) + 1, int(m.max()) + 1)
    code = np.ravel_multi_index((c.pipeline_schedule, p, v, m), sizes)
    _, first, of_row = np.unique(code, return_index=True, return_inverse=True)
    few = c.take(first)
    chunk = np.arange(int((p * v).max()))[None, :]
    held = in_flight(few) * (chunk % few.pipeline_parallel_size[:, None] == 0)
    return np.asarray(held.sum(axis=1)[of_row])
