"""Weights that one rank holds of a part of the model: dense ones and routed experts apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profiles.model import LayerKind
from solver.columns import FloatArray
from solver.cost.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Numbers of weights on one rank before any ZeRO sharding, shape (n,)."""

    dense: FloatArray  # replicated over dp * cp
    routed: FloatArray  # routed experts, replicated over the expert data group

    def __add__(self, other: Weights) -> Weights:
        """Both parts together."""
        return Weights(dense=self.dense + other.dense, routed=self.routed + other.routed)


def layer_weights(ctx: Context, kind: LayerKind) -> Weights:
    """One layer: matrices are split over tp, experts over ep and their own tp; norms are whole.

    So are biases of what is summed over tp ranks: of the output of attention, MLP and experts
    (Megatron-Core 0.19, ``RowParallelLinear``: "bias is not parallelized"). Attention sinks are split as
    heads are (``DotProductAttention``: ``softmax_offset``).
    """
    model, moe = ctx.model, ctx.model.moe
    whole = float(model.norm_parameters() + model.summed_bias_parameters(kind))
    split = model.attention_parameters() + model.split_bias_parameters(kind) + model.sink_parameters()
    routed = np.zeros_like(ctx.t)
    if kind == "moe" and moe is not None:
        whole += model.router_parameters()
        split += model.shared_expert_parameters()
        summed = model.hidden_size if model.mlp_bias else 0
        divided = model.expert_parameters() + model.expert_bias_parameters() - summed
        routed = moe.num_experts * (divided / ctx.et + summed) / ctx.e
    else:
        split += model.dense_mlp_parameters()
    return Weights(dense=split / ctx.t + whole, routed=routed)


def embedding_weights(ctx: Context) -> Weights:
    """The embedding, split over tp by the padded vocabulary; learned positions are whole."""
    model = ctx.model
    positions = float(model.embedding_parameters() - model.vocab_size * model.hidden_size)
    table = ctx.padded_vocabulary * model.hidden_size / ctx.t
    return Weights(dense=table + positions, routed=np.zeros_like(ctx.t))


def copied_embedding(ctx: Context) -> FloatArray:
    """Weights of the last stage that also exist on the first one, shape (n,); none without stages.

    A tied output matrix, or the embedding that multi-token prediction looks its tokens up in: the last
    stage has its own copy (Megatron-Core 0.16, ``GPTModel.__init__``: ``pre_process or mtp_process``).
    """
    model = ctx.model
    copied = model.tied_embeddings or model.num_mtp_layers > 0
    return np.where((ctx.p > 1) & copied, ctx.padded_vocabulary * model.hidden_size / ctx.t, 0.0)


def output_weights(ctx: Context) -> Weights:
    """Output matrix (none of its own where it is tied), final norm, and the copy of the embedding."""
    model = ctx.model
    own = 0.0 if model.tied_embeddings else ctx.padded_vocabulary * model.hidden_size / ctx.t
    own = own + ctx.padded_vocabulary / ctx.t * int(model.head_bias)
    output = copied_embedding(ctx) + own
    return Weights(dense=output + model.norm_weights(), routed=np.zeros_like(ctx.t))


def head_weights(ctx: Context) -> Weights:
    """The weights of the output and the multi-token-prediction layers."""
    model, own = ctx.model, output_weights(ctx)
    if not model.num_mtp_layers:
        return own
    layer = layer_weights(ctx, "moe" if model.moe else "dense")
    # both inputs and the output have a norm (Megatron-Core 0.19, MultiTokenPredictionLayerSubmodules)
    project = 2.0 * model.hidden_size**2 / ctx.t + 3.0 * model.norm_weights()
    depth = float(model.num_mtp_layers)
    return own + Weights(dense=depth * (layer.dense + project), routed=depth * layer.routed)


def part_weights(ctx: Context, kinds: Sequence[LayerKind]) -> list[Weights]:
    """Weights of every part in order: layer kinds, embedding, head."""
    return [*(layer_weights(ctx, kind) for kind in kinds), embedding_weights(ctx), head_weights(ctx)]
