"""The prediction of a placed configuration: the stage that ends last decides, each under its own limit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from profiles.profile import Profile
from solver.columns import Columns, IntArray
from solver.cost.measured_range import extrapolated
from solver.cost.memory import memory_limit_bytes
from solver.mixed.fleet import Fleet
from solver.mixed.pipeline import PlacedPipeline, alike, causes_s, placed_pipeline
from solver.plan import Configuration, Prediction, StageGroup, StagePrediction
from solver.predict import prediction_of
from solver.problem import Problem
from solver.spread import log_time_sigma


def _breakdown_s(pipeline: PlacedPipeline, at: int, finish_s: float) -> dict[str, float]:
    """Seconds of the stage that ends last by cause; they sum to the step time."""
    stage, m, scale = pipeline.stages[at], pipeline.config.num_microbatches, pipeline.straggler
    causes = {name: scale * value for name, value in causes_s(stage, m).items()}
    causes["bubble"] = scale * max(finish_s - m * stage.time_s, 0.0)
    causes["rest"] = scale * (finish_s + stage.tail_s) + pipeline.fixed_s - sum(causes.values())
    return causes


def _stage_predictions(pipeline: PlacedPipeline) -> tuple[StagePrediction, ...]:
    """Memory and time of every stage, with its own GPU's limit."""
    found = []
    for number, stage in enumerate(pipeline.stages):
        terms = stage.memory_bytes()
        found.append(
            StagePrediction(
                stage=number,
                layers=pipeline.config.stage_layers[number],
                memory_bytes=terms,
                peak_memory_bytes=sum(terms.values()),
                compute_s=stage.time_s,
                memory_limit_bytes=memory_limit_bytes(stage.on.problem),
            )
        )
    return tuple(found)


def mean_peak_flops(fleet: Fleet, stage_groups: tuple[StageGroup, ...]) -> float:
    """Dense bf16 peak of the GPUs in use, on average."""
    peaks: Mapping[str, float] = {
        name: group.gpu.peak_bf16_flops for name, group in zip(fleet.names, fleet.groups, strict=True)
    }
    total = sum(one.num_gpus * peaks[one.group] for one in stage_groups)
    return total / sum(one.num_gpus for one in stage_groups)


def _log_time_sigma(pipeline: PlacedPipeline) -> float:
    """Spread of ln(measured / predicted) step time: that of the least certain group in use."""
    config, sigmas = pipeline.config, []
    split: IntArray = np.array([config.stage_layers], dtype=np.int64)
    for group in {stage.group for stage in pipeline.stages}:
        one = next(place for place in config.stage_groups if place.group == pipeline.fleet.names[group])
        columns = Columns.of([alike(config, one.tensor_parallel_size)])
        fleet = pipeline.fleet
        sigmas.append(log_time_sigma(fleet.problems[group], columns, split, fleet.profiles[group])[0])
    return float(max(sigmas))


def predict_placed(problem: Problem, profile: Profile, config: Configuration) -> Prediction:
    """The prediction of a configuration with ``stage_groups``: one pipeline, all replicas alike."""
    pipeline = placed_pipeline(problem, profile, config)
    finish = pipeline.finish_s()
    ends = [end + stage.tail_s for end, stage in zip(finish, pipeline.stages, strict=True)]
    last = int(np.argmax(ends))
    causes = _breakdown_s(pipeline, last, finish[last])
    stages = _stage_predictions(pipeline)
    heaviest = max(stages, key=lambda one: one.peak_memory_bytes / (one.memory_limit_bytes or 1))
    of_group = profile.by_group[pipeline.stages[heaviest.stage].group]
    return prediction_of(
        problem,
        config,
        causes,
        stages,
        heaviest=heaviest,
        memory_limit_bytes=heaviest.memory_limit_bytes or 0,
        peak_flops=mean_peak_flops(pipeline.fleet, config.stage_groups),
        log_time_sigma=_log_time_sigma(pipeline),
        log_memory_sigma=of_group.log_memory_sigma,
        extrapolated=_extrapolated(pipeline),
    )


def _extrapolated(pipeline: PlacedPipeline) -> tuple[str, ...]:
    """What lies outside the measured range of a group in use."""
    found = dict[str, None]()
    for on in {stage.group: stage.on for stage in pipeline.stages}.values():
        rows = {stage.row for stage in pipeline.stages if stage.group == on.group}
        beyond = extrapolated(on.problem, on.columns, on.profile)
        name = pipeline.fleet.names[on.group]
        found |= {f"{what} of {name}": None for row in sorted(rows) for what in beyond[row]}
    return tuple(found)
