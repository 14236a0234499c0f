"""The floor that launching kernels sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.profiles.frameworks import framework_facts
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.model import LayerKind, ModelSpec
from meshwright.profiles.model_parts import RotaryScaling
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.compute import linear_seconds
from meshwright.solver.cost.context import Context, PassSeconds, context_of
from meshwright.solver.cost.launches import kernels_of_modules, launched, launched_again, layer_floor_s
from meshwright.solver.cost.price import price
from tests.builders import a_moe_model
from tests.problems.pricing import GPT, ON_8, a_layout, a_problem, a_profile, of


def floor(
    kind: LayerKind = "dense", layout: Mapping[str, object] | None = None, **options: object
) -> float:
    """Milliseconds that a layer's launches take, of 1 ms for a dense one; the builder's host takes 0.79."""
    model = a_moe_model() if kind == "moe" else GPT
    return float(layer_floor_s(of(model, layout, **options), kind)[0] / 0.79e-3)


def operators(model: ModelSpec, **options: object) -> float:
    """Operators that an expert layer's forward pass launches, without what is launched in loops."""
    ctx = of(model, ON_8, grouped_gemm="grouped", **options)
    return float(layer_floor_s(ctx, "moe")[0] / (ctx.operators.host * ctx.constants.floor_moe) * 14e3)


def test_graphs_take_away_the_launches_of_the_parts_that_they_capture() -> None:
    assert floor() == pytest.approx(1.0)
    assert floor(cuda_graph="attn") == pytest.approx(7 / 14)  # 8 of 14 operators, for one replay
    assert floor(cuda_graph="layer") == pytest.approx(0.15)
    assert floor(cuda_graph="full_iteration") == pytest.approx(0.03)
    whole = operators(a_moe_model())
    # a router has 16 operators and 9 of its scores, sizes 8: two replays are left of them
    assert operators(a_moe_model(), cuda_graph="moe_router+moe_preprocess") == pytest.approx(whole - 31)
    # a whole layer of experts whose sizes change leaves a quarter, of padded experts as much as a dense one
    assert operators(a_moe_model(), cuda_graph="layer") == pytest.approx(0.25 * whole)
    padded = operators(a_moe_model(), cuda_graph="layer", moe_capacity_factor=1.0)
    assert padded == pytest.approx(0.15 * whole)
    # a graph of the whole iteration launches no product of one expert after the other
    captured = {"cuda_graph": "full_iteration", "moe_capacity_factor": 1.0}
    looped = floor("moe", ON_8, **captured)
    assert looped == pytest.approx(floor("moe", ON_8, **captured, grouped_gemm="grouped"))


def test_a_framework_of_more_operators_launches_a_layer_in_as_much_more_time() -> None:
    # nanotron copies queries, keys and values, and adds up the lengths of sequences in each layer
    ctx, own = of(GPT), framework_facts("nanotron").layer_operators
    more = replace(ctx, facts=replace(ctx.facts, layer_operators=own))
    once_s, more_s = (float(layer_floor_s(one, "dense")[0]) for one in (ctx, more))
    assert more_s == pytest.approx(once_s * 25 / 14)


def test_an_expert_layer_launches_what_it_runs() -> None:
    # attention 8; router 16 + 9 of a softmax; sizes 8, exchange 18 + 13 unfused; two products, activation 3
    plain = 8 + 25 + 8 + 31 + 3
    assert operators(a_moe_model()) == pytest.approx(plain)
    assert operators(a_moe_model(), moe_permute_fusion=True) == pytest.approx(plain - 13)
    assert operators(a_moe_model(), moe_router_fusion=True) == pytest.approx(plain - 25 + 7)
    assert operators(a_moe_model(), moe_dispatcher="hybridep") == pytest.approx(plain - 8 - 31 + 3 + 9)
    assert operators(a_moe_model(), moe_dispatcher="allgather") == pytest.approx(plain - 8 - 31 + 2 + 12)
    assert operators(a_moe_model(), overlap_experts=True) == pytest.approx(plain + 10)
    mixed = a_moe_model()
    assert mixed.moe is not None
    mixed = replace(mixed, moe=replace(mixed.moe, router_score="sparsemixer"))
    assert operators(mixed) == pytest.approx(plain - 9 + 14)
    # latent attention 10, a shared expert 4, a sigmoid 14 for 9, its bias 5, limited groups 9
    assert operators(find_model("deepseek-v3")) == pytest.approx(plain + 10 + 4 + 5 + 5 + 9)


def test_a_rotation_that_yarn_scales_launches_its_operators_one_by_one() -> None:
    # of queries and keys each: six of cosines and sines, six that rotate, for one kernel
    scaling = RotaryScaling(kind="yarn", factor=32.0)
    assert operators(replace(a_moe_model(), rotary_scaling=scaling)) == pytest.approx(
        8 + 25 + 8 + 31 + 3 + 22
    )
    ctx, scaled = of(), of(replace(GPT, rotary_scaling=scaling))
    once_s, more_s = (float(layer_floor_s(one, "dense")[0]) for one in (ctx, scaled))
    assert more_s == pytest.approx(once_s * (14 + 22) / 14)


def test_tests_of_continuous_integration_launch_a_dense_layer_in_a_time_of_their_own() -> None:
    own = floor(layer_launch_s=2.2e-3)
    assert own == pytest.approx(2.2)
    # an expert layer's 75 operators are 61 more than a dense one's 14, each a fourteenth of 1 ms
    experts = floor("moe", ON_8, layer_launch_s=2.2e-3, grouped_gemm="grouped")
    assert experts == pytest.approx(2.2 + 61 / 14)


def test_a_host_that_waits_for_sizes_launches_beside_what_the_gpu_runs() -> None:
    busy, floor_s = PassSeconds(forward=np.array([1e-3]), backward=np.array([1e-3])), np.array([1e-3])

    def forward_ms(kind: LayerKind, **options: object) -> float:
        return float(launched(of(a_moe_model(), ON_8, **options), kind, busy, floor_s).forward[0] * 1e3)

    assert forward_ms("moe") == pytest.approx(2.0 ** (1 / 3))  # (1 + 1)^(1/3)
    for known in ({"moe_capacity_factor": 1.0}, {"moe_dispatcher": "allgather"}):
        assert forward_ms("moe", **known) == pytest.approx(2.0 ** (1 / 8))
    assert forward_ms("dense") == pytest.approx(2.0 ** (1 / 8))


def test_launches_grow_with_tensor_parallelism_only_where_the_cpu_waits_for_messages() -> None:
    within = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "stage_layers": (2, 2)}
    assert floor(layout=within) == pytest.approx(1.0)  # one island: the CPU runs ahead
    across = {**within, "data_parallel_size": 2}  # 16 GPUs, two islands
    assert floor(layout=across) == pytest.approx(1.0)
    waits = of(GPT, across, synchronous_transfers=True)
    expected = waits.constants.floor_across * (1.0 + 0.5 * 3.0)  # three ranks more, half as much each
    assert layer_floor_s(waits, "dense")[0] / 0.79e-3 == pytest.approx(expected)


def test_blocking_launches_come_on_top_of_what_the_gpu_runs() -> None:
    busy = PassSeconds(forward=np.array([5e-3]), backward=np.array([10e-3]))
    ctx = of(launch_blocking=True)
    passes = launched(ctx, "dense", busy, np.array([1e-3]))
    assert passes.forward[0] == pytest.approx(5e-3 + 4.0 * 1e-3)
    assert passes.backward[0] == pytest.approx(10e-3 + 4.0 * 1e-3 * ctx.constants.floor_backward)


def of_framework(model: str, framework: str, **asked: Any) -> Context:  # noqa: ANN401 - fields of a workload
    problem = a_problem(find_model(model), **asked)
    columns = Columns.of([a_layout(stage_layers=(problem.model.num_layers,), num_microbatches=8)])
    return context_of(problem, columns, a_profile(problem, framework))


def kernels(model: str, framework: str, **asked: Any) -> float:  # noqa: ANN401 - fields of a workload
    """Kernels of a layer's forward pass."""
    ctx = of_framework(model, framework, **asked)
    return float(kernels_of_modules(ctx, "moe" if ctx.model.moe else "dense")[0])


@pytest.mark.parametrize(
    ("model", "framework", "asked", "expected"),
    [
        # counted by a dispatch mode over a layer of transformers 5.17, and of peft 0.21.2
        ("llama-3.2-1b", "trl", {}, 48),
        ("llama-3.2-1b", "deepspeed", {}, 38),
        ("qwen3-0.6b", "trl", {}, 64),
        ("qwen3-0.6b", "deepspeed", {}, 54),
        ("mixtral-8x7b", "trl", {}, 68),
        ("mixtral-8x7b", "deepspeed", {}, 62),
        ("qwen3-30b-a3b", "trl", {}, 84),  # of 85: its router norms the chosen weights
        ("qwen3-30b-a3b", "deepspeed", {}, 78),
        ("llama-3.2-1b", "trl", {"lora_rank": 16, "lora_targets": ("q_proj", "v_proj")}, 38 + 2 * 8),
        # a loop over 8 experts: router and masks 18, and 17 kernels of each
        ("mixtral-8x7b", "deepspeed", {"framework_options": {"grouped_gemm": "loop"}}, 33 + 18 + 8 * 17),
        # compiled: two norms, seven products with casts and five casts of inputs, two rotations with casts
        # of both, attention, activation and two sums
        (
            "llama-3.2-1b", "trl",
            {"framework_options": {"norm_fused": True, "elementwise_fused": True}},
            2 + 14 + 5 + 4 + 1 + 1 + 2,
        ),
    ],
)  # fmt: skip
def test_a_layer_of_transformers_launches_the_kernels_that_were_counted(
    model: str, framework: str, asked: dict[str, object], expected: int
) -> None:
    assert kernels(model, framework, **asked) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("model", "framework", "asked", "expected"),
    [
        # all calls of torch's operators, as a dispatch mode counts them: a product has four of them
        ("llama-3.2-1b", "trl", {}, 87),
        ("llama-3.2-1b", "deepspeed", {}, 77),
        ("llama-3.2-1b", "trl", {"lora_rank": 16, "lora_targets": ("all-linear",)}, 175),
        ("gemma-3-1b", "deepspeed", {"framework_options": {"attention_kernel": "flash2"}}, 121),  # of 125
        ("qwen3-0.6b", "deepspeed", {}, 93),  # of 95
    ],
)
def test_the_host_issues_each_call_of_a_layer(
    model: str, framework: str, asked: dict[str, Any], expected: int
) -> None:
    options = {"layer_launch_s": 48e-6} | asked.get("framework_options", {})  # a plain layer has 48
    ctx = of_framework(model, framework, **{**asked, "framework_options": options})
    assert layer_floor_s(ctx, "dense")[0] / ctx.operators.host * 1e6 == pytest.approx(expected)


def test_a_checkpointed_layer_is_issued_with_hooks_and_the_hosts_lead_hides_launches() -> None:
    none = PassSeconds(forward=np.array([1e-9]), backward=np.array([1e-9]))
    floor_s = np.array([1e-3])
    problem = a_problem()
    layout = a_layout(recompute_granularity="full", recompute_layers=problem.model.num_layers)
    ctx = context_of(problem, Columns.of([layout]), a_profile(problem, "trl"))
    assert launched(ctx, "dense", none, floor_s).forward[0] == pytest.approx(1.28e-3)
    again_s, left_s = launched_again(ctx, "dense", none.forward, floor_s, 0.56e-3)
    assert (again_s[0], left_s[0]) == (pytest.approx(1e-3), pytest.approx(0.0))  # 1.56 less the lead
    again_s, left_s = launched_again(ctx, "dense", np.array([1e-3]), floor_s, 1e-3)
    assert left_s[0] == pytest.approx(1e-3 + again_s[0] - 1.56e-3)  # the GPU took longer than issuing


def test_the_backward_pass_of_single_kernels_takes_nearly_twice_as_many_calls() -> None:
    busy, floor_s = PassSeconds(forward=np.array([1e-9]), backward=np.array([1e-9])), np.array([1e-3])
    problem = a_problem()
    ctx = context_of(problem, Columns.of([a_layout()]), a_profile(problem, "trl"))
    passes = launched(ctx, "dense", busy, floor_s)
    assert passes.backward[0] / passes.forward[0] == pytest.approx(1.85)  # 158 of 87, 142 of 77, 238 of 129


def test_experts_of_fp32_weights_multiply_in_fp32_under_autocast() -> None:
    def forward_s(**options: object) -> float:
        machine = find_cluster("dgx-h100")
        ctx = of_framework("mixtral-8x7b", "trl", cluster=machine, framework_options=options)
        return float(linear_seconds(ctx, "moe").forward[0])

    # nearly all FLOPs are the experts': in TF32 half of bf16's rate, in fp32 66.9 of 989.4 TFLOP/s
    assert forward_s() / forward_s(tf32_products=True) == pytest.approx(989.4 / 2.0 / 66.9, rel=0.15)
    assert forward_s(tf32_products=True) > forward_s(grouped_gemm="loop")  # F.linear, which is autocast


def test_a_price_does_not_depend_on_the_rows_beside_it() -> None:
    """Experts on one rank are transformers' own; on several ranks they are DeepSpeed's."""
    problem = a_problem(a_moe_model())
    profile = a_profile(problem, "deepspeed")
    own = a_layout(
        zero_stage=3,
        data_parallel_size=8,
        zero_shard_size=8,
        recompute_granularity="full",
        recompute_layers=4,
    )
    alone, beside = (
        price(problem, Columns.of([own, *others]), profile).take(np.array([0]))
        for others in ([], [a_layout(**ON_8)])
    )
    for name in ("forward_s", "backward_s", "replay_s"):
        assert np.array_equal(getattr(alone, name), getattr(beside, name)), name
