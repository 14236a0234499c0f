"""The pass of a reference model: samples are scored once more without gradients, for losses on preferences.

Its logits come after those of the trained model, of which 4 bytes each are kept by then. At most 6 more
bytes (a product in 2 and its copy in fp32) stay below the 12 of the trained ones' backward pass, so that
they add no memory (TRL 1.16, trainer/dpo_trainer.py ``_compute_loss``: both before the loss).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwright.solver.configuration import FloatArray
from meshwright.solver.cost.context import WITHOUT_ACTIVATIONS, Context
from meshwright.solver.cost.parameters import Weights
from meshwright.solver.cost.sharding import SHARD_WEIGHTS


def scoring(ctx: Context) -> Context:
    """Return the context of a pass through the reference: frozen, without adapters, nothing recomputed."""
    never, columns = np.zeros_like(ctx.full), ctx.columns
    return replace(
        ctx,
        workload=replace(
            ctx.workload, lora_targets=(), trained_modules=(), trained_layers="", reference="none"
        ),
        columns=replace(columns, offload=WITHOUT_ACTIVATIONS[columns.offload]),
        frozen=True,
        trained_modules=(),
        full=never,
        selective=never,
    )


def reference_bytes(ctx: Context, weights: Sequence[Weights]) -> list[FloatArray]:
    """Return the bytes of a frozen copy of every part's weights on a rank, (n,) each.

    Engines cut it as they cut the model, with ZeRO-3 and FSDP; below, each rank holds it whole (TRL 1.16,
    models/utils.py ``prepare_deepspeed``: stage 0 unless 3, ``prepare_fsdp``).
    """
    each = 4.0 if ctx.workload.base_precision == "fp32" else 2.0
    here = each * np.where(ctx.offloads_weights, 0.0, 1.0)
    cut = ctx.columns.zero_stage == SHARD_WEIGHTS
    dense, routed = (
        np.where(cut, replicas.sharing, 1.0) for replicas in (ctx.dense_replicas, ctx.expert_replicas)
    )
    return [here * (own.dense / dense + own.routed / routed) for own in weights]
