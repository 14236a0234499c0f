"""Parts of a step are read from what NeMo-RL and verl print."""

from __future__ import annotations

import pytest

from meshwright.launchers.post_training.log import read_step_log
from meshwright.profiles.errors import InvalidProblemError

NEMO_RL = """
========================= Step {step}/100 =========================
  • Loss: 0.0123
  • Avg Reward: 0.5100
⏱️  Timing:
  • Total step time: {total:.2f}s
  • generation: 58.00s (51.8%)
  • policy_training: 28.00s (25.0%)
  • policy_and_reference_logprobs: 18.00s (16.1%)
  • prepare_for_generation/total: 5.50s (4.9%)
  • prepare_for_generation/transfer_and_update_weights: 5.00s (4.5%)
  • reward_calculation: 1.00s (0.9%)
  • data_processing: 0.50s (0.4%)
"""
VERL = (
    "(TaskRunner pid=7) step:{step} - actor/entropy:0.41 - timing_s/gen:{gen} - timing_s/reward:1.0 - "
    "timing_s/old_log_prob:9.0 - timing_s/ref:8.5 - timing_s/adv:0.5 - timing_s/update_actor:28.0 - "
    "timing_s/step:np.float64(112.0) - timing_per_token_ms/gen:0.03\n"
)


def test_nemo_rl_prints_parts_below_the_step() -> None:
    log = "".join(NEMO_RL.format(step=step, total=112 + 80 * (step == 1)) for step in (1, 2, 3))
    found = read_step_log("run.log", log)
    assert (found.steps, found.runs_ahead) == (2, False)
    assert found.parts_s == {
        "step": 112.0, "generate": 58.0, "update": 28.0, "log_probabilities": 18.0, "refit": 5.0,
        "other": 1.5,
    }  # fmt: skip


def test_verl_prints_a_step_on_a_line() -> None:
    found = read_step_log(
        "run.log", "".join(VERL.format(step=at, gen=gen) for at, gen in enumerate((90, 60.5)))
    )
    assert found.parts_s == {
        "generate": 60.5, "other": 1.5, "log_probabilities": 17.5, "update": 28.0, "step": 112.0
    }  # fmt: skip


def test_generation_that_runs_ahead_is_not_what_the_log_calls_so() -> None:
    found = read_step_log("run.log", VERL.format(step=1, gen=2.0) + "timing_s/param_sync:3.0\n")
    assert found.runs_ahead
    assert "generate" not in found.parts_s


def test_a_log_without_steps_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="no part of a step"):
        read_step_log("run.log", "loss 3.0\n")
