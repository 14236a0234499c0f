"""The vision tower in front of a language model: weights, products and kept tensors of the first stage.

The tower's layers are priced as a model's (``ModelSpec.tower_layers``), over the patches of a micro-batch's
images. Tensor-parallel ranks split them as they split the language model's layers, and context-parallel
ranks share the images out among each other, unless the launcher gives all of both to each rank
(``Capabilities.whole_towers``). Frozen parts have a forward pass alone, keep nothing for a backward pass,
and have neither gradients nor optimizer states.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.profiles.adapters import TRAINED_MODULES
from meshwright.profiles.collectives.collectives import Group
from meshwright.profiles.model import LayerShape
from meshwright.profiles.towers import ImageLoad, TowerSpec
from meshwright.solver.configuration import FloatArray
from meshwright.solver.cost.compute import Gemm, gemm_seconds
from meshwright.solver.cost.context import Context, PassSeconds

LAYER = LayerShape("dense")


def images_of(ctx: Context) -> ImageLoad:
    """Return the images of one sequence."""
    return ctx.workload.images(ctx.model.tower)


def tower_context(ctx: Context) -> Context:
    """Return the context of the tower's layers: whole images, shared out among context-parallel ranks."""
    load, alone = images_of(ctx), np.ones_like(ctx.t)
    tokens = ctx.micro_batch * load.rows / ctx.image_ranks
    group, fused = Group(alone, alone, ctx.fabric), ctx.model.tower_layers.norm_kind == "layernorm"
    facts = replace(ctx.facts, norm_fused=True) if fused else ctx.facts  # torch's LayerNorm is one kernel
    work = replace(
        ctx.workload,
        lengths=None,
        lora_rank=0,
        trained_modules=(),
        trained_layers="",
        images_per_sample=0.0,
        frozen=(),
    )
    return replace(
        ctx, model=ctx.model.tower_layers, facts=facts, workload=work, layers=None, frozen=False,
        trained_modules=TRAINED_MODULES, packs=False, pads_to_longest=False, seq_length=load.attended,
        micro_batch=tokens / load.attended, tokens=tokens, t=ctx.tower_t, c=alone,
        tensor_group=replace(ctx.tensor_group, size=ctx.tower_t), row_share=alone,
        sequence_parallel=np.zeros_like(ctx.full), exchanging=alone, exchange_group=group, ring_group=group,
    )  # fmt: skip


def end_seconds(ctx: Context, tower: TowerSpec) -> PassSeconds:
    """Price the product of patches and the projector: pixels need no gradient, nor does a frozen tower."""
    load = images_of(ctx)
    patches, tokens = (ctx.micro_batch * each / ctx.image_ranks for each in (load.patches, load.tokens))
    first = gemm_seconds(
        ctx, [Gemm(m=patches, n=float(tower.hidden_size), k=float(tower.patch_inputs))], "bf16"
    )
    wide = float(tower.hidden_size * tower.merged_patches)
    products = [Gemm(m=tokens, n=tower.projector_work / wide / ctx.tower_t, k=wide)]
    behind = gemm_seconds(ctx, products, "bf16")
    trained = "vision" not in ctx.workload.frozen_parts
    gradients = 0.5 * (
        ("projector" not in ctx.workload.frozen_parts) + trained
    )  # of weights, and of the input
    return PassSeconds(
        forward=first.forward + behind.forward,
        backward=0.5 * trained * first.backward + gradients * behind.backward,
    )


def projector_bytes(ctx: Context, tower: TowerSpec) -> FloatArray:
    """Return what a trained projector keeps: the norm's input and output, and what its products yield."""
    if {"projector", "vision"} <= set(ctx.workload.frozen_parts):
        return np.zeros_like(ctx.t)
    wide = tower.hidden_size * tower.merged_patches
    yielded = tower.projector_work / wide
    return (
        ctx.micro_batch
        * images_of(ctx).tokens
        / ctx.image_ranks
        * 2.0
        * (2.0 * wide + yielded / ctx.tower_t)
    )
