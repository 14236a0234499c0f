"""Vectors of a layer: which a model's facts add, how many weights each has, and which ranks divide them.

Each case states one layer's vectors beside its matrices, all of them. Its sizes: 8192 hidden, 64 heads of
128, 8 of keys and of values, MLPs of 28672; with experts 4096 hidden, 8 experts of 14336.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.profiles.library import find_model
from meshwright.profiles.mixers import MixerSpec
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import DiffusionSpec, IndexerSpec, MlaSpec, MoeSpec, StreamsSpec
from tests.builders import a_model, a_moe_model

SPLIT = {
    "attention bias",
    "MLP bias",
    "sinks",
    "mixer",
    "mixer norm",
}  # over tensor ranks; others are whole
NORMS = {"norms", "inner norms", "query and key norms", "index norm", "mixer norm"}
MULTIPLIED = {"router"}

LATENT = MlaSpec(
    q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
)
BIASES = {"qkv_bias": True, "attention_output_bias": True, "mlp_bias": True}
# Mamba 2 with 8 groups of states of 128; a delta net with 16 heads of keys and 32 of values of 128.
MAMBA = MixerSpec(
    kind="mamba2", num_key_heads=8, key_head_dim=128, num_heads=128, value_head_dim=64, convolution=4,
    chunk=256, convolution_bias=True,
)  # fmt: skip
DELTA = MixerSpec(
    kind="gated_delta_net", num_key_heads=16, key_head_dim=128, num_heads=32, value_head_dim=128,
    convolution=4, chunk=64,
)  # fmt: skip


def latent(mla: MlaSpec, **changes: object) -> ModelSpec:
    """Return the model with latent attention."""
    return a_model(mla=mla, head_dim=192, num_kv_heads=64, **changes)


def with_experts(of_experts: dict[str, object], **changes: object) -> ModelSpec:
    """Return the mixture with other facts of its experts or of its layers."""
    moe = MoeSpec(num_experts=8, top_k=2, ffn_hidden_size=14336)
    return replace(a_moe_model(), moe=replace(moe, **of_experts), **changes)  # type: ignore[arg-type]


CASES: dict[str, tuple[ModelSpec, dict[str, int]]] = {
    "two RMSNorms": (a_model(), {"norms": 2 * 8192}),
    "two LayerNorms": (a_model(normalization="layernorm"), {"norms": 2 * 2 * 8192}),
    "norms without weights": (a_model(normalization="rmsnorm_without_weights"), {}),
    "one norm for both blocks": (a_model(parallel_residual=True, shared_norm=True), {"norms": 8192}),
    "norms before and after": (a_model(norm_position="before_and_after"), {"norms": 4 * 8192}),
    "norms inside": (a_model(inner_norms=True), {"norms": 2 * 8192, "inner norms": 64 * 128 + 28672}),
    "a norm of queries and keys": (
        a_model(query_key_norm="per_head"), {"norms": 2 * 8192, "query and key norms": 2 * 128}),
    "norms of all heads": (
        a_model(query_key_norm="all_heads"), {"norms": 2 * 8192, "query and key norms": (64 + 8) * 128}),
    "sinks": (a_model(attention_sinks=True), {"norms": 2 * 8192, "sinks": 64}),
    "biases": (a_model(**BIASES), {
        "norms": 2 * 8192, "attention bias": 64 * 128 + 2 * 8 * 128, "attention output bias": 8192,
        "MLP bias": 2 * 28672, "MLP output bias": 8192}),
    "biases of an MLP without a gate": (a_model(mlp_bias=True, gated_mlp=False), {
        "norms": 2 * 8192, "MLP bias": 28672, "MLP output bias": 8192}),
    "a bias of the MLP's output": (
        a_model(mlp_output_bias=True), {"norms": 2 * 8192, "MLP output bias": 8192}),
    "a gate's bias": (a_model(attention_gate="per_head", gate_bias=True), {
        "norms": 2 * 8192, "attention bias": 64}),
    "a gate among the queries": (
        a_model(attention_gate="per_element", gate_in_queries=True, qkv_bias=True), {
            "norms": 2 * 8192, "attention bias": 64 * 128 + 2 * 8 * 128 + 64 * 128}),
    "a gate apart": (a_model(attention_gate="per_element", qkv_bias=True), {
        "norms": 2 * 8192, "attention bias": 64 * 128 + 2 * 8 * 128}),
    "differential attention": (
        a_model(differential_attention=True), {"norms": 2 * 8192, "weighing": 4 * 128}),
    "trained scalars of xIELU": (
        a_model(activation="xielu", gated_mlp=False), {"norms": 2 * 8192, "activation": 2}),
    "biases of latents": (latent(replace(LATENT, latent_bias=True)), {
        "norms": 2 * 8192, "query and key norms": 1536 + 512, "latent bias": 1536 + 512 + 64}),
    "an indexer's LayerNorm": (
        latent(LATENT, indexer=IndexerSpec(num_heads=64, head_dim=128, top_k=2048)), {
            "norms": 2 * 8192, "query and key norms": 1536 + 512, "index norm": 2 * 128}),
    "streams": (a_model(streams=StreamsSpec(count=4, low_rank=64)), {
        "norms": (2 + 2) * 8192, "stream scale": 8192}),
    "modulation": (
        a_model(causal=False, diffusion=DiffusionSpec(layer_weights=7)),
        {"norms": 2 * 8192, "modulation": 7}),
    "two streams": (
        a_model(
            causal=False,
            diffusion=DiffusionSpec(two_stream_layers=80, layer_weights=7, two_stream_weights=11),
            **BIASES,
        ),
        {"norms": 2 * 8192, "modulation": 11, "attention bias": 2 * (64 + 2 * 8) * 128,
         "attention output bias": 2 * 8192, "MLP bias": 2 * 2 * 28672, "MLP output bias": 2 * 8192}),
    "attention to a text": (
        a_model(causal=False, diffusion=DiffusionSpec(context_tokens=512, layer_weights=7), **BIASES), {
        "norms": 3 * 8192, "modulation": 7, "attention bias": 2 * (64 + 2 * 8) * 128,
        "attention output bias": 2 * 8192, "MLP bias": 2 * 28672, "MLP output bias": 8192}),
    # Values of 128 heads of 64; of each head a decay, a time step and a skip; the convolution's bias of
    # values and of keys and queries of 8 groups. Attention's biases are not a mixer's.
    "Mamba 2 alone": (a_model(mixer=MAMBA, qkv_bias=True), {
        "norms": 2 * 8192, "mixer norm": 128 * 64, "mixer": 3 * 128 + 128 * 64 + 2 * 8 * 128}),
    # Two numbers of each head; a norm of one head's values, whole on every rank.
    "a delta net alone": (
        a_model(mixer=DELTA), {"norms": 2 * 8192, "query and key norms": 128, "mixer": 2 * 32}),
    "a mixer next to attention": (
        a_model(mixer=replace(MAMBA, with_attention=True), attention_output_bias=True), {
            "norms": 2 * 8192, "attention output bias": 8192, "mixer norm": 128 * 64,
            "mixer": 3 * 128 + 128 * 64 + 2 * 8 * 128}),
    # gate and values of 128 heads of 64, keys and queries of 8 groups of 128, a time step of each head
    "a mixer with biases next to attention": (
        a_model(mixer=replace(MAMBA, with_attention=True, projection_bias=True)), {
            "norms": 2 * 8192, "attention output bias": 8192, "mixer norm": 128 * 64,
            "mixer": 3 * 128 + 128 * 64 + 2 * 8 * 128 + 2 * 128 * 64 + 2 * 8 * 128 + 128}),
    "a mixer and attention with biases": (
        a_model(mixer=replace(MAMBA, with_attention=True, output_bias=True), attention_output_bias=True), {
            "norms": 2 * 8192, "attention output bias": 2 * 8192, "mixer norm": 128 * 64,
            "mixer": 3 * 128 + 128 * 64 + 2 * 8 * 128}),
    "experts": (with_experts({}), {"norms": 2 * 4096}),
    "experts with biases": (with_experts({}, mlp_bias=True), {
        "norms": 2 * 4096, "expert bias": 2 * 14336 + 4096}),
    "experts without the dense layers' biases": (
        with_experts({"expert_bias": False}, mlp_bias=True), {"norms": 2 * 4096}),
    "shared experts with biases": (
        with_experts({"num_shared_experts": 1, "shared_ffn_hidden_size": 2048}, mlp_bias=True), {
            "norms": 2 * 4096, "expert bias": 2 * 14336 + 4096, "MLP bias": 2 * 2048,
            "MLP output bias": 4096}),
    "a latent of experts with biases": (with_experts({"latent_size": 1024}, mlp_bias=True), {
        "norms": 2 * 4096, "expert bias": 2 * 14336 + 1024, "latent bias": 1024 + 4096}),
    "a router's bias": (with_experts({"router_bias": True}), {"norms": 2 * 4096, "router": 8}),
    "a bias of the choice": (
        with_experts({"selection_bias": True, "selection_bias_counted": True}), {
            "norms": 2 * 4096, "router": 8}),
    "a router's scales": (
        with_experts({"router_scales": True}), {"norms": 2 * 4096, "router": 4096 + 8}),
    "norms of experts": (
        with_experts({"output_norm": True}), {"norms": 3 * 4096}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_vectors_of_a_layer_follow_from_its_facts(case: str) -> None:
    model, expected = CASES[case]
    (shape,) = model.shapes()
    layer = model.shaped(shape).layer(shape.kind)
    sizes = dict.fromkeys((one.name for one in (*layer.vectors, *layer.expert_vectors)), 0)
    for one in (*layer.vectors, *layer.expert_vectors):
        sizes[one.name] += one.size
        assert (one.is_norm, one.multiplied) == (one.name in NORMS, one.name in MULTIPLIED)
    assert sizes == expected
    assert {one.name for one in layer.vectors if one.split} == SPLIT & {*sizes}
    # of an expert, its inner bias is split as its matrices are; what the ranks add up is whole
    assert [one.split for one in layer.expert_vectors] == [True, False][: len(layer.expert_vectors)]


def test_a_dense_layer_of_a_model_with_experts_has_its_own_biases() -> None:
    model = with_experts({"router_bias": True, "num_dense_layers": 1}, mlp_bias=True)
    sizes = {one.name: one.size for one in model.layer("dense").vectors}
    assert sizes == {"norms": 2 * 4096, "MLP bias": 2 * 28672, "MLP output bias": 4096}
    assert model.layer("dense").expert_vectors == ()


def test_a_layer_of_one_block_has_the_vectors_of_that_block() -> None:
    # attention alone, then an MLP alone
    model = a_model(
        num_layers=2, layer_pattern="*-", attention_sinks=True, query_key_norm="per_head", **BIASES
    )
    first, second = (model.shaped(shape).layer("dense") for shape in model.layer_shapes())
    assert {one.name: one.size for one in first.vectors} == {
        "norms": 8192, "query and key norms": 2 * 128, "sinks": 64, "attention bias": (64 + 2 * 8) * 128,
        "attention output bias": 8192,
    }  # fmt: skip
    assert {one.name: one.size for one in second.vectors} == {
        "norms": 8192, "MLP bias": 2 * 28672, "MLP output bias": 8192
    }  # fmt: skip


def test_hyper_connections_weigh_all_streams_and_mix_them() -> None:
    # 4 streams of h: a product of all of them to 4 (2 + 4) weights, and 2 + 4 multiply-adds a number
    model = find_model("deepseek-v4-flash")
    h = model.hidden_size
    (one,) = (operator for operator in model.layer("moe").operators if operator.name == "attn_hc")
    assert one.products == 4 * h * 4 * (2 + 4) + 4 * h * (2 + 4)
