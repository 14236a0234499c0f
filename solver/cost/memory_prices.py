"""Memory of every part and row as prices: what the formulas of ``memory`` add up to."""

from __future__ import annotations

import numpy as np

from profiles.model import LayerKind
from solver.columns import FloatArray
from solver.cost.compute import PassSeconds
from solver.cost.context import Context
from solver.cost.memory import (
    buffer_bytes,
    checkpoint_bytes,
    head_workspace_bytes,
    layer_activation_bytes,
    state_bytes,
)
from solver.cost.parameters import Weights
from solver.cost.prices import LayerLayout, columns_of
from solver.cost.schedule import splits_backward


def spilled_s(ctx: Context, kind: LayerKind, passes: PassSeconds) -> PassSeconds:
    """What each pass waits for offloaded activations on their way to or from the host.

    Copies run on a stream of their own under the pass (Transformer Engine ``get_cpu_offload_context``).
    """
    copied = layer_activation_bytes(ctx, kind) / ctx.host.link_bytes_per_s
    copied = np.where(ctx.offloads_activations, copied, 0.0)
    return PassSeconds(
        forward=np.maximum(copied - passes.forward, 0.0),
        backward=np.maximum(copied - passes.backward, 0.0),
    )


def _activations(ctx: Context, layout: LayerLayout) -> list[FloatArray]:
    """Activations of one micro-batch by part; multi-token-prediction layers belong to the head."""
    zero = np.zeros_like(ctx.t)
    layers = [layer_activation_bytes(ctx, kind) for kind in layout.kinds]
    masks = ctx.tokens * ctx.model.hidden_size * ctx.row_share if ctx.facts.dropout else zero
    extra = layer_activation_bytes(ctx, "moe" if ctx.model.moe else "dense") * ctx.model.num_mtp_layers
    return [*layers, masks, extra]


def memory_prices(
    ctx: Context, layout: LayerLayout, weights: list[Weights], trained: list[Weights]
) -> dict[str, FloatArray]:
    """The memory fields of RowPrices.

    Offloaded activations leave two layers' on the GPU: one in use, one on its way. Where the backward pass
    is split, a replayed layer keeps all its activations until its weight gradients are done; a micro-batch
    in flight is counted so from the start, so that a recomputed layer never weighs too little.
    """
    zero, one = np.zeros_like(ctx.t), np.ones_like(ctx.t)
    last = len(layout.kinds)
    states = [
        state_bytes(ctx, *both, matrices=part < last)
        for part, both in enumerate(zip(weights, trained, strict=True))
    ]
    activations = _activations(ctx, layout)
    largest = np.maximum.reduce(activations[:-2])
    spilled = ctx.offloads_activations
    here = np.where(spilled, 0.0, 1.0)
    whole, split = [layer * here for layer in activations[:-2]], splits_backward(ctx.columns)
    kept = [np.where(split, layer, checkpoint_bytes(ctx) * here) for layer in whole]
    return {
        "weights_bytes": columns_of([state.weights for state in states]),
        "gradients_bytes": columns_of([state.gradients for state in states]),
        "optimizer_bytes": columns_of([state.optimizer for state in states]),
        "activation_bytes": columns_of([*whole, *activations[-2:]]),
        "checkpoint_bytes": columns_of([*kept, zero, zero]),
        "head_workspace_bytes": head_workspace_bytes(ctx),
        "replay_workspace_bytes": np.where(spilled, 2.0, ctx.full) * largest,
        "buffer_bytes": buffer_bytes(ctx, weights[last - 1], trained[last - 1]),
        "context_bytes": ctx.constants.context_bytes * one,
        "reserve": ctx.constants.reserve * one,
    }
