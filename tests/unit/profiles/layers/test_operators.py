"""A layer's operators: what each question folds out of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.profiles.adapters import fused_layers, single_layers
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.layers.operators import Matrix, Operator, Width
from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec
from tests.builders import a_model, a_moe_model


def test_a_dense_layer_is_four_products_in_the_order_of_its_forward_pass() -> None:
    layer = a_model().layer("dense")
    assert [(one.name, one.closes) for one in layer.operators] == [
        ("qkv", False), ("attention_out", True), ("mlp_up", False), ("mlp_down", True)
    ]  # fmt: skip
    assert layer.closings == 2
    # q and o: 8192², k and v: 8 heads of 128; gate, up and down
    attention = 2 * 8192**2 + 2 * 8192 * 8 * 128
    assert layer.weights_of("attention") == attention
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
    dense = layer.weights_of("attention")
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
