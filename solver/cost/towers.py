"""The vision tower in front of a language model: weights, products and kept tensors of the first stage.

The tower's layers are priced as a model's (``ModelSpec.tower_layers``), over the patches of a micro-batch's
images. Tensor-parallel ranks split them as they split the language model's layers, and context-parallel
ranks share the images out among each other, unless the launcher gives all of both to each rank
(``Capabilities.whole_towers``). Frozen parts have a forward pass alone, keep nothing for a backward pass,
and have neither gradients nor optimizer states. Next to adapters of the tower's own layers its frozen
weights are priced as those of the language model: gradients pass through them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.profiles.adapters import TRAINED_MODULES, tower_of
from meshwright.profiles.collectives.collectives import Group
from meshwright.profiles.model import LayerShape
from meshwright.profiles.tower_modules import tower_layers_of
from meshwright.profiles.towers import TOWER_PARTS, ImageLoad, TowerSpec
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
    adapted = "vision" in ctx.workload.adapted_parts
    work = replace(
        ctx.workload,
        lengths=None,
        lora_rank=ctx.workload.lora_rank * adapted,
        lora_targets=tower_layers_of(ctx.workload.lora_targets),
        trained_modules=(),
        trained_layers="",
        images_per_sample=0.0,
        frozen=(),
    )
    return replace(
        ctx, model=tower_of(ctx.model, ctx.workload.lora_targets), facts=facts, workload=work,
        layers=None, frozen=adapted, trained_modules=TRAINED_MODULES, packs=False, pads_to_longest=False,
        seq_length=load.attended,
        micro_batch=tokens / load.attended, tokens=tokens, t=ctx.tower_t, c=alone,
        tensor_group=replace(ctx.tensor_group, size=ctx.tower_t), row_share=alone,
        sequence_parallel=np.zeros_like(ctx.full), exchanging=alone, exchange_group=group, ring_group=group,
    )  # fmt: skip


def passes_gradients(ctx: Context) -> bool:
    """Return whether the backward pass goes through the tower: to its weights, or to its adapters."""
    work = ctx.workload
    return "vision" not in work.frozen_parts or "vision" in work.adapted_parts


def _projector_adapters(ctx: Context, tower: TowerSpec, tokens: FloatArray) -> list[Gemm]:
    if "projector" not in ctx.workload.adapted_parts:
        return []
    rank, count = float(ctx.workload.lora_rank), np.full_like(ctx.t, tower.num_projectors)
    return [
        Gemm(m=tokens, n=float(n), k=float(k), count=count)
        for one in ctx.model.projector_layers
        for n, k in ((rank, one.inputs), (one.outputs, rank))
    ]


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
    work = ctx.workload
    trained = "vision" not in work.frozen_parts
    passed = ctx.model.projector_gradients(work.frozen_parts, work.adapted_parts)
    gradients = 0.5 * (("projector" not in work.frozen_parts) + passed)  # of weights, and of inputs
    thin = gemm_seconds(ctx, _projector_adapters(ctx, tower, tokens), "bf16")
    return PassSeconds(
        forward=first.forward + behind.forward + thin.forward,
        backward=0.5 * trained * first.backward + gradients * behind.backward + thin.backward,
    )


def projector_bytes(ctx: Context, tower: TowerSpec) -> FloatArray:
    """Return what a projector keeps that gradients pass: the norm's input and output, and its products'."""
    work = ctx.workload
    if not {*TOWER_PARTS} - {*work.frozen_parts} and not work.adapted_parts:
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
