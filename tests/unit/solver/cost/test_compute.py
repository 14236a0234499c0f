import numpy as np
import pytest

from profiles.errors import InvalidProblemError
from profiles.model import MoeSpec
from solver.columns import Columns
from solver.cost.compute import Gemm, core_attention, layer_gemms
from solver.cost.context import Context, context_of
from solver.plan import Configuration
from solver.problem import Problem
from tests.builders import a_model, a_moe_model
from tests.unit.solver.cost.pricing import a_layout, a_problem, a_profile


def context(problem: Problem, configuration: Configuration) -> Context:
    return context_of(problem, Columns.of([configuration]), a_profile(problem))


def flops(gemms: list[Gemm]) -> float:
    """Of the forward pass on one rank."""
    return sum(float(np.sum(2.0 * g.m * g.n * g.k * g.count)) for g in gemms)


def test_the_gemms_of_a_dense_layer_hold_two_flops_for_each_weight_and_token() -> None:
    model = a_model()
    problem = a_problem(model, seq_length=4096)
    weights = model.attention_parameters() + model.dense_mlp_parameters()
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
    weights = model.attention_parameters() + 2 * 3 * 4096 * 14336
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


def test_flash_attention_computes_half_the_square() -> None:
    # 2 * s * heads * (128 + 128) * (s + 1) / 2 FLOP at the flash rate, and a launch
    problem = a_problem(a_model(), seq_length=8192)
    ctx = context(problem, a_layout(stage_layers=(80,)))
    rate = ctx.gpu.peak_bf16_flops * ctx.operators.flash * ctx.constants.attention
    work = 2 * 8192 * 64 * 256 * 8193 / 2
    expected = work * (1 + ctx.operators.flash_s0 / 8192) / rate + ctx.operators.launch_s
    assert float(core_attention(ctx).forward[0]) == pytest.approx(expected)


def test_unfused_attention_is_slower_than_flash() -> None:
    model, layout = a_model(), a_layout(stage_layers=(80,))
    flash = core_attention(context(a_problem(model), layout))
    unfused_problem = a_problem(model, framework_options={"flash_attention": False})
    unfused = core_attention(context(unfused_problem, layout))
    assert unfused.forward[0] > 2 * flash.forward[0]


@pytest.mark.parametrize("recipe", ["fp8-delayed", "fp8-current", "fp8-rowwise", "fp8-blockwise", "mxfp8"])
def test_an_fp8_recipe_multiplies_in_fp8_whatever_the_workload_says(recipe: str) -> None:
    problem = a_problem(precision="bf16", framework_options={"precision_recipe": recipe})
    assert context(problem, a_layout()).linear_precision == "fp8"


def test_a_recipe_that_the_gpu_lacks_is_refused_with_those_it_has() -> None:
    problem = a_problem(framework_options={"precision_recipe": "nvfp4"})  # the builder's H100 ends at fp8
    with pytest.raises(InvalidProblemError) as caught:
        context(problem, a_layout())
    fault = caught.value.errors[0]
    assert fault.pointer == "/workload/framework_options/precision_recipe"
    assert fault.allowed == "none, fp8-delayed, fp8-current, fp8-rowwise, fp8-blockwise, mxfp8"
