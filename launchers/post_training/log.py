"""Reads what NeMo-RL and verl print of the parts of their steps.

NeMo-RL 0.7.0 nemo_rl/algorithms/grpo.py:3075 prints ``• policy_training: 28.12s (25.0%)`` and
``• Total step time: 112.00s``. verl 0.7.0 utils/logger/aggregate_logger.py prints
``step:3 - timing_s/gen:58.1 - …`` (trainer/ppo/ray_trainer.py:1357). Neither times engines that run ahead:
what their logs call generation is how long training waited.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from meshwright.profiles.errors import InvalidProblemError

_NEMO_RL = re.compile(r"•\s*([\w/ ]+?): (\d+(?:\.\d+)?)s\b")
_VERL = re.compile(r"\btiming_s/([\w/]+):(?:np\.float64\()?(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_STEP = "step"
# Parts by what the trainers call them. verl counts the transfer of weights as generation.
_PARTS: Mapping[str, str] = {
    "generation": "generate", "prepare_for_generation/transfer_and_update_weights": "refit",
    "weight_sync": "refit", "policy_and_reference_logprobs": "log_probabilities",
    "policy_training": "update", "Total step time": _STEP, "data_processing": "other",
    "reward_calculation": "other", "advantage_calculation": "other", "logprob_inference_prep": "other",
    "training_prep": "other",
    "gen": "generate", "param_sync": "refit", "old_log_prob": "log_probabilities",
    "ref": "log_probabilities", "update_actor": "update", "values": "critic", "update_critic": "critic",
    "step": _STEP, "reward": "other", "adv": "other",
}  # fmt: skip
_RUNS_AHEAD = ("exposed_generation", "param_sync")  # names that only asynchronous trainers print


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLog:
    """Seconds of the parts of a step: the median of all steps but the first."""

    parts_s: Mapping[str, float]
    steps: int
    runs_ahead: bool  # generation isn't timed


def read_step_log(name: str, text: str) -> StepLog:
    """Return the parts of a step of a trainer's log.

    Args:
        name: of the file, for faults.
        text: the log.

    Raises:
        InvalidProblemError: it has no step of NeMo-RL or verl.
    """
    steps, seen = list[dict[str, float]](), set[str]()
    for line in text.splitlines():
        named = _NEMO_RL.findall(line) or _VERL.findall(line)
        found = dict[str, float]()
        for key, value in named:
            seen.add(key)
            if key in _PARTS:
                found[_PARTS[key]] = found.get(_PARTS[key], 0.0) + float(value)
        if not found:
            continue
        if _STEP in found or not steps:  # NeMo-RL prints the step's time first, verl all in one line
            steps.append({})
        for part, seconds in found.items():
            steps[-1][part] = steps[-1].get(part, 0.0) + seconds
    if not any(len(step) > 1 for step in steps):
        raise InvalidProblemError.of(
            "--log", f"{name}: no part of a step of NeMo-RL or verl is in it",
            allowed="lines with • policy_training: 28.12s, or timing_s/update_actor:28.1",
        )  # fmt: skip
    warm = steps[1:] or steps
    runs_ahead = bool(seen.intersection(_RUNS_AHEAD))
    parts = dict.fromkeys(part for step in warm for part in step)
    return StepLog(
        parts_s={
            part: median(step[part] for step in warm if part in step)
            for part in parts
            if not (runs_ahead and part == "generate")
        },
        steps=len(warm),
        runs_ahead=runs_ahead,
    )
