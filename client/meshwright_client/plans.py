"""The plans of an answer, in the service's own words (glossary names; units stand in the names)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from meshwright_client.answers import Infeasibility, State

Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGroup:
    """Where one pipeline stage of a mixed cluster runs."""

    group: str
    num_gpus: int
    num_nodes: float
    tensor_parallel_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """How one training job is split over GPUs; 1 is off."""

    tensor_parallel_size: int = 1
    sequence_parallel: bool = False
    pipeline_parallel_size: int = 1
    virtual_pipeline_size: int = 1
    context_parallel_size: int = 1
    expert_parallel_size: int = 1
    expert_tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    zero_stage: int = 0
    zero_shard_size: int = 1
    weight_shard_size: int = 1
    expert_weight_shard_size: int = 1
    micro_batch_size: int = 1
    num_microbatches: int = 1
    pipeline_schedule: str = "none"
    recompute_granularity: str = "none"
    recompute_layers: int = 0
    offload: str = "none"
    context_parallel_mode: str = "ring"
    rank_order: str = "tp-cp-dp-pp"
    stage_layers: tuple[int, ...] = ()  # of each chunk in model order
    stage_recompute_layers: tuple[int, ...] = ()  # where stages differ
    stage_groups: tuple[StageGroup, ...] = ()
    replicas: tuple[Configuration, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrediction:
    """One pipeline rank of one plan."""

    stage: int
    layers: int
    memory_bytes: Mapping[str, int]  # by term
    peak_memory_bytes: int
    compute_s: float  # of one micro-batch
    memory_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """The peak of the heaviest stage's GPU as tools show it, in bytes, and when it occurs."""

    moment: str  # of the peak, a key of ``moments_bytes``
    allocated_bytes: int  # torch.cuda.max_memory_allocated
    reserved_bytes: int  # torch.cuda.max_memory_reserved
    device_bytes: int  # nvidia-smi
    moments_bytes: Mapping[str, int]  # allocated at each moment of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Bytes of host memory on the node that takes most, and when."""

    loading_bytes: int
    readers: int  # ranks that read whole weights
    training_bytes: int
    saving_bytes: int
    limit_bytes: int  # that may be filled


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the cost model expects of one configuration."""

    step_time_s: float
    step_time_low_s: float  # 80 % interval
    step_time_high_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    hfu: float
    peak_flops_per_gpu: float
    bubble_fraction: float
    peak_memory_bytes: int  # of the heaviest stage
    memory_limit_bytes: int
    heaviest_stage: int
    out_of_memory_probability: float
    time_breakdown_s: Mapping[str, float]
    stages: tuple[StagePrediction, ...]
    extrapolated: tuple[str, ...] = ()
    memory: PeakMemory | None = None  # None: of an answer of an older release
    host: HostMemory | None = None  # None: it takes none


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One ranked plan; ``outlook``, ``why`` and ``odds`` stay as the service wrote them."""

    plan_id: str
    rank: int
    config: Configuration
    prediction: Prediction
    objective_s: float
    certified_by: tuple[str, ...] = ()
    outlook: Mapping[str, Any] | None = None
    why: Mapping[str, Any] | None = None
    odds: Mapping[str, Any] | None = None
    workload: Mapping[str, str] = field(default_factory=dict)
    launchers: tuple[str, ...] = ()
    bound_step_time_s: float | None = None  # no plan that could have this rank steps faster
    gap: float | None = None  # to the best that its rank could have
    needs: tuple[str, ...] = ()  # packages that a stock installation of its launcher lacks
    ranked: bool = True  # False: faster than the first, but the request does not allow what it needs
    deciding: str | None = None  # of robust plans: the measurement that decides between it and #1
    hosts: Mapping[str, Any] | None = None  # order of the nodes, where links between them differ
    point: int | None = None  # of a sweep: the place in ``points`` of what it answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the runs that were reported of a plan measured."""

    num_runs: int
    out_of_memory: bool  # any of them
    step_time_s: float | None = None  # the median
    peak_memory_bytes: int | None = None  # the highest


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """The figures of one plan in a list of plans of all jobs."""

    plan_id: str
    job_id: str
    rank: int
    found_at: datetime | None = None
    model: str | None = None
    cluster: str | None = None
    launcher: str | None = None
    num_gpus: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    context_parallel_size: int | None = None
    expert_parallel_size: int | None = None
    data_parallel_size: int | None = None
    micro_batch_size: int | None = None
    zero_stage: int | None = None
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    mfu: float | None = None
    peak_memory_bytes: int | None = None
    out_of_memory_probability: float | None = None
    cost: float | None = None
    measured: Measured | None = None  # None: no run of it was reported
    verified: str | None = None  # queued, running, or the launcher's verdict; None: never asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One figure of one rank, priced and built."""

    rank: int
    stage: int
    name: str
    priced: Any
    built: Any
    exact: bool | None = None  # None: a peak, which is compared and not judged
    error: float | None = None  # built / priced - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a launcher's own code built of a plan, beside what was priced."""

    plan_id: str
    state: str  # queued, running, done
    verdict: str | None = None  # verified, partly verified, differs, not built
    launcher: str | None = None
    version: str | None = None
    reasons: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    quantities: tuple[Quantity, ...] = ()
    peak_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPage:
    """Some plans of all jobs."""

    plans: tuple[PlanSummary, ...]
    next_page_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a sweep with its best plan and its certificate."""

    point: int
    values: Mapping[str, bool | int | str]  # of every axis
    job_id: str | None
    reused: bool
    state: State
    status: Status | None
    certified_by: tuple[str, ...]
    gap: float | None
    bound_step_time_s: float | None
    plan_id: str | None
    config: Configuration | None
    rank: int | None
    score: float | None
    step_time_s: float | None
    tokens_per_s: float | None
    tokens_per_s_per_gpu: float | None
    num_gpus: int | None
    peak_memory_bytes: int | None
    efficient: bool
    infeasible: str | None
    problem: Mapping[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedLauncher:
    """A launcher without a plan in the answer to a request for any launcher."""

    launcher: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """A change that you may decide and that trains faster, with a plan that shows it."""

    change: str  # in words
    kind: str  # gradients, optimizer, precision, launcher, batch, packing, offload, package
    settings: Mapping[str, Any]  # values by their paths in the request
    effect: str  # what it changes in numerics or results; empty: nothing
    saves: float  # share of the first plan's time for each token
    config: Configuration
    step_time_s: float
    num_gpus: int
    gpu_s_per_token: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What one would run without a search, priced by the same cost model."""

    name: str
    source: str  # where it is published; of a rule, what the rule is
    config: Configuration
    prediction: Prediction
    speedup: float  # its time for each token / the first plan's
    problems: tuple[str, ...]  # why it cannot run


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a job: its certificate and its plans, best first."""

    job_id: str
    state: State
    status: Status
    certified_by: tuple[str, ...]
    decided_by: str = "exact-dp"  # what chose the first plan: "cp-sat", or the search alone
    objective_gap: float | None
    objective_excess: float | None
    bound_step_time_s: float | None
    gap: float | None
    space_size: int
    legal: int
    fit: int
    explored: int
    counts: Mapping[str, int]
    elapsed_s: float
    seed: int
    versions: Mapping[str, str]
    warnings: tuple[str, ...]
    infeasible: Infeasibility | None
    num_gpus_used: int | None
    peak_flops: float | None
    notes: Mapping[str, str]
    plans: tuple[Plan, ...]
    objective: Mapping[str, Any] | None = None
    baseline: Mapping[str, Any] | None = None
    pareto: Mapping[str, Any] | None = None
    points: tuple[Point, ...] | None = None
    space: str = "usual"  # or every: candidates that bound and proof are of
    skipped_launchers: tuple[SkippedLauncher, ...] = ()  # of a request for any launcher
    certainty: str | None = None  # how good the first plan is, in words
    levers: tuple[Lever, ...] = ()  # changes that you may decide and that train faster, the best first
    reference: Reference | None = None  # what one would run without a search
    next_page_token: str | None = None  # None: these are all plans


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What came of a reported run."""

    id: str
    plan_id: str
    profile: str  # id of the calibration on all runs of this cluster and framework
    num_runs: int
    findings: tuple[str, ...]  # what looks wrong in them
    prediction: Prediction  # of the plan, under that calibration
    profile_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProfile:
    """A calibration or a measured profile that problems may name by its id."""

    id: str
    kind: str
    title: str
    created_at: datetime
    gpu: str | None = None
    scope: str | None = None  # cluster and framework whose measurements made it
    version: int | None = None  # 1, 2, … of its scope; the last one is ``latest``
    document: Mapping[str, Any] | None = None  # absent in a list


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePage:
    """Profiles, newest first."""

    profiles: tuple[StoredProfile, ...]
    next_page_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedConfiguration:
    """What the cost model expects of a configuration of the caller's own."""

    config: Configuration  # completed: what was left out is filled in
    prediction: Prediction
    breaks: tuple[str, ...]  # rules of the search space
    why: Mapping[str, Any]
    profile: str
    model: Mapping[str, Any] = field(default_factory=dict)  # exact counts of parameters
    launcher: str | None = None
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A layout that a job could go on under."""

    plan_id: str
    num_gpus: int
    step_time_s: float
    config: Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to finish a job; its seconds sum up to ``finish_s``."""

    rank: int
    kind: str  # as it is, new layout, spare nodes, wait for repair, new layout until repaired
    finish_s: float
    finish_low_s: float
    finish_high_s: float
    waiting_s: float
    restart_s: float
    resharding_s: float
    lost_work_s: float
    steps_s: float
    interruptions_s: float
    moved_bytes: float
    layout: Layout
    afterwards: Layout | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replan:
    """Ways to finish a job whose cluster changed, the soonest first."""

    plan_id: str  # that runs
    checkpoint_format: str
    saved_step: int
    lost_steps: int
    remaining_steps: int
    ways: tuple[Way, ...]
    refused: tuple[str, ...]
    notes: tuple[str, ...]
    files: Mapping[str, str]  # of the first way
    warnings: tuple[str, ...]
