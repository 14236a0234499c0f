"""Bytes that products in 8 and 4 bits move beyond those of 16: casts, transposes and largest elements.

Counted by tensor in Transformer Engine d0067d0d: each product reads its input along rows forward and along
columns for its weight gradient, and its output's gradient both ways (``pytorch/module/linear.py``,
``layernorm_linear.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.profiles.layers.operators import Operator
from meshwright.profiles.model import LayerKind
from meshwright.solver.configuration import FloatArray
from meshwright.solver.cost.compute import product
from meshwright.solver.cost.context import EITHER_SIDE, Context, on_slowest


@dataclass(frozen=True, slots=True)
class _Recipe:
    """Bytes of an element."""

    normed: float  # of what a norm has written
    cast: float  # of what else a product reads: activations and gradients
    across: float  # of the same once more, along the other side, where one kernel makes both
    scaled_whole: bool = False  # one scale for a tensor


# A norm under delayed scaling writes 8 bits in place of 16 (``csrc/extensions/normalization.cpp``:
# FULLY_FUSED); of current scaling and of 4 bits it finds the largest element (FUSED_NORM_AMAX), and other
# tensors are read once more for it (``csrc/quantizer.cpp``). Else 2 are read and 1 written. 4 bits write a
# half, along columns behind Hadamard's transform (``nvte_hadamard_transform_amax``).
_DELAYED = _Recipe(-1.0, 3.0, 1.0, scaled_whole=True)
_RECIPES: Mapping[str, _Recipe] = {
    "fp8-current": _Recipe(3.0, 5.0, 1.0, scaled_whole=True),
    "fp8-rowwise": _Recipe(4.0, 4.0, 4.0),  # torchao's, along rows and columns apart (``_SCALED``)
    "fp8-blockwise": _Recipe(3.0, 3.0, 1.0),
    "mxfp8": _Recipe(3.0, 3.0, 1.0),
    "nvfp4": _Recipe(2.5, 4.5, 0.5),
}
_TRANSPOSED = 2.0  # of an element of 8 bits by a kernel of its own: read and written


@on_slowest
def cast_bytes(ctx: Context, kind: LayerKind) -> tuple[FloatArray, FloatArray]:
    """Return the bytes of a layer's forward and backward pass, (n,); 0 in 16 bits.

    What sequence parallelism gathers is cast before and, where a tensor has one scale, transposed behind:
    "We cannot directly all-gather the transposed FP8 tensor" (``pytorch/distributed.py``).
    """
    forward, backward = np.zeros_like(ctx.t), np.zeros_like(ctx.t)
    if not ctx.low_precision:
        return forward, backward
    for one in ctx.model.layer(kind).operators:
        if one.is_priced:
            ahead, back = _of_operator(ctx, one)
            forward, backward = forward + ahead, backward + back
    return forward, backward


def _of_operator(ctx: Context, one: Operator) -> tuple[FloatArray, FloatArray]:
    gemm = product(ctx, one)
    rows = gemm.m * gemm.count
    inputs, outputs = rows * gemm.k, rows * gemm.n
    recipe = _RECIPES.get(ctx.facts.precision_recipe, _DELAYED)
    gathers = one.rows == "tokens" and one.over == "tensor"
    share = np.where(ctx.sequence_parallel & gathers, ctx.row_share, 1.0)
    read_share: FloatArray | float = share if one.reads_norm else 1.0
    written_share: FloatArray | float = share if one.closes else 1.0
    modules = ctx.facts.separate_projections and not one.is_routed  # each casts what it reads
    inputs = inputs * (len(one.matrices) if modules else 1)
    normed = one.reads_norm and not (one.is_routed or modules)
    ahead = inputs * (recipe.normed if normed else recipe.cast) * read_share
    back = outputs * recipe.cast * written_share
    if not ctx.frozen:
        ahead = ahead + inputs * _across(ctx, recipe, read_share, normed=normed)
        back = back + outputs * _across(ctx, recipe, written_share)
    # one kernel for both layers of experts writes what lies between them in 8 bits (``pytorch/ops/fused/
    # grouped_mlp.py``: ``grouped_fc1_dy``), in 4 bits it does not
    if one.is_routed and ctx.facts.moe_grouped_mlp_fused and ctx.linear_precision == "fp8":
        none = np.zeros_like(ctx.t)
        return (none, back) if one.matrices[0].split == "inputs" else (ahead, none)
    return ahead, back


def _across(
    ctx: Context, recipe: _Recipe, share: FloatArray | float, *, normed: bool = False
) -> FloatArray | float:
    """Return the bytes of a gathered element that its other side takes, of which a rank had a share."""
    if not recipe.scaled_whole:
        return recipe.across * share
    if ctx.gpu.generation in EITHER_SIDE:
        return 0.0
    apart = normed and recipe is _DELAYED
    return np.where(np.asarray(share) < 1.0, _TRANSPOSED, _TRANSPOSED if apart else recipe.across)
