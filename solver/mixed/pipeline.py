"""Placed pipelines: every stage priced on its own node group, many configurations in few array operations.

The same formulas as a mesh over equal nodes: a stage is assembled as that stage of the whole pipeline
under the profile of its group; only the transfers between groups are priced by the link between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from profiles.profile import Profile
from solver.columns import Columns, FloatArray, IntArray
from solver.cost.assemble import Chunks, Stages, assemble, chunks_of
from solver.cost.communication import sent_bytes
from solver.cost.context import context_of
from solver.cost.memory import memory_budget_bytes
from solver.cost.price import price
from solver.cost.prices import LayerLayout, RowPrices
from solver.mixed.fleet import Fleet
from solver.plan import Configuration
from solver.predict import padded
from solver.problem import Problem
from solver.search.simulate import rank_finish_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupPrices:
    """Whole pipelines as if all of each stood on one group; a row for each tensor-parallel size in use."""

    group: int  # among ``Fleet.groups``
    problem: Problem
    profile: Profile
    columns: Columns
    splits: IntArray  # (n, C) layers of each stage
    prices: RowPrices
    chunks: Chunks
    assembled: Stages
    sent_bytes: FloatArray  # (n,) of one activation, by one rank


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStage:
    """One stage on its group: seconds of one micro-batch, bytes of its memory."""

    on: GroupPrices
    row: int  # of ``on``
    stage: int
    hop_s: float  # beyond its own group's transfer, each direction

    @property
    def group(self) -> int:
        """Where it stands."""
        return self.on.group

    @property
    def transfer_s(self) -> float:
        """Of one activation, each direction."""
        return float(self.on.prices.transfer_s[self.row]) + self.hop_s

    @property
    def forward_s(self) -> float:
        """The forward pass, with the transfer from the stage before."""
        return float(self.on.assembled.chunk_forward_s[self.row, self.stage]) + self.hop_s

    @property
    def backward_s(self) -> float:
        """The backward pass, with the transfer to the stage before."""
        return float(self.on.assembled.chunk_backward_s[self.row, self.stage]) + self.hop_s

    @property
    def time_s(self) -> float:
        """Both passes."""
        return self.forward_s + self.backward_s

    @property
    def tail_s(self) -> float:
        """What follows the last micro-batch."""
        return float(self.on.assembled.rank_tail_s[self.row, self.stage])

    @property
    def parts(self) -> FloatArray:
        """Number of each part that the stage holds, (P,)."""
        return np.asarray(self.on.chunks.parts[self.row, self.stage])

    @property
    def replayed(self) -> FloatArray:
        """Fully recomputed ones among them, (P,)."""
        return np.asarray(self.on.chunks.replayed[self.row, self.stage])

    @property
    def optimizer_s(self) -> float:
        """Of the tail the optimizer's own."""
        return float(self.parts @ self.on.prices.tail_breakdown_s["optimizer"][self.row])

    def memory_bytes(self) -> dict[str, int]:
        """Memory by term."""
        terms = self.on.assembled.memory_bytes
        return {name: round(float(value[self.row, self.stage])) for name, value in terms.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPipeline:
    """All stages of a placed configuration and what is the row's own."""

    fleet: Fleet
    config: Configuration
    stages: tuple[PlacedStage, ...]

    @property
    def slowest_nodes(self) -> PlacedStage:
        """A stage on the group in use whose nodes wait for one another most."""
        return max(self.stages, key=lambda stage: float(stage.on.prices.straggler[stage.row]))

    @property
    def straggler(self) -> float:
        """Of the slowest group in use."""
        stage = self.slowest_nodes
        return float(stage.on.prices.straggler[stage.row])

    @property
    def fixed_s(self) -> float:
        """The same."""
        return max(float(stage.on.prices.fixed_s[stage.row]) for stage in self.stages)

    @property
    def objective_s(self) -> float:
        """The closed form: ``straggler (sum_s t_s + max_s ((m - 1) t_s + tail_s)) + fixed``."""
        more, last = self.config.num_microbatches - 1, self.last
        whole = sum(stage.time_s for stage in self.stages) + more * last.time_s + last.tail_s
        return self.straggler * whole + self.fixed_s

    @property
    def last(self) -> PlacedStage:
        """The stage that ends last by the closed form."""
        more = self.config.num_microbatches - 1
        return max(self.stages, key=lambda stage: more * stage.time_s + stage.tail_s)

    def finish_s(self) -> list[float]:
        """When each stage ends its last pass."""
        return rank_finish_s(
            [stage.forward_s for stage in self.stages],
            [stage.backward_s for stage in self.stages],
            pp=len(self.stages),
            num_microbatches=self.config.num_microbatches,
            schedule=self.config.pipeline_schedule,
        )

    def budgets_bytes(self) -> list[float]:
        """What each stage may use at its peak."""
        chance = self.fleet.problem.options.max_out_of_memory_probability
        return [memory_budget_bytes(s.on.problem, s.on.profile, chance) for s in self.stages]


def alike(config: Configuration, tensor_parallel_size: int) -> Configuration:
    """The same pipeline as if all stages had one tensor-parallel size and equal nodes."""
    return replace(
        config,
        tensor_parallel_size=tensor_parallel_size,
        sequence_parallel=tensor_parallel_size > 1,
        stage_groups=(),
    )


def placed_pipelines(
    problem: Problem, profile: Profile, configs: Sequence[Configuration]
) -> list[PlacedPipeline]:
    """Price every stage of configurations with ``stage_groups``."""
    fleet = Fleet.of(problem, profile)
    places = [
        [(fleet.names.index(one.group), one.tensor_parallel_size) for one in config.stage_groups]
        for config in configs
    ]
    wanted = dict[int, dict[tuple[int, int], None]]()  # by group: (configuration, tp), each once
    for at, stands in enumerate(places):
        for group, size in stands:
            wanted.setdefault(group, {})[at, size] = None
    on = {group: _priced(fleet, group, configs, list(pairs)) for group, pairs in wanted.items()}
    rows = {group: {pair: row for row, pair in enumerate(pairs)} for group, pairs in wanted.items()}
    hops = dict[tuple[int, int, float], float]()

    def pipeline(at: int) -> PlacedPipeline:
        here = [(on[group], rows[group][at, size]) for group, size in places[at]]
        before = [here[0], *here[:-1]]
        stages = tuple(
            PlacedStage(
                on=own, row=row, stage=number, hop_s=_hop_s(fleet, hops, before[number], (own, row))
            )
            for number, (own, row) in enumerate(here)
        )
        return PlacedPipeline(fleet=fleet, config=configs[at], stages=stages)

    return [pipeline(at) for at in range(len(configs))]


def placed_pipeline(problem: Problem, profile: Profile, config: Configuration) -> PlacedPipeline:
    """Price every stage of one configuration with ``stage_groups``."""
    return placed_pipelines(problem, profile, [config])[0]


def _priced(
    fleet: Fleet, group: int, configs: Sequence[Configuration], pairs: Sequence[tuple[int, int]]
) -> GroupPrices:
    """Configurations as if they stood on one group."""
    problem, profile = fleet.problems[group], fleet.profiles[group]
    here = [alike(configs[at], size) for at, size in pairs]
    columns, splits, layout = Columns.of(here), padded(here), LayerLayout.of(problem.model)
    prices = price(problem, columns, profile)
    return GroupPrices(
        group=group,
        problem=problem,
        profile=profile,
        columns=columns,
        splits=splits,
        prices=prices,
        chunks=chunks_of(columns, layout, splits),
        assembled=assemble(prices, columns, layout, splits),
        sent_bytes=sent_bytes(context_of(problem, columns, profile)),
    )


def _hop_s(
    fleet: Fleet,
    known: dict[tuple[int, int, float], float],
    before: tuple[GroupPrices, int],
    own: tuple[GroupPrices, int],
) -> float:
    """Seconds of a transfer from the stage before beyond one inside the group, each direction."""
    if before[0].group == own[0].group:
        return 0.0
    sent = max(float(one.sent_bytes[row]) for one, row in (before, own))
    key = (before[0].group, own[0].group, sent)
    if key not in known:
        known[key] = float(fleet.hop_s(*key[:2], np.array([sent]))[0])
    return known[key] - float(own[0].prices.transfer_s[own[1]])


def causes_s(stage: PlacedStage, num_microbatches: int) -> Mapping[str, float]:
    """Seconds of one stage's passes and tail by cause, as ``predict`` has those of a rank."""
    prices, row, m = stage.on.prices, stage.row, num_microbatches
    causes = {name: m * float(stage.parts @ value[row]) for name, value in prices.breakdown_s.items()}
    causes["recompute"] += m * float(stage.replayed @ prices.replay_s[row])
    causes["pipeline_transfer"] = 2.0 * m * stage.transfer_s
    causes["data_parallel"] += stage.tail_s - stage.optimizer_s
    causes["optimizer"] = stage.optimizer_s
    del causes["rest"]
    return causes
