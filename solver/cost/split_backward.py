"""The part of a backward pass that zero-bubble schedules run later: weight gradients."""

from __future__ import annotations

import numpy as np

from profiles.model import LayerKind
from solver.columns import FloatArray
from solver.cost.compute import Gemm, gemm_seconds, linear_seconds
from solver.cost.context import Context
from solver.cost.schedule import splits_backward


def weight_gradients_s(ctx: Context, kinds: tuple[LayerKind, ...]) -> FloatArray:
    """Seconds of each part's weight gradients for one micro-batch, (n, P); 0 where none is split.

    Of the two products of a linear layer's backward pass, which have equal FLOPs, one is the weight
    gradient (frozen matrices have none); attention, norms and collectives belong to the input gradient
    (Qi et al. 2023, arXiv:2401.10241, section 2). The embedding has no input gradient to split from.
    """
    split = splits_backward(ctx.columns)
    if ctx.frozen or not split.any():
        return np.zeros((len(split), len(kinds) + 2))
    output = Gemm(m=ctx.tokens, n=ctx.model.vocab_size / ctx.t, k=ctx.model.hidden_size)
    parts = [linear_seconds(ctx, kind) for kind in kinds]
    head = gemm_seconds(ctx, [output], "bf16")
    halves = [0.5 * part.backward for part in parts]
    columns = [*halves, np.zeros_like(ctx.t), 0.5 * head.backward]
    return np.where(split[:, None], np.stack(columns, axis=1), 0.0)
