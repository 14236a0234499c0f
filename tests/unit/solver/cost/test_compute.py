from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.collectives.collectives import all_to_all_s
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.frameworks import framework_facts
from meshwright.profiles.library import find_gpu, find_model, gpu_names
from meshwright.profiles.model import LayerKind, ModelSpec
from meshwright.profiles.model_parts import MlaSpec, MoeSpec, RotaryScaling
from meshwright.profiles.operators.tables import load_operator_tables
from meshwright.profiles.sequences import SequenceLengths
from meshwright.solver.configuration import Columns, Configuration, FloatArray
from meshwright.solver.cost.communication import dispatched_copies, expert_parallel
from meshwright.solver.cost.compute import (
    Gemm,
    attention_level,
    core_attention,
    flash_lookup,
    gemm_seconds,
    kernel_rate,
    layer_gemms,
    linear_seconds,
    memory_bound,
    permuted_bytes,
    replayed_s,
    second_products,
)
from meshwright.solver.cost.compute import (
    flash_s as kernel_s,
)
from meshwright.solver.cost.context import Context, PassSeconds, context_of, load_of_same
from meshwright.solver.cost.launches import layer_floor_s
from meshwright.solver.cost.memory import layer_activation_bytes
from meshwright.solver.cost.parameters import adapter_bytes
from meshwright.solver.cost.price import price
from meshwright.solver.cost.step_end import accumulation
from meshwright.solver.problem import Problem
from tests.builders import a_cluster, a_gpu, a_model, a_moe_model, weights_of
from tests.problems.pricing import GPT, ON_8, a_layout, a_problem, a_profile, of


def context(problem: Problem, configuration: Configuration, framework: str = "megatron-core") -> Context:
    return context_of(problem, Columns.of([configuration]), a_profile(problem, framework))


def flops(gemms: list[Gemm]) -> float:
    """Of the forward pass on one rank."""
    return sum(float(np.sum(2.0 * g.m * g.n * g.k * g.count)) for g in gemms)


def test_the_gemms_of_a_dense_layer_hold_two_flops_for_each_weight_and_token() -> None:
    model = a_model()
    problem = a_problem(model, seq_length=4096)
    weights = weights_of(model.layer("dense"), "attention", "mlp")
    assert flops(layer_gemms(context(problem, a_layout(stage_layers=(80,))), "dense")) == pytest.approx(
        2 * weights * 4096
    )


def test_tensor_and_context_parallelism_split_them_evenly() -> None:
    # tp 8, cp 2: a sixteenth on each rank (8 kv heads, so none is copied)
    problem = a_problem(a_model(), seq_length=4096)
    whole = flops(layer_gemms(context(problem, a_layout(stage_layers=(80,))), "dense"))
    layout = a_layout(tensor_parallel_size=8, context_parallel_size=2, stage_layers=(80,))
    assert flops(layer_gemms(context(problem, layout), "dense")) == pytest.approx(whole / 16)


def test_key_and_value_heads_are_copied_beyond_their_number() -> None:
    # 8 kv heads on tp 16: every rank still projects one key and one value head of 128
    layout = a_layout(tensor_parallel_size=16, stage_layers=(80,))
    first = layer_gemms(context(a_problem(a_model()), layout), "dense")[0]
    assert float(np.sum(first.n)) == 64 * 128 / 16 + 2 * 128


def test_routed_tokens_visit_top_k_experts() -> None:
    # alone: 2 experts a token, 3 matrices of 4096 x 14336, and the attention
    model = a_moe_model()
    layout = a_layout(stage_layers=(32,))
    weights = weights_of(model.layer("moe"), "attention") + 2 * 3 * 4096 * 14336
    assert flops(layer_gemms(context(a_problem(model), layout), "moe")) == pytest.approx(2 * weights * 2048)


def test_shared_experts_see_every_token() -> None:
    moe = MoeSpec(
        num_experts=8, top_k=2, ffn_hidden_size=14336, num_shared_experts=1, shared_ffn_hidden_size=2048
    )
    layout = a_layout(stage_layers=(32,))
    plain = flops(layer_gemms(context(a_problem(a_moe_model()), layout), "moe"))
    shared = a_model(num_layers=32, hidden_size=4096, moe=moe)
    extra = flops(layer_gemms(context(a_problem(shared), layout), "moe")) - plain
    assert extra == pytest.approx(2 * 3 * 4096 * 2048 * 2048)


def flash_s(problem: Problem, **changes: object) -> float:
    """Forward seconds of one layer's attention."""
    return float(core_attention(context(problem, a_layout(stage_layers=(80,), **changes))).forward[0])


def test_flash_attention_takes_its_table_at_the_level_of_the_stack() -> None:
    # H100, 64 heads of 128 over 8 kv heads: computing is all but all of it, so the level divides
    problem = a_problem(a_model(), seq_length=8192)
    table = load_operator_tables("h100-sxm-80gb").find("attention_forward")
    whole = [np.array([float(size)]) for size in (1, 64, 8, 8192, 128)]
    table_s = float((table.roof_s(*whole) * table.slowdown(*whole))[0])
    level = a_profile(problem).constants.attention
    assert flash_s(problem) == pytest.approx(table_s / level, rel=0.02)


@pytest.mark.parametrize(
    ("kernel", "length", "of_level"),
    [("cudnn", 8192, 1.0), ("cudnn", 131072, 1 / 16), ("triton", 131072, 1.0)],
)
def test_what_attention_takes_on_top_of_its_kernel_grows_with_the_tokens(
    kernel: str, length: int, of_level: float
) -> None:
    # the level holds for the lengths that it was fitted on; sixteen times as many keys leave a sixteenth
    problem = a_problem(a_model(), seq_length=length, framework_options={"attention_kernel": kernel})
    ctx = context(problem, a_layout(stage_layers=(80,)))
    beyond = 1.0 / ctx.constants.attention - 1.0
    assert attention_level(ctx) == pytest.approx(1.0 / (1.0 + beyond * of_level), rel=1e-4)


def test_a_rank_of_a_context_parallel_ring_runs_a_kernel_for_each_part_of_the_keys() -> None:
    # 4 ranks of 8192 tokens: each computes a quarter of the scores, at the rate of 2048 tokens
    whole, part = a_problem(a_model(), seq_length=8192), a_problem(a_model(), seq_length=2048)
    ring = flash_s(whole, context_parallel_size=4)
    assert ring == pytest.approx(4 * flash_s(part), rel=1e-3)
    assert ring > 1.05 * flash_s(whole) / 4


def test_few_heads_on_a_rank_use_the_gpu_worse_than_many() -> None:
    # tp 8 leaves 8 of 64 heads: an eighth of the work takes more than an eighth of the time
    problem = a_problem(a_model(), seq_length=4096)
    assert flash_s(problem, tensor_parallel_size=8) > 1.02 * flash_s(problem) / 8


def test_flash_attention_without_a_table_computes_half_the_square() -> None:
    # 2 * s * heads * (128 + 128) * (s + 1) / 2 FLOP at the flash rate, and a launch
    cdna = a_gpu(slug="x", architecture="cdna3", peak_flops={"bf16": 1e15})
    problem = a_problem(a_model(), seq_length=8192, cluster=a_cluster(num_nodes=4, gpu=cdna))
    ctx = context(problem, a_layout(stage_layers=(80,)))
    assert not ctx.operators.tables
    rate = 1e15 * ctx.operators.flash * ctx.constants.attention
    work = 2 * 8192 * 64 * 256 * 8193 / 2
    expected = work * (1 + ctx.operators.flash_s0 / 8192) / rate + ctx.operators.launch_s
    assert float(core_attention(ctx).forward[0]) == pytest.approx(expected)


def test_the_backward_pass_of_attention_takes_the_measured_multiple_of_the_forward() -> None:
    # SimuMax: 2.896 on the A100, 2.688 on the B200; between them (geometric mean) on other GPUs
    attention = core_attention(context(a_problem(a_model()), a_layout(stage_layers=(80,))))
    assert float(attention.backward[0] / attention.forward[0]) == pytest.approx((2.896 * 2.688) ** 0.5)


def test_unfused_attention_is_slower_than_flash() -> None:
    model, layout = a_model(), a_layout(stage_layers=(80,))
    flash = core_attention(context(a_problem(model), layout))
    unfused_problem = a_problem(model, framework_options={"flash_attention": False})
    unfused = core_attention(context(unfused_problem, layout))
    assert unfused.forward[0] > 2 * flash.forward[0]


@pytest.mark.parametrize("recipe", ["fp8-delayed", "fp8-current", "fp8-rowwise", "fp8-blockwise"])
def test_an_fp8_recipe_multiplies_in_fp8_whatever_the_workload_says(recipe: str) -> None:
    problem = a_problem(precision="bf16", framework_options={"precision_recipe": recipe})
    assert context(problem, a_layout()).linear_precision == "fp8"


def test_a_scale_for_each_block_slows_a_product_down() -> None:
    rates = [
        context(a_problem(framework_options={"precision_recipe": recipe}), a_layout()).gemm_flops("fp8")
        for recipe in ("fp8-current", "fp8-blockwise")
    ]
    assert rates[1] == pytest.approx(0.93 * rates[0])


def test_a_recipe_that_the_gpu_lacks_is_refused_with_those_it_has() -> None:
    problem = a_problem(framework_options={"precision_recipe": "nvfp4"})  # the builder's H100 ends at fp8
    with pytest.raises(InvalidProblemError) as caught:
        context(problem, a_layout())
    fault = caught.value.errors[0]
    assert fault.pointer == "/workload/framework_options/precision_recipe"
    assert fault.allowed == "none, fp8-delayed, fp8-current, fp8-rowwise, fp8-blockwise"


@pytest.mark.parametrize("gpu", [one for one in gpu_names() if "fp8" in find_gpu(one).peak_flops])
def test_transformer_engine_has_mxfp8_for_blackwell_with_hbm_alone(gpu: str) -> None:
    refused = not re.match("g?b[1-3]00|mi35", gpu)  # RTX of Blackwell and GB10 have compute capability 12
    problem = a_problem(framework_options={"precision_recipe": "mxfp8"})
    problem = replace(problem, cluster=a_cluster(num_nodes=1, gpu=find_gpu(gpu)))
    with pytest.raises(InvalidProblemError) if refused else nullcontext():
        assert context(problem, a_layout()).linear_precision == "fp8"


def routed_forward_s(problem: Problem, **changes: object) -> float:
    """Forward seconds of the routed experts alone: all linear layers less the others."""
    ctx = context(problem, a_layout(stage_layers=(32,), **changes))
    others = [gemm for gemm in layer_gemms(ctx, "moe") if not gemm.grouped]
    forward = linear_seconds(ctx, "moe").forward - gemm_seconds(ctx, others, "bf16").forward
    return float(forward[0])


def test_experts_with_many_rows_take_a_plain_product_at_the_level_of_grouped_ones() -> None:
    # 8 experts of 4096 x 14336, 2 of them for each of 32 768 tokens: 8 192 rows each
    ctx = context(a_problem(a_moe_model(), seq_length=32_768), a_layout(stage_layers=(32,)))
    rows = np.full(1, 8192.0)
    plain = [Gemm(m=rows, n=28_672.0, k=4096.0, count=8.0), Gemm(m=rows, n=4096.0, k=14_336.0, count=8.0)]
    half = 8192.0 + ctx.operators.gemm_m0
    share = ctx.constants.grouped_gemm * half / (half + ctx.operators.grouped_m0)
    expected = gemm_seconds(ctx, plain, "bf16").forward[0] / share
    problem = a_problem(a_moe_model(), seq_length=32_768)
    assert routed_forward_s(problem) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("stack", "visits"), [("accelerate", 16), ("megatron-lm", 1)])
def test_transformers_runs_all_experts_of_llama_4_on_all_tokens(stack: str, visits: int) -> None:
    # one of 16 experts a token: 2048 tokens are 128 rows of each, or 2048
    problem = a_problem(find_model("llama-4-scout"))
    ctx = context_of(problem, Columns.of([a_layout(stage_layers=(48,))]), a_profile(problem, stack))
    rows = {float(np.ravel(one.m)[0]) for one in layer_gemms(ctx, "moe") if one.grouped}
    assert rows == {float(ctx.tokens[0]) * visits / 16}


def test_experts_with_few_rows_use_the_gpu_worse() -> None:
    # ep 8 leaves one expert a rank with the rows of eight; alone each has an eighth of them
    few = routed_forward_s(a_problem(a_moe_model(), seq_length=256))
    many = routed_forward_s(a_problem(a_moe_model(), seq_length=2048))
    assert few > 1.5 * many / 8


def test_the_only_expert_of_a_rank_is_a_plain_product() -> None:
    # 8 experts on 8 ranks: two GEMMs like those of a dense layer, no grouped kernel
    model = a_moe_model()
    layout = a_layout(expert_parallel_size=8, data_parallel_size=8, stage_layers=(32,))
    alone = [
        context_of(problem, Columns.of([layout]), a_profile(problem, grouped_gemm=share))
        for problem in [a_problem(model)]
        for share in (0.5, 1.0)
    ]
    seconds = [float(linear_seconds(ctx, "moe").forward[0]) for ctx in alone]
    assert seconds[0] == seconds[1]


def test_the_products_of_single_experts_in_8_bits_bring_two_kernels_of_4_microseconds_each() -> None:
    """Two products for each of 8 experts, the first one's kernels aside; one kernel for all starts once."""

    def forward_s(*, fused: bool) -> float:
        options = {"moe_grouped_mlp_fused": fused}
        problem = a_problem(a_moe_model(), precision="fp8", framework_options=options)
        return float(linear_seconds(context(problem, a_layout(stage_layers=(32,))), "moe").forward[0])

    assert forward_s(fused=False) - forward_s(fused=True) == pytest.approx(2 * 7 * (2 + 1) * 4e-6)


def test_experts_without_a_gate_have_two_matrices_of_three() -> None:
    gated = a_problem(a_moe_model(), seq_length=8192)
    plain = replace(gated, model=replace(gated.model, gated_mlp=False))
    # the one of twice as many columns is .3 % nearer to its full rate (gemm_n0, launch_s)
    assert routed_forward_s(plain) == pytest.approx(2 / 3 * routed_forward_s(gated), rel=4e-3)


def test_experts_in_8_bits_keep_the_formula() -> None:
    problem = a_problem(a_moe_model(), precision="fp8")
    ctx = context(problem, a_layout(stage_layers=(32,)))
    whole = gemm_seconds(ctx, layer_gemms(ctx, "moe"), "fp8")
    assert linear_seconds(ctx, "moe").forward == pytest.approx(whole.forward)


def test_rows_of_equal_shapes_are_looked_up_once_and_each_gets_its_own() -> None:
    # what stands beside a row changes nothing in it
    problem = a_problem(a_moe_model())
    layouts = [
        a_layout(stage_layers=(32,), micro_batch_size=b, tensor_parallel_size=t)
        for b, t in ((1, 1), (4, 8), (1, 8), (4, 1), (1, 1))
    ]
    together = context_of(problem, Columns.of(layouts), a_profile(problem))
    alone = [context(problem, layout) for layout in layouts]
    for seconds in (core_attention, lambda ctx: linear_seconds(ctx, "moe")):
        assert seconds(together).forward.tolist() == [float(seconds(one).forward[0]) for one in alone]


def added_s(framework: str, weights: float = 1e9, **changes: object) -> float:
    """Seconds to add the gradients of one micro-batch up."""
    problem = a_problem(a_model())
    ctx = context_of(problem, Columns.of([a_layout(**changes)]), a_profile(problem, framework))
    return float(accumulation(ctx, np.array([weights])).backward[0] * ctx.hbm_bytes_per_s)


def test_gradients_of_a_billion_weights_are_added_up_as_the_framework_does() -> None:
    # Megatron-Core: the product reads and writes fp32 instead of writing 2 bytes; nanotron adds bf16 to
    # fp32 in a kernel of its own; in fp16 autograd reads two and writes one, but for the first of four
    assert added_s("megatron-core") == pytest.approx((4 + 4 - 2) * 1e9)
    assert added_s("nanotron") == pytest.approx((2 + 4 + 4) * 1e9)
    assert added_s("megatron-lm-2021", num_microbatches=4) == pytest.approx(3 * 2 * 3 / 4 * 1e9)
    assert added_s("megatron-lm-2021", num_microbatches=1) == 0
    assert added_s("fsdp", zero_stage=3, data_parallel_size=8, zero_shard_size=8) == 0


def test_heads_off_the_16_byte_grid_multiply_at_a_fifth_of_the_rate() -> None:
    def product_s(head_dim: int) -> float:
        problem = a_problem(
            a_model(head_dim=head_dim), framework_options={"attention_kernel": "megatron-fused"}
        )
        profile = a_profile(problem, score_bytes=0.0)
        ctx = context_of(problem, Columns.of([a_layout(stage_layers=(80,))]), profile)
        return float(core_attention(ctx).forward[0])

    assert product_s(150) == pytest.approx(product_s(152) * 150 / 152 * 5)


def test_a_softmax_that_megatrons_kernel_does_not_take_runs_as_five() -> None:
    def eager(tensor: int = 8, sequences: int = 1, kernel: str = "megatron-fused") -> Context:
        sizes = {"tensor_parallel_size": tensor, "micro_batch_size": sequences}
        return of(GPT, sizes, attention_kernel=kernel)

    alone, pair = eager(), eager(sequences=2)  # 16 heads, 2 on a rank: 2 rows of one sequence, 4 of two
    assert (alone.eager_softmax.item(), pair.eager_softmax.item()) == (True, False)
    assert [eager(1, kernel=name).eager_softmax.item() for name in ("flash2", "torch")] == [0, 1]
    assert [replace(pair, seq_length=keys).eager_softmax.item() for keys in (4096, 4100, 1022)] == [0, 1, 1]
    assert layer_floor_s(alone, "dense") == pytest.approx(layer_floor_s(pair, "dense") * (14 + 4) / 14)
    only_moved = replace(alone.constants, score_gemm=1e9)
    seconds = [core_attention(replace(one, constants=only_moved)).forward.item() for one in (alone, pair)]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-4)  # one sequence twice, two once


def test_one_kernel_for_each_operation_moves_more_than_fused_ones() -> None:
    def moved_s(framework: str) -> float:
        problem = a_problem(a_model())
        profile = a_profile(problem, framework, elementwise=1.0, hbm=1.0)
        ctx = context_of(problem, Columns.of([a_layout(stage_layers=(80,))]), profile)
        return float(memory_bound(ctx, "dense").forward[0] * ctx.hbm_bytes_per_s)

    # 2048 tokens: 12 bytes more for 64 + 2 * 8 heads of 128, 4 bytes more for 28672 of the MLP
    assert moved_s("nanotron") - moved_s("megatron-core") == pytest.approx(
        2048 * (12 * 80 * 128 + 4 * 28672)
    )


# What switches of modern recipes change, against counts made by hand from the published definitions.


@pytest.mark.parametrize(
    ("dispatcher", "copies"),
    [
        ("allgather", 8.0),  # every rank
        ("alltoall", 2.0),  # each of its two experts
        ("deepep", 8.0 * (1.0 - (7.0 / 8.0) ** 2)),  # the ranks that two random experts live on: 1.875
    ],
)
def test_copies_of_a_token_follow_its_dispatcher(dispatcher: str, copies: float) -> None:
    model = a_moe_model()
    assert model.moe is not None
    ctx = of(model, ON_8, moe_dispatcher=dispatcher)
    assert np.broadcast_to(dispatched_copies(ctx, model.moe), (1,))[0] == pytest.approx(copies)


def test_routing_by_groups_keeps_tokens_on_few_islands() -> None:
    model = a_moe_model()
    assert model.moe is not None
    model = replace(model, moe=replace(model.moe, num_experts=64, top_k=8))
    assert model.moe is not None
    wide = {"expert_parallel_size": 64, "data_parallel_size": 64}
    free, tied = (
        dispatched_copies(of(model, wide, moe_dispatcher="deepep", **more), model.moe)
        for more in ({}, {"moe_routing_groups": "8/4"})
    )
    assert np.asarray(free)[0] == pytest.approx(8.0 * (1.0 - (7.0 / 8.0) ** 8))  # 5.25 of 8 nodes
    assert np.asarray(tied)[0] == pytest.approx(4.0)


def test_balance_and_dispatcher_decide_what_an_exchange_takes() -> None:
    model = a_moe_model()
    even = of(model, ON_8, moe_force_balance=True)
    tokens = even.moe_tokens * 2.0 * model.hidden_size * 2.0  # two copies of 2 bytes an element
    once = all_to_all_s(tokens, even.expert_group)[0]
    assert expert_parallel(even).forward[0] == pytest.approx(2.0 * once)
    busy = expert_parallel(of(model, ON_8)).forward[0]
    assert busy > expert_parallel(even).forward[0]
    short = expert_parallel(of(model, ON_8, moe_force_balance=True, moe_dispatcher="hybridep",
                               low_precision_dispatch=True))  # fmt: skip
    copies = 1.875 / 2.0
    out_and_back = 0.7 * all_to_all_s(tokens * copies, even.expert_group)[0]
    assert short.backward[0] == pytest.approx(2.0 * out_and_back)
    assert short.forward[0] == pytest.approx(1.5 * out_and_back)


def test_a_third_of_the_backward_pass_hides_exchanges_only_with_weight_gradients_put_off() -> None:
    plain, over, late = (
        expert_parallel(of(a_moe_model(), ON_8, **options))
        for options in ({}, {"overlap_experts": True}, {"overlap_experts": True, "delay_wgrad": True})
    )
    seen = late.forward[0] / plain.forward[0]
    assert late.backward[0] == pytest.approx(seen * plain.backward[0])
    assert over.forward[0] == pytest.approx(late.forward[0])
    assert over.backward[0] == pytest.approx((seen + (1.0 - seen) / 3.0) * plain.backward[0])


def test_permutation_moves_less_where_it_is_fused() -> None:
    def moved(**options: object) -> float:
        return float(np.asarray(permuted_bytes(of(a_moe_model(), ON_8, **options)))[0])

    fused = moved(moe_permute_fusion=True)
    assert moved() == pytest.approx(1.5 * fused)
    assert moved(moe_permute_fusion=True, moe_dispatcher="hybridep") == pytest.approx(0.7 * fused)
    assert moved(moe_grouped_mlp_fused=True) == pytest.approx(0.5 * fused)


def test_biases_and_clamps_of_experts_are_kernels_of_their_own_unless_one_kernel_does_all() -> None:
    def moved(model: ModelSpec, **options: object) -> float:
        ctx = of(model, ON_8, moe_force_balance=True, **options)
        return float(memory_bound(ctx, "moe").forward[0]) * ctx.hbm_bytes_per_s

    plain = a_moe_model()
    assert plain.moe is not None
    biased = replace(plain, mlp_bias=True, moe=replace(plain.moe, expert_bias=True))
    clamped = replace(plain, activation_clamp=7.0)
    routed = 2048 * plain.moe.top_k  # of 2048 tokens; 68 and 36 bytes an element in three passes
    assert moved(biased) - moved(plain) == pytest.approx(routed * plain.hidden_size * 68 / 3)
    assert moved(clamped) - moved(plain) == pytest.approx(routed * plain.moe.ffn_hidden_size * 12)
    fused = {"moe_grouped_mlp_fused": True}
    assert moved(biased, **fused) == moved(plain, **fused)


def test_a_rank_that_holds_all_experts_has_their_mean_load_and_pads_to_a_capacity_all_the_same() -> None:
    def load(layout: Mapping[str, object], **options: object) -> float:
        return float(of(a_moe_model(), layout, **options).expert_load[0])

    alone = {**ON_8, "expert_parallel_size": 1}
    assert load(alone, moe_force_balance=False) == 1.0
    assert load(ON_8, moe_force_balance=False) > 1.0
    assert load(alone, moe_capacity_factor=1.25) == 1.25


def test_padding_tokens_choose_the_same_experts_and_their_ranks_are_waited_for() -> None:
    """Two of four experts on two ranks: both on one with chance 1/3, so 4/3 on the busiest; the mean is 1.

    On four ranks, the busiest has one, and the mean is a half.
    """
    assert load_of_same(4, 2, 2) == pytest.approx(4.0 / 3.0)
    assert load_of_same(4, 2, 4) == pytest.approx(2.0)
    moe = a_moe_model().moe
    assert moe is not None
    three_quarters = SequenceLengths(histogram=((512, 1.0),), batching="padding")  # of 2048 tokens
    rows = Columns.of([a_layout(**ON_8)])

    def load(lengths: SequenceLengths | None, stack: str = "nemo", **options: object) -> float:
        problem = a_problem(a_moe_model(), lengths=lengths, framework_options=options)
        return float(context_of(problem, rows, a_profile(problem, stack)).expert_load[0])

    same = load_of_same(moe.num_experts, moe.top_k, 8)
    assert load(three_quarters) == pytest.approx(load(None) / 4.0 + 0.75 * same)
    assert load(replace(three_quarters, batching="packing")) == load(None)
    assert load(three_quarters, moe_force_balance=True) == 1.0
    problem = a_problem(a_moe_model(), lengths=three_quarters)
    profile = replace(a_profile(problem, "nemo"), framework=framework_facts("automodel"))
    assert context_of(problem, rows, profile).expert_load[0] == load(None)  # which masks them


def test_what_expert_tensor_ranks_gather_is_sorted_only_where_several_experts_take_it() -> None:
    moe = a_moe_model().moe
    assert moe is not None
    ranks = {"tensor_parallel_size": 2, "expert_tensor_parallel_size": 2, "data_parallel_size": 8}

    def moved(experts: int) -> float:
        ctx = of(a_moe_model(), {**ranks, "expert_parallel_size": experts})
        return float(np.asarray(permuted_bytes(ctx))[0])

    # half before the exchange and half behind it: of as many tokens, and of twice as many
    assert moved(moe.num_experts) == pytest.approx(moved(2) / 3.0)


def test_latent_attention_builds_keys_and_values() -> None:
    latent = MlaSpec(
        q_lora_rank=64, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32
    )
    model = replace(GPT, num_kv_heads=GPT.num_attention_heads, head_dim=48, mla=latent)

    def moved(model: ModelSpec) -> float:
        """Bytes of one token in a forward pass, at no factor on fused operators."""
        ctx = of(model, None, "nemo")
        ctx = replace(ctx, constants=replace(ctx.constants, elementwise=1.0))
        return float(memory_bound(ctx, "dense").forward[0] * ctx.hbm_bytes_per_s / ctx.tokens[0])

    heads, plain = GPT.num_attention_heads, replace(model, mla=None)
    # fused rotary embedding reads and writes three times 48 elements of each head; here 16 of a query in
    # place, 64 of key and value read and written, and the 16 that all keys share written: 176 elements
    assert moved(plain) - moved(model) == pytest.approx(heads * (3 * 48 * 4.0 - 176 * 2.0))


def test_attention_runs_at_the_rate_of_its_kernel() -> None:
    best, second = (kernel_s(of(attention_kernel=kernel))[0] for kernel in ("cudnn", "flash2"))
    assert second == pytest.approx(best / 0.6)  # FlashAttention 2 on an H100 (arXiv:2407.08608)
    eighth = {"attention_kernel": "cudnn", "fp8_attention": True}
    assert kernel_s(of(**eighth, precision_recipe="fp8-current"))[0] == pytest.approx(best / 1.35)
    assert kernel_s(of(**eighth))[0] == best  # a part of the recipe: without one nothing runs in 8 bits


@pytest.mark.parametrize(
    ("architecture", "faster", "slower", "least", "most"),
    [
        # FlashAttention 2 is twice as fast as 1, and 1.3 to 2 times as Triton's (arXiv:2307.08691)
        ("ampere", "flash2", "flash1", 2.0, 2.0),
        ("ampere", "flash2", "triton", 1.0, 1.3),
        # 0.90 of FlashAttention 2 forward, 0.85 backward (pytorch.org/blog/flexattention)
        ("ampere", "flash2", "flex", 1 / 0.90, 1 / 0.85),
        ("ada", "flash2", "flex", 1 / 0.90, 1 / 0.85),
        ("hopper", "flash2", "flash1", 2.0, 2.0),
        ("hopper", "flash2", "flex", 1 / 0.90, 1 / 0.85),
        ("hopper", "flash2", "triton", 1.3, 2.0),
        ("hopper", "flash3", "flash2", 1.5, 2.0),  # arXiv:2407.08608
        ("hopper", "cudnn", "flash3", 1.0, 1.0),
        # older kernels run older instructions; FlashAttention 4 against cuDNN: arXiv:2603.05451
        ("blackwell", "flash2", "flash1", 2.0, 2.0),
        ("blackwell", "flash2", "triton", 1.0, 1.0),
        ("blackwell", "flash3", "flash2", 1.1, 2.0),
        ("blackwell", "cudnn", "flash3", 2.0, 2.5),
        ("blackwell", "flash4", "cudnn", 1.1, 1.3),
    ],
)
def test_newer_attention_kernels_are_faster_by_what_was_published(
    architecture: str, faster: str, slower: str, least: float, most: float
) -> None:
    def rate(kernel: str) -> float:
        ctx = of(attention_kernel=kernel)
        return kernel_rate(replace(ctx, gpu=replace(ctx.gpu, architecture=architecture)))

    assert least <= rate(faster) / rate(slower) <= most


def test_an_eager_norm_moves_36_bytes_an_element() -> None:
    # two norms of 2048 x 1024 elements: 36 bytes each instead of what a fused one moves, 4 times its share
    fused, eager = (memory_bound(of(norm_fused=on), "dense").forward[0] for on in (True, False))
    ctx = of()
    assert (eager - fused) * ctx.hbm_bytes_per_s == pytest.approx(2 * 2048 * 1024 * 32.0)


SELECTIVE: Mapping[str, object] = {"recompute_granularity": "selective"}


def replayed(modules: str, **layout: object) -> float:
    """Seconds that a dense layer replays."""
    nothing = PassSeconds(forward=np.zeros(1), backward=np.zeros(1))
    attention = PassSeconds(forward=np.array([1.0]), backward=np.array([2.0]))
    ctx = of(GPT, {**SELECTIVE, **layout}, "maxtext", recompute_modules=modules)
    return float(replayed_s(ctx, "dense", attention, nothing)[0])


def test_only_modules_that_are_recomputed_are_replayed() -> None:
    assert replayed("core_attn") == 1.0
    assert 0.0 < replayed("layernorm") < replayed("mlp_up") < replayed("mlp") < 1.0
    assert 0.0 < replayed("attn_proj") < replayed("mlp_up")  # h x h against h x 4 h
    assert replayed("core_attn+mlp") == pytest.approx(1.0 + replayed("mlp"))
    assert replayed("core_attn", recompute_granularity="none") == 0.0


def test_a_gated_activation_of_experts_is_replayed_at_six_bytes_an_element() -> None:
    model = a_moe_model()
    ctx = of(model, {**SELECTIVE, "stage_layers": (32,)}, "maxtext", recompute_modules="moe_act")
    nothing = PassSeconds(forward=np.zeros(1), backward=np.zeros(1))
    # 2048 tokens go to 2 experts of 14336: 2 f are read and f is written, of 2 bytes each
    again_s = 6 * 2048 * 2 * 14336 / ctx.hbm_bytes_per_s
    assert float(replayed_s(ctx, "moe", nothing, nothing)[0]) == pytest.approx(again_s)
    assert float(replayed_s(ctx, "dense", nothing, nothing)[0]) == 0.0


def test_flash_attention_is_looked_up_at_the_mean_width_of_keys_and_values() -> None:
    # (65 + 64) / 2, where the two differ
    _, (*_, width) = flash_lookup(of(replace(GPT, head_dim=65, value_head_dim=64)))
    assert width.tolist() == [64.5]


def test_stages_whose_backward_pass_is_split_are_not_compiled() -> None:
    stages = {"pipeline_parallel_size": 4, "virtual_pipeline_size": 2, "stage_layers": (1,) * 8}
    zero_bubble = {**stages, "pipeline_schedule": "interleaved_zb"}
    eager = {"elementwise_fused": False, "norm_fused": False}

    def both(layout: Mapping[str, object], **options: object) -> tuple[float, float]:
        ctx = of(replace(GPT, num_layers=8), layout, "fsdp", **options)
        return memory_bound(ctx, "dense").forward.item(), layer_activation_bytes(ctx, "dense").item()

    assert both(zero_bubble) == both(zero_bubble, **eager) == both(stages, **eager) > both(stages)


def test_torchtitan_replays_every_second_product_that_its_backward_pass_reads() -> None:
    # qkv, out*, up, down*; latent: qa, qb*, kva, kvb*, out, gate*, up, down*: * is not saved, and no
    # gradient reads down, nor out where its reduce-scatter is saved
    h, f, heads, tokens = 1024, 4096, 16, 2048
    mla = MlaSpec(
        q_lora_rank=256, kv_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64
    )
    latent = replace(GPT, head_dim=96, mla=mla, gated_mlp=True)
    split = {**SELECTIVE, "tensor_parallel_size": 2, "sequence_parallel": True, "data_parallel_size": 4}

    def replayed(model: ModelSpec, layout: Mapping[str, object] = SELECTIVE, **options: object) -> float:
        return flops(second_products(of(model, layout, "fsdp", **options), "dense"))

    assert replayed(GPT) == 2 * tokens * h * h
    assert replayed(GPT, elementwise_fused=False) == 2 * tokens * (h * h + f * h)
    assert replayed(GPT, split) == 0
    assert replayed(GPT, {**split, "sequence_parallel": False}) == 2 * tokens * h * h / 2
    of_latents = 256 * heads * 96 + 128 * heads * (64 + 64)
    assert replayed(latent) == 2 * tokens * (of_latents + h * f)


def test_torchtitan_replays_routers_without_counting_them() -> None:
    # qkv, out*, [router*], gate, up*, down: experts that all tokens take replay one of three products
    h, width, experts, tokens = 1024, 512, 8, 2048
    moe = MoeSpec(
        num_experts=experts, top_k=2, ffn_hidden_size=width, num_shared_experts=1,
        shared_ffn_hidden_size=width,
    )  # fmt: skip
    ctx = of(replace(GPT, gated_mlp=True, moe=moe), SELECTIVE, "fsdp")
    plain = [one for one in second_products(ctx, "moe") if not one.grouped]
    assert flops(plain) == 2 * tokens * (h * h + h * width + h * experts)

    def routed(layout: Mapping[str, object], **options: object) -> float:
        one = of(replace(GPT, gated_mlp=True, moe=moe), layout, "fsdp", **options)
        grouped = [each for each in second_products(one, "moe") if each.grouped]
        return flops(grouped) / float(np.ravel(one.expert_load)[0])

    # gate, up and down of two experts a token; what goes back to other ranks is saved, so down is not read
    apart = {**SELECTIVE, "data_parallel_size": 8, "expert_parallel_size": 4}
    assert routed(SELECTIVE) == 2 * (2 * tokens) * 3 * h * width
    assert routed(apart) == pytest.approx(2 * (2 * tokens) * 2 * h * width)
    assert routed(apart, elementwise_fused=False) == pytest.approx(2 * (2 * tokens) * 3 * h * width)


def kept(
    modules: str,
    layout: Mapping[str, object] | None = None,
    framework: str = "megatron-core",
    /,
    **options: object,
) -> float:
    """Bytes that a layer keeps."""
    problem = a_problem(framework_options={"recompute_modules": modules, **options})
    rows = Columns.of([a_layout(**(layout or SELECTIVE))])
    return float(price(problem, rows, a_profile(problem, framework)).activation_bytes[0, 0])


def test_replayed_modules_free_what_they_keep_for_themselves() -> None:
    # GPT of the builders: 2048 tokens, hidden 1024, MLP 4096 wide without a gate, 2 bytes an element
    whole = kept("core_attn")  # flash attention keeps no scores
    assert whole - kept("mlp") == pytest.approx(2048 * 4096 * 2 * 2)
    assert whole - kept("layernorm") == pytest.approx(2048 * 1024 * 4)
    # the attention output, and the sum with the residual that the second norm reads: 1024 wide each
    by_xla = [kept(names, SELECTIVE, "maxtext") for names in ("core_attn", "attn_proj")]
    assert by_xla[0] - by_xla[1] == pytest.approx(2048 * 1024 * (2 + 2))


def test_offloaded_modules_leave_the_rest_on_the_gpu() -> None:
    spilled: dict[str, object] = {"offload": "activations"}
    whole = kept("core_attn", {"offload": "none"})
    some = kept("core_attn", spilled, offload_modules="attn_norm+mlp_norm")
    assert whole - some == pytest.approx(2 * 2048 * 1024 * 2)  # the inputs of both norms
    half = kept("core_attn", spilled, offload_layers=GPT.num_layers / 2)
    assert half == pytest.approx(whole / 2)
    assert kept("core_attn", spilled) == 0.0


# An indexer beside latent attention (DeepSeek-V3.2: 64 heads of 128 choose 2048 keys of each query).


def test_an_indexer_adds_its_projections_and_scores_and_leaves_attention_the_keys_it_chose() -> None:
    model = find_model("deepseek-v3.2")
    with_it = a_problem(model, seq_length=8192)
    without = replace(with_it, model=replace(model, indexer=None))
    on_one, on_eight = a_layout(stage_layers=(61,)), a_layout(tensor_parallel_size=8, stage_layers=(61,))
    # queries 1536 -> 64 x 128 from their latent, one key of 128 and 64 weights from the hidden 7168
    index = 2 * 8192 * (1536 * 64 * 128 + 7168 * (128 + 64))
    for layout in (on_one, on_eight):  # whole on every tensor rank
        own, other = (flops(layer_gemms(context(one, layout), "dense")) for one in (with_it, without))
        assert own - other == pytest.approx(index)
    # 2 heads (qk + v) keys: of 8192 tokens all read 4096.5 on average, or 2048 at most; the indexer all
    read = 2048 - 2048 * 2047 / (2 * 8192)
    assert model.score_flops_per_token(8192) == pytest.approx(
        2 * 128 * (192 + 128) * read + 2 * 64 * 128 * 8193 / 2
    )
    seconds = [float(core_attention(context(one, on_one)).forward[0]) for one in (with_it, without)]
    # A kernel reads 1,792 of 4,096.5 keys, 0.44; what comes on top of kernels stays; index scores of
    # 2 x 64 x 128 FLOPs for 2 x 128 x (192 + 128) of whole attention add a fifth at most.
    level = context(without, on_one).constants.attention
    kept = read / 4096.5 * level + (1 - level)
    assert kept < seconds[0] / seconds[1] < kept + 0.25


def test_an_indexer_of_a_sequence_that_it_need_not_cut_only_adds() -> None:
    model = find_model("deepseek-v3.2")
    short = a_problem(model, seq_length=1024)
    without = replace(short, model=replace(model, indexer=None))
    layout = a_layout(stage_layers=(61,))
    assert model.attended_tokens(1024) == without.model.attended_tokens(1024)
    own, other = (float(core_attention(context(one, layout)).forward[0]) for one in (short, without))
    assert own > other


def step_parts(problem: Problem, framework: str = "megatron-core", **changes: object) -> Context:
    """One row of it."""
    return context(problem, a_layout(**changes), framework)


def test_a_side_that_does_not_fill_its_tiles_takes_as_long_as_one_that_does() -> None:
    # 2880 columns are 22.5 tiles of 128 on Hopper: 23 of them
    ctx = step_parts(a_problem())
    rows = np.full(1, 65_536.0)
    seconds = {
        n: gemm_seconds(ctx, [Gemm(m=rows, n=n, k=4096.0)], "bf16").forward[0] for n in (2880.0, 2944.0)
    }
    # but for the way to its full rate (gemm_n0) and its bytes, which know no tiles: .09 %
    assert seconds[2880.0] == pytest.approx(seconds[2944.0], rel=1e-3)


def test_fp32_has_elements_twice_as_long_products_in_tf32_and_keeps_scores() -> None:
    problem = replace(a_problem(), cluster=a_cluster(num_nodes=1, gpu=find_gpu("a100-sxm-80gb")))
    single = replace(problem, workload=replace(problem.workload, precision="fp32"))
    plain = replace(
        problem, workload=replace(problem.workload, framework_options={"attention_kernel": "torch"})
    )
    half, whole = step_parts(plain), step_parts(single)
    assert not whole.facts.flash
    # memory moves as many elements at half the rate; 156 TFLOP/s of TF32 are half of 312
    moved = memory_bound(whole, "dense").forward / memory_bound(half, "dense").forward
    assert moved[0] == pytest.approx(2.0)
    products = linear_seconds(whole, "dense").forward / linear_seconds(half, "dense").forward
    assert products[0] == pytest.approx(2.0, rel=0.1)
    prices = [price(one, Columns.of([a_layout()]), a_profile(one)) for one in (plain, single)]
    kept = [float(one.activation_bytes[0, 0]) for one in prices]
    assert kept[1] == pytest.approx(2.0 * kept[0])


def test_row_wise_scales_and_experts_alone_in_8_bits_lie_between_16_bits_and_one_scale() -> None:
    def forward_s(model: ModelSpec, **options: str) -> float:
        precision = "bf16" if options.get("precision_recipe") in (None, "mxfp8-experts") else "fp8"
        problem = a_problem(model, seq_length=8192, precision=precision, framework_options=options)
        ctx = step_parts(problem)
        kind: LayerKind = "moe" if model.moe else "dense"
        return float((linear_seconds(ctx, kind) + memory_bound(ctx, kind)).forward[0])

    wide = a_model()
    recipes = [forward_s(wide, precision_recipe=name) for name in ("fp8-current", "fp8-rowwise")]
    assert recipes[0] < recipes[1] < forward_s(wide)
    assert forward_s(a_moe_model(), precision_recipe="mxfp8-experts") < forward_s(a_moe_model())


def test_adapters_move_their_inputs_outputs_and_gradients() -> None:
    # qkv reads 1024 and writes 3072, the projection reads and writes 1024; 2048 tokens, tp 1
    problem = a_problem(lora_rank=16, framework_options={"adapter_dropout": True})
    forward, backward = adapter_bytes(step_parts(problem), "dense")
    read, written = 2048 * (1024 + 1024), 2048 * (3072 + 1024)
    assert forward[0] == pytest.approx(5 * read + 10 * written)
    assert backward[0] == pytest.approx(11 * read + 4 * written)


def test_doras_norms_move_weights_and_outputs_that_lora_leaves_alone() -> None:
    # one adapter of 1024 to 1024, 2048 tokens, in fp32 under autocast: peft's graph, operator by operator
    def moved(**options: bool) -> tuple[FloatArray, FloatArray]:
        problem = a_problem(lora_rank=16, lora_targets=("o_proj",), framework_options=options)
        return adapter_bytes(step_parts(problem, "accelerate"), "dense")

    (plain, back), (normed, again) = moved(), moved(dora=True)
    sides, outputs = 1024 * 1024, 2048 * 1024
    assert normed[0] - plain[0] == (10 + 36) * sides + 38 * outputs
    assert again[0] - back[0] == 78 * outputs


def test_a_pipeline_that_drains_pays_its_filling_once_more_for_each_batch() -> None:
    layout = a_layout(pipeline_parallel_size=2, num_microbatches=8, stage_layers=(2, 2))
    rows = Columns.of([layout])
    whole, apart = (
        price(problem, rows, a_profile(problem, "fsdp")).forward_s[0, 0]
        for problem in (a_problem(), a_problem(framework_options={"pipeline_batch": 4.0}))
    )
    assert apart == pytest.approx(whole * (1 + (8 / 4 - 1) * (2 - 1) / 8))


def test_tokens_of_neighbouring_experts_leave_for_few_ranks() -> None:
    # a quarter of the experts of 8 ranks lie on 2 of them, an eighth on one
    options: dict[str, object] = {"moe_dispatcher": "deepep", "moe_force_balance": True}
    ctx = of(a_moe_model(), ON_8, "automodel", **options)
    few, many = (MoeSpec(num_experts=8 * n, top_k=2 * n, ffn_hidden_size=64) for n in (1, 4))
    assert np.asarray(dispatched_copies(ctx, few)) == pytest.approx(2.0)
    assert np.asarray(dispatched_copies(ctx, many)) == pytest.approx(2.0)
    scarce = MoeSpec(num_experts=64, top_k=8, ffn_hidden_size=64)
    assert np.asarray(dispatched_copies(ctx, scarce)) == pytest.approx(1.0)


def test_experts_in_8_bits_next_to_dense_products_in_16_are_cast_first() -> None:
    model = a_moe_model()
    ctx = of(model, precision_recipe="mxfp8-experts")
    grouped = [one for one in layer_gemms(ctx, "moe") if one.grouped]
    dense = [one for one in layer_gemms(ctx, "moe") if not one.grouped]
    # each input of an expert's product is read in 2 bytes and written in 1, along rows and along columns
    cast_s = sum(6.0 * one.m * one.k * np.asarray(one.count) for one in grouped) / ctx.hbm_bytes_per_s
    parts = (gemm_seconds(ctx, grouped, "fp8"), gemm_seconds(ctx, dense, "bf16"))
    found = linear_seconds(ctx, "moe")
    np.testing.assert_allclose(found.forward, sum(one.forward for one in parts) + cast_s)
    np.testing.assert_allclose(found.backward, sum(one.backward for one in parts) + cast_s)
    layer = linear_seconds(ctx, "dense")  # a layer without experts casts nothing
    np.testing.assert_allclose(layer.forward, gemm_seconds(ctx, layer_gemms(ctx, "dense"), "bf16").forward)


@pytest.mark.parametrize(
    ("precision", "element_bytes"),
    [("fp32", 4.0), ("tf32", 4.0), ("fp16", 2.0), ("fp8", 1.0)],
)
def test_a_product_of_few_rows_takes_as_long_as_its_weights_are_wide(
    precision: str, element_bytes: float
) -> None:
    ctx, side = of(), 32768.0  # 16 rows of so many weights: reading these rules
    product = [Gemm(m=np.full_like(ctx.t, 16.0), n=side, k=side)]
    found, half = (gemm_seconds(ctx, product, each).forward[0] for each in (precision, "bf16"))
    assert found / half == pytest.approx(element_bytes / 2.0, rel=0.15)


def test_biases_of_experts_that_no_kernel_adds_move_68_bytes_an_element() -> None:
    # 28 forward and 40 backward (Megatron-Core's experts.py), of each expert that a token visits
    def moved(*, biased: bool) -> float:
        ctx = of(replace(a_moe_model(), mlp_bias=biased))
        both = memory_bound(ctx, "moe")
        seconds = float(both.forward[0] + both.backward[0])
        return seconds * ctx.hbm_bytes_per_s / float(ctx.moe_tokens[0] * ctx.expert_load[0])

    assert moved(biased=True) - moved(biased=False) == pytest.approx(68.0 * 2 * 4096)


def test_a_rotation_that_yarn_scales_moves_50_bytes_an_element_more() -> None:
    # 24 forward and 34 backward of single operators, 8 of Transformer Engine's kernel
    def moved(scaling: RotaryScaling, framework: str = "megatron-core", *, packs: bool = False) -> float:
        ctx = replace(of(replace(GPT, rotary_scaling=scaling), {}, framework), packs=packs)
        both = memory_bound(ctx, "dense")
        return float(both.forward[0] + both.backward[0]) * ctx.hbm_bytes_per_s / float(ctx.tokens[0])

    scaled = RotaryScaling(kind="yarn", factor=32.0)
    plain = (replace(scaled, mscale=1.0, mscale_all_dim=1.0), replace(scaled, attention_factor=1.0))
    rotated = (GPT.num_attention_heads + GPT.num_kv_heads) * GPT.head_dim
    for other in plain:
        assert moved(scaled) - moved(other) == pytest.approx(50.0 * rotated)
    assert moved(scaled, "fsdp") == moved(plain[0], "fsdp")  # compiled
    assert moved(scaled, packs=True) == moved(plain[0], packs=True)  # the kernel for packed documents


def test_every_second_product_of_latent_attention_without_a_latent_of_queries_is_replayed() -> None:
    # queries, latent, keys and values, output; then gate, up and down of a dense layer
    ctx = of(replace(find_model("deepseek-v2-lite"), num_layers=2))
    replayed = [one.title for one in second_products(ctx, "dense")]
    assert replayed == ["key/value down", "attention out", "MLP up"]


@pytest.mark.parametrize("fitted", [False, True])
def test_layers_of_many_rows_take_what_each_takes_by_itself(*, fitted: bool) -> None:
    """Products of rows that split a layer alike are priced once, unless each has constants of its own."""
    problem = a_problem(a_moe_model())
    configurations = [
        Configuration(
            tensor_parallel_size=tensor, expert_parallel_size=experts, micro_batch_size=size,
            pipeline_parallel_size=stages, zero_stage=stage, sequence_parallel=tensor > 1,
        )
        for tensor in (1, 2, 4) for experts in (1, 2) for size in (1, 2, 4)
        for stages in range(1, 11) for stage in (0, 1, 3)
    ]  # fmt: skip
    columns, profile = Columns.of(configurations), a_profile(problem, "megatron-core")
    levels = np.linspace(0.5, 0.9, len(columns))
    constants = replace(profile.constants, gemm=levels, attention=levels) if fitted else profile.constants  # type: ignore[arg-type]
    every = context_of(problem, columns, replace(profile, constants=constants))
    assert len(every.split_alike[0]) == (len(columns) if fitted else 18)
    for row in range(0, len(columns), 37):
        level = float(levels[row])
        own = replace(profile.constants, gemm=level, attention=level) if fitted else profile.constants
        alone = context_of(problem, columns.take(np.array([row])), replace(profile, constants=own))
        for seconds in (lambda ctx: linear_seconds(ctx, "moe"), core_attention):
            both, one = seconds(every), seconds(alone)
            assert (both.forward[row], both.backward[row]) == (one.forward[0], one.backward[0])
