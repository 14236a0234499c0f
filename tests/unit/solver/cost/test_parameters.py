"""Weights of one rank, against what Megatron-Core allocates."""

from dataclasses import replace

from meshwright.solver.configuration import Configuration
from tests.launcher_cases import DEEPSEEK_V3, GPT3_175B, target
from tests.rank_weights import rank_weights

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
