"""Timed runs inside a calibration: their configurations, and their predictions today.

A calibration carries its timed runs, so that a plan that was measured is found again, with its
measurement, when the same question is asked with that calibration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

from meshwright.profiles.calibration import Calibration
from meshwright.profiles.errors import PlannerError
from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Plan, Prediction
from meshwright.solver.calibration.observations import Observation, ProfileOf
from meshwright.solver.configuration import Configuration, configuration_from_json
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, Workload, with_changes


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPrediction:
    """One timed run of a question, with its prediction under the profile at hand."""

    name: str
    workload: Workload  # as it ran: the request's, under the run's framework options
    request: Workload
    configuration: Configuration
    measured_s: float
    prediction: Prediction

    def is_of(self, plan: Plan) -> bool:
        """Return whether the run had the configuration and the switches of a plan of the request."""
        return (
            plan.config == self.configuration and with_changes(self.request, plan.workload) == self.workload
        )

    def to_json(self) -> dict[str, Any]:
        """Return the run as ``plan --json`` lists it."""
        return {
            "run": self.name,
            "config": asdict(self.configuration),
            "measured_step_time_s": self.measured_s,
            "step_time_s": self.prediction.step_time_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One timed run with its predictions before and after the calibration, in seconds."""

    name: str
    measured_s: float
    predicted_s: float  # uncalibrated
    now_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the run as ``calibrate --json`` lists it."""
        return {
            "run": self.name,
            "measured_step_time_s": self.measured_s,
            "uncalibrated_step_time_s": self.predicted_s,
            "step_time_s": self.now_s,
        }


def timed_record(one: Observation, name: str) -> dict[str, Any]:
    """Return a timed run as a calibration carries it, all of it JSON."""
    return {
        "run": name,
        "step_time_s": one.step_time_s,
        "question": question_of(one.problem),
        "framework_options": dict(one.problem.workload.framework_options),
        "config": asdict(one.configuration),
    }


def question_of(problem: Problem) -> dict[str, Any]:
    """Return what two problems share if one plan answers both: model, GPUs, and work of a step."""
    model, workload = problem.model, problem.workload
    return {
        "num_parameters": model.num_parameters(),
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "gpu": problem.cluster.groups[0].gpu.slug,
        "num_gpus": problem.cluster.num_gpus,
        "seq_length": workload.seq_length,
        "tokens_per_sequence": workload.tokens_per_sequence,
        "global_batch_size": workload.global_batch_size,
        "precision": workload.precision,
        "optimizer": workload.optimizer,
        "lora_rank": workload.lora_rank,
    }


def measured_of(
    problem: Problem, profile: Profile, calibrations: Sequence[Calibration]
) -> list[TimedPrediction]:
    """Return the timed runs of ``problem`` that calibrations carry, the one predicted fastest first.

    A record that this version cannot read is left out.
    """
    found = [
        one
        for calibration in calibrations
        for record in calibration.measured
        if (one := _measured(problem, profile, record)) is not None
    ]
    return sorted(found, key=lambda one: (one.prediction.step_time_s, one.name))


def _measured(problem: Problem, profile: Profile, record: Mapping[str, Any]) -> TimedPrediction | None:
    """Return a record's run; None if it answers another question or another version wrote it."""
    try:
        if record["question"] != question_of(problem):
            return None
        configuration = configuration_from_json(record["config"])
        workload = replace(problem.workload, framework_options=dict(record["framework_options"]))
        measured_s, asked = float(record["step_time_s"]), replace(problem, workload=workload)
        if not 0.0 < measured_s < inf or not _runs(asked, configuration):
            return None
        return TimedPrediction(
            name=str(record["run"]),
            workload=workload,
            request=problem.workload,
            configuration=configuration,
            measured_s=measured_s,
            prediction=predict(asked, profile, configuration),
        )
    except (PlannerError, KeyError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
        return None


def _runs(problem: Problem, c: Configuration) -> bool:
    chunks = c.pipeline_parallel_size * c.virtual_pipeline_size
    whole = len(c.stage_layers) == chunks and sum(c.stage_layers) == problem.model.num_layers
    batch = c.global_batch_size == problem.workload.global_batch_size and c.micro_batch_size > 0
    return whole and batch and min(c.stage_layers) >= 0 and 0 < c.num_gpus <= problem.cluster.num_gpus


def compared(
    observations: Sequence[Observation], calibration: Calibration, profile_of: ProfileOf
) -> list[Compared]:
    """Return each timed run that was learnt from with its predictions before and after.

    Args:
        observations: the runs; those without a time are skipped.
        calibration: what was learnt from them.
        profile_of: the uncalibrated profile of an observation.
    """
    found = []
    for one in observations:
        if one.step_time_s is None:
            continue
        before = profile_of(one)
        predicted_s, now_s = (
            predict(one.problem, profile, one.configuration).step_time_s
            for profile in (before, calibration.applied(before))
        )
        found.append(
            Compared(name=one.name, measured_s=one.step_time_s, predicted_s=predicted_s, now_s=now_s)
        )
    return found
