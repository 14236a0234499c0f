"""The prediction of a placed configuration: each stage priced on its own node group.

The same formulas as a mesh over equal nodes: a stage is assembled as that stage of the whole pipeline
under the profile of its group; only the transfers between groups are priced by the link between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from profiles.profile import Profile
from solver.columns import Columns, FloatArray, IntArray
from solver.cost.assemble import Stages, assemble, chunks_of
from solver.cost.communication import sent_bytes
from solver.cost.context import context_of
from solver.cost.memory import memory_budget_bytes, memory_limit_bytes
from solver.cost.price import price
from solver.cost.prices import LayerLayout, RowPrices
from solver.mixed.fleet import Fleet
from solver.plan import Configuration, Prediction, StageGroup, StagePrediction
from solver.predict import prediction_of
from solver.problem import Problem
from solver.search.simulate import rank_finish_s
from solver.spread import log_time_sigma


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStage:
    """One stage on its group: seconds of one micro-batch, bytes of its memory."""

    group: int
    stage: int
    prices: RowPrices
    assembled: Stages  # the whole pipeline as if all of it stood there
    parts: FloatArray  # (P,) number of each part that the stage holds
    hop_s: float  # beyond its own group's transfer, each direction

    @property
    def forward_s(self) -> float:
        """The forward pass, with the transfer from the stage before."""
        return float(self.assembled.chunk_forward_s[0, self.stage]) + self.hop_s

    @property
    def backward_s(self) -> float:
        """The backward pass, with the transfer to the stage before."""
        return float(self.assembled.chunk_backward_s[0, self.stage]) + self.hop_s

    @property
    def tail_s(self) -> float:
        """What follows the last micro-batch."""
        return float(self.assembled.rank_tail_s[0, self.stage])

    @property
    def optimizer_s(self) -> float:
        """Of the tail the optimizer's own."""
        return float(self.parts @ self.prices.tail_breakdown_s["optimizer"][0])

    def memory_bytes(self) -> dict[str, int]:
        """Memory by term."""
        terms = self.assembled.memory_bytes
        return {name: round(float(value[0, self.stage])) for name, value in terms.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPipeline:
    """All stages of a placed configuration and what is the row's own."""

    fleet: Fleet
    config: Configuration
    stages: tuple[PlacedStage, ...]

    @property
    def straggler(self) -> float:
        """Of the slowest group in use."""
        return max(float(stage.prices.straggler[0]) for stage in self.stages)

    @property
    def fixed_s(self) -> float:
        """The same."""
        return max(float(stage.prices.fixed_s[0]) for stage in self.stages)

    @property
    def objective_s(self) -> float:
        """The closed form: ``straggler (sum_s t_s + max_s ((m - 1) t_s + tail_s)) + fixed``."""
        more = self.config.num_microbatches - 1
        times = [stage.forward_s + stage.backward_s for stage in self.stages]
        slowest = max(more * time + stage.tail_s for time, stage in zip(times, self.stages, strict=True))
        return self.straggler * (sum(times) + slowest) + self.fixed_s

    def finish_s(self) -> list[float]:
        """When each stage ends its last pass."""
        return rank_finish_s(
            [stage.forward_s for stage in self.stages],
            [stage.backward_s for stage in self.stages],
            pp=len(self.stages),
            num_microbatches=self.config.num_microbatches,
            schedule=self.config.pipeline_schedule,
        )


def alike(config: Configuration, tensor_parallel_size: int) -> Configuration:
    """The same pipeline as if all stages had one tensor-parallel size and equal nodes."""
    return replace(
        config,
        tensor_parallel_size=tensor_parallel_size,
        sequence_parallel=tensor_parallel_size > 1,
        stage_groups=(),
    )


def placed_pipeline(problem: Problem, profile: Profile, config: Configuration) -> PlacedPipeline:
    """Price every stage of a configuration with ``stage_groups``."""
    fleet, layout = Fleet.of(problem, profile), LayerLayout.of(problem.model)
    split: IntArray = np.array([config.stage_layers], dtype=np.int64)
    places = [(fleet.names.index(one.group), one.tensor_parallel_size) for one in config.stage_groups]
    priced: dict[tuple[int, int], tuple[RowPrices, Stages, float]] = {}
    parts = chunks_of(Columns.of([alike(config, 1)]), layout, split).parts[0]
    for group, size in set(places):
        columns = Columns.of([alike(config, size)])
        prices = price(fleet.problems[group], columns, fleet.profiles[group])
        sent = float(sent_bytes(context_of(fleet.problems[group], columns, fleet.profiles[group]))[0])
        priced[group, size] = (prices, assemble(prices, columns, layout, split), sent)
    stages, before = list[PlacedStage](), places[0]
    for number, place in enumerate(places):
        prices, assembled, sent = priced[place]
        hop_s = 0.0
        if place != before:
            hop_s = float(fleet.hop_s(before[0], place[0], np.array([max(sent, priced[before][2])]))[0])
            hop_s -= float(prices.transfer_s[0])
        stages.append(
            PlacedStage(
                group=place[0],
                stage=number,
                prices=prices,
                assembled=assembled,
                parts=parts[number],
                hop_s=hop_s,
            )
        )
        before = place
    return PlacedPipeline(fleet=fleet, config=config, stages=tuple(stages))


def _causes_s(pipeline: PlacedPipeline, at: int, finish_s: float) -> dict[str, float]:
    """Seconds of the stage that ends last by cause; they sum to the step time."""
    stage, m, scale = pipeline.stages[at], pipeline.config.num_microbatches, pipeline.straggler
    whole = stage.forward_s + stage.backward_s
    transfer = 2.0 * m * (float(stage.prices.transfer_s[0]) + stage.hop_s)
    causes = {
        "compute": scale * max(m * whole - transfer, 0.0),
        "pipeline_transfer": scale * transfer,
        "bubble": scale * max(finish_s - m * whole, 0.0),
        "data_parallel": scale * (stage.tail_s - stage.optimizer_s),
        "optimizer": scale * stage.optimizer_s,
    }
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
                compute_s=stage.forward_s + stage.backward_s,
                memory_limit_bytes=memory_limit_bytes(pipeline.fleet.problems[stage.group]),
            )
        )
    return tuple(found)


def budgets_bytes(pipeline: PlacedPipeline) -> list[float]:
    """What each stage may use at its peak."""
    fleet = pipeline.fleet
    chance = fleet.problem.options.max_out_of_memory_probability
    return [
        memory_budget_bytes(fleet.problems[stage.group], fleet.profiles[stage.group], chance)
        for stage in pipeline.stages
    ]


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
    causes = _causes_s(pipeline, last, finish[last])
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
    )
