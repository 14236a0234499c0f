"""Weights of one rank, against what Megatron-Core allocates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.profiles.model import ModelSpec
from meshwright.profiles.storage import BasePrecision
from meshwright.service.verify.priced import context_for, rank_weights
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.compute import memory_bound
from meshwright.solver.cost.context import context_of
from meshwright.solver.cost.memory import layer_activation_bytes
from meshwright.solver.cost.parameters import converted_bytes, layer_weights
from tests.builders import a_model
from tests.launchers.cases import DEEPSEEK_V3, GPT3_175B, LLAMA_3_70B, target
from tests.problems.pricing import a_layout, a_problem, a_profile

WHOLE = Configuration(data_parallel_size=8, num_microbatches=4, stage_layers=(96,))
SPLIT = replace(WHOLE, tensor_parallel_size=8, sequence_parallel=True)


def test_biases_behind_a_sum_over_tensor_ranks_are_on_every_rank() -> None:
    biased = target(GPT3_175B, SPLIT, seq_length=2048)
    plain = target(
        replace(GPT3_175B, qkv_bias=False, attention_output_bias=False, mlp_bias=False),
        SPLIT,
        seq_length=2048,
    )
    # h = 12288 a layer: 3 h of q, k, v and 4 h of the MLP over 8 ranks, 2 h whole: 2.875 h
    assert rank_weights(biased)[0] - rank_weights(plain)[0] == round(96 * 2.875 * 12288)


def test_all_tensor_ranks_together_hold_the_model_and_what_is_whole_once_more_each() -> None:
    (one,) = rank_weights(target(GPT3_175B, WHOLE, seq_length=2048))
    (eighth,) = rank_weights(target(GPT3_175B, SPLIT, seq_length=2048))
    # whole on 8 ranks: 4 h of norms and 2 h of biases a layer, 2 h of the last norm, 2048 h of positions
    again = 7 * (96 * 6 + 2 + 2048) * 12288
    assert 8 * eighth - one == again


def test_a_prediction_layer_has_three_norms_of_its_own() -> None:
    config = Configuration(data_parallel_size=8, num_microbatches=4, stage_layers=(61,))
    (with_one,) = rank_weights(target(DEEPSEEK_V3, config, seq_length=4096))
    (without,) = rank_weights(target(replace(DEEPSEEK_V3, num_mtp_layers=0), config, seq_length=4096))
    # a whole layer, the projection of 2 h to h, and norms of both its inputs and of the output
    h = 7168
    assert with_one - without == DEEPSEEK_V3.layer_parameters("moe") + 2 * h * h + 3 * h
    # torchtitan's tensor ranks hold that projection whole each, Megatron-LM's a half each of 2
    halves = target(DEEPSEEK_V3, replace(config, tensor_parallel_size=2), seq_length=4096)
    whole = replace(halves, problem=replace(halves.problem, launcher="torchtitan"))
    assert rank_weights(whole)[0] - rank_weights(halves)[0] == h * h


# What each fact of a model costs: weights of a rank, kept bytes and moved bytes, by arithmetic.

OF_ALL_AXES = Configuration(
    tensor_parallel_size=8, sequence_parallel=True, data_parallel_size=2, zero_stage=1, zero_shard_size=2,
    num_microbatches=8, stage_layers=(80,),
)  # fmt: skip
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, TENSOR = 8192, 64, 8, 128, 8


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"query_key_norm": "per_head"}, 2 * HEAD_DIM),  # whole on every rank
        ({"query_key_norm": "all_heads"}, (HEADS + KV_HEADS) * HEAD_DIM),
        ({"qkv_bias": True}, (HEADS + 2 * KV_HEADS) * HEAD_DIM / TENSOR),
        ({"attention_output_bias": True}, HIDDEN),
        ({"mlp_bias": True}, 2 * 28672 / TENSOR + HIDDEN),
        ({"attention_sinks": True}, HEADS / TENSOR),
        ({"norm_position": "before_and_after"}, 2 * HIDDEN),
        ({"norm_position": "after"}, 0),
        ({"parallel_residual": True, "shared_norm": True}, -HIDDEN),
        ({"normalization": "layernorm"}, 2 * HIDDEN),
        ({"normalization": "layernorm_without_weights"}, -2 * HIDDEN),
    ],
)
def test_a_fact_adds_its_weights_to_a_rank(changes: dict[str, object], more: float) -> None:
    plain, other = (
        layer_weights(context_for(target(model, OF_ALL_AXES)), "dense").dense[0]
        for model in (LLAMA_3_70B, _with(changes))
    )
    assert other - plain == more


@pytest.mark.parametrize("changes", [{"query_key_norm": "per_head"}, {"norm_position": "before_and_after"}])
def test_a_further_norm_moves_and_keeps_what_it_normalises(changes: dict[str, object]) -> None:
    plain, other = (context_for(target(model, OF_ALL_AXES)) for model in (LLAMA_3_70B, _with(changes)))
    # a token's row on one of 8 ranks: two further norms of h / 8, or one of (64 + 8) / 8 heads of 128
    width = 2 * HIDDEN / TENSOR if "norm_position" in changes else (HEADS + KV_HEADS) / TENSOR * HEAD_DIM
    kept = layer_activation_bytes(other, "dense") - layer_activation_bytes(plain, "dense")
    assert kept[0] == pytest.approx(8192 * width * 2 * plain.constants.activation)
    moved = memory_bound(other, "dense").forward - memory_bound(plain, "dense").forward
    seconds = 8192 * width * 4 * plain.constants.elementwise / plain.hbm_bytes_per_s
    assert moved[0] == pytest.approx(float(seconds), rel=1e-6)


def _with(changes: dict[str, object]) -> ModelSpec:
    return replace(LLAMA_3_70B, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("precision", "forward", "backward"),
    # 4 bits: half a byte read and two written in each pass; 8 bits: scaled backward alone
    # GPTQ: torch's operators one by one, 4.5 + 5 + 2 + 4 + 2 + 3 + 5; AQLM: 2 bits read
    [
        ("nf4", 2.5, 2.5),
        ("nf4-double", 2.5, 2.5),
        ("int8", 0.0, 7.0),
        ("gptq", 25.5, 0.0),
        ("gptq-8bit", 5.0 + 6 + 4 + 4 + 4 + 6 + 6, 0.0),
        ("awq", 2.5, 2.5),
        ("aqlm", 2.25, 2.25),
    ],
)
def test_frozen_weights_of_fewer_bits_move_bytes_before_each_product(
    precision: BasePrecision, forward: float, backward: float
) -> None:
    problem = a_problem(a_model(), lora_rank=16, lora_targets=("q_proj",), base_precision=precision)
    ctx = context_of(problem, Columns.of([a_layout()]), a_profile(problem))
    weights = 2 * 8192**2 + 2 * 8192 * 8 * 128 + 3 * 8192 * 28672
    assert [float(one[0]) for one in converted_bytes(ctx, "dense")] == [
        forward * weights, backward * weights,
    ]  # fmt: skip
