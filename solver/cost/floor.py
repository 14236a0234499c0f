"""How fast a CPU can launch what a GPU runs: the floor under the passes of small models.

PyTorch launches every kernel from Python; a pass is never shorter than its launches take. A captured
graph replays the launches of a layer as one, but for experts, whose shapes change from step to step
(Megatron-Core's guide on CUDA graphs: ``--cuda-graph-modules attn moe_router moe_preprocess``).
"""

from __future__ import annotations

import numpy as np

from profiles.model import LayerKind
from solver.columns import FloatArray
from solver.cost.compute import PassSeconds
from solver.cost.context import Context

# Shares of a layer's launches, and of what a step takes once, that are left under CUDA graphs.
# Assumed, neither measured nor fitted: a dense layer's graph leaves what starts it, its collectives and the
# copies into its static buffers; the experts of a layer, about half of its kernels, are launched one by one
# (``moe_router`` and ``moe_preprocess`` are captured, dispatch and experts are not); of what a step takes
# once the optimizer's launches go and data loading stays. Only recipes with ``cuda_graphs`` read them.
_GRAPHED = {"dense": 0.3, "moe": 0.5}
_GRAPHED_STEP = 0.15


def layer_floor_s(ctx: Context, kind: LayerKind) -> FloatArray:
    """Seconds that launching one layer's forward pass takes."""
    floor_s = ctx.constants.floor_s * ctx.operators.host
    floor_s = floor_s * (ctx.constants.floor_moe if kind == "moe" else 1.0)
    return np.full_like(ctx.t, 1.0) * floor_s * (_GRAPHED[kind] if ctx.facts.cuda_graphs else 1.0)


def fixed_s(ctx: Context) -> FloatArray:
    """Seconds of every step: data loading, logging, launches of the optimizer."""
    return (
        np.full_like(ctx.t, 1.0) * ctx.constants.fixed_s * (_GRAPHED_STEP if ctx.facts.cuda_graphs else 1.0)
    )


def floored(busy: PassSeconds, floor_s: FloatArray, floor_backward: float) -> PassSeconds:
    """Smooth maximum of passes and their floor."""
    return PassSeconds(
        forward=_smooth_maximum(busy.forward, floor_s),
        backward=_smooth_maximum(busy.backward, floor_s * floor_backward),
    )


def _smooth_maximum(seconds: FloatArray, floor_s: FloatArray) -> FloatArray:
    """``(x^8 + floor^8)^(1/8)`` without overflow."""
    low, high = np.minimum(seconds, floor_s), np.maximum(seconds, floor_s)
    ratio = (low / high) ** 2
    ratio *= ratio
    ratio *= ratio
    return np.asarray(high * np.sqrt(np.sqrt(np.sqrt(1.0 + ratio))))
