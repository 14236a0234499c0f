from dataclasses import replace

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict, predict_all
from meshwright.solver.problem import Problem
from tests.builders import a_configuration, a_problem

INTERLEAVED = a_configuration()
PLAIN = a_configuration(virtual_pipeline_size=1, pipeline_schedule="1f1b", stage_layers=(20, 20, 20, 20))
RECOMPUTED = a_configuration(recompute_granularity="full", recompute_layers=4)
ZERO_BUBBLE = a_configuration(
    virtual_pipeline_size=1, pipeline_schedule="zb_1p", stage_layers=(20, 20, 20, 20)
)


@pytest.mark.parametrize("configuration", [INTERLEAVED, PLAIN, RECOMPUTED, ZERO_BUBBLE])
def test_the_causes_sum_to_the_step_time_and_none_is_negative(configuration: Configuration) -> None:
    problem = a_problem()
    prediction = predict(problem, default_profile(problem.cluster, "megatron-lm"), configuration)
    assert sum(prediction.time_breakdown_s.values()) == prediction.step_time_s
    assert min(prediction.time_breakdown_s.values()) >= 0.0


def test_the_memory_terms_of_a_stage_sum_to_its_peak_and_the_heaviest_is_named() -> None:
    problem = a_problem()
    prediction = predict(problem, default_profile(problem.cluster, "megatron-lm"), PLAIN)
    for stage in prediction.stages:
        assert sum(stage.memory_bytes.values()) == stage.peak_memory_bytes
    assert prediction.peak_memory_bytes == max(s.peak_memory_bytes for s in prediction.stages)
    assert prediction.stages[prediction.heaviest_stage].peak_memory_bytes == prediction.peak_memory_bytes


def test_a_layer_recomputed_under_a_split_backward_pass_is_not_spared_what_its_weight_gradient_reads() -> (
    None
):
    problem = a_problem()
    again = replace(ZERO_BUBBLE, recompute_granularity="full", recompute_layers=20)
    profile = default_profile(problem.cluster, "megatron-lm")
    kept, replayed = predict_all(problem, profile, [ZERO_BUBBLE, again])
    for plain, full in zip(kept.stages, replayed.stages, strict=True):
        assert full.memory_bytes["activations"] == plain.memory_bytes["activations"]


def test_utilisation_follows_from_the_step_time() -> None:
    # tokens / s / GPU = 512 * 8192 / step / 128; MFU = that times FLOPs per token over 989 TFLOP/s
    problem = a_problem()
    prediction = predict(problem, default_profile(problem.cluster, "megatron-lm"), PLAIN)
    rate = 512 * 8192 / prediction.step_time_s / 128
    assert prediction.tokens_per_s_per_gpu == pytest.approx(rate)
    assert prediction.mfu == pytest.approx(rate * problem.model.model_flops_per_token(8192) / 989e12)
    assert prediction.hfu == prediction.mfu


def test_full_recomputation_counts_a_third_more_in_the_hardware_figure() -> None:
    # every layer's forward pass again: (4 / 3) of the layers' FLOPs, the head's stay
    problem = a_problem()
    prediction = predict(problem, default_profile(problem.cluster, "megatron-lm"), RECOMPUTED)
    head = problem.model.head_forward_flops_per_token()
    forward = problem.model.model_flops_per_token(8192) / 3
    expected = (4 * (forward - head) + 3 * head) / (3 * forward)
    assert prediction.hfu / prediction.mfu == pytest.approx(expected)


def test_the_interval_holds_80_percent() -> None:
    # exp(1.2816 sigma) each way
    problem = a_problem()
    prediction = predict(problem, default_profile(problem.cluster, "megatron-lm"), PLAIN)
    assert prediction.step_time_low_s < prediction.step_time_s < prediction.step_time_high_s
    low = prediction.step_time_s / prediction.step_time_low_s
    assert prediction.step_time_high_s / prediction.step_time_s == pytest.approx(low)


def test_interleaving_shrinks_the_bubble() -> None:
    problem = a_problem()
    profile = default_profile(problem.cluster, "megatron-lm")
    plain, interleaved = predict_all(problem, profile, [PLAIN, INTERLEAVED])
    # (p - 1) / m of the work, a fifth of it with five chunks: 3 / 128 * 4 / 5 = 1.9 % less idle time;
    # what is left waits for the last stage, which has the head
    saved = plain.bubble_fraction - interleaved.bubble_fraction
    assert saved == pytest.approx(3 / 128 * 4 / 5, rel=0.25)


def test_together_or_alone_the_prediction_is_the_same() -> None:
    problem = a_problem()
    profile = default_profile(problem.cluster, "megatron-lm")
    both = predict_all(problem, profile, [PLAIN, RECOMPUTED])
    assert both == [predict(problem, profile, PLAIN), predict(problem, profile, RECOMPUTED)]
    assert predict_all(problem, profile, []) == []


def test_a_step_of_70b_on_128_h100_takes_about_half_a_minute() -> None:
    # 512 * 8192 tokens * 0.47 TFLOP / (128 * 989 TFLOP/s) = 15.6 s at the peak; 45-60 % of it is usual
    problem: Problem = a_problem()
    prediction = predict(problem, default_profile(problem.cluster, "megatron-lm"), INTERLEAVED)
    assert 0.40 < prediction.mfu < 0.62
