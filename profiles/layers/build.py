"""The operators and vectors of one layer of a model, family by family."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshwright.profiles.layers.mixing import (
    attention,
    compressed_attention,
    context,
    latent_attention,
    mixer,
)
from meshwright.profiles.layers.mlp import experts, mlp
from meshwright.profiles.layers.operators import Layer, Matrix, Operator, Vector

if TYPE_CHECKING:
    from meshwright.profiles.model import LayerKind, ModelSpec

_TRAINED_SCALARS = {"xielu": 2}  # of one MLP's activation (arXiv:2411.13010)

_HYPER_SCALES = 3  # of what a block reads, of its output, and of the mixture


def layer_of(model: ModelSpec, kind: LayerKind) -> Layer:
    """Return a layer of a kind; ``model`` has its attention throughout (``ModelSpec.shaped``)."""
    moe = model.moe if kind == "moe" else None
    operators = (*_mixing(model), *_further(model), *_mlp(model, kind))
    every = tuple(_vectors(model, kind))
    own: tuple[Vector, ...] = ()
    if moe and model.mlp_bias and moe.expert_bias:
        up = Vector(name="expert bias", size=(model.mlp_matrices - 1) * moe.ffn_hidden_size, split=True)
        own = (up, Vector(name="expert bias", size=model.expert_width))
    return Layer(
        operators=operators,
        vectors=tuple(one for one in every if one.size),
        expert_vectors=own,
        experts=moe.num_experts if moe else 0,
        visited=moe.top_k if moe else 0,
    )


def _mixing(model: ModelSpec) -> Iterator[Operator]:
    if not model.mixes_tokens:
        return
    if own := model.own_mixer:
        yield from mixer(model, own)
    elif model.mla is not None:
        yield from latent_attention(model, model.mla)
    elif model.compression is not None:
        yield from compressed_attention(model, model.compression)
    else:
        yield from attention(model)
        if model.paired and (own := model.paired.mixer):  # summed with attention's output
            yield from mixer(model.paired, own, closes=False)
        if model.crossing:
            yield from context(model)


def _further(model: ModelSpec) -> Iterator[Operator]:
    """Yield what some models have between attention and MLP, whole on every rank."""
    h = model.hidden_size

    def one(title: str, name: str, inputs: int, outputs: int) -> Operator:
        matrix = Matrix(name=name, inputs=inputs, outputs=outputs, split="nothing")
        return Operator(name=name, title=title, block="between", matrices=(matrix,), inner=inputs != h)

    if size := model.layer_embedding_size:
        yield one("gate of the layer's embeddings", "per_layer_input_gate", h, size)
        yield one("projection of the layer's embeddings", "per_layer_projection", size, h)
    if streams := model.streams:
        count, rank = streams.count, streams.low_rank
        sides = {"correction_coefs": (count, count), "prediction_coefs": (count, count**2),
                 "modality_router": (h, count)}  # fmt: skip
        small = [Matrix(name=n, inputs=a, outputs=b, split="nothing") for n, (a, b) in sides.items()]
        yield Operator(
            name="streams", title="streams", block="between", is_priced=False, matrices=tuple(small),
            further_products=h * count * (count + 1),
        )  # fmt: skip
        yield one("low rank down", "linear_left", h, rank)
        yield one("low rank up", "linear_right", rank, h)

    if model.residual_block_layers:
        mixed = round(h * (2.0 * model.residual_rows + 1.0))
        for name in ("self_attention_res_proj", "mlp_res_proj"):  # scores of sums, and their mixture
            row = Matrix(name=name, inputs=h, outputs=1, split="nothing")
            yield Operator(
                name=name, title="attention to earlier sums", block="between", matrices=(row,),
                rows="share", is_priced=False, further_products=mixed,
            )  # fmt: skip
    if count := model.hyper_streams:
        weights = Matrix(
            name="hc_fn", inputs=count * h, outputs=count * (2 + count), split="nothing", is_linear=False
        )
        # what a block reads is a sum of the streams; its output is added to each of their mixtures
        mixed = count * h * (2 + count)
        for name in ("attn_hc", "ffn_hc"):
            yield Operator(
                name=name, title="hyper-connections", block="between", matrices=(weights,), rows="share",
                is_priced=False, further_products=mixed,
            )  # fmt: skip


def _mlp(model: ModelSpec, kind: LayerKind) -> Iterator[Operator]:
    if kind == "moe" and model.moe is not None:
        yield from experts(model, model.moe)
    elif model.has_mlp:
        yield from mlp(model, model.ffn_hidden_size, sets=model.weight_sets)


def _vectors(model: ModelSpec, kind: LayerKind) -> Iterator[Vector]:
    """Yield norms, biases and scalars."""
    h, mixes, sets, moe = model.hidden_size, model.mixes_tokens, model.weight_sets, model.moe
    heads = model.num_attention_heads
    inner = model.norm_weights(model.inner_norm_width(kind))
    yield Vector(name="norms", size=model.norms_of(kind) * model.norm_weights(), is_norm=True)
    yield Vector(name="inner norms", size=inner, is_norm=True)
    yield Vector(name="query and key norms", size=model.query_key_norm_parameters(), is_norm=True)
    yield Vector(name="index norm", size=2 * model.chooser.head_dim if model.chooser else 0, is_norm=True)
    if own := model.compression:
        yield Vector(name="positions in entries", size=own.position_parameters(model.rate, model.head_dim))
    count = model.hyper_streams
    yield Vector(name="hyper-connections", size=2 * (count * (2 + count) + _HYPER_SCALES) * (count > 0))
    sums = model.residual_block_layers > 0
    yield Vector(name="norms of earlier sums", size=2 * h * sums, is_norm=True)
    yield Vector(name="sinks", size=heads * (model.attention_sinks and mixes), split=True)
    attentions = 2 if model.crossing else sets
    qkv = (heads * model.head_dim + model.num_kv_heads * model.kv_width) * (model.qkv_bias and mixes)
    gate = heads * model.gate_bias + model.gate_width * (model.gate_in_queries and model.qkv_bias)
    yield Vector(name="attention bias", size=qkv * attentions + gate, split=True)
    width = model.ffn_hidden_size if kind == "dense" or not moe else moe.shared_ffn_hidden_size
    up = (model.mlp_matrices - 1) * width * (model.mlp_bias and model.has_mlp)
    yield Vector(name="MLP bias", size=up * sets, split=True)
    last = int(model.attention_output_bias and mixes)
    last += bool(model.paired and model.paired.attention_output_bias)
    yield Vector(name="attention output bias", size=h * last * attentions)
    passes = kind == "dense" or bool(moe and moe.shared_ffn_hidden_size)
    down = model.has_mlp and ((model.mlp_bias and passes) or model.mlp_output_bias)
    yield Vector(name="MLP output bias", size=h * down * sets)
    if model.mla is not None:
        yield Vector(name="latent bias", size=model.mla.bias_parameters())
    if model.mixer is not None and (model.mixes or model.mixer.with_attention):
        split = model.mixer.split_norm_parameters()
        yield Vector(name="mixer norm", size=split, split=True, is_norm=True)
        yield Vector(name="mixer", size=model.mixer.vector_parameters() - split, split=True)
    # Differential attention: four vectors of a head's size (transformers' ``DiffLlamaAttention``).
    yield Vector(name="weighing", size=4 * model.head_dim * model.differential_attention)
    yield Vector(name="activation", size=_TRAINED_SCALARS.get(model.mlp_activation, 0))
    if model.streams:
        yield Vector(name="stream scale", size=h)
    if part := model.diffusion:
        size = part.two_stream_weights if model.two_streams else part.layer_weights
        yield Vector(name="modulation", size=size)
    if kind == "moe" and moe is not None:
        bias = moe.num_experts * (moe.router_bias + moe.selection_bias_counted)
        scales = (h + moe.num_experts) * moe.router_scales
        yield Vector(name="router", size=bias + scales, multiplied=True)
        size = model.norm_weights(moe.latent_size) * moe.latent_norm
        yield Vector(name="norm of the experts' latent", size=size, is_norm=True)
        yield Vector(
            name="latent bias", size=(moe.latent_size + h) * (model.mlp_bias and moe.latent_size > 0)
        )
