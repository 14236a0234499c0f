"""LoRA: a pair of thin trained matrices beside each adapted linear layer of a frozen model.

Hu et al. 2021 (arXiv:2106.09685): a layer (k to n) gets ``A`` (k to r) and ``B`` (r to n). Only they have
gradients, optimizer states and a reduction; the frozen matrices keep their weights and, in the backward
pass, their input gradient. Adapters are split over tp as their layers are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from profiles.model import LayerKind
from solver.columns import FloatArray
from solver.cost.compute import Gemm, layer_gemms
from solver.cost.context import Context
from solver.cost.parameters import Weights


def _adapted(ctx: Context, kind: LayerKind) -> list[Gemm]:
    """The adapted products of a layer; the last two are the MLP's, the one before attention's output.

    What stands before them computes queries, keys and values; shared experts are not adapted.
    """
    gemms = layer_gemms(ctx, kind)
    moe = ctx.model.moe
    shared = 2 if kind == "moe" and moe is not None and moe.shared_ffn_hidden_size else 0
    attention = gemms[: len(gemms) - 2 - shared]
    by_target = {
        "linear_qkv": attention[:-1],
        "linear_proj": attention[-1:],
        "linear_fc1": gemms[-2:-1],
        "linear_fc2": gemms[-1:],
    }
    return [gemm for target in ctx.workload.lora_targets for gemm in by_target[target]]


def adapter_gemms(ctx: Context, kind: LayerKind) -> list[Gemm]:
    """Both products of every adapter of one layer."""
    rank = float(ctx.workload.lora_rank)
    return [
        thin
        for g in _adapted(ctx, kind)
        for thin in (
            Gemm(m=g.m, n=rank, k=g.k, count=g.count, grouped=g.grouped),
            Gemm(m=g.m, n=g.n, k=rank, count=g.count, grouped=g.grouped),
        )
    ]


def trained_weights(ctx: Context, own: Weights, kind: LayerKind | None) -> Weights:
    """What is trained of a part: all its weights, or its adapters' (none at the model's ends)."""
    if not ctx.frozen:
        return own
    dense: FloatArray = np.zeros_like(ctx.t)
    routed: FloatArray = np.zeros_like(ctx.t)
    for g in _adapted(ctx, kind) if kind is not None else []:
        elements = ctx.workload.lora_rank * (g.k + g.n) * g.count
        if g.grouped:
            routed = routed + elements
        else:
            dense = dense + elements
    return Weights(dense=dense, routed=routed)


def trained_parts(ctx: Context, kinds: Sequence[LayerKind], weights: Sequence[Weights]) -> list[Weights]:
    """What is trained of every part in order: layer kinds, embedding, head."""
    every: list[LayerKind | None] = [*kinds, None, None]
    return [trained_weights(ctx, own, kind) for own, kind in zip(weights, every, strict=True)]
