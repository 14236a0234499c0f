"""Placed configurations with their prices, and from their ideal step to the real one, term by term.

The terms are those of ``waterfall``. Inside the pipeline they are means over its stages, each of which has
GPUs of its own; ``ideal`` is the model's FLOPs spread over all GPUs in use in proportion to each one's own
peak, so that what another spread costs is ``imbalance``. Of unlike replicas it is the slowest class that is
told; what the others have in common with it is the exchange of gradients, in ``data_parallel``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from profiles.profile import Profile
from solver.columns import FloatArray
from solver.cost.context import context_of
from solver.cost.price import straggler_share
from solver.mixed.pipeline import GroupPrices, PlacedPipeline, PlacedStage, placed_pipelines
from solver.mixed.replicas import groups_of
from solver.plan import Configuration
from solver.problem import Problem
from solver.why.waterfall import TERMS
from solver.why.work import Work, ideal_parts_s, work_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peak:
    """What the parts of a group's pipelines take in products and attention, and would at peak."""

    work: Work
    ideal_s: FloatArray  # (2, P) of one token on one GPU: products, attention


WorkOf = Callable[[GroupPrices], _Peak]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A configuration's pipelines: one, or that of each class of replicas."""

    config: Configuration
    classes: tuple[PlacedPipeline, ...]
    exchange_s: float  # of gradients between classes

    @property
    def objective_s(self) -> float:
        """The closed form: the slowest class's, and the exchange."""
        return max(one.objective_s for one in self.classes) + self.exchange_s

    @property
    def slowest(self) -> int:
        """The class that the others wait for."""
        return max(range(len(self.classes)), key=lambda at: self.classes[at].objective_s)

    @property
    def stages(self) -> list[PlacedStage]:
        """Of all classes, one after the other."""
        return [stage for one in self.classes for stage in one.stages]


def placed_all(problem: Problem, profile: Profile, configs: Sequence[Configuration]) -> list[Placed]:
    """Price placed configurations together, in their order."""
    classes = [config.replicas or (config,) for config in configs]
    pipelines = iter(placed_pipelines(problem, profile, [one for some in classes for one in some]))
    known, found = dict[tuple[int, ...], float](), list[Placed]()
    for config, some in zip(configs, classes, strict=True):
        own = tuple(next(pipelines) for _ in some)
        groups = groups_of(own[0].fleet, config)
        if len(groups) > 1 and groups not in known:
            known[groups] = own[0].fleet.exchange_s(groups)
        found.append(Placed(config=config, classes=own, exchange_s=known.get(groups, 0.0)))
    return found


def placed_waterfalls(placed: Sequence[Placed], steps_s: Sequence[float]) -> list[dict[str, float]]:
    """The waterfall of every configuration; each sums to its step time, simulated or closed form."""
    known = dict[int, _Peak]()

    def work(on: GroupPrices) -> _Peak:
        if id(on) not in known:
            ideal_s = np.stack(ideal_parts_s(context_of(on.problem, on.columns, on.profile)))
            own = work_of(on.problem, on.profile, on.columns, on.prices)
            known[id(on)] = _Peak(work=own, ideal_s=ideal_s)
        return known[id(on)]

    return [_waterfall(one, step, work) for one, step in zip(placed, steps_s, strict=True)]


def _waterfall(placed: Placed, step_s: float, work: WorkOf) -> dict[str, float]:
    """The terms of one configuration."""
    one, last = placed.classes[placed.slowest], placed.classes[placed.slowest].last
    scale, fixed, m = one.straggler, one.fixed_s, one.config.num_microbatches
    terms = _inside(placed, one, work)
    own = (step_s - placed.exchange_s - fixed) / scale
    reduced = last.tail_s - last.optimizer_s
    terms["bubble"] = own - m * max(stage.time_s for stage in one.stages) - last.tail_s
    terms["data_parallel"] += reduced + placed.exchange_s
    terms["optimizer"] = last.optimizer_s
    slow = one.slowest_nodes
    share = float(straggler_share(slow.on.columns, slow.on.profile)[slow.row])
    terms["straggler"] = (scale - scale / share) * own
    terms["calibration"] = (scale / share - 1.0) * own
    terms["fixed"] = fixed
    return {name: terms.get(name, 0.0) for name in TERMS}


def _inside(placed: Placed, one: PlacedPipeline, work: WorkOf) -> dict[str, float]:
    """What happens inside the pipeline: the mean over stages, and what the slowest has beyond the ideal."""
    m, count, stages = one.config.num_microbatches, len(one.stages), one.stages
    gemm = m * sum(_at(s, work(s.on).work.gemm_s) for s in stages) / count
    attention = m * sum(_at(s, work(s.on).work.attention_s) for s in stages) / count
    causes = {
        name: m * sum(_at(stage, stage.on.prices.breakdown_s[name]) for stage in stages) / count
        for name in stages[0].on.prices.breakdown_s
    }
    replayed = m * sum(float(s.replayed @ s.on.prices.replay_s[s.row]) for s in stages) / count
    products, scores = _ideal_s(one, work)
    ideal, slowest = _shared_ideal_s(placed, work), m * max(stage.time_s for stage in stages)
    return {
        "ideal": ideal,
        "gemm_efficiency": gemm - products,
        "attention_efficiency": attention - scores,
        "memory_bound": causes["compute"] - gemm - attention,
        "launch_floor": causes["rest"],
        "recompute": causes["recompute"] + replayed,
        "tensor_parallel": causes["tensor_parallel"],
        "context_parallel": causes["context_parallel"],
        "expert_parallel": causes["expert_parallel"],
        "data_parallel": causes["data_parallel"],
        "pipeline_transfer": 2.0 * m * sum(stage.transfer_s for stage in one.stages) / count,
        "imbalance": slowest - m * sum(s.time_s for s in one.stages) / count + products + scores - ideal,
    }


def _at(stage: PlacedStage, by_part: FloatArray) -> float:
    """What the parts of a stage come to; ``by_part`` has shape (n, P)."""
    return float(stage.parts @ by_part[stage.row])


def _ideal_s(one: PlacedPipeline, work: WorkOf) -> tuple[float, float]:
    """Products and attention of a step at each stage's own peak, the mean over the stages."""
    tokens = one.config.global_batch_size * float(one.fleet.problem.workload.seq_length)
    own = np.zeros(2)
    for stage, place in zip(one.stages, one.config.stage_groups, strict=True):
        own += work(stage.on).ideal_s @ stage.parts * tokens / place.num_gpus / len(one.stages)
    return float(own[0]), float(own[1])


def _shared_ideal_s(placed: Placed, work: WorkOf) -> float:
    """The whole step at peak where every GPU in use has a share in proportion to its own speed."""
    speed, seq_length = 0.0, placed.classes[0].fleet.problem.workload.seq_length
    for one in placed.classes:
        parts = np.sum([stage.parts for stage in one.stages], axis=0)
        for stage, place in zip(one.stages, one.config.stage_groups, strict=True):
            speed += place.num_gpus / float(work(stage.on).ideal_s.sum(axis=0) @ parts)
    return placed.config.global_batch_size * seq_length / speed
