"""Configurations evaluated as pipelines of stages, with each stage priced on its node group.

A mesh over equal nodes is one pipeline with all stages on the same prices. A configuration on node groups
has its stages on the prices of several groups, and one pipeline for each class of unlike replicas.
Everything that a reader sees of a configuration is read from here: step and memory, waterfall, timeline,
energy, odds, and the independent check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain, islice

import numpy as np

from meshwright.profiles.cluster import power_of
from meshwright.profiles.links import LinkPace
from meshwright.profiles.profile import Profile
from meshwright.solver.configuration import Columns, Configuration, FloatArray, IntArray, alike
from meshwright.solver.cost.links import paced, paces_of
from meshwright.solver.cost.memory import loaded_bytes
from meshwright.solver.cost.pipelines import EVERYWHERE, NodeGroups, PricedPipelines
from meshwright.solver.cost.stages import (
    ALLOCATED,
    EVALUATION,
    FORWARD,
    LOSS,
    OF_HEAD,
    UPDATE,
    end_of_step_s,
    step_of_end_s,
)
from meshwright.solver.cost.timed_layers import log_sigma_of_timed
from meshwright.solver.problem import Problem
from meshwright.solver.schedules.schedule import ANY_COUNT, fill_share
from meshwright.solver.schedules.simulate import rank_finish_s

ROUNDED_BYTES = 16  # a stage's memory terms are rounded to bytes, each alone


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One pipeline stage on its node group: seconds of one micro-batch, bytes of its memory."""

    on: PricedPipelines
    row: int  # of ``on``
    stage: int
    hop_s: float = 0.0  # of a transfer beyond its own group's, each direction

    @property
    def chunks(self) -> list[int]:
        """Return the stage's chunks, in model order."""
        own = self.on.chunks
        return np.flatnonzero(own.valid[self.row] & (own.rank[self.row] == self.stage)).tolist()

    @property
    def transfer_s(self) -> float:
        """Return the seconds of one activation, each direction."""
        return float(self.on.prices.transfer_s[self.row]) + self.hop_s

    def pass_s(self, chunk: int) -> tuple[float, float, float]:
        """Return a chunk's forward and backward seconds with transfers, and of its weight gradients."""
        found, row = self.on.stages, self.row
        forward, backward = found.chunk_forward_s[row, chunk], found.chunk_backward_s[row, chunk]
        weight = float(found.chunk_weight_s[row, chunk])
        return float(forward) + self.hop_s, float(backward) + self.hop_s, weight

    @cached_property
    def time_s(self) -> float:
        """Return the seconds of both passes of all chunks."""
        return sum(sum(self.pass_s(chunk)[:2]) for chunk in self.chunks)

    @property
    def tail_s(self) -> float:
        """Return the seconds that follow the last micro-batch."""
        return float(self.on.stages.rank_tail_s[self.row, self.stage])

    @property
    def parts(self) -> FloatArray:
        """Return the number of each part that the stage holds, (P,)."""
        return np.asarray(self.on.parts[self.row, self.stage])

    @property
    def replayed(self) -> FloatArray:
        """Return the number of fully recomputed ``parts``, (P,)."""
        return np.asarray(self.on.replayed_parts[self.row, self.stage])

    def of_tail_s(self, cause: str) -> float:
        """Return the seconds of the tail that one cause takes."""
        return float(self.parts @ self.on.prices.tail_breakdown_s[cause][self.row])

    def causes_s(self, num_microbatches: int) -> dict[str, float]:
        """Return seconds of the stage's passes and tail by cause, without bubble and remainder."""
        prices, row, m = self.on.prices, self.row, num_microbatches
        causes = {name: m * float(self.parts @ value[row]) for name, value in prices.breakdown_s.items()}
        causes["recompute"] += m * float(self.replayed @ prices.replay_s[row])
        causes["pipeline_transfer"] = m * float(self.on.handed[row, self.stage]) * self.transfer_s
        causes["data_parallel"] += self.of_tail_s("data_parallel") + float(prices.rank_tail_s[row])
        causes["optimizer"] = self.of_tail_s("optimizer")
        del causes["rest"]
        return causes

    @property
    def computing_s(self) -> float:
        """Return computing and recomputing seconds of one micro-batch."""
        prices, row = self.on.prices, self.row
        passes = sum(float(self.parts @ prices.breakdown_s[name][row]) for name in ("compute", "recompute"))
        return passes + float(self.replayed @ prices.replay_s[row])

    def memory_bytes(self) -> dict[str, int]:
        """Return memory by term at the peak, rounded to bytes."""
        terms = self.on.stages.memory_bytes
        found = {name: round(float(value[self.row, self.stage])) for name, value in terms.items()}
        for name in self._gone:  # more takes its place
            found["workspace"] += found[name]
            found[name] = 0
        return found

    @property
    def _gone(self) -> tuple[str, ...]:
        """Return the terms that are over at the peak."""
        if self.peak_moment == EVALUATION and self.on.context.facts.frees_gradients:
            return ("activations", "gradients")
        return ("activations",) if self.peak_moment in (UPDATE, EVALUATION) else ()

    @cached_property
    def workspaces(self) -> dict[str, float]:
        """Return the bytes on top of what the stage's parts keep, by moment.

        These are one number for all stages of a row, and at an update subtract the activations of all
        layers. For a stage of a pipeline, subtract what that stage keeps.
        """
        has_head = self.stage == int(self.on.chunks.head_rank[self.row])
        found = {
            name: float(value[self.row])
            for name, value in self.on.prices.moments.items()
            if has_head or name not in OF_HEAD
        }
        if self.on.columns.pipeline_parallel_size[self.row] > 1:
            found[UPDATE] = -float(self.on.stages.memory_bytes["activations"][self.row, self.stage])
        return found

    @property
    def peak_moment(self) -> str:
        """Return the moment of the peak."""
        return max(self.workspaces, key=self.workspaces.__getitem__)

    def allocated_bytes(self) -> dict[str, int]:
        """Return the bytes of tensors at each moment: at the peak, the sum of its terms."""
        terms = self.on.stages.memory_bytes
        held = {name: float(value[self.row, self.stage]) for name, value in terms.items()}
        kept = sum(held[name] for name in ALLOCATED) - held["workspace"]
        start = loaded_bytes(self.on.context, self.row, held["weights"], held["optimizer"])
        start += held["buffers"]
        found = {"loading": start, FORWARD: kept}
        found |= {LOSS: kept} if LOSS in self.workspaces else {}
        found |= {name: kept + more for name, more in self.workspaces.items()}
        return {name: round(value) for name, value in found.items()}


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """All stages of a configuration with equal replicas, each stage on its node group."""

    config: Configuration
    stages: tuple[Stage, ...]

    @property
    def straggler(self) -> float:
        """Return the factor by which the slowest group in use lengthens a step, at least 1."""
        return max(float(stage.on.prices.straggler[stage.row]) for stage in self.stages)

    @property
    def fixed_s(self) -> float:
        """Return the largest fixed time of the groups in use."""
        return max(float(stage.on.prices.fixed_s[stage.row]) for stage in self.stages)

    def passes_s(self) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
        """Return forward, backward and weight-gradient seconds of every chunk, in model order."""
        found = {chunk: stage.pass_s(chunk) for stage in self.stages for chunk in stage.chunks}
        forward, backward, weight = zip(*(found[chunk] for chunk in sorted(found)), strict=True)
        return forward, backward, weight

    @cached_property
    def finish_s(self) -> list[float]:
        """Return when each stage ends its last pass: simulated, or by the closed form of its schedule."""
        c = self.config
        if can_simulate(c):
            forward, backward, weight = self.passes_s()
            return rank_finish_s(
                forward, backward, pp=len(self.stages), num_microbatches=c.num_microbatches,
                schedule=c.pipeline_schedule, weight_s=weight,
            )  # fmt: skip
        phi, times = float(fill_share(Columns.of([c]))[0]), [stage.time_s for stage in self.stages]
        return [phi * sum(times) + (c.num_microbatches - phi) * time_s for time_s in times]

    def causes_s(self) -> dict[str, float]:
        """Simulate the schedule, and return the step by the causes of the stage that ends last."""
        finish = self.finish_s
        at = int(np.argmax([end + stage.tail_s for end, stage in zip(finish, self.stages, strict=True)]))
        stage, m, scale = self.stages[at], self.config.num_microbatches, self.straggler
        causes = {name: scale * value for name, value in stage.causes_s(m).items()}
        causes["bubble"] = max(scale * (finish[at] - m * stage.time_s), 0.0)
        step = step_of_end_s(finish[at] + stage.tail_s, scale, self.fixed_s)
        causes["rest"] = step - sum(causes.values())
        return causes

    def log_time_sigma(self, causes_s: Mapping[str, float]) -> float:
        """Return the spread of ln(measured / predicted) of a step with these causes."""
        sigma = max(float(one.on.log_time_sigma[one.row]) for one in self.stages)
        timed = all(one.on.is_timed[one.row] for one in self.stages)
        return log_sigma_of_timed(sigma, causes_s) if timed else sigma

    def step_s(self) -> float:
        """Return the simulated step: the end of the last tail, stragglers and fixed time counted."""
        ends = zip(self.finish_s, self.stages, strict=True)
        end_s = max(finish + stage.tail_s for finish, stage in ends)
        return step_of_end_s(end_s, self.straggler, self.fixed_s)


def can_simulate(configuration: Configuration) -> bool:
    """Return whether the micro-batches fill whole groups of the schedule's order."""
    c = configuration
    whole = c.virtual_pipeline_size == 1 or c.num_microbatches % c.pipeline_parallel_size == 0
    return whole or c.pipeline_schedule in ANY_COUNT


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A configuration with its priced pipelines: one, or one of each class of unlike replicas."""

    config: Configuration
    classes: tuple[Pipeline, ...]
    slowest: int  # of the classes: the others wait for it
    objective_s: float  # closed-form step: that of the slowest class, and the exchange
    exchange_s: float = 0.0  # of gradients between classes, behind the slowest

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Return the stages of all classes, one class after the other."""
        return tuple(stage for one in self.classes for stage in one.stages)

    def slowest_class(self) -> tuple[Pipeline, dict[str, float]]:
        """Return the class whose simulated passes take longest, and their causes without the exchange."""
        causes_of = [(one, one.causes_s()) for one in self.classes]
        return max(causes_of, key=lambda found: sum(found[1].values()))

    def step_s(self) -> float:
        """Return the step that is predicted: the slowest class's causes and the exchange, added up."""
        _, causes = self.slowest_class()
        causes["data_parallel"] += self.exchange_s
        return sum(causes.values())

    def short_bytes(self) -> list[float]:
        """Return the bytes that each stage lacks, (s,); at most 0 where it fits."""
        return [
            float(one.on.peak_bytes[one.row, one.stage]) - one.on.budget_bytes - ROUNDED_BYTES
            for one in self.stages
        ]

    def energy_j(self, step_s: float) -> float | None:
        """Return the joules of all GPUs in a step of ``step_s``; None if a GPU's power is unknown.

        A GPU draws its full power while it computes or recomputes, and that of a waiting one otherwise.
        """
        joules = 0.0
        for pipeline in self.classes:
            for stage, gpus in zip(pipeline.stages, pipeline.config.stage_gpus, strict=True):
                gpu = stage.on.profile.group.gpu
                if not gpu.power_watts:
                    return None
                power = power_of(gpu, stage.on.problem.power_limit_w)
                busy_s = pipeline.config.num_microbatches * stage.computing_s
                joules += gpus * (power.waiting_w * step_s + (power.busy_w - power.waiting_w) * busy_s)
        return joules


def evaluate(
    problem: Problem,
    profile: Profile,
    configs: Sequence[Configuration],
    *,
    with_spread: bool = False,
) -> list[Evaluation]:
    """Evaluate configurations of one problem together, in their order.

    Args:
        problem: the question.
        profile: the problem's prices; of every node group if stages use several. A mesh on a mixed cluster
            is priced as ``profile`` is: the slowest GPU and network set its pace.
        configs: the configurations; they need not be legal, but every chunk has its layers.
        with_spread: whether the spread of their step times is computed as well.

    Where links between nodes differ, a mesh lies on them in the order that they state.

    Raises:
        InvalidProblemError: a framework option of the workload is unknown or has a wrong value.
    """
    if not problem.cluster.differs:
        return _once(problem, profile, configs, with_spread=with_spread)
    alike = dict[tuple[LinkPace, ...], list[int]]()
    for at, config in enumerate(configs):
        alike.setdefault(paces_of(problem, config), []).append(at)
    found = dict[int, Evaluation]()
    for paces, some in alike.items():
        own = [configs[at] for at in some]
        priced = _evaluate(problem, paced(profile, paces), own, with_spread=with_spread)
        found |= dict(zip(some, priced, strict=True))
    return [found[at] for at in range(len(configs))]


_KEPT = 512  # evaluations
_latest = dict[tuple[int, int, Configuration, bool], tuple[Problem, Profile, Evaluation]]()


def forget() -> None:
    """Evaluate anew what was evaluated: the cost model itself was changed."""
    _latest.clear()


def _once(
    problem: Problem, profile: Profile, configs: Sequence[Configuration], *, with_spread: bool
) -> list[Evaluation]:
    """Evaluate what was not evaluated lately: plans are predicted, checked and explained in turn."""
    question = (id(problem), id(profile))  # both are kept, so that no other gets their number
    known = {
        one: _latest.get((*question, one, True))
        or (not with_spread and _latest.get((*question, one, False)))
        for one in configs
    }
    fresh = [one for one, found in known.items() if not found]
    evaluated = _evaluate(problem, profile, fresh, with_spread=with_spread) if fresh else []
    if len(_latest) + len(fresh) > _KEPT:
        _latest.clear()
    found = {one: seen[-1] for one, seen in known.items() if seen}
    for one in evaluated:
        found[one.config] = one
        if len(fresh) <= _KEPT:
            _latest[(*question, one.config, with_spread)] = (problem, profile, one)
    return [found[one] for one in configs]


def _evaluate(
    problem: Problem, profile: Profile, configs: Sequence[Configuration], *, with_spread: bool
) -> list[Evaluation]:
    nodes = NodeGroups.of(problem, profile)
    classes = [config.classes for config in configs]
    pipelines = _pipelines(nodes, profile, list(chain(*classes)), with_spread=with_spread)
    objectives_s = iter(StageTable(pipelines).objective_s().tolist() if pipelines else ())
    priced, exchange_s = iter(pipelines), cache(nodes.exchange_s)
    found = list[Evaluation]()
    for config, some in zip(configs, classes, strict=True):
        own = tuple(islice(priced, len(some)))
        steps_s = [next(objectives_s) for _ in own]
        exchanged_s = exchange_s(tuple(one.stages[0].on.group for one in own))
        found.append(
            Evaluation(
                config=config,
                classes=own,
                slowest=int(np.argmax(steps_s)),
                objective_s=max(steps_s) + exchanged_s,
                exchange_s=exchanged_s,
            )
        )
    return found


_Place = tuple[int, Configuration]  # a node group, or EVERYWHERE, and the mesh priced there


def _places(nodes: NodeGroups, config: Configuration) -> list[_Place]:
    """Return what each stage is priced as: a stage of a mesh over all nodes, or of one on its group."""
    if not config.stage_groups:
        return [(EVERYWHERE, config)] * config.pipeline_parallel_size
    return [
        (nodes.names.index(one.group), alike(config, one.tensor_parallel_size))
        for one in config.stage_groups
    ]


def _pipelines(
    nodes: NodeGroups, profile: Profile, configs: Sequence[Configuration], *, with_spread: bool
) -> list[Pipeline]:
    places = [_places(nodes, config) for config in configs]
    meshes = dict[int, dict[tuple[int, int], Configuration]]()  # by group, then pipeline and its tp
    for at, some in enumerate(places):
        for group, mesh in some:
            meshes.setdefault(group, {})[at, mesh.tensor_parallel_size] = mesh
    on = dict[int, PricedPipelines]()
    for group, asked in meshes.items():
        alone, name = (nodes.problem, profile), ""
        if group != EVERYWHERE:
            alone, name = (nodes.problems[group], nodes.profiles[group]), nodes.names[group]
        on[group] = PricedPipelines.of(*alone, list(asked.values()), group, name, with_spread=with_spread)
    rows = {group: {pair: row for row, pair in enumerate(asked)} for group, asked in meshes.items()}
    between_s = cache(lambda one, other, sent: float(nodes.hop_s(one, other, np.array([sent]))[0]))
    found = list[Pipeline]()
    for at, (config, some) in enumerate(zip(configs, places, strict=True)):
        stages = list[Stage]()
        for number, (group, mesh) in enumerate(some):
            own = Stage(on=on[group], row=rows[group][at, mesh.tensor_parallel_size], stage=number)
            before = stages[-1] if stages else own
            if before.on.group != group:  # how much longer a transfer takes than one inside the group
                sent = max(float(one.on.sent_bytes[one.row]) for one in (before, own))
                inside_s = float(own.on.prices.transfer_s[own.row])
                own = replace(own, hop_s=between_s(before.on.group, group, sent) - inside_s)
            stages.append(own)
        found.append(Pipeline(config=config, stages=tuple(stages)))
    return found


class StageTable:
    """The s stages of k pipelines, one pipeline after the other, as arrays."""

    def __init__(self, pipelines: Sequence[Pipeline]) -> None:
        stages = [stage for one in pipelines for stage in one.stages]
        counts = np.array([len(one.stages) for one in pipelines])
        self.pipelines = pipelines
        self.starts: IntArray = np.cumsum(counts) - counts  # the first stage of each pipeline, (k,)
        self.of: IntArray = np.repeat(np.arange(len(pipelines)), counts)  # the pipeline of each stage, (s,)
        self.hop_s = np.array([stage.hop_s for stage in stages])
        self.num_stages = counts
        self.num_microbatches = np.array([one.config.num_microbatches for one in pipelines])
        self._rows = np.array([stage.row for stage in stages])
        self._ranks = np.array([stage.stage for stage in stages])
        by_prices = dict[int, tuple[PricedPipelines, list[int]]]()
        for at, stage in enumerate(stages):
            by_prices.setdefault(id(stage.on), (stage.on, []))[1].append(at)
        self._on = [(on, np.array(where)) for on, where in by_prices.values()]

    def of_ranks(self, read: Callable[[PricedPipelines], FloatArray]) -> FloatArray:
        """Return values of stages, (s,), from those of every rank, (n, R)."""
        return self._each(lambda on, rows, ranks: read(on)[rows, ranks])

    def of_rows(self, read: Callable[[PricedPipelines], FloatArray]) -> FloatArray:
        """Return values of stages, (s,), from those of the rows that price them, (n,)."""
        return self._each(lambda on, rows, _ranks: read(on)[rows])

    def of_parts(
        self, read: Callable[[PricedPipelines], FloatArray], *, replayed: bool = False
    ) -> FloatArray:
        """Return values of stages, (s,), summed over the parts that they hold, from values by part, (n, P).

        ``replayed``: over their fully recomputed parts. Where prediction layers are parts of their own,
        values may count them with the head: (n, P - 1).
        """

        def held(on: PricedPipelines, rows: IntArray, ranks: IntArray) -> FloatArray:
            values, number = read(on), (on.replayed_parts if replayed else on.parts)[rows, ranks]
            if values.shape[1] < number.shape[1]:
                number = np.delete(number, -3, axis=1)
            return np.asarray((number * values[rows]).sum(axis=1))

        return self._each(held)

    def _each(self, read: Callable[[PricedPipelines, IntArray, IntArray], FloatArray]) -> FloatArray:
        found = np.empty(len(self.of))
        for on, at in self._on:
            found[at] = read(on, self._rows[at], self._ranks[at])
        return found

    def most(self, of_stages: FloatArray) -> FloatArray:
        """Return the largest of each pipeline's stages, (k,)."""
        return np.asarray(np.maximum.reduceat(of_stages, self.starts))

    def first_of_most(self, of_stages: FloatArray) -> IntArray:
        """Return the first stage of each pipeline that has its largest value, (k,)."""
        largest = np.flatnonzero(of_stages == self.most(of_stages)[self.of])
        return largest[np.unique(self.of[largest], return_index=True)[1]]

    @cached_property
    def stage_gpus(self) -> IntArray:
        """Return the GPUs of each stage, of all replicas, (s,)."""
        return np.array([gpus for one in self.pipelines for gpus in one.config.stage_gpus])

    @cached_property
    def time_s(self) -> FloatArray:
        """Return both passes of one micro-batch through all chunks of a stage, (s,)."""
        hops = self.of_ranks(lambda on: on.handed) * self.hop_s if self.hop_s.any() else 0.0
        return self.of_ranks(lambda on: on.stages.rank_time_s) + hops

    @cached_property
    def tail_s(self) -> FloatArray:
        """Return the seconds after the last micro-batch, (s,)."""
        return self.of_ranks(lambda on: on.stages.rank_tail_s)

    @cached_property
    def phi(self) -> FloatArray:
        """Return the share of the stages' times that fills and drains the pipeline, (k,)."""
        return fill_share(Columns.of([one.config for one in self.pipelines]))

    @cached_property
    def straggler(self) -> FloatArray:
        """Return the factor of each pipeline's slowest group, (k,)."""
        return self.most(self.of_rows(lambda on: on.prices.straggler))

    @cached_property
    def fixed_s(self) -> FloatArray:
        """Return the largest fixed time of each pipeline's groups, (k,)."""
        return self.most(self.of_rows(lambda on: on.prices.fixed_s))

    @cached_property
    def last(self) -> IntArray:
        """Return the stage of each pipeline that ends last by the closed form, (k,)."""
        return self.first_of_most(self._steady_s(self.time_s, self.tail_s))

    def _steady_s(self, time_s: FloatArray, tail_s: FloatArray) -> FloatArray:
        """Return the seconds that a stage adds if it ends last, (s,)."""
        return (self.num_microbatches - self.phi)[self.of] * time_s + tail_s

    def objective_s(self, factor: FloatArray | float = 1.0) -> FloatArray:
        """Return each pipeline's closed-form step, (k,), with stage times multiplied by ``factor``, (s,).

        ``straggler (phi sum_s t_s + max_s ((m - phi) t_s + tail_s)) + fixed``.
        """
        time_s, tail_s = self.time_s * factor, self.tail_s * factor
        end_s = self.phi * np.add.reduceat(time_s, self.starts) + self.most(self._steady_s(time_s, tail_s))
        return step_of_end_s(end_s, self.straggler, self.fixed_s)

    def end_s(self, step_s: FloatArray) -> FloatArray:
        """Return when the last stage ends its tail in a step, before stragglers and fixed time, (k,)."""
        return end_of_step_s(step_s, self.straggler, self.fixed_s)
