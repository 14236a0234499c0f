"""Experts in NVFP4, and adapters that are trained as they will be merged into them, by arithmetic."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.inline import cluster_from_mapping, cluster_of_words
from meshwright.profiles.library import find_cluster, find_model
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.compute import Gemm, gemm_seconds, wraps_experts
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.merged_adapters import (
    adapter_moved_bytes,
    adapter_seconds,
    merged_kept_bytes,
    merged_workspace_bytes,
)
from meshwright.solver.cost.parameters import (
    adapter_gemms,
    base_bytes_beyond,
    casts_bytes,
    converted_bytes,
    part_weights,
)
from meshwright.solver.cost.stages import LayerLayout
from meshwright.solver.problem import Problem, Workload
from meshwright.solver.space.launcher_rules import fake_quantization_faults, workload_faults
from tests.problems.pricing import a_layout, a_profile

# 128 experts of gate, up and down, 2048 by 768 each; queries 2048 by 4096, keys and values by 512
QWEN = find_model("qwen3-30b-a3b")
EXPERTS, QUERIES, RANK = 128 * 3 * 2048 * 768, 2048 * 4096, 16
OF_EXPERTS = ("experts.gate_up_proj", "experts.down_proj")
MERGED = {"fake_quantization": "nvfp4-merged"}
SCATTERS = {"wraps_experts": False}
SCATTERING = {"framework_options": SCATTERS}


def cluster(gpus: str) -> ClusterSpec:
    if gpus.startswith("1x"):
        return cluster_from_mapping(cluster_of_words(gpus))
    return find_cluster(gpus, num_nodes=1)


def problem(
    gpus: str = "dgx-h100",
    model: str = "qwen3-30b-a3b",
    **changes: Any,  # noqa: ANN401 - fields
) -> Problem:
    work = Workload(
        global_batch_size=1, seq_length=2048, lora_rank=RANK, lora_targets=("q_proj", *OF_EXPERTS),
        base_precision="nvfp4",
    )  # fmt: skip
    return Problem(
        model=find_model(model), cluster=cluster(gpus), launcher="accelerate",
        workload=replace(work, **changes),
    )  # fmt: skip


def context(**changes: Any) -> Context:  # noqa: ANN401 - fields
    asked = problem(**changes)
    layout = a_layout(data_parallel_size=1, num_microbatches=1, micro_batch_size=1)
    return context_of(asked, Columns.of([layout]), a_profile(asked, "accelerate"))


def test_experts_in_nvfp4_take_nine_sixteenths_of_a_byte_and_other_layers_two() -> None:
    packed, whole = context(), context(base_precision="bf16")
    kinds = LayerLayout.of(QWEN).kinds
    beyond, plain = (
        float(base_bytes_beyond(ctx, kinds, part_weights(ctx, kinds))[0][0]) for ctx in (packed, whole)
    )
    # one scale in fp32 for each matrix; a layer that is not recomputed keeps all of its experts in 16 bits
    assert beyond - plain == EXPERTS * (9 / 16 - 2 + 2) + 4 * 3 * 128


def test_experts_in_nvfp4_are_made_16_bit_once_and_stay_for_the_backward_pass() -> None:
    ctx = context()
    assert [float(one[0]) for one in converted_bytes(ctx, "moe")] == [(9 / 16 + 2) * EXPERTS, 0.0]
    assert float(casts_bytes(ctx, LayerLayout.of(QWEN).kinds, [48])[2][0]) == 2.0 * EXPERTS
    assert not wraps_experts(ctx, "moe")  # adapters are added to outputs
    assert wraps_experts(context(base_precision="bf16"), "moe")


@pytest.mark.parametrize(
    ("gpus", "width"),  # bytes of an expert's weight in the backward pass
    [("1xa100", 2.0), ("1xh100", 2.0), ("1xrtx-5090", 1.0), ("1xrtx-pro-6000", 1.0), ("1xgb10", 1.0)],
)
def test_scattermoe_reads_experts_in_nvfp4_and_makes_sixteen_of_them_wider_backward(
    gpus: str, width: float
) -> None:
    ctx, kinds = context(gpus=gpus, framework_options=SCATTERS), LayerLayout.of(QWEN).kinds
    assert [float(one[0]) for one in converted_bytes(ctx, "moe")] == [0.0, (9 / 16 + width) * EXPERTS]
    cached, _, at_once = casts_bytes(ctx, kinds, [48])
    assert (float(cached[0]), float(at_once[0])) == (0.0, width * EXPERTS * 16 / 128)
    assert not wraps_experts(ctx, "moe")


def test_scattermoe_keeps_experts_in_nvfp4_in_one_layout_and_their_scales_in_two() -> None:
    """Tensors that stay on one GPU: Axolotl marlin_w4a16/prep.py, backend.py ``_cached_prep``."""
    kept = 0
    for outputs, inputs in ((2 * 768, 2048), (2048, 768)):  # gate and up, down
        kept += 128 * (inputs // 16) * (outputs * 2) * 4  # Marlin's weights, 8 of them an int32
        kept += 128 * (inputs // 16) * outputs  # its scales, a byte each
        kept += 128 * outputs * (inputs // 16)  # those of the checkpoint, which the backward pass reads
    packed, whole = context(framework_options=SCATTERS), context(base_precision="bf16")
    kinds = LayerLayout.of(QWEN).kinds
    beyond, plain = (
        float(base_bytes_beyond(one, kinds, part_weights(one, kinds))[0][0]) for one in (packed, whole)
    )
    # but for a few KiB of fp32 scales, one of each expert's matrix in either layout
    assert 0 < beyond - plain - (kept - 2 * EXPERTS) <= 2 * 4 * 3 * 128


def test_merged_adapters_move_ten_bytes_of_each_weight_of_experts_and_26_of_others() -> None:
    forward, backward = adapter_moved_bytes(context(framework_options=MERGED), "moe")
    assert (forward[0], backward[0]) == (10 * EXPERTS + 26 * QUERIES, 4 * QUERIES)


def test_rounded_sums_of_linear_layers_are_kept_and_those_of_experts_replace_their_copy() -> None:
    merged, plain = context(framework_options=MERGED), context()
    assert (merged_kept_bytes(merged, "moe")[0], merged_kept_bytes(plain, "moe")[0]) == (2 * QUERIES, 0)
    # two 16-bit tensors, then B A and the sum of gate and up (2 + 2 of two thirds), less the copy
    at_once = merged_workspace_bytes(merged, "moe")[0]
    assert at_once == pytest.approx(EXPERTS * (2 + 4 * 2 / 3 - 2))
    assert merged_workspace_bytes(plain, "moe")[0] == 0
    alone = context(framework_options=MERGED, lora_targets=("q_proj", "k_proj"))
    assert merged_workspace_bytes(alone, "moe")[0] == 8 * QUERIES  # of the largest layer alone


def test_merged_adapters_of_experts_make_weights_forward_and_no_gradient_of_whole_weights() -> None:
    merged, plain = (
        context(framework_options=options, lora_targets=OF_EXPERTS) for options in (MERGED, {})
    )
    own, others = adapter_seconds(merged, "moe"), adapter_seconds(plain, "moe")
    assert own.backward[0] == others.backward[0]  # four thin products of a matrix in both
    made = [  # B A: as many rows as outputs, a rank of 16; gate and up are one tensor
        Gemm(m=np.array([outputs]), n=inputs, k=16.0, count=128.0, grouped=True)
        for outputs, inputs in ((2 * 768.0, 2048.0), (2048.0, 768.0))
    ]
    assert own.forward[0] == pytest.approx(gemm_seconds(merged, made, "bf16").forward[0])
    assert others.forward[0] == gemm_seconds(plain, adapter_gemms(plain, "moe"), "bf16").forward[0]


def test_a_merged_linear_layer_has_the_gradient_of_its_whole_weight() -> None:
    ctx = context(framework_options=MERGED, lora_targets=("q_proj",))
    rows, whole = np.array([2048.0]), Gemm(m=np.array([2048.0]), n=4096.0, k=2048.0)
    made = Gemm(m=rows * 2.0, n=2048.0, k=16.0)
    trained, frozen = (gemm_seconds(ctx, [whole], "bf16", trained=its).backward[0] for its in (True, False))
    found = adapter_seconds(ctx, "moe")
    sums = gemm_seconds(ctx, [made], "bf16")
    assert found.forward[0] == pytest.approx(sums.forward[0])
    assert found.backward[0] == pytest.approx(sums.backward[0] + trained - frozen)
    assert trained > 1.5 * frozen


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"gpus": "dgx-a100"}, "SonicMoE, which multiplies experts in nvfp4, doesn't run on A100"),
        ({"gpus": "dgx-b200"}, "on B200 .* SonicMoE multiplies experts in 4 bits, which is not priced"),
        ({"gpus": "dgx-b200", "framework_options": MERGED}, None),
        ({"model": "llama-3.1-8b", "lora_targets": ("q_proj",)}, "no vision tower, unlike Llama 3.1 8B"),
        ({"model": "gemma-4-26b-a4b", "lora_targets": ("q_proj",)}, "unlike Gemma 4"),
        ({"gpus": "1xa100", "framework_options": SCATTERS}, None),
        ({"gpus": "1xrtx-5090", "framework_options": SCATTERS}, None),
        ({"framework_options": SCATTERS}, "ScatterMoE's .* are priced on one GPU: on 8 Axolotl converts"),
        (
            {"gpus": "1xb200", "framework_options": SCATTERS},
            "ScatterMoE's experts in nvfp4 .* Marlin multiplies them in 16 bits, not on .*B200",
        ),
        ({"gpus": "1xh100", "model": "gemma-4-26b-a4b", "lora_targets": ("q_proj",), **SCATTERING}, None),
        (
            {"gpus": "1xh100", "model": "llama-3.1-8b", "lora_targets": ("q_proj",), **SCATTERING},
            "is for models with experts in one tensor, unlike Llama 3.1 8B",
        ),
        ({"framework_options": {"dora": True}, "lora_targets": ("q_proj",)}, "DoRA with .* in nvfp4"),
    ],
)
def test_experts_in_nvfp4_are_of_models_and_gpus_on_which_they_are_multiplied_in_16_bits(
    changes: dict[str, Any], why: str | None
) -> None:
    asked = problem(**changes)
    found = [fault.message for fault in workload_faults(asked, launcher_capabilities("accelerate"))]
    assert (found == []) if why is None else (len(found) == 1 and re.search(why, found[0]) is not None)


def test_merged_adapters_need_weights_in_nvfp4() -> None:
    (fault,) = fake_quantization_faults(problem(base_precision="bf16", framework_options=MERGED))
    assert fault.message == "nvfp4-merged is of adapters on frozen weights in nvfp4"
    assert not [*fake_quantization_faults(problem(framework_options=MERGED))]


@pytest.mark.parametrize("launcher", ["trl", "axolotl", "llama-factory-accelerate"])
def test_other_launchers_files_name_no_experts_in_nvfp4(launcher: str) -> None:
    faults = workload_faults(replace(problem(), launcher=launcher), launcher_capabilities(launcher))
    assert any("doesn't support frozen weights in nvfp4" in fault.message for fault in faults)
