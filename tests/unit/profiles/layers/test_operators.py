"""A layer's operators: what each question folds out of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.profiles.adapters import fused_layers, single_layers
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.layers.operators import Matrix, Operator, Width
from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import DiffusionSpec
from tests.builders import a_model, a_moe_model, weights_of


def test_a_dense_layer_is_four_products_in_the_order_of_its_forward_pass() -> None:
    layer = a_model().layer("dense")
    assert [(one.name, one.closes) for one in layer.operators] == [
        ("qkv", False), ("attention_out", True), ("mlp_up", False), ("mlp_down", True)
    ]  # fmt: skip
    assert layer.closings == 2
    # q and o: 8192², k and v: 8 heads of 128; gate, up and down
    attention = 2 * 8192**2 + 2 * 8192 * 8 * 128
    assert weights_of(layer, "attention") == attention
    assert layer.weights.sharded == attention + 3 * 8192 * 28672
    assert layer.norms == layer.weights.whole == 2 * 8192
    assert layer.parameters == layer.multiply_adds + layer.norms


@pytest.mark.parametrize(
    ("ranks", "columns"),
    [
        (1, 8192 + 2 * 8 * 128),
        (8, 1024 + 2 * 128),
        (16, 512 + 2 * 128),  # a rank has one key/value head at least
    ],
)
def test_ranks_split_queries_and_keep_a_whole_head_of_keys_and_values(ranks: int, columns: int) -> None:
    qkv, *_ = a_model().layer("dense").operators
    assert qkv.outputs.on(ranks, max) == columns
    assert qkv.inputs.on(ranks, max) == 8192


def test_a_width_adds_what_ranks_split_what_each_has_and_heads() -> None:
    assert Width(split=12, whole=5, heads=2, of_head=3).on(4, max) == 12 / 4 + 1 * 3 + 5
    assert Width(whole=5).on(4, max) == 5


def test_routed_experts_are_counted_once_for_each_expert_and_passed_by_top_k() -> None:
    # 8 experts of 3 * 4096 * 14336, of which a token visits 2; a router of 8 * 4096
    layer, each = a_moe_model().layer("moe"), 3 * 4096 * 14336
    dense = weights_of(layer, "attention")
    assert layer.weights.expert_split == each
    assert layer.parameters == dense + 8 * 4096 + 8 * each + 2 * 4096
    assert layer.multiply_adds == dense + 8 * 4096 + 2 * each
    assert layer.closings == 1  # the experts' exchange takes the place of the MLP's sum
    assert layer.dense_products == 2


def test_down_projections_of_latent_attention_are_whole_on_every_rank() -> None:
    model = find_model("deepseek-v3")
    splits = {one.name: one.split for one in model.layer("dense").matrices}
    whole = {name for name, split in splits.items() if split == "nothing"}
    assert whole == {"q_a_proj", "kv_a_proj_with_mqa"}
    assert splits["o_proj"] == splits["down_proj"] == "inputs"


def with_a_mixer(name: str) -> tuple[ModelSpec, ModelSpec]:
    """Return a model's view of its layers with attention, and of those with a mixer."""
    model = find_model(name)
    views = {model.shaped(shape).mixes: model.shaped(shape) for shape in model.shapes()}
    return views[False], views[True]


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "kimi-linear-48b-a3b"])
def test_a_mixers_products_are_no_part_of_attentions_fused_layers(name: str) -> None:
    attending, mixing = with_a_mixer(name)
    assert {"linear_qkv", "linear_proj"} <= {*fused_layers(attending, "moe")}
    assert not {"linear_qkv", "linear_proj"} & {*fused_layers(mixing, "moe")}
    assert {one.block for one in mixing.layer("moe").operators} >= {"mixer"}


def test_a_mixer_next_to_attention_leaves_the_columns_of_qkv_alone() -> None:
    model = model_from_config({"model_type": "falcon_h1"}, name="falcon-h1")  # transformers' default sizes
    assert model.paired is not None
    (qkv,) = fused_layers(model, "dense")["linear_qkv"]
    assert qkv.outputs == (model.num_attention_heads + 2 * model.num_kv_heads) * model.head_dim
    assert "in_proj" in single_layers(model, "dense")
    assert model.layer("dense").closings == 2  # the mixer's output is summed with attention's


def test_a_layer_without_attention_has_the_operators_of_its_mlp_alone() -> None:
    model = find_model("nemotron-3-super-120b-a12b")
    views = [model.shaped(shape).layer(shape.kind) for shape in model.shapes()]
    blocks = sorted(sorted({one.block for one in view.operators}) for view in views)
    assert blocks == [["attention"], ["latent", "routed", "shared"], ["mixer"]]


def test_a_further_product_of_attention_is_counted_wherever_a_layer_is() -> None:
    plain = a_model()
    gated = replace(plain, attention_gate="per_head")
    extra = 64 * 8192  # one column of each head
    assert gated.layer_parameters("dense") - plain.layer_parameters("dense") == extra
    assert gated.layer("dense").multiply_adds - plain.layer("dense").multiply_adds == extra
    assert single_layers(gated, "dense")["g_proj"].outputs == 64
    assert (
        gated.layer("dense").operators[0].outputs.split
        == plain.layer("dense").operators[0].outputs.split + 64
    )


def test_the_head_and_what_precedes_it_are_operators_too() -> None:
    model = a_model(embedding_size=512)
    assert [(one.name, one.weights) for one in model.head] == [
        ("head", 128256 * 512),
        ("project_out", 512 * 8192),
    ]
    assert [(one.name, one.weights) for one in model.first] == [("project_in", 512 * 8192)]
    assert a_model().first == ()


def test_equal_sets_of_weights_are_held_each_and_passed_once() -> None:
    product = Operator(
        name="x", title="x", block="mlp", matrices=(Matrix(name="x", inputs=3, outputs=5, sets=2),)
    )
    assert (product.weights, product.products) == (30, 15)


def test_a_dense_layer_has_no_experts_to_visit() -> None:
    layer = a_model().layer("dense")
    assert (layer.experts, layer.visited) == (0, 0)


def test_megatrons_two_layers_of_an_mlp_are_what_reads_and_what_writes_the_hidden_state() -> None:
    fused = fused_layers(a_model(), "dense")
    sizes = {name: [(one.inputs, one.outputs) for one in layers] for name, layers in fused.items()}
    assert sizes["linear_fc1"] == [(8192, 2 * 28672)]  # gate and up
    assert sizes["linear_fc2"] == [(28672, 8192)]


def test_inner_norms_are_norms() -> None:
    # before attention's output of 64 heads of 128, and before down of 28672
    plain, normed = (replace(a_model(), inner_norms=on).layer("dense").norms for on in (False, True))
    assert normed - plain == 64 * 128 + 28672


def test_streams_are_mixed_by_products_without_weights() -> None:
    # Gemma 3n: each of 4 streams is predicted from all 4, and corrected once: 2048 * 4 * (4 + 1)
    layer = model_from_config({"model_type": "gemma3n_text"}, name="gemma-3n").layer("dense")
    (streams,) = (one for one in layer.operators if one.name == "streams")
    assert streams.weights == 4 * 4 + 4 * 4**2 + 2048 * 4
    assert streams.products == streams.weights + 2048 * 4 * (4 + 1)
    assert {one.name: one.is_priced for one in layer.of("between")} == {
        "per_layer_input_gate": True, "per_layer_projection": True, "streams": False,
        "linear_left": True, "linear_right": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("model_type", "ranks", "columns"),
    [
        # 16 heads of keys of 128, and of queries; 32 of values of 128 and a gate; two numbers of each
        ("qwen3_next", 8, 2 * 2 * 128 + (2 * 32 * 128 + 2 * 32) / 8),
        ("qwen3_next", 32, 2 * 128 + (2 * 32 * 128 + 2 * 32) / 32),
        ("qwen3_5_text", 32, 2 * 128 + (2 * 32 * 128 + 2 * 32) / 32),  # in four projections
        # 30 heads of keys of 96 and of queries, in projections of their own; 30 of values of 192, gate
        ("olmo_hybrid", 60, 2 * 96 + (2 * 30 * 192 + 2 * 30) / 60),
        ("minimax", 64, 2 * 128 + 2 * 32 * 128 / 64),  # 32 heads of 128
        ("mamba2", 16, 2 * 128 + (2 * 128 * 64 + 128) / 16),  # 8 groups with a state of 128
        # Every channel has its own keys, or all share them: nothing is copied.
        ("jamba", 64, 2 * 8192 / 64),
        ("kimi_linear", 64, (3 * 32 * 128 + 32) / 64 + 2 * 128),  # two latents are whole
    ],
)
def test_a_rank_has_a_head_of_a_mixers_keys_and_queries_at_least(
    model_type: str, ranks: int, columns: float
) -> None:
    model = model_from_config({"model_type": model_type}, name=model_type)
    (mixing,) = {view for view in map(model.shaped, model.shapes()) if view.mixes}
    (read,) = (one for one in mixing.layer("dense").of("mixer") if one.name == "mixer_in")
    assert read.outputs.on(ranks, max) == columns


def test_a_gate_of_latent_attention_is_a_linear_layer_that_may_be_adapted() -> None:
    model = replace(find_model("deepseek-v3"), attention_gate="per_head")
    gate = single_layers(model, "dense")["g_proj"]
    assert (gate.inputs, gate.outputs) == (7168, 128)  # one column of each head


# Models of the library that have every operator together with a diffusion transformer that reads a text.
VARIED = (
    "beam-1.0-501b-a23b", "dbrx", "deepseek-v2-lite", "deepseek-v3.2", "gemma-3n-e2b", "jamba-v0.1",
    "kimi-linear-48b-a3b", "minimax-m2.5", "nemotron-3-super-120b-a12b", "olmo-hybrid-7b",
    "qwen1.5-moe-a2.7b", "qwen3-next-80b-a3b",
)  # fmt: skip
# Matrices that every tensor rank has whole, and those of which it has rows, so that products are added up.
WHOLE = {
    "q_a_proj", "kv_a_proj_with_mqa", "wq_b", "wk", "weights_proj", "f_a_proj", "g_a_proj", "router",
    "shared_expert_gate", "fc1_latent_proj", "fc2_latent_proj", "linear_left", "linear_right",
    "per_layer_input_gate", "per_layer_projection", "correction_coefs", "prediction_coefs",
    "modality_router",
}  # fmt: skip
ADDED_UP = {"o_proj", "out_proj", "down_proj", "w2", "x_proj", "o"}
WITHOUT_ADAPTERS = {"conv1d", "q", "k", "v", "o"}  # and the router, unless its class has a linear layer
CLOSING = {"attention_out", "mixer_out", "mlp_down", "shared_down", "context_out"}
WITHOUT_PRICE = {"conv1d", "streams", "router"}
ROWS = {
    "q_down": "latent", "kv_down": "latent", "experts_up": "routed", "experts_down": "routed",
    "router": "share", "fc1_latent_proj": "share", "fc2_latent_proj": "share", "context_kv": "context",
}  # fmt: skip
FUSED = {
    "qkv": "linear_qkv", "q_up": "linear_qkv", "q_down": "linear_qkv", "kv_up": "linear_qkv",
    "kv_down": "linear_qkv", "attention_out": "linear_proj", "mlp_up": "linear_fc1",
    "mlp_down": "linear_fc2", "experts_up": "linear_fc1", "experts_down": "linear_fc2",
}  # fmt: skip


def test_who_divides_an_operator_adds_it_up_and_adapts_it() -> None:
    reading = a_model(causal=False, diffusion=DiffusionSpec(context_tokens=512))
    joined = model_from_config({"model_type": "falcon_h1"}, name="falcon-h1")  # a mixer next to attention
    views = [
        (one.shaped(shape), shape.kind)
        for one in (*map(find_model, VARIED), reading, joined)
        for shape in one.shapes()
    ]
    layers = [(model, model.layer(kind)) for model, kind in views]
    for model, layer in layers:
        for one in layer.operators:
            assert one.closes == (one.name in CLOSING and (not model.paired or one.block != "mixer"))
            assert one.is_priced == (one.name not in WITHOUT_PRICE)
            assert one.rows == ROWS.get(one.name, "tokens")
            assert one.target == FUSED.get(one.name, "")
            assert one.over == ("expert_tensor" if one.is_routed else "tensor")
            for each in one.matrices:
                split = (
                    "nothing" if each.name in WHOLE else "inputs" if each.name in ADDED_UP else "outputs"
                )
                assert (each.name, each.split) == (each.name, split)
                linear = model.moe.linear_router if each.name == "router" and model.moe else True
                assert each.is_linear == (linear and each.name not in WITHOUT_ADAPTERS)
    seen = {one.name for _, layer in layers for one in layer.operators}
    assert {*CLOSING, *WITHOUT_PRICE, *ROWS, *FUSED} <= seen
