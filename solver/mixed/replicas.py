"""Configurations whose data-parallel replicas are unlike: predicted and checked class by class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from profiles.profile import Profile
from solver.mixed.fleet import Fleet
from solver.mixed.pipeline import placed_pipeline
from solver.mixed.predict import mean_peak_flops, predict_placed
from solver.plan import Configuration, Prediction, StagePrediction
from solver.problem import Problem


def share_of(problem: Problem, config: Configuration) -> Problem:
    """The problem of one class: its own sequences alone."""
    return replace(problem, workload=replace(problem.workload, global_batch_size=config.global_batch_size))


def groups_of(fleet: Fleet, config: Configuration) -> tuple[int, ...]:
    """The node groups of the classes; each class stands on one."""
    return tuple(fleet.names.index(one.stage_groups[0].group) for one in config.replicas)


def objective_of(problem: Problem, profile: Profile, config: Configuration) -> float:
    """The closed form of a placed configuration: the slowest class's, with the exchange between them."""
    if not config.replicas:
        return placed_pipeline(problem, profile, config).objective_s
    fleet = Fleet.of(problem, profile)
    classes = [placed_pipeline(share_of(problem, one), profile, one).objective_s for one in config.replicas]
    return max(classes) + fleet.exchange_s(groups_of(fleet, config))


def predict_mixed(problem: Problem, profile: Profile, config: Configuration) -> Prediction:
    """The prediction of a configuration with ``stage_groups`` or with unlike ``replicas``.

    The slowest class's time and its causes, and the exchange of gradients behind it; memory of the stages
    of all classes one after the other, heaviest by its own GPU's limit.
    """
    if not config.replicas:
        return predict_placed(problem, profile, config)
    classes = [predict_placed(share_of(problem, one), profile, one) for one in config.replicas]
    slowest = max(classes, key=lambda one: one.step_time_s)
    fleet = Fleet.of(problem, profile)
    exchange = fleet.exchange_s(groups_of(fleet, config))
    step = slowest.step_time_s + exchange
    causes = dict(slowest.time_breakdown_s)
    causes["data_parallel"] += exchange
    heaviest = max(range(len(classes)), key=lambda at: classes[at].out_of_memory_probability)
    before = sum(len(one.stages) for one in classes[:heaviest])
    peaks = mean_peak_flops(fleet, tuple(stage for one in config.replicas for stage in one.stage_groups))
    rate = config.global_batch_size * problem.workload.seq_length / step / config.num_gpus
    flops = problem.model.model_flops_per_token(
        problem.workload.seq_length, frozen=problem.workload.lora_rank > 0
    )
    wide = slowest.step_time_high_s / slowest.step_time_s
    return replace(
        classes[heaviest],
        step_time_s=step,
        step_time_low_s=step / wide,
        step_time_high_s=step * wide,
        tokens_per_s_per_gpu=rate,
        mfu=rate * flops / peaks,
        hfu=rate * flops / peaks * max(one.hfu / one.mfu for one in classes),
        peak_flops_per_gpu=peaks,
        bubble_fraction=causes["bubble"] / step,
        heaviest_stage=before + classes[heaviest].heaviest_stage,
        time_breakdown_s=causes,
        stages=tuple(_numbered(stage for one in classes for stage in one.stages)),
    )


def _numbered(stages: Iterator[StagePrediction]) -> Iterator[StagePrediction]:
    """Stages of all classes under numbers of their own."""
    return (replace(stage, stage=number) for number, stage in enumerate(stages))
