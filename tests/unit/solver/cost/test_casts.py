"""Bytes of casts for products in 8 and 4 bits, counted tensor by tensor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.profiles.library import find_gpu
from meshwright.profiles.model import LayerKind, ModelSpec
from meshwright.profiles.model_parts import MlaSpec
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.casts import cast_bytes
from meshwright.solver.cost.context import Context, context_of
from tests.builders import a_cluster, a_moe_model
from tests.problems.pricing import GPT, a_layout, a_problem, a_profile

TOKENS, HIDDEN, FFN = 2048, 1024, 4096
# What products read and write: queries, keys and values, attention's output, and the MLP's two.
NORMED, BETWEEN = 2 * HIDDEN, HIDDEN + FFN
CLOSED, OPENED = 2 * HIDDEN, 3 * HIDDEN + FFN


def of_layer(
    recipe: str,
    gpu: str = "h100-sxm-80gb",
    *,
    tp: int = 1,
    model: ModelSpec = GPT,
    lora_rank: int = 0,
    framework: str = "megatron-core",
) -> Context:
    problem = a_problem(
        model,
        cluster=a_cluster(num_nodes=1, gpu=find_gpu(gpu)),
        framework_options={"precision_recipe": recipe},
        lora_rank=lora_rank,
    )
    layout = a_layout(tensor_parallel_size=tp, sequence_parallel=tp > 1)
    return context_of(problem, Columns.of([layout]), a_profile(problem, framework))


def moved(ctx: Context, kind: LayerKind = "dense") -> float:
    forward, backward = cast_bytes(ctx, kind)
    return float(forward[0] + backward[0]) / TOKENS


def test_16_bits_cast_nothing() -> None:
    assert moved(of_layer("none")) == 0.0


def test_delayed_scaling_on_hopper_writes_every_tensor_twice_and_transposes_what_norms_write() -> None:
    """A norm writes 1 byte in place of 2, and a kernel reads and writes 1; others: 2, 1 and 1."""
    expected = (-1 + 2) * NORMED + (2 + 1 + 1) * (BETWEEN + CLOSED + OPENED)
    assert moved(of_layer("fp8-delayed")) == expected


def test_current_scaling_reads_tensors_once_more_for_their_largest_element() -> None:
    """Norms find it, and their rows are cast like the others: 2, 1 and 1."""
    expected = 4 * NORMED + (2 + 4) * (BETWEEN + CLOSED + OPENED)
    assert moved(of_layer("fp8-current")) == expected


@pytest.mark.parametrize(("recipe", "normed"), [("fp8-delayed", -1), ("fp8-current", 3)])
def test_blackwell_reads_8_bits_along_either_side_and_transposes_nothing(recipe: str, normed: int) -> None:
    cast = 3 if recipe == "fp8-delayed" else 5
    assert moved(of_layer(recipe, "b200-sxm-180gb")) == normed * NORMED + cast * (BETWEEN + CLOSED + OPENED)


@pytest.mark.parametrize("gpu", ["rtx-5090", "rtx-pro-6000", "gb10-128gb", "mi355x"])
def test_blackwell_of_capability_12_and_amd_transpose_as_hopper_does(gpu: str) -> None:
    assert moved(of_layer("fp8-delayed", gpu)) == moved(of_layer("fp8-delayed"))


@pytest.mark.parametrize(("recipe", "cast"), [("fp8-delayed", 3), ("fp8-current", 5), ("fp8-rowwise", 4)])
def test_each_of_transformers_modules_casts_what_it_reads(recipe: str, cast: int) -> None:
    """Queries, keys and values three times what one norm has written in 16 bits, and the MLP once."""
    across = 4 if recipe == "fp8-rowwise" else 1
    elements = (3 + 1) * HIDDEN + BETWEEN + CLOSED + OPENED
    assert moved(of_layer(recipe, framework="accelerate")) == (cast + across) * elements


def test_what_sequence_parallelism_gathers_is_cast_in_shares_and_transposed_whole() -> None:
    """On 4 ranks: a quarter of the casts, and 2 bytes of each gathered input and gradient."""
    alone, shared = moved(of_layer("fp8-delayed")), moved(of_layer("fp8-delayed", tp=4))
    gathered = NORMED + CLOSED
    assert shared == (alone - 2 * NORMED - 1 * CLOSED) / 4 + 2 * gathered


def test_frozen_matrices_have_no_gradient_to_read_a_transpose_for() -> None:
    expected = -1 * NORMED + 3 * (BETWEEN + CLOSED + OPENED)
    assert moved(of_layer("fp8-delayed", lora_rank=16)) == expected


def test_blocks_of_scales_are_cast_along_both_sides_in_shares() -> None:
    """Read 2, written 1 and 1; of 4 bits a half each, after a reading for the largest element."""
    assert moved(of_layer("mxfp8", "b200-sxm-180gb")) == 4 * (NORMED + BETWEEN + CLOSED + OPENED)
    shared = of_layer("mxfp8", "b200-sxm-180gb", tp=4)
    assert moved(shared) == 4 * (NORMED + BETWEEN + CLOSED + OPENED) / 4
    assert moved(of_layer("nvfp4", "b200-sxm-180gb")) == 3 * NORMED + 5 * (BETWEEN + CLOSED + OPENED)


def test_one_kernel_of_both_expert_layers_casts_nothing_between_them() -> None:
    """Without it, both layers' inputs and both gradients of every copy: 4 bytes an element."""

    def routed(*, fused: bool) -> float:
        options = {"precision_recipe": "mxfp8", "moe_grouped_mlp_fused": fused}
        cluster = a_cluster(num_nodes=1, gpu=find_gpu("b200-sxm-180gb"))
        problem = a_problem(a_moe_model(), cluster=cluster, framework_options=options)
        layout = a_layout(stage_layers=(32,))
        return moved(context_of(problem, Columns.of([layout]), a_profile(problem)), "moe")

    model = a_moe_model()
    assert model.moe is not None
    copies, width = model.moe.top_k, model.moe.ffn_hidden_size
    assert routed(fused=False) - routed(fused=True) == pytest.approx(4 * copies * (width + 2 * width))


def test_latent_attention_casts_what_each_of_its_projections_reads() -> None:
    """Its normed rows twice, for queries and for keys; then both latents, and 32 of each head for 48."""
    latent = MlaSpec(
        q_lora_rank=64, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32
    )
    plain = replace(GPT, num_kv_heads=GPT.num_attention_heads, head_dim=48)
    forward = [
        float(cast_bytes(of_layer("fp8-current", model=model), "dense")[0][0]) / TOKENS
        for model in (plain, replace(plain, mla=latent))
    ]
    heads = GPT.num_attention_heads
    assert forward[1] - forward[0] == pytest.approx(4 * HIDDEN + 6 * (64 + 32) - 6 * heads * (48 - 32))
