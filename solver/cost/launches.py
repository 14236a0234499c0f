"""How fast a CPU can launch what a GPU runs: the floor under the passes of small models.

A pass is never shorter than its launches take. A captured graph replays those of what it holds as one
(Megatron-Core's guide on CUDA graphs: parts of a layer; or a whole iteration but the optimizer).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from meshwright.profiles.frameworks import FrameworkFacts
from meshwright.profiles.model import LayerKind
from meshwright.solver.configuration import FloatArray
from meshwright.solver.cost.context import Context, PassSeconds

# Shares of a layer's launches that are left where whole layers, or whole iterations, are captured, and that
# each captured part takes away. Assumed from the kernels of each: a dense layer's graph leaves what starts
# it, its collectives, copies into static buffers; experts leave more unless padded to a capacity.
_LAYER_LEFT: Mapping[LayerKind, float] = {"dense": 0.15, "moe": 0.25}
_ITERATION_LEFT = 0.03
_PARTS: Mapping[LayerKind, Mapping[str, float]] = {
    "dense": {"attn": 0.6, "mlp": 0.3},
    "moe": {"attn": 0.3, "moe_router": 0.2, "moe_preprocess": 0.2, "moe": 0.3},
}
_LEAST_LEFT = 0.1
# Launches of an expert layer by dispatcher over those with an all-to-all, which copies the sizes of what
# it exchanges to the host and waits (Megatron-LM d98e8a64 ``moe/token_dispatcher.py:921-960
# _maybe_dtoh_and_synchronize``). An all-gather needs none of it; HybridEP and DeepEP permute on their way.
_DISPATCHER: Mapping[str, float] = {"allgather": 0.45, "hybridep": 0.8, "deepep": 0.8}
# A blocking launch returns when its kernel has ended: each kernel waits for a launch and a synchronisation.
# Four floors on top of the kernels is what the open runs under it show beside those of the same software
# without it: of 3 to 6 it predicts clusters left out best.
_BLOCKED = 4.0
# A softmax of five kernels (``fused_softmax.py forward_torch_softmax``), not one of the some 14 of a layer.
_EAGER_SOFTMAX = 18 / 14


def layer_floor_s(ctx: Context, kind: LayerKind) -> FloatArray:
    """Seconds that launching one layer's forward pass takes, whatever its tensor-parallel size.

    Where the CPU waits for every message between stages on other islands, it cannot run ahead of the GPU,
    and neither can the ranks whose collectives wait for it in turn: ``floor_across`` times as long, and
    ``floor_tensor`` more of that for each further tensor-parallel rank.
    """
    facts, constants = ctx.facts, ctx.constants
    floor_s: FloatArray | float = (
        (facts.layer_launch_s or constants.floor_s) * ctx.operators.host * launches_left(facts, kind)
    )
    if kind == "moe":
        floor_s = floor_s * constants.floor_moe * _DISPATCHER.get(facts.moe_dispatcher, 1.0)
    if facts.synchronous_transfers:
        waits = (ctx.p > 1) & (ctx.columns.num_gpus > ctx.fabric.lines.island_gpus)
        slower = constants.floor_across * (1.0 + constants.floor_tensor * (ctx.t - 1.0))
        floor_s = floor_s * np.where(waits, slower, 1.0)
    return np.asarray(floor_s * np.where(ctx.eager_softmax, _EAGER_SOFTMAX, 1.0))


def launches_left(facts: FrameworkFacts, kind: LayerKind) -> float:
    """Share of a layer's launches that CUDA graphs leave."""
    scope = facts.cuda_graph
    if scope == "none":
        return 1.0
    if scope == "full_iteration":
        return _ITERATION_LEFT
    if scope == "layer":
        return _LAYER_LEFT["dense" if facts.moe_capacity_factor else kind]
    return max(1.0 - sum(_PARTS[kind].get(part, 0.0) for part in scope.split("+")), _LEAST_LEFT)


def launched(ctx: Context, kind: LayerKind, busy: PassSeconds, floor_s: FloatArray) -> PassSeconds:
    """Passes of a layer that take at least their launches; blocking launches come on top.

    Where the CPU waits for the sizes of what experts exchange, it launches the rest of the layer anew: that
    is seen even where the layer's kernels take longer than its launches.
    """
    again = ctx.constants.floor_backward
    if ctx.facts.launch_blocking:
        waited = _BLOCKED * floor_s
        return busy + PassSeconds(forward=waited, backward=waited * again)
    joined = _rounded_maximum if kind == "moe" and _waits_for_sizes(ctx.facts) else _smooth_maximum
    return PassSeconds(
        forward=joined(busy.forward, floor_s), backward=joined(busy.backward, floor_s * again)
    )


def _waits_for_sizes(facts: FrameworkFacts) -> bool:
    """Whether the host learns in every layer how many tokens are exchanged: not of padded or of all."""
    return not facts.moe_capacity_factor and facts.moe_dispatcher != "allgather"


def _smooth_maximum(seconds: FloatArray, floor_s: FloatArray) -> FloatArray:
    """``(x^8 + floor^8)^(1/8)`` without overflow."""
    low, high = np.minimum(seconds, floor_s), np.maximum(seconds, floor_s)
    ratio = (low / high) ** 2
    ratio *= ratio
    ratio *= ratio
    return np.asarray(high * np.sqrt(np.sqrt(np.sqrt(1.0 + ratio))))


def _rounded_maximum(seconds: FloatArray, floor_s: FloatArray) -> FloatArray:
    """``(x^3 + floor^3)^(1/3)``: a quarter more than either where both are equal."""
    return np.asarray(np.cbrt(seconds**3 + floor_s**3))
