"""What the service answers with; times are its own, in UTC. Units stand in the names.

Written by ``make reference`` from the service's own records. What it shows as a mapping stays one here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Literal

State = Literal["queued", "running", "succeeded", "infeasible", "failed", "cancelled", "expired"]
Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGroup:
    """Place of one pipeline stage of a mixed cluster, with all its data-parallel replicas."""

    group: str  # node group, as ``ClusterSpec.group_names`` calls it
    num_gpus: int
    num_nodes: float  # 0.5: half a node
    tensor_parallel_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Split of one training job over GPUs; 1 is off."""

    tensor_parallel_size: int = 1  # Tensor parallel size: GPUs that split every layer's matrices
    # Whether tensor-parallel ranks split the tokens between matrix products
    sequence_parallel: bool = False
    pipeline_parallel_size: int = 1  # Pipeline parallel size: stages that hold consecutive layers
    # Virtual pipeline size: chunks of layers on each stage. More chunks make the pipeline bubble smaller
    virtual_pipeline_size: int = 1
    context_parallel_size: int = 1  # Context parallel size: GPUs that split every sequence
    expert_parallel_size: int = 1  # Expert parallel size: GPUs that divide the experts among them
    expert_tensor_parallel_size: int = 1  # Expert tensor parallel size: GPUs that split every expert
    data_parallel_size: int = 1  # Data parallel size: replicas that train on different sequences
    # ZeRO stage, what replicas shard: 1 optimizer states, 2 also gradients, 3 also weights
    zero_stage: int = 0
    zero_shard_size: int = 1  # Ranks that share one set of shards, 1 for ZeRO stage 0
    # Weight shard size: data-parallel ranks that each store a part of every dense matrix and gather it for
    # every product
    weight_shard_size: int = 1
    # Expert weight shard size: ranks that each store a part of every expert and gather it for every product
    expert_weight_shard_size: int = 1
    micro_batch_size: int = 1  # Micro-batch size: sequences that pass the pipeline together
    num_microbatches: int = 1  # Micro-batches per pipeline and step
    pipeline_schedule: str = "none"  # Order in which a stage runs its forward and backward passes
    # What the backward pass recomputes: nothing, core attention (selective) or whole layers
    recompute_granularity: str = "none"
    # Recomputed layers at the start of each chunk. The model's number of layers recomputes them all
    recompute_layers: int = 0
    offload: str = "none"  # What lives in host memory or on NVMe drives
    # How context-parallel ranks share a sequence: keys and values pass around a ring, ranks exchange heads
    # for tokens, or both (the number of neighbors that exchange; rings connect those groups)
    context_parallel_mode: str = "ring"
    rank_order: str = "tp-cp-dp-pp"  # Mesh axes, fastest first: decides which axis crosses which link
    stage_layers: tuple[int, ...] = ()  # pp * vpp entries: layers of each chunk in model order
    stage_recompute_layers: tuple[int, ...] = ()  # of each chunk, some above 0; empty: all alike
    stage_groups: tuple[StageGroup, ...] = ()  # mixed cluster; tensor_parallel_size is the largest stage's
    replicas: tuple[Configuration, ...] = ()  # unlike ones: each class with its own groups and share


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrediction:
    """Prediction of one pipeline rank of one plan."""

    stage: int
    layers: int
    memory_bytes: Mapping[str, int]  # by term: weights, gradients, optimizer, activations, …
    peak_memory_bytes: int  # sum of the terms
    compute_s: float  # forward and backward of one micro-batch on this rank
    memory_limit_bytes: int | None = None  # of its own GPU, where GPUs differ


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """The peak of the heaviest stage's rank as tools show it, in bytes, and when it occurs."""

    moment: str  # of the peak, a key of ``moments_bytes``
    allocated_bytes: int  # in tensors: torch.cuda.max_memory_allocated
    reserved_bytes: int  # with pieces that the allocator can't give back: torch.cuda.max_memory_reserved
    device_bytes: int  # with driver, libraries and communicators: nvidia-smi; ``peak_memory_bytes``
    moments_bytes: Mapping[str, int]  # allocated at each moment of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Bytes of host memory on the node that takes most, and when."""

    loading_bytes: int  # of weights, by the ranks that read them before any GPU has them
    readers: int  # those ranks
    training_bytes: int  # of what is offloaded
    saving_bytes: int  # of weights that one rank gathers from all
    limit_bytes: int  # that may be filled


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Prediction of the cost model for one configuration."""

    step_time_s: float
    step_time_low_s: float  # 80 % interval
    step_time_high_s: float
    tokens_per_s_per_gpu: float
    mfu: float  # model FLOPs / time / dense bf16 peak
    hfu: float  # recomputation counted, whole forward passes
    peak_flops_per_gpu: float
    bubble_fraction: float
    peak_memory_bytes: int  # of the heaviest stage
    memory_limit_bytes: int
    heaviest_stage: int
    out_of_memory_probability: float
    time_breakdown_s: Mapping[str, float]  # sums to step_time_s
    stages: tuple[StagePrediction, ...]
    extrapolated: tuple[str, ...] = ()  # what lies outside the measured range
    memory: PeakMemory | None = None  # None: of an answer of an older release
    host: HostMemory | None = None  # None: it takes none, or as ``memory``


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan in an answer."""

    plan_id: str
    rank: int
    config: Configuration
    prediction: Prediction
    objective_s: float  # the closed-form objective that the search proved minimal
    certified_by: tuple[str, ...] = ()
    outlook: Mapping[str, Any] | None = None  # where the request looks beyond one step
    why: Mapping[str, Any] | None = None  # its time, its losses, its limits
    odds: Mapping[str, Any] | None = None  # of being the fastest of its answer
    workload: Mapping[str, str] = field(default_factory=dict)  # where it differs from the request's
    launchers: tuple[str, ...] = ()  # that can run it, where the request leaves that open
    bound_step_time_s: float | None = None  # no plan that could have this rank steps faster
    gap: float | None = None  # between its objective and the best that its rank could have, relative
    needs: tuple[str, ...] = ()  # packages that a stock installation of its launcher lacks
    ranked: bool = True  # False: faster than the first, but the request does not allow what it needs
    hosts: Mapping[str, Any] | None = None  # where links between nodes differ
    deciding: str | None = None  # the measurement that decides between it and #1, of robust plans
    point: int | None = None  # of a sweep: the place in ``points`` of what it answers


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadablePlan:
    """A stored plan that can't be read: damaged, or of another release."""

    plan_id: str
    rank: int
    unreadable: str  # why


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """A model's name and exact counts of parameters."""

    name: str
    num_parameters: int
    num_active_parameters: int  # that one token uses
    num_mtp_parameters: int  # of multi-token prediction, in addition to num_parameters
    num_trainable_parameters: int  # of adapters next to frozen weights, else num_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a running search has come."""

    stage: str  # enumerating, bounding, solving, certifying, done
    explored: int
    total: int
    incumbent_step_time_s: float | None = None
    bound_step_time_s: float | None = None  # no plan that may yet be ranked is faster
    gap: float | None = None
    elapsed_s: float
    deadline: datetime | None = None  # when the search's own time limit ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasibility:
    """Reasons of a proved infeasible answer."""

    reasons: tuple[str, ...]  # sentences: which limit, which stage, how many GiB
    conflicts: tuple[tuple[str, ...], ...] = ()  # minimal sets of limits that cannot hold together
    nearest: Mapping[str, Any] | None = None
    changes: tuple[str, ...] = ()  # smallest changes that were verified to fit
    # the same with their plans, the cheapest of each kind first
    remedies: tuple[Mapping[str, Any], ...] = ()
    closest: Mapping[str, Any] | None = None
    verdict: str = ""  # the answer in one sentence: what is allowed, and how near the closest plan comes


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldFault:
    """One faulty field."""

    pointer: str  # JSON pointer into the body; /query/… for a query parameter, /header/… for a header
    message: str
    allowed: str | None = None
    nearest: str | None = None
    value: int | str | None = None  # the wrong value
    values: tuple[int | str, ...] | None = None  # the legal values, where they are few
    tip: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProblem:
    """A problem; ``type`` is stable, ``detail`` is for people."""

    type: str
    title: str
    status: int | None = None  # absent where a job failed: that is no HTTP answer
    detail: str | None = None
    instance: str | None = None
    request_id: str | None = None
    errors: tuple[FieldFault, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job with the question it answers."""

    id: str
    state: State
    created_at: datetime
    expires_at: datetime  # unclaimed until then: expired
    priority: int  # 0 goes before 9 among this tenant's own
    model: str | None = None  # its name in the request
    title: str | None = None  # the question in a line; a fleet has a name
    owner: str | None = None  # id of the key that submitted it
    labels: Mapping[str, str] | None = None
    cpu_s: float | None = None  # CPU seconds of its workers
    kind: Literal["fleet", "post_training"] | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempts: int
    cancel_requested: bool
    progress: Progress | None = None
    problem: JobProblem | None = None  # why the job failed
    unreadable: str | None = None  # why part of its record is not shown here
    links: Mapping[str, Any]
    infeasible: Infeasibility | None = None  # why nothing fits, where that was proved
    request: Mapping[str, Any] | None = None  # the canonical problem, every figure spelled out


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Launch files of one plan."""

    plan_id: str
    launcher: str
    files: Mapping[str, str]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measurements of the reported runs of a plan."""

    num_runs: int
    step_time_s: float | None = None  # the median
    peak_memory_bytes: int | None = None  # the highest
    out_of_memory: bool  # any of them


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """The figures of one plan; the plan itself is at ``/v1/plans/{plan_id}``."""

    job_id: str
    rank: int
    plan_id: str
    model: str | None
    cluster: str | None
    launcher: str | None
    num_gpus: int | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    context_parallel_size: int | None
    expert_parallel_size: int | None
    data_parallel_size: int | None
    micro_batch_size: int | None
    zero_stage: int | None
    step_time_s: float | None
    step_time_low_s: float | None  # 80 % interval
    step_time_high_s: float | None
    tokens_per_s_per_gpu: float | None
    mfu: float | None
    peak_memory_bytes: int | None
    out_of_memory_probability: float | None
    cost: float | None
    verified: str | None  # queued, running, or the verdict; None: never asked
    found_at: datetime | None
    measured: Measured | None  # null: no run of it was reported


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPage:
    """Plans of all jobs in the order that was asked for."""

    plans: tuple[PlanSummary, ...]
    next_page_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One figure of one rank."""

    rank: int
    stage: int
    name: str
    priced: float | tuple[Any, ...]
    built: float | tuple[Any, ...]
    exact: bool | None  # null: a peak, which is compared and not judged
    error: float | None  # built / priced - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Figures of a plan as priced and as the launcher's own code built it."""

    plan_id: str
    state: Literal["queued", "running", "done"]
    verdict: Literal["verified", "partly verified", "differs", "not built"] | None = None
    launcher: str | None = None
    version: str | None = None
    reasons: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    quantities: tuple[Quantity, ...] = ()
    peak_memory_bytes: int | None = None  # traced, with what is priced of no tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a sweep with its best plan and its certificate."""

    point: int
    values: Mapping[str, bool | int | str]  # of every axis
    job_id: str | None  # the child that answered it
    reused: bool  # it was answered before
    state: State
    status: Status | None
    certified_by: tuple[str, ...]
    gap: float | None
    bound_step_time_s: float | None
    plan_id: str | None
    config: Configuration | None
    rank: int | None  # of its best plan among all points' plans
    score: float | None  # what plans are ranked by, of a token; less is better
    step_time_s: float | None
    tokens_per_s: float | None
    tokens_per_s_per_gpu: float | None
    num_gpus: int | None
    peak_memory_bytes: int | None
    efficient: bool  # no other point is faster on as few GPUs, or as fast on fewer
    infeasible: str | None  # the first reason why nothing fits
    problem: Mapping[str, str] | None  # why it failed


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedLauncher:
    """A launcher without a plan in the answer to a request for any launcher."""

    launcher: str
    reasons: tuple[str, ...]  # facts of the model or workload that it cannot express, or why nothing fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """A change that the user may decide, and that is better by the objective than the first plan."""

    change: str
    config: Configuration
    step_time_s: float
    num_gpus: int
    gpu_s_per_token: float  # what changes are ordered by
    peak_memory_bytes: int
    kind: str = ""  # risk, limits, switch, precision, offload, launcher, batch, nodes, gpus, …
    settings: Mapping[str, Any] = field(default_factory=dict)  # by paths in the request; lists add to it
    at_least: bool = False  # a search may find a better plan: a gain is at least, a step at most this
    saves: float  # share of the first plan's time per token; of its energy, or nodes, where these are asked
    effect: str = ""  # what it changes; behind a colon: numerics or results. Empty: neither


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What one would run without a search, priced by the same cost model."""

    name: str  # "Megatron-Bridge's recipe", "the usual rule of thumb"
    source: str  # where it is published; of a rule, what the rule is
    config: Configuration
    prediction: Prediction
    speedup: float  # its time for each token / the first plan's, on all GPUs that were asked for
    problems: tuple[str, ...] = ()  # why it cannot run: rules that it breaks, memory that it lacks


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a job with one page of its plans, best first."""

    job_id: str
    state: State
    certainty: str | None = None  # how good the first plan is, in words; none of older releases
    points: tuple[Point, ...] | None = None  # of a sweep
    model: ModelFigures | None = None  # its name and exact counts of parameters
    plans: tuple[Plan, ...]
    unreadable: tuple[UnreadablePlan, ...] | None = None  # of this page
    next_page_token: str | None
    status: Status
    certified_by: tuple[str, ...]
    objective_gap: float | None  # (least closed form known - bound on all) / the former; 0: it is proved
    objective_excess: float | None  # (objective of the first plan - least objective) / the former
    bound_step_time_s: float | None  # no step on the GPUs and sequences of the first plan is shorter
    gap: float | None  # (best step - bound) / best step
    space_size: int  # rows enumerated
    legal: int  # rows that break no rule
    fit: int  # legal rows not refuted by memory so far: top_k and time decide how many are looked at
    explored: int  # rows settled: bounded away, refuted or solved
    counts: Mapping[str, int]  # priced, pruned, solved, certified, …
    elapsed_s: float
    seed: int
    versions: Mapping[str, str]
    warnings: tuple[str, ...]
    infeasible: Infeasibility | None
    num_gpus_used: int | None
    peak_flops: float | None
    notes: Mapping[str, str]  # ``profile``; of a sample alone SAMPLE
    objective: Mapping[str, Any] | None = None
    baseline: Mapping[str, Any] | None = None  # where the request gives its own configuration
    pareto: Mapping[str, Any] | None = None  # where the request asks for it
    different: Mapping[str, Any] | None = None  # where the request asks for it
    decided_by: Literal["exact-dp", "cp-sat"] = "exact-dp"
    space: Literal["usual", "every"] = "usual"  # candidates that rows, bound and proof are of
    skipped_launchers: tuple[SkippedLauncher, ...] = ()  # where the request leaves the launcher open
    levers: tuple[Lever, ...] = ()  # changes that the user may decide and that train faster, the best first
    reference: Reference | None = None  # what one would run without a search


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """The calibration learnt from a measured run of a plan."""

    id: str
    plan_id: str
    profile: str  # id of the calibration on all runs of this cluster and framework
    profile_version: int | None = None  # of that cluster's calibration
    num_runs: int
    findings: tuple[str, ...]  # what looks wrong in them
    prediction: Prediction  # of the plan, under that calibration


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProfile:
    """One stored profile with its document; of one that can't be read, ``unreadable`` says so there."""

    id: str
    kind: Literal["calibration", "measured"]
    title: str
    gpu: str | None
    created_at: datetime
    scope: str | None = None  # cluster and framework of its measurements; null: a client sent it
    version: int | None = None  # 1, 2, … of its scope; the last one is `latest`
    document: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePage:
    """Profiles, newest first."""

    profiles: tuple[StoredProfile, ...]
    next_page_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedConfiguration:
    """Step time and memory of a given configuration, as the cost model predicts them."""

    config: Configuration  # completed: what was left out is filled in
    prediction: Prediction
    breaks: tuple[str, ...]  # rules of the search space that it breaks
    why: Mapping[str, Any]  # where its time goes, and what stops it from going faster
    profile: str
    model: ModelFigures | None = None
    launcher: str | None = None  # of the launch file
    notes: tuple[str, ...] = ()  # what really runs: defaults that cost something
    unread: tuple[str, ...] = ()  # names of the launch file that are not understood


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

    kind: Literal["as it is", "new layout", "spare nodes", "wait for repair", "new layout until repaired"]
    finish_s: float  # from now until the last step; the sum of what follows
    finish_low_s: float  # with the ends of the step's 80 % interval
    finish_high_s: float
    waiting_s: float
    restart_s: float
    resharding_s: float  # to write (where the job still runs), read and exchange the checkpoint
    lost_work_s: float
    steps_s: float
    interruptions_s: float
    moved_bytes: float  # bytes on another GPU afterwards
    rank: int
    layout: Layout
    afterwards: Layout | None  # what the job goes back to once its nodes are repaired


@dataclass(frozen=True, slots=True, kw_only=True)
class Replan:
    """Ways to finish a job whose cluster changed, the soonest first."""

    plan_id: str  # that runs
    checkpoint_format: str
    saved_step: int
    lost_steps: int
    remaining_steps: int
    ways: tuple[Way, ...]
    refused: tuple[str, ...]  # ways that there are not, and why
    notes: tuple[str, ...]  # what was assumed
    files: Mapping[str, str]  # of the first way: launch files, and those that load the checkpoint
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUsage:
    """CPU seconds of the searches of one key that ended on one day (UTC)."""

    day: date
    key_id: str | None  # null: submitted where no keys were demanded
    cpu_s: float
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotal:
    """Sums over all the days and keys that were asked for."""

    cpu_s: float
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageList:
    """CPU seconds by day and key, newest day first."""

    usage: tuple[KeyUsage, ...]
    total: UsageTotal | None = None  # of all pages
    next_page_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One live worker."""

    name: str  # host and process
    kind: Literal["search", "verify"]
    version: str
    started_at: datetime
    seen_at: datetime
    busy: bool | None  # it has a job; null: not known of a worker that verifies
    job_id: str | None  # that job, if it is one of your own
    busy_since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerList:
    """The workers that are alive, by name."""

    workers: tuple[Worker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetJob:
    """One job of a planned fleet; hours count from the beginning of the plan."""

    name: str
    start_hours: float
    end_hours: float
    due_hours: float | None = None  # absent: never late
    late_hours: float
    nodes: int
    kind: str  # of nodes
    steps: int
    plan_id: str
    job_id: str  # which holds the plan
    step_time_s: float
    launcher: str
    layout: str  # the configuration in words; of post-training, the roles
    config: Configuration  # of what is trained
    mode: Literal["colocated", "apart", "async"] | None = None  # of post-training
    switches: Mapping[str, int] | None = None  # nodes by switch, from 0; absent where uplinks are not short
    uplinks: float | None = None  # share of those of each switch that its plan is priced at
    power_limit_w: int | None = None  # of each GPU, 0: none; absent without a shared limit of power
    power_kw: float | None = None  # that its GPUs draw


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSwitches:
    """Switches with oversubscribed uplinks."""

    nodes: tuple[int, ...]  # under each, by its number
    oversubscription: float
    shared_by: tuple[tuple[str, ...], ...]  # jobs that use the uplinks of a switch at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetObjective:
    """One objective, with its proof."""

    name: Literal["weighted_lateness_hours", "last_end_hours", "node_hours", "cost"]
    value: float
    bound: float  # no schedule is better under the predicted durations
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRule:
    """A simple rule's schedule."""

    rule: str
    weighted_lateness_hours: float
    last_end_hours: float
    node_hours: float | None = None
    cost: float | None = None  # where the fleet states the price of a node-hour


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAnswer:
    """The schedule of a fleet; of one that has none, the faults of its jobs."""

    status: Literal["optimal", "feasible", "infeasible"]
    faults: tuple[Mapping[str, str | None], ...] | None = None  # of jobs that cannot be planned
    decided_by: str | None = None  # cp-sat, or the rule with a schedule as good
    gap: float | None = None
    objectives: tuple[FleetObjective, ...] = ()  # the first counts most
    nodes: Mapping[str, int] = field(default_factory=dict)  # by kind
    max_power_kw: float | None = None  # that all GPUs draw together at most
    switches: FleetSwitches | None = None  # absent where uplinks are not short
    jobs: tuple[FleetJob, ...] = ()
    rules: tuple[FleetRule, ...] = ()
    searched: int | None = None  # pairs of a job and a number of nodes that were searched
    choices: int | None = None  # such pairs
    rounds: int | None = None
    # faults, by job
    left_out: Mapping[str, tuple[Mapping[str, str | None], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFiles:
    """Launch files of a fleet by their path in its folder, and ``start.sh``."""

    fleet_id: str
    files: Mapping[str, str]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRole:
    """The policy update on some nodes of one group."""

    group: str
    nodes: int
    gpus: int
    plan: Plan  # of an update's packed sequences
    sequences: int  # packed, of one update


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRole:
    """Engines of one layout on one group of nodes."""

    group: str
    engines: int
    tensor_parallel_size: int
    memory_share: float
    answers: int  # of a step, of the busiest engine
    running: int  # at once, at the most
    cache_tokens: int  # whose keys and values one engine holds
    generate_s: float  # of the busiest engine
    tail_s: float  # of that after nine of ten answers have ended


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRole:
    """A reward model or a critic: on GPUs of its own, or in turn on those of training."""

    group: str
    nodes: int
    gpus: int  # 0: in turn
    tensor_parallel_size: int = 0  # of a copy of a reward model; 0: a critic, laid out as the policy
    seconds: float  # of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlan:
    """One placement of the roles, with its step."""

    plan_id: str
    rank: int
    mode: Literal["colocated", "apart", "async"]
    steps_off: int
    training: TrainingRole
    rollout: tuple[EngineRole, ...]
    parts_s: Mapping[str, float]  # generate, update, refit, …; what overlaps counts in full
    step_s: float
    step_low_s: float  # 80 % interval
    step_high_s: float
    tokens_per_s_per_gpu: float  # of prompts and answers, over all GPUs of the pool
    num_gpus: int  # in use
    binds: str
    slower: float | None = None  # than the first plan, as a share
    reward: SideRole | None = None  # None: code scores the answers
    critic: SideRole | None = None  # None: there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsOutcome:
    """The best plan if answers have other lengths than is assumed."""

    percentile: str  # mean, p90, p99: what is varied
    words: str
    step_s: float
    roles: str  # of the best plan
    changes: bool  # whether another placement is best


@dataclass(frozen=True, slots=True, kw_only=True)
class RolesAnswer:
    """Ranked placements with what is proved of them."""

    status: Status
    plans: tuple[RolePlan, ...]
    bound_s: float | None = None  # no placement of the priced roles takes a shorter step
    choices: int | None = None  # priced placements of single roles
    searches: int | None = None  # for training layouts
    outcomes: tuple[LengthsOutcome, ...] = ()
    deciding: str = ""  # the percentile that decides the choice, or that moves the step most
    notes: tuple[str, ...] = ()
    measure_next: str = ""
    corrections: Mapping[str, float] = field(default_factory=dict)  # factors of parts, by measured steps
