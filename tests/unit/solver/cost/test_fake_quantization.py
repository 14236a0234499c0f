"""Quantisation-aware training: bytes that torchao's fake quantisers move and keep, by arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.profiles.library import find_cluster, find_model
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.fake_quantization import (
    fake_kept_bytes,
    fake_quantized,
    fake_workspace_bytes,
)
from meshwright.solver.cost.launches import kernels_of_modules
from meshwright.solver.cost.memory import layer_activation_bytes
from meshwright.solver.problem import Problem, Workload
from meshwright.solver.space.launcher_rules import fake_quantization_faults
from tests.problems.pricing import a_layout, a_profile

# Llama 3.2 1B: queries and output 2048 by 2048, keys and values 2048 by 512, an MLP of 3 times 2048 by 8192
LLAMA, ROWS = find_model("llama-3.2-1b"), 2 * 1024
WEIGHTS = 2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192
READ = ROWS * (3 * 2048 + 2048 + 2 * 2048 + 8192)  # by queries, keys, values; output; gate, up; down


def problem(**options: object) -> Problem:
    stated = {"loss_kernel": "liger", "norm_fused": True, "elementwise_fused": True, **options}
    work = Workload(global_batch_size=2, seq_length=1024, framework_options=stated)  # type: ignore[arg-type]
    cluster = find_cluster("dgx-h100", num_nodes=1)
    return Problem(model=LLAMA, cluster=cluster, workload=work, launcher="axolotl")


def context(**options: object) -> Context:
    asked = problem(**options)
    layout = a_layout(data_parallel_size=1, num_microbatches=1, micro_batch_size=2)
    return context_of(asked, Columns.of([layout]), a_profile(asked, "axolotl"))


@pytest.mark.parametrize(
    ("word", "group", "forward", "backward"),
    [
        ("int8-int4", 32, (76 + 72 / 32, 56), (168 + 182 / 32, 62)),
        ("int8-int4", 256, (76 + 72 / 256, 56), (168 + 182 / 256, 62)),
        ("bf16-int4", 128, (86 + 30 / 128, 0), (200 + 80 / 128, 0)),
        ("fp8-int4", 128, (86 + 30 / 128, 52), (200 + 80 / 128, 139)),
        ("fp8-fp8", 32, (52, 52), (139, 139)),
        ("mxfp4", 32, (290.5 + 138 / 32, 290.5 + 138 / 32), (119 + 42 / 32, 119 + 42 / 32)),
        ("int8-ternary", 32, (18, 18), (0, 0)),  # read thrice (8), a difference and a sum (10)
    ],
)
def test_each_weight_and_each_number_that_a_layer_reads_is_rounded_by_single_kernels(
    word: str, group: int, forward: tuple[float, float], backward: tuple[float, float]
) -> None:
    ctx = context(fake_quantization=word, fake_quantized_group=group)
    passes, bytes_per_s = fake_quantized(ctx, "dense"), ctx.single_bytes_per_s
    assert bytes_per_s == 0.7 * ctx.gpu.hbm_bytes_per_s  # an H100's eager kernels
    for seconds, (of_weight, of_input) in ((passes.forward, forward), (passes.backward, backward)):
        assert seconds[0] * bytes_per_s == pytest.approx(of_weight * WEIGHTS + of_input * READ)


def test_rounded_copies_are_kept_of_each_layer_instead_of_what_they_read() -> None:
    plain, rounded = context(), context(fake_quantization="int8-int4")
    # of a weight four numbers in fp32 and the rounded one, and four of a group of 32; 6 of an input
    kept = (18 + 16 / 32) * WEIGHTS + 6 * READ
    assert fake_kept_bytes(rounded, "dense")[0] == kept
    # both norms' outputs and the MLP's product are kept no more; attention keeps its own output anyway
    spared = 2 * ROWS * (2048 + 2048 + 8192)
    more = layer_activation_bytes(rounded, "dense")[0] - layer_activation_bytes(plain, "dense")[0]
    assert more == pytest.approx((kept - spared) * plain.constants.activation)
    # 8-bit floats leave inputs as they are: queries, keys and values share them
    floats = context(fake_quantization="fp8-fp8")
    more = layer_activation_bytes(floats, "dense")[0] - layer_activation_bytes(plain, "dense")[0]
    assert more == pytest.approx(16 * (WEIGHTS + READ) * plain.constants.activation)
    # onebitllms' rounded copies alone: the gradient passes by what rounds
    assert fake_kept_bytes(context(fake_quantization="int8-ternary"), "dense")[0] == 2 * (WEIGHTS + READ)
    # of packed 4 bits half a byte, and a scale of one for 32
    assert fake_kept_bytes(context(fake_quantization="mxfp4"), "dense")[0] == (0.5 + 1 / 32) * (
        WEIGHTS + READ
    )


def test_rounding_the_largest_tensor_needs_room_beside_what_is_kept() -> None:
    rounded = context(fake_quantization="int8-int4")
    # one of the MLP's matrices (8 a weight), or the rows of its last one (12 a number)
    assert fake_workspace_bytes(rounded, "dense")[0] == max(8 * 2048 * 8192, 12 * ROWS * 8192)
    assert fake_workspace_bytes(context(), "dense")[0] == 0


def test_kernels_of_both_passes_are_shared_out_over_both() -> None:
    plain, rounded = context(), context(fake_quantization="int8-int4")
    more = kernels_of_modules(rounded, "dense")[0] - kernels_of_modules(plain, "dense")[0]
    # 7 layers: 26 + 16 kernels forward, 11 + 39 backward; a backward pass has 1.85 of a forward's
    assert more == pytest.approx(7 * (26 + 16 + 11 + 39) / 2.85)


def test_experts_in_one_tensor_are_not_rounded() -> None:
    asked = problem(fake_quantization="int8-int4")
    sparse = replace(asked, model=find_model("qwen3-30b-a3b"))
    ctx = context_of(sparse, Columns.of([a_layout()]), a_profile(sparse, "axolotl"))
    # 18 + 16 / 32 of attention's weights alone: 2048 to 32 heads of 128, to 4 + 4, and back
    weights = 2048 * 128 * (32 + 4 + 4 + 32)
    rows = ctx.tokens[0] * (3 * 2048 + 32 * 128)
    assert fake_kept_bytes(ctx, "moe")[0] == 18.5 * weights + 6 * rows


@pytest.mark.parametrize(
    ("changes", "options", "why"),
    [
        ({}, {"loss_kernel": "whole"}, "a head that multiplies"),
        ({}, {"fake_quantized_group": 96}, "groups of 96 weights do not divide 2048, 8192 inputs"),
        ({"lora_rank": 8}, {}, "next to adapters"),
    ],
)
def test_what_is_not_priced_is_refused(
    changes: dict[str, object], options: dict[str, object], why: str
) -> None:
    asked = problem(fake_quantization="int8-int4", **options)
    asked = replace(asked, workload=replace(asked.workload, **changes))  # type: ignore[arg-type]
    assert [why in fault.message for fault in fake_quantization_faults(asked)] == [True]
    tower = replace(asked, model=find_model("gemma3-12b-pt"))
    assert ("vision tower" in str([*fake_quantization_faults(tower)])) is (tower.model.tower is not None)
