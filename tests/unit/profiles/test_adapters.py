"""Adapters and frozen weights of 4 bits: what each linear layer adds, by hand."""

from __future__ import annotations

import pytest

from meshwright.profiles.adapters import (
    ALL_LINEAR,
    ATTENTION_TARGETS,
    SINGLE_TARGETS,
    adapter_parameters,
    base_bytes,
    block_of,
    bound_targets,
    class_targets,
    copied_parameters,
    linear_names,
    quantized_layers,
    target_fault,
    unadaptable,
)
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.layers.operators import Matrix
from meshwright.profiles.library import find_model
from tests.builders import a_model


def test_a_fused_layer_has_one_pair_where_single_ones_have_three() -> None:
    # Llama 3.1 8B: 32 layers, hidden size 4096, 32 heads and 8 key heads of 128; rank 8
    model = find_model("llama-3.1-8b")
    fused = 32 * 8 * (4096 + (4096 + 2 * 1024) + 4096 + 4096)
    assert adapter_parameters(model, 8, ATTENTION_TARGETS) == fused
    single = 32 * 8 * ((4096 + 4096) + 2 * (4096 + 1024) + (4096 + 4096))
    assert adapter_parameters(model, 8, ("q_proj", "k_proj", "v_proj", "o_proj")) == single
    # and the MLP, 14336 wide: three pairs of hidden size and width
    assert adapter_parameters(model, 8, SINGLE_TARGETS) == single + 32 * 8 * 3 * (4096 + 14336)


def test_weights_without_a_layer_have_one_pair_for_each_expert() -> None:
    # MiniMax M2: 62 layers of 256 experts, 3072 -> 2 x 1536 and back; rank 16, gate and up together
    model, gate_up, down = find_model("minimax-m2"), 3072 + 2 * 1536, 1536 + 3072
    both = ("experts.gate_up_proj", "experts.down_proj")
    assert adapter_parameters(model, 16, both) == 62 * 256 * 16 * (gate_up + down)
    assert adapter_parameters(model, 16, both[1:]) == 62 * 256 * 16 * down
    attention = adapter_parameters(model, 16, ("q_proj",))
    assert adapter_parameters(model, 16, ("q_proj", *both[1:])) == attention + 62 * 256 * 16 * down
    assert target_fault(model, both) is None
    for name, targets, why in (
        ("llama-3.1-8b", both, "has no experts in one tensor of this name"),
        (
            "kimi-k2",
            both,
            "has no experts in one tensor of this name",
        ),  # its remote code has a layer for each
        ("minimax-m2", ("w1", "w3", *both), "other names mean the same experts"),
    ):
        assert why in str(target_fault(find_model(name), targets)), name


def test_routed_experts_are_adapted_where_they_are_linear_layers() -> None:
    # Mixtral 8x7B: 32 layers of 8 experts, up with its gate 4096 -> 2 x 14336, down 14336 -> 4096; rank 4
    model = find_model("mixtral-8x7b")
    pair = 4 * (4096 + 2 * 14336) + 4 * (14336 + 4096)
    assert adapter_parameters(model, 4, ("linear_fc1", "linear_fc2")) == 32 * 8 * pair
    # peft: the fused gate and up of all experts have twice the rank; Mixtral's are named w1, w3 and w2
    fused = 8 * (4096 + 2 * 14336) + 4 * (14336 + 4096)
    router = 4 * (4096 + 8)
    attention = 4 * (2 * (4096 + 4096) + 2 * (4096 + 1024))
    assert adapter_parameters(model, 4, ("gate_proj", "up_proj", "down_proj")) == 0
    assert adapter_parameters(model, 4, ("gate",)) == 32 * router
    assert adapter_parameters(model, 4, SINGLE_TARGETS) == 32 * (attention + 8 * fused + router)


def test_shared_experts_are_adapted_apart_from_other_mlps_where_peft_tells_them_apart() -> None:
    # Llama 4 Maverick: 24 of 48 layers have a shared expert, 5120 -> 8192; the others have MLPs of 16384
    model, names = find_model("llama-4-maverick"), ("gate_proj", "up_proj", "down_proj")
    shared = tuple(f"shared_expert.{name}" for name in names)
    assert adapter_parameters(model, 8, shared) == 24 * 8 * 3 * (5120 + 8192)
    both = 24 * 8 * 3 * (5120 + 8192) + 24 * 8 * 3 * (5120 + 16384)
    assert adapter_parameters(model, 8, names) == both == adapter_parameters(model, 8, (*names, *shared))
    # Kimi K2's remote code: 60 layers with one shared expert, 7168 -> 2048, under DeepSeek's name
    kimi = find_model("kimi-k2")
    assert adapter_parameters(kimi, 8, shared[:1]) == 60 * 8 * (7168 + 2048)
    assert class_targets(kimi, shared[:1]) == ("shared_experts.gate_proj",)
    for name in ("llama-3.1-8b", "deepseek-v3"):  # none there, or peft takes the name for the experts'
        assert "no layer with this name" in str(target_fault(find_model(name), shared)), name


def test_a_router_that_is_a_linear_layer_is_adapted_by_the_name_of_its_class() -> None:
    model = find_model("dbrx")  # 40 layers, 6144 -> 16 experts
    assert adapter_parameters(model, 8, ("router",)) == 40 * 8 * (6144 + 16)
    assert class_targets(model, ("router",)) == ("layer",)


def test_experts_that_peft_leaves_out_have_no_adapters() -> None:
    # gpt-oss 20B: 24 layers, 2880 wide, 64 heads and 8 key heads of 64; neither experts nor router
    model = find_model("gpt-oss-20b")
    attention = (2880 + 4096) + 2 * (2880 + 512) + (4096 + 2880)
    assert adapter_parameters(model, 8, SINGLE_TARGETS) == 24 * 8 * attention
    assert target_fault(model, ("gate_proj", "up_proj", "down_proj")) is not None
    assert target_fault(model, ("q_proj", "down_proj")) is None
    # Qwen3 30B: peft wants both halves of the fused gate and up
    assert "together" in (target_fault(find_model("qwen3-30b-a3b"), ("up_proj",)) or "")


def test_trainers_that_list_linear_layers_find_no_fused_experts() -> None:
    found = linear_names(find_model("qwen3-30b-a3b"))
    assert found == ("q_proj", "k_proj", "v_proj", "o_proj")
    assert linear_names(find_model("llama-3.1-8b")) == SINGLE_TARGETS


def test_latent_attention_has_its_own_projections() -> None:
    # DeepSeek-V2-Lite: 27 layers, direct queries of 16 heads of 192, latents of 512 + 64; rank 2
    model = find_model("deepseek-v2-lite")
    assert adapter_parameters(model, 2, ("q_proj", "kv_a_proj_with_mqa")) == 27 * 2 * (
        (2048 + 16 * 192) + (2048 + 512 + 64)
    )


def test_a_frozen_matrix_of_fewer_bits_has_its_weights_and_their_scales() -> None:
    layer = Matrix(name="", inputs=2459, outputs=5)
    # 12 295 weights: 6148 bytes, 193 scales of 4 bytes and 16 code points of 4
    assert base_bytes(layer, "nf4") == 6148 + 193 * 4 + 64
    # 193 scales of 1 byte, 1 of their own, 256 code points and an offset
    assert base_bytes(layer, "nf4-double") == 6148 + 193 + 4 + 1024 + 4 + 64
    # a byte a weight, and a scale of 4 for each of 5 outputs
    assert base_bytes(layer, "int8") == 12_295 + 5 * 4
    assert base_bytes(layer, "bf16") == 2 * 12_295
    assert base_bytes(layer, "fp32") == 4 * 12_295
    # 256 scales have one of their own, 257 have two: 64 weights each
    for scales, own in ((256, 1), (257, 2)):
        layer = Matrix(name="", inputs=64, outputs=scales)
        assert base_bytes(layer, "nf4-double") == 32 * scales + scales + 4 * own + 1024 + 4 + 64


def test_a_matrix_of_a_checkpoint_has_its_codes_scales_and_tables() -> None:
    layer = Matrix(name="", inputs=4096, outputs=1024)
    weights, groups = 4096 * 1024, 4096 // 128 * 1024
    # half a byte a weight; of a group a scale of 2 bytes and a zero point of 4 bits; 4 bytes an input
    assert base_bytes(layer, "gptq") == weights // 2 + groups * 2 + groups // 2 + 4 * 4096
    assert base_bytes(layer, "gptq-8bit") == weights + groups * 2 + groups + 4 * 4096
    assert base_bytes(layer, "awq") == weights // 2 + groups * 2 + groups // 2
    # 16 bits for 8 weights, 2 bytes for each output, and a codebook of 65536 vectors of 8
    assert base_bytes(layer, "aqlm") == weights // 4 + 2 * 1024 + 65536 * 8 * 2
    # half a byte a weight, a byte for each 16, and one scale of 4 bytes
    assert base_bytes(layer, "nvfp4") == weights // 2 + weights // 16 + 4


def test_peft_adapts_every_linear_layer_but_mambas_output_and_routers_that_return_several_tensors() -> None:
    joined = model_from_config({"model_type": "falcon_h1"}, name="falcon-h1")  # a mixer next to attention
    assert unadaptable(a_model()) == unadaptable(find_model("mixtral-8x7b")) == ""
    assert unadaptable(joined) == "out_proj"
    assert unadaptable(find_model("nemotron-3-nano-30b-a3b")) == "out_proj"  # layers with a mixer alone
    assert unadaptable(find_model("llama-4-scout")) == unadaptable(find_model("phi-3.5-moe")) == "router"


FUSED, EVERY_SINGLE = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"), SINGLE_TARGETS
LLAMAS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize(
    ("targets", "adapters", "bound"),
    [
        (ALL_LINEAR, ("fused",), FUSED),
        (ALL_LINEAR, ("single",), EVERY_SINGLE),
        (ALL_LINEAR, ("fused", "single"), FUSED),
        (ALL_LINEAR, (), ALL_LINEAR),  # a launcher without adapters
        (("q_proj", "v_proj"), ("single",), ("q_proj", "v_proj")),
        (LLAMAS[:4], ("fused",), FUSED[:2]),  # whole blocks have a fused name
        (LLAMAS, ("fused",), FUSED),
        (("q_proj", "v_proj"), ("fused",), ("q_proj", "v_proj")),  # a part of one has none
        (FUSED[:2], ("single",), LLAMAS[:4]),
        (FUSED[2:], ("single",), LLAMAS[4:]),
        (FUSED[:2], ("fused", "single"), FUSED[:2]),
        (EVERY_SINGLE, ("fused",), FUSED),
    ],
)
def test_targets_have_the_names_of_the_launchers_layers(
    targets: tuple[str, ...], adapters: tuple[str, ...], bound: tuple[str, ...]
) -> None:
    assert bound_targets(a_model(), targets, adapters) == bound


def test_a_copy_of_a_module_has_its_weights_and_bias() -> None:
    model = a_model(head_bias=True, embedding_norm=True)
    assert copied_parameters(model, "embed_tokens") == 128256 * 8192
    assert copied_parameters(model, "lm_head") == 128256 * 8192 + 128256
    assert copied_parameters(a_model(), "lm_head") == 128256 * 8192
    # two norms of 80 layers, one behind the embedding and one before the head
    assert copied_parameters(model, "norm") == (2 * 80 + 2) * 8192
    further = a_model(head_transform=True, layer_embedding_size=256)
    assert copied_parameters(further, "norm") == (3 * 80 + 2) * 8192 + 256
    assert copied_parameters(a_model(embedding_size=512), "embed_tokens") == 128256 * 512


def test_experts_are_of_4_bits_where_each_is_a_linear_layer() -> None:
    # DeepSeekMoE 16B, of remote code: attention 4h², two shared experts and 64 routed ones of 3h · 1408
    def weights(name: str) -> int:
        layers = quantized_layers(find_model(name), "moe")
        return sum(one.inputs * one.outputs * max(one.experts, 1) for one in layers)

    h = 2048
    assert weights("deepseek-moe-16b") == 4 * h * h + (2 + 64) * 3 * h * 1408
    # Qwen3 30B-A3B: transformers fuses its experts; 32 heads and 4 key heads of 128
    assert weights("qwen3-30b-a3b") == 2 * h * 4096 + 2 * h * 512


def test_a_model_without_attention_needs_targets_by_name() -> None:
    assert "the default adapts attention" in (target_fault(find_model("llama-3.1-8b"), ()) or "")


@pytest.mark.parametrize(
    ("inputs", "size", "block"),
    [(4096, 32, 32), (2880, 32, 32), (2304, 28, 24), (100, 22, 20), (7, 4, 1), (14, 12, 14), (16, 32, 16)],
)
def test_blocks_of_rotations_are_of_the_next_size_that_divides_the_inputs(
    inputs: int, size: int, block: int
) -> None:
    assert block_of(inputs, size) == block


def test_rotations_train_half_of_each_block_without_its_diagonal() -> None:
    # Llama 3.1 8B: q, k, v, o, gate and up read 4096, down 14336; blocks of 32
    model = find_model("llama-3.1-8b")
    trained = 32 * (6 * 4096 + 14336) * 31 // 2
    assert adapter_parameters(model, 32, SINGLE_TARGETS, rotates=True) == trained
