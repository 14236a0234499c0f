"""Bytes and seconds of single folds over a layer's operators, each by its arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.adapters import (
    layers_outside,
    of_linear_experts,
    quantized_layers,
    scale_bytes,
    usual_targets,
)
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.storage import BasePrecision
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.compute import (
    _batched_experts_seconds,
    _masked_slowdown,
    _rate_of,
)
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.parameters import (
    adapter_bytes,
    adapter_gemms,
    adapter_kept_bytes,
    base_bytes_beyond,
    casts_bytes,
    converted_bytes,
    norm_workspace_bytes,
    part_weights,
    prediction_copies,
)
from meshwright.solver.cost.stages import LayerLayout
from tests.builders import a_moe_model
from tests.problems.pricing import GPT, a_layout, a_problem, a_profile

H, RANK = 1024, 16


def context(
    model: object = GPT, framework: str = "megatron-core", *, layout: object = None, **workload: object
) -> Context:
    problem = a_problem(model, **workload)  # type: ignore[arg-type]
    return context_of(problem, Columns.of([layout or a_layout()]), a_profile(problem, framework))  # type: ignore[list-item]


def test_layers_outside_are_adapted_as_wide_as_all_layers_embeddings() -> None:
    gemma = find_model("gemma-3n-e4b")
    first, _ = layers_outside(gemma, ("all-linear",))
    assert gemma.num_layers * gemma.layer_embedding_size in {one.outputs for one in first}
    assert layers_outside(gemma, ("q_proj",)) == ((), ())


@pytest.mark.parametrize(
    ("name", "adapters"),
    # of every expert gate, up and down: 3 pairs of hidden size and width, in every layer
    [("mixtral-8x7b", 4 * 3 * (4096 + 14336) * 8 * 32), ("gpt-oss-20b", 0), ("llama-3.1-8b", 0)],
)
def test_experts_that_peft_converts_would_be_linear_layers_in_transformers_4(
    name: str, adapters: int
) -> None:
    assert of_linear_experts(find_model(name), 4) == adapters


def test_a_launchers_own_targets_are_kept_where_the_model_has_them() -> None:
    usual = ("q_proj", "v_proj")
    assert usual_targets(find_model("llama-3.1-8b"), usual, ("single",)) == usual
    assert usual_targets(find_model("phi-4"), usual, ("single",)) != usual  # it has qkv_proj


def test_a_prediction_layers_embedding_is_one_of_the_copies_on_the_last_stage() -> None:
    # an embedding for the predictions, and tied the output as well: one of them is the prediction's
    stages = a_layout(pipeline_parallel_size=2, stage_layers=(2, 2))
    for tied in (False, True):
        model = replace(GPT, num_mtp_layers=1, tied_embeddings=tied)
        assert prediction_copies(context(model, layout=stages))[0] == 51200 * H


def test_a_head_of_unit_rows_is_copied_and_its_gradient_with_it_where_it_is_trained() -> None:
    model = replace(GPT, normalized_head=True, tied_embeddings=False)
    vocabulary = 51200 * H
    for modules, each in (((), 2), (("lm_head",), 4)):
        ctx = context(model, lora_rank=RANK, lora_targets=("o_proj",), trained_modules=modules)
        _, head, _ = casts_bytes(ctx, LayerLayout.of(model).kinds, (4,))
        assert head[0] == each * vocabulary


def test_doras_norm_needs_the_weight_four_times_and_a_unit_matrix() -> None:
    # of o_proj, 1024 by 1024, bf16: B A, the scaled one, and the sum (6 bytes), and a unit matrix of 2
    adapters: dict[str, object] = {"lora_rank": RANK, "lora_targets": ("o_proj",)}
    ctx = context(**adapters, framework_options={"dora": True})  # type: ignore[arg-type]
    assert not ctx.wide_adapters.any()
    assert norm_workspace_bytes(ctx, "dense")[0] == (6 + 2) * H * H
    # forward, peft's graph operator by operator: 2 of the unit matrix, 12 of each weight, 14 of an output
    plain = context(**adapters)  # type: ignore[arg-type]
    more = adapter_bytes(ctx, "dense")[0] - adapter_bytes(plain, "dense")[0]
    assert more[0] == (2 + 12) * H * H + 14 * 2048 * H


@pytest.mark.parametrize(
    ("framework", "offload", "less"),
    # bytes of a weight less than trained ones' 4: accelerate 1.11 casts all; the host has none
    [
        ("accelerate", "none", 2.0),
        ("accelerate", "optimizer+parameters", 0.0),
        ("llama-factory-accelerate", "none", 0.0),
    ],
)
def test_shards_of_a_frozen_base_stay_in_16_bits_unless_accelerate_casts_them_all(
    framework: str, offload: str, less: float
) -> None:
    sharded = a_layout(data_parallel_size=8, zero_stage=3, zero_shard_size=8, offload=offload)
    ctx = context(framework=framework, layout=sharded, lora_rank=RANK, lora_targets=("o_proj",))
    kinds = LayerLayout.of(GPT).kinds
    weights = part_weights(ctx, kinds)
    assert ctx.facts.weight_bytes == 4.0
    assert base_bytes_beyond(ctx, kinds, weights)[0][0] == -less * float(weights[0].dense[0]) / 8


@pytest.mark.parametrize("framework", ["trl", "llama-factory-accelerate"])
def test_4_bit_shards_are_a_quarter_of_those_in_bf16_and_their_scales_are_whole(framework: str) -> None:
    # QLoRA over 8 ranks: 1.5 bytes of each quantised weight less on a rank, scales of 64 weights on all
    ctx = context(
        framework=framework, layout=a_layout(data_parallel_size=8, zero_stage=3, zero_shard_size=8),
        lora_rank=RANK, lora_targets=("q_proj",), base_precision="nf4",
    )  # fmt: skip
    assert ctx.packed
    kinds = LayerLayout.of(GPT).kinds
    quantised = 4 * H * H + 2 * H * 4096
    scales = sum(scale_bytes(one, "nf4") for one in quantized_layers(GPT, "dense"))
    casts = base_bytes_beyond(ctx, kinds, part_weights(ctx, kinds))[0][0]
    cut = (2.0 - ctx.facts.weight_bytes) * float(part_weights(ctx, kinds)[0].dense[0]) / 8
    assert casts == pytest.approx(cut + scales - 1.5 * quantised / 8, rel=0.01)


def test_8_bit_shards_are_half_of_those_in_bf16_under_the_launcher_that_cuts_them() -> None:
    # a byte of each quantised weight less on a rank, and a scale of 4 bytes for each output on all
    ctx = context(
        framework="axolotl", layout=a_layout(data_parallel_size=8, zero_stage=3, zero_shard_size=8),
        lora_rank=RANK, lora_targets=("q_proj",), base_precision="int8",
    )  # fmt: skip
    assert (ctx.packed, ctx.layer_bytes_sent) == (True, 1.0)
    kinds = LayerLayout.of(GPT).kinds
    quantised, outputs = 4 * H * H + 2 * H * 4096, 5 * H + 4096
    found = base_bytes_beyond(ctx, kinds, part_weights(ctx, kinds))[0][0]
    cut = (2.0 - ctx.facts.weight_bytes) * float(part_weights(ctx, kinds)[0].dense[0]) / 8
    assert found == pytest.approx(cut + 4 * outputs - quantised / 8, rel=0.01)


@pytest.mark.parametrize(
    ("precision", "forward", "backward"),
    # 8 bits: times scales (5), times a constant (8) and cast (6), once; layers are scaled backward alone
    [("nf4", 2.5, 2.5), ("int8", 19.0, 0.0)],
)
def test_quantised_experts_in_one_tensor_are_made_16_bit_at_once_and_kept(
    precision: BasePrecision, forward: float, backward: float
) -> None:
    model = find_model("qwen3-30b-a3b")
    plain, narrow = (
        context(
            model, "accelerate", lora_rank=RANK, lora_targets=("q_proj",), base_precision=precision,
            framework_options={"quantizes_experts": on},
        )
        for on in (False, True)
    )  # fmt: skip
    experts = 128 * 3 * 2048 * 768
    moved = [
        float(of_all[0] - others[0])
        for of_all, others in zip(
            converted_bytes(narrow, "moe"), converted_bytes(plain, "moe"), strict=True
        )
    ]
    assert moved == pytest.approx([forward * experts, backward * experts])
    assert float(casts_bytes(narrow, LayerLayout.of(model).kinds, [48])[2][0]) == 2.0 * experts


@pytest.mark.parametrize(
    ("wide", "precision", "moved", "kept"),
    [
        # of each input of 2048 tokens, and of each number of its blocks of 32; peft's adapters are fp32 on
        # replicas under autocast, which casts what the product reads
        (True, "bf16", (30 + 32, 114 + 176), (2, 14)),
        (False, "bf16", (6 + 8, 54 + 88), (0, 8)),
        (True, "awq", (30 + 32, 114 + 176), (2 + 2, 14)),  # whose own product holds the rotated input
    ],
)
def test_rotated_inputs_are_cast_multiplied_and_kept(
    wide: bool, precision: BasePrecision, moved: tuple[int, int], kept: tuple[int, int]
) -> None:
    sharded = a_layout(data_parallel_size=8, zero_stage=3, zero_shard_size=8)
    ctx = context(
        framework="llama-factory-accelerate", lora_rank=32, lora_targets=("o_proj",),
        base_precision=precision, layout=a_layout() if wide else sharded, framework_options={"oft": True},
    )  # fmt: skip
    assert bool(ctx.wide_adapters[0]) == wide
    inputs, numbers = 2048 * H, 32 * H
    passes = sum(float(one[0]) for one in adapter_bytes(ctx, "dense"))
    assert passes == pytest.approx(moved[0] * inputs + moved[1] * numbers)
    assert float(adapter_kept_bytes(ctx, "dense")[0]) == pytest.approx(kept[0] * inputs + kept[1] * numbers)
    (product,) = adapter_gemms(ctx, "dense")
    assert np.ravel(2.0 * product.m * product.n * product.k)[0] == 2.0 * inputs * 32


def test_experts_copied_for_every_token_are_read_and_written() -> None:
    # 2048 tokens to 2 experts each of 3 matrices in fp32: read and written (8), cast (6), read (2)
    model = a_moe_model()
    ctx = context(model, "accelerate", layout=a_layout(stage_layers=(32,)))
    byte_s = 2048 * 2 * (3 * 4096 * 14336) / ctx.hbm_bytes_per_s
    found = _batched_experts_seconds(ctx)
    assert (found.forward[0], found.backward[0]) == pytest.approx((16 * byte_s, 24 * byte_s))


def test_layers_with_a_mask_compute_every_score_and_the_others_half() -> None:
    # Gemma 2: every second layer has a window of 4096; of 8192 tokens those get masks under sdpa
    gemma = replace(find_model("gemma-2-9b"), attention_softcap=None)
    problem = replace(
        a_problem(gemma, seq_length=8192, framework_options={"attention_kernel": "sdpa"}),
        cluster=find_cluster("dgx-h100"), launcher="accelerate",
    )  # fmt: skip
    layout = Columns.of([a_layout(stage_layers=(gemma.num_layers,))])
    ctx = context_of(problem, layout, a_profile(problem, "accelerate"))
    slower = _rate_of(ctx, ctx.kernel) / _rate_of(ctx, ctx.masked_kernel) / 0.66
    scores = 0.5 * slower * 8192 + 0.5 * 8193 / 2
    assert ctx.masked[0] == 0.5
    assert np.asarray(_masked_slowdown(ctx))[0] == pytest.approx(scores / gemma.attended_tokens(8192))
