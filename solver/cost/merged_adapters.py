"""Adapters that are trained as they will be merged: added to their weights, and the sum rounded to NVFP4.

Axolotl 0.19's ``nvfp4_merge_aware`` (integrations/kernels/libs/sonicmoe/nvfp4_lora.py ``_merge_aware_wfq``,
merge_aware_linear.py). Every forward pass multiplies ``B A``, adds it to the frozen weight, and rounds the
sum as the merged checkpoint stores it; its gradient passes straight through. Bytes are of bf16, kernel by
kernel.

Experts have the backward pass of adapters that are added to outputs: it makes the inner product once more,
and no part of the input's gradient, which is as large. Of a linear layer autograd makes the whole weight's
gradient.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.profiles.frameworks import MERGED
from meshwright.profiles.model import LayerKind
from meshwright.solver.configuration import FloatArray
from meshwright.solver.cost.compute import Gemm, gemm_seconds
from meshwright.solver.cost.context import Context, PassSeconds
from meshwright.solver.cost.parameters import adapted_gemms, adapter_bytes, adapter_gemms

# Of each weight: the sum (2 + 2 + 2), and rounding it in place (2 + 2). Of a linear layer also its scaled
# addend (2 + 2), and the rounded sum as a detached difference that is added (6 + 6); backward that scale.
_OF_EXPERTS, _OF_LINEAR, _OF_LINEAR_BACKWARD = 10.0, 26.0, 4.0
_KEPT = 2.0  # of a linear layer's rounded sum, which its product reads; that of experts replaces their copy
# Of experts at once, beside that copy: both 16-bit tensors, and of gate and up, two thirds of the weights,
# ``B A`` and the sum, when nothing is kept yet. Of a linear layer ``B A``, scaled, the sum, a difference.
_EXPERTS_AT_ONCE, _LINEAR_AT_ONCE = 2.0 + 4.0 * 2.0 / 3.0 - 2.0, 8.0


def merges(ctx: Context) -> bool:
    """Return whether adapters are trained as they will be merged."""
    return ctx.frozen and ctx.facts.fake_quantization == MERGED


def adapter_seconds(ctx: Context, kind: LayerKind) -> PassSeconds:
    """Price the products of a layer's adapters, forward and backward."""
    if not merges(ctx):
        return gemm_seconds(ctx, adapter_gemms(ctx, kind), "bf16")
    experts, linear = _experts(ctx, kind), _linear(ctx, kind)
    made, also_made = (gemm_seconds(ctx, _sums(ctx, some), "bf16") for some in (experts, linear))
    of_outputs = gemm_seconds(ctx, [one for one in adapter_gemms(ctx, kind) if one.grouped], "bf16")
    trained, frozen = (gemm_seconds(ctx, linear, "bf16", trained=its).backward for its in (True, False))
    return PassSeconds(
        forward=made.forward + also_made.forward,
        backward=of_outputs.backward + also_made.backward + (trained - frozen),
    )


def adapter_moved_bytes(ctx: Context, kind: LayerKind) -> tuple[FloatArray, FloatArray]:
    """Return bytes that a layer's adapters move next to their products, forward and backward, (n,) each."""
    if not merges(ctx):
        return adapter_bytes(ctx, kind)
    experts, linear = _weights(ctx, _experts(ctx, kind)), _weights(ctx, _linear(ctx, kind))
    return _OF_EXPERTS * experts + _OF_LINEAR * linear, _OF_LINEAR_BACKWARD * linear


def merged_kept_bytes(ctx: Context, kind: LayerKind) -> FloatArray:
    """Return what a layer keeps of rounded sums for its backward pass, shape (n,)."""
    return _KEPT * _weights(ctx, _linear(ctx, kind)) if merges(ctx) else np.zeros_like(ctx.t)


def merged_workspace_bytes(ctx: Context, kind: LayerKind) -> FloatArray:
    """Return what a layer's sums need at once while they are made, beside what is kept, shape (n,)."""
    if not merges(ctx):
        return np.zeros_like(ctx.t)
    largest = [_LINEAR_AT_ONCE * _weights(ctx, [one]) for one in _linear(ctx, kind)]
    of_experts = _EXPERTS_AT_ONCE * _weights(ctx, _experts(ctx, kind))
    return np.asarray(np.maximum.reduce([of_experts, *largest]))


def _experts(ctx: Context, kind: LayerKind) -> list[Gemm]:
    return [one for one in adapted_gemms(ctx, kind) if one.grouped]


def _linear(ctx: Context, kind: LayerKind) -> list[Gemm]:
    return [one for one in adapted_gemms(ctx, kind) if not one.grouped]


def _sums(ctx: Context, layers: list[Gemm]) -> list[Gemm]:
    rank = float(ctx.workload.lora_rank)
    return [replace(one, m=np.asarray(one.n + ctx.nothing.forward), n=one.k, k=rank) for one in layers]


def _weights(ctx: Context, layers: list[Gemm]) -> FloatArray:
    return np.asarray(sum((one.n * one.k * one.count for one in layers), np.zeros_like(ctx.t)))
