"""Energy of a placed step: every group's GPUs at their own power."""

from __future__ import annotations

from profiles.power import power_of
from profiles.profile import Profile
from solver.mixed.pipeline import PlacedStage, placed_pipelines
from solver.plan import Configuration
from solver.problem import Problem


def placed_energy_j(
    problem: Problem, profile: Profile, config: Configuration, step_s: float
) -> float | None:
    """Joules of all GPUs in a step, as ``outlook`` counts those of a mesh; None where no power is known."""
    classes, joules = config.replicas or (config,), 0.0
    for pipeline in placed_pipelines(problem, profile, classes):
        for stage, place in zip(pipeline.stages, pipeline.config.stage_groups, strict=True):
            gpu = stage.on.profile.group.gpu
            if not gpu.power_watts:
                return None
            power = power_of(gpu)
            busy = pipeline.config.num_microbatches * _computing_s(stage)
            joules += place.num_gpus * (power.waiting_w * step_s + (power.busy_w - power.waiting_w) * busy)
    return joules


def _computing_s(stage: PlacedStage) -> float:
    """Computing and recomputing seconds of one micro-batch."""
    prices, row = stage.on.prices, stage.row
    passes = sum(float(stage.parts @ prices.breakdown_s[name][row]) for name in ("compute", "recompute"))
    return passes + float(stage.replayed @ prices.replay_s[row])
