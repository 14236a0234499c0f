"""Answers: one configuration, its prediction, ranked plans, and the certificate of the search."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from solver.reasons import Odds, Why, why_from_json

Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGroup:
    """Where one pipeline stage of a mixed cluster runs, with all its data-parallel replicas."""

    group: str  # node group, as ``ClusterSpec.group_names`` calls it
    num_gpus: int
    num_nodes: float  # 0.5: half a node
    tensor_parallel_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """How one training job is split over GPUs; 1 is off."""

    tensor_parallel_size: int = 1
    sequence_parallel: bool = False
    pipeline_parallel_size: int = 1
    virtual_pipeline_size: int = 1  # model chunks per rank
    context_parallel_size: int = 1
    expert_parallel_size: int = 1
    expert_tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    zero_stage: int = 0
    zero_shard_size: int = 1  # ranks that share one shard set; 1 for stage 0
    micro_batch_size: int = 1  # sequences
    num_microbatches: int = 1  # per pipeline and step
    pipeline_schedule: str = "none"
    recompute_granularity: str = "none"  # none, selective (core attention), full
    recompute_layers: int = 0  # the first so many of each chunk; all of the model's: every layer
    offload: str = "none"  # to the host: none, optimizer, activations, optimizer+activations
    context_parallel_mode: str = "ring"  # or all_to_all: heads are exchanged for tokens
    rank_order: str = "tp-cp-dp-pp"  # mesh axes, fastest first: which of them crosses which link
    stage_layers: tuple[int, ...] = ()  # pp * vpp entries: layers of each chunk in model order
    stage_recompute_layers: tuple[int, ...] = ()  # of each chunk, some above 0; empty: all alike
    stage_groups: tuple[StageGroup, ...] = ()  # mixed cluster; tensor_parallel_size is the largest stage's
    replicas: tuple[Configuration, ...] = ()  # unlike ones: each class with its own groups and share

    @property
    def is_placed(self) -> bool:
        """Whether its stages stand on node groups that it names."""
        return bool(self.stage_groups or self.replicas)

    @property
    def num_gpus(self) -> int:
        """GPUs used: tp * pp * cp * dp, of all stages and classes."""
        if self.is_placed:
            return sum(one.num_gpus for one in self.replicas or self.stage_groups)
        tp, pp = self.tensor_parallel_size, self.pipeline_parallel_size
        return tp * pp * self.context_parallel_size * self.data_parallel_size

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step."""
        if self.replicas:
            return sum(one.global_batch_size for one in self.replicas)
        return self.data_parallel_size * self.micro_batch_size * self.num_microbatches

    def layers_of_rank(self, stage: int) -> tuple[int, ...]:
        """Layers of each chunk that rank ``stage`` holds; chunk c sits on rank c mod pp, or in a V."""
        pp = self.pipeline_parallel_size
        if self.pipeline_schedule in ("zb_v", "dualpipe_v") and self.virtual_pipeline_size > 1:
            return (self.stage_layers[stage], self.stage_layers[2 * pp - 1 - stage])
        return self.stage_layers[stage::pp]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrediction:
    """One pipeline rank of one plan."""

    stage: int
    layers: int
    memory_bytes: Mapping[str, int]  # by term: weights, gradients, optimizer, activations, …
    peak_memory_bytes: int  # sum of the terms
    compute_s: float  # forward and backward of one micro-batch on this rank
    memory_limit_bytes: int | None = None  # of its own GPU, where GPUs differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the cost model expects of one configuration."""

    step_time_s: float
    step_time_low_s: float  # 80 % interval
    step_time_high_s: float
    tokens_per_s_per_gpu: float
    mfu: float  # model FLOPs / time / dense bf16 peak
    hfu: float  # recomputation counted
    peak_flops_per_gpu: float
    bubble_fraction: float
    peak_memory_bytes: int  # of the heaviest stage
    memory_limit_bytes: int
    heaviest_stage: int
    out_of_memory_probability: float
    time_breakdown_s: Mapping[str, float]  # sums to step_time_s
    stages: tuple[StagePrediction, ...]
    extrapolated: tuple[str, ...] = ()  # what lies outside the measured range


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a plan means for the whole run, interruptions counted."""

    num_gpus: int
    goodput: float  # time of the steps / time of the run
    checkpoint_interval_s: float  # that loses least
    gpu_hours_per_token: float
    energy_per_token_j: float | None  # of the GPUs; None where their power is not known
    days: float | None  # for all tokens, where the request counts them
    cost: float | None  # of all GPU hours, where the request prices them


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveClaim:
    """What was proved about the objective that plans are ranked by."""

    name: str
    unit: str
    value: float | None  # of the first plan
    bound: float | None  # no configuration's is better
    gap: float | None  # between the two, relative; of rates, of their inverse


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One ranked answer."""

    plan_id: str
    rank: int
    config: Configuration
    prediction: Prediction
    objective_s: float  # the closed-form objective that the search proved minimal
    certified_by: tuple[str, ...] = ()
    outlook: Outlook | None = None  # where the request looks beyond one step
    why: Why | None = None  # its time, its losses, its limits
    odds: Odds | None = None  # of being the fastest of its answer
    workload: Mapping[str, str] = field(default_factory=dict)  # where it differs from the request's
    launchers: tuple[str, ...] = ()  # that can run it, where the request leaves that open

    def to_json(self) -> dict[str, Any]:
        """The plan as the API shows it."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The client's own configuration beside the plans."""

    plan_id: str
    config: Configuration
    prediction: Prediction
    outlook: Outlook
    rank: int | None  # among the plans by the objective; None: behind all of them, or it cannot run
    gap_to_best: float | None  # (its objective - the first plan's) / its own; below 0: it is better
    problems: tuple[str, ...]  # rules that it breaks, memory that it lacks


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """One plan of a front."""

    plan: Plan
    budget_bytes: int  # the plan is the fastest that needs no more memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoFront:
    """Plans of which none is both slower and heavier than another, on more GPUs at that."""

    points: tuple[ParetoPoint, ...]  # fastest first
    complete: bool  # down to the smallest memory that has a plan
    memory_step: float  # the front is known to within this share of memory
    claim: str  # what is proved, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Why nothing fits: the nearest configuration and what it lacks."""

    config: Configuration
    stage: int
    needed_bytes: int
    limit_bytes: int
    memory_bytes: Mapping[str, int]  # the stage's terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change of an infeasible problem, with the best plan that it then has."""

    change: str
    config: Configuration
    step_time_s: float
    num_gpus: int
    gpu_s_per_token: float  # what changes are ordered by
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasibility:
    """Reasons of a proved infeasible answer."""

    reasons: tuple[str, ...]  # sentences: which limit, which stage, how many GiB
    conflicts: tuple[tuple[str, ...], ...] = ()  # minimal sets of limits that cannot hold together
    nearest: Shortfall | None = None
    changes: tuple[str, ...] = ()  # smallest changes that were verified to fit
    remedies: tuple[Remedy, ...] = ()  # the same with their plans, cheapest first


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedLauncher:
    """A launcher without a plan in the answer to a request for any launcher."""

    launcher: str
    reasons: tuple[str, ...]  # facts of the model or workload that it cannot express, or why nothing fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Ranked plans with their certificate."""

    status: Status
    plans: tuple[Plan, ...]
    certified_by: tuple[str, ...]
    objective_gap: float | None  # (least closed form known - bound on all) / the former; 0: it is proved
    objective_excess: float | None  # (objective of the first plan - least objective) / the former
    bound_step_time_s: float | None  # no step on the GPUs and sequences of the first plan is shorter
    gap: float | None  # (best step - bound) / best step
    space_size: int  # rows enumerated
    legal: int  # rows that break no rule
    fit: int  # legal rows with a split that fits in memory, as far as proved
    explored: int  # rows settled: bounded away, refuted or solved
    counts: Mapping[str, int]  # priced, pruned, solved, certified, …
    elapsed_s: float
    seed: int
    versions: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    infeasible: Infeasibility | None = None
    num_gpus_used: int | None = None
    peak_flops: float | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    objective: ObjectiveClaim | None = None
    baseline: Baseline | None = None  # where the request gives its own configuration
    pareto: ParetoFront | None = None  # where the request asks for it
    space: Literal["usual", "every"] = "usual"  # candidates that rows, bound and proof are of
    skipped_launchers: tuple[SkippedLauncher, ...] = ()  # where the request leaves the launcher open

    def to_json(self) -> dict[str, Any]:
        """The answer as the command line and the API show it; finite numbers only."""
        return asdict(self)


def plan_id_of(problem_digest: str, config: Configuration) -> str:
    """A stable name: the first 12 hex digits of SHA-256 over problem and configuration."""
    values = {name: v for name, v in asdict(config).items() if name not in _LATER or v != _DEFAULTS[name]}
    text = problem_digest + json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# What was added to configurations later is part of their name only where it is used.
_LATER = ("context_parallel_mode", "rank_order", "stage_groups", "replicas")
_DEFAULTS = asdict(Configuration())


def configuration_from_json(raw: Mapping[str, Any]) -> Configuration:
    """The Configuration of ``Plan.to_json()["config"]``."""
    values = dict(raw)
    values |= {name: tuple(values.get(name, ())) for name in ("stage_layers", "stage_recompute_layers")}
    values["stage_groups"] = tuple(StageGroup(**dict(one)) for one in values.get("stage_groups", ()))
    values["replicas"] = tuple(configuration_from_json(one) for one in values.get("replicas", ()))
    return Configuration(**values)


def prediction_from_json(raw: Mapping[str, Any]) -> Prediction:
    """The Prediction of ``Plan.to_json()["prediction"]``."""
    stages = tuple(StagePrediction(**stage) for stage in raw["stages"])
    values = {**raw, "stages": stages, "extrapolated": tuple(raw.get("extrapolated", ()))}
    return Prediction(**values)


def plan_from_json(raw: Mapping[str, Any]) -> Plan:
    """The Plan that ``Plan.to_json`` wrote; unknown keys raise TypeError."""
    return Plan(
        plan_id=raw["plan_id"],
        rank=raw["rank"],
        config=configuration_from_json(raw["config"]),
        prediction=prediction_from_json(raw["prediction"]),
        objective_s=raw["objective_s"],
        certified_by=tuple(raw.get("certified_by", ())),
        outlook=Outlook(**raw["outlook"]) if raw.get("outlook") else None,
        why=why_from_json(raw.get("why")),
        odds=Odds(**raw["odds"]) if raw.get("odds") else None,
        workload=dict(raw.get("workload", {})),
        launchers=tuple(raw.get("launchers", ())),
    )
