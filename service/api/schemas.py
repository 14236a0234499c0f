"""Answers of the API. Plans, predictions and reasons keep the solver's own shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model, model_validator

from meshwright.service.api.problems import ProblemView, type_of
from meshwright.service.db.plan_figures import PlanFigures, PlanRow
from meshwright.service.db.plan_records import PlanFilter
from meshwright.service.db.records import MAX_NAME, JobFilter, JobRecord, JobSummary, QuestionHeading
from meshwright.service.jobs.states import FLEET, TERMINAL_STATES
from meshwright.service.replan.answer import ReplanAnswer
from meshwright.service.requests.labels import read_selector
from meshwright.service.requests.parts import written_out
from meshwright.service.stored import FOREIGN_SHAPE
from meshwright.solver.answer import Answer, Infeasibility, Plan, Prediction, Status, Why
from meshwright.solver.configuration import Configuration, record_from_json
from meshwright.solver.problem import Progress

State = Literal["queued", "running", "succeeded", "infeasible", "failed", "cancelled", "expired"]


def _shown(**example: JsonValue) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [example]})


class ApiAnswer(BaseModel):
    """What the API answers with; its schema is built once something needs it, not at the server's start."""

    model_config = ConfigDict(defer_build=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressView(Progress):
    """How far a running search has come."""

    deadline: datetime | None = None  # when the search's own time limit ends


class LinksView(ApiAnswer):
    """Where to go from a job; a link is absent where it leads nowhere yet."""

    self: str
    events: str
    plans: str | None = None
    cancel: str | None = None
    children: str | None = None  # of a sweep: its points; of a fleet: its jobs
    parent: str | None = None  # of a point: its sweep; of a fleet's job: the fleet


class JobView(ApiAnswer):
    """One job; times are the database's, in UTC."""

    id: str
    state: State
    created_at: datetime
    expires_at: datetime  # unclaimed until then: expired
    priority: int  # 0 goes before 9 among this tenant's own
    model: str | None = None  # its name in the request
    title: str | None = None  # the question in a line; a fleet has a name
    owner: str | None = None  # id of the key that submitted it
    labels: dict[str, str] | None = None
    cpu_s: float | None = None  # CPU seconds of its workers
    # every other job is a search, or a sweep of them
    kind: Literal["fleet", "post_training"] | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempts: int
    cancel_requested: bool
    progress: ProgressView | None = None
    problem: ProblemView | None = None  # why the job failed
    unreadable: str | None = None  # why part of its record is not shown here
    links: LinksView


class JobDetail(JobView):
    """One job with the question it answers."""

    infeasible: Infeasibility | None = None  # why nothing fits, where that was proved
    request: dict[str, Any]  # the canonical problem, every figure spelled out


class EventView(ApiAnswer):
    """The data of one server-sent event: the job as it was from then on."""

    job_id: str
    state: State
    at: datetime
    cancel_requested: bool
    progress: ProgressView | None = None


class JobPage(ApiAnswer):
    """Jobs, newest first."""

    jobs: list[JobView]
    next_page_token: str | None = None


class ListQuery(BaseModel):
    """Which jobs or fleets are listed: those with all that is given."""

    model_config = ConfigDict(extra="forbid")

    state: Annotated[State | None, Field(description="default: any state")] = None
    owner: Annotated[
        str | None,
        Field(pattern="^[A-Za-z0-9]{1,16}$", description="key that submitted them; `me`: your own"),
    ] = None
    labels: Annotated[
        str | None,
        Field(max_length=2100, description="labels that they all have", examples=["team=nlp,run=7"]),
    ] = None
    page_size: Annotated[int, Field(ge=1, le=200, description="entries of one page")] = 50
    page_token: Annotated[
        str | None, Field(max_length=256, description="next_page_token of the page before")
    ] = None

    def wanted(self, caller: str | None, *, fleets: bool = False) -> JobFilter:
        """Return the filter; ``caller``: the id of the caller's key.

        Raises:
            InvalidProblemError: ``labels`` is not a list of labels.
        """
        return JobFilter(
            state=self.state,
            owner=caller if self.owner == "me" else self.owner,
            labels={} if self.labels is None else read_selector(self.labels, "/query/labels"),
            fleets=fleets,
        )


class JobQuery(ListQuery):
    """Which jobs are listed: those with all that is given."""

    model: Annotated[
        str | None, Field(max_length=MAX_NAME, pattern="^[^\\x00-\\x1f]+$", description="name of the model")
    ] = None

    def wanted(self, caller: str | None, *, fleets: bool = False) -> JobFilter:
        """Return the filter, by model too; errors as ``ListQuery.wanted``."""
        return replace(super().wanted(caller, fleets=fleets), model=self.model)


class PlanView(ApiAnswer):
    """One plan and the job that found it."""

    job_id: str
    plan: Plan


PlanVerified = Literal["queued", "running", "verified", "partly verified", "differs", "not built"]
PlanSort = Literal[
    "step_time_s", "-step_time_s", "tokens_per_s_per_gpu", "-tokens_per_s_per_gpu", "mfu", "-mfu",
    "peak_memory_bytes", "-peak_memory_bytes", "out_of_memory_probability", "-out_of_memory_probability",
    "num_gpus", "-num_gpus", "cost", "-cost", "found_at_s", "-found_at_s",
    "measured_step_time_s", "-measured_step_time_s",
    "measured_peak_memory_bytes", "-measured_peak_memory_bytes",
]  # fmt: skip
_Name = Annotated[str | None, Field(max_length=MAX_NAME, pattern="^[^\\x00-\\x1f]+$")]
_Size = Annotated[int | None, Field(ge=1, le=2**31 - 1)]
_Bytes = Annotated[int | None, Field(ge=1, le=2**53)]
_Positive = Annotated[float | None, Field(gt=0)]


class PlanQuery(BaseModel):
    """Which plans of all jobs are asked for, and in which order; ``-`` before a name: the largest first."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: _Name = None
    cluster: _Name = None
    launcher: Annotated[str | None, Field(max_length=64, pattern="^[a-z0-9_-]+$")] = None
    job_id: Annotated[str | None, Field(pattern="^[A-Za-z0-9_-]{1,32}$")] = None
    num_gpus: _Size = None
    tensor_parallel_size: _Size = None
    pipeline_parallel_size: _Size = None
    context_parallel_size: _Size = None
    expert_parallel_size: _Size = None
    data_parallel_size: _Size = None
    micro_batch_size: _Size = None
    zero_stage: Annotated[int | None, Field(ge=0, le=3)] = None
    min_num_gpus: _Size = None
    max_num_gpus: _Size = None
    max_step_time_s: _Positive = None
    max_step_time_high_s: Annotated[_Positive, Field(description="of the upper end of the 80 % band")] = (
        None
    )
    max_peak_memory_bytes: _Bytes = None
    max_out_of_memory_probability: Annotated[float | None, Field(ge=0, le=1)] = None
    max_cost: _Positive = None
    max_measured_step_time_s: _Positive = None
    min_tokens_per_s_per_gpu: _Positive = None
    min_mfu: Annotated[float | None, Field(ge=0, le=1)] = None
    verified: Annotated[
        PlanVerified | None, Field(description="verdict of the launcher, or state of its verification")
    ] = None
    measured: Annotated[
        bool | None, Field(description="true: only plans with a reported run; false: only others")
    ] = None
    sort: Annotated[PlanSort, Field(description="plans without this figure are left out")] = "-found_at_s"
    page_size: Annotated[int, Field(ge=1, le=200, description="entries of one page")] = 50
    page_token: Annotated[
        str | None, Field(max_length=256, description="next_page_token of the page before")
    ] = None

    _with_long_names = model_validator(mode="before")(lambda given: written_out(given, ("query",)))

    def wanted(self) -> PlanFilter:
        """The filter that this query spells."""
        given = self.model_dump(exclude_none=True, exclude={"sort", "measured", "page_size", "page_token"})
        limits = [name for name in given if name.startswith(("max_", "min_"))]
        return PlanFilter(
            equal={name: value for name, value in given.items() if name not in limits},
            at_most={name[4:]: given[name] for name in limits if name.startswith("max_")},
            at_least={name[4:]: given[name] for name in limits if name.startswith("min_")},
            measured=self.measured,
            sort=self.sort,
        )


class MeasuredView(ApiAnswer):
    """Measurements of the reported runs of a plan."""

    num_runs: int
    step_time_s: float | None = None  # the median
    peak_memory_bytes: int | None = None  # the highest
    out_of_memory: bool  # any of them


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary(PlanRow):
    """The figures of one plan; the plan itself is at ``/v1/plans/{plan_id}``."""

    found_at: datetime | None
    measured: MeasuredView | None  # null: no run of it was reported


class PlanPage(ApiAnswer):
    """Plans of all jobs in the order that was asked for."""

    plans: list[PlanSummary]
    next_page_token: str | None = None


def plan_summary(one: PlanFigures) -> PlanSummary:
    """One row of plans as the API shows it."""
    measured = MeasuredView(
        num_runs=one.num_measurements,
        step_time_s=one.measured_step_time_s,
        peak_memory_bytes=one.measured_peak_memory_bytes,
        out_of_memory=bool(one.measured_out_of_memory),
    )
    return PlanSummary(
        **{field.name: getattr(one, field.name) for field in fields(PlanRow)},
        found_at=moment(one.found_at_s),
        measured=measured if one.num_measurements else None,
    )


class QuantityView(ApiAnswer):
    """One figure of one rank."""

    rank: int
    stage: int
    name: str
    priced: float | list[Any]
    built: float | list[Any]
    exact: bool | None  # null: a peak, which is compared and not judged
    error: float | None  # built / priced - 1


class VerificationView(ApiAnswer):
    """Figures of a plan as priced and as the launcher's own code built it."""

    plan_id: str
    state: Literal["queued", "running", "done"]
    verdict: Literal["verified", "partly verified", "differs", "not built"] | None = None
    launcher: str | None = None
    version: str | None = None
    reasons: list[str] = []
    ranks: list[int] = []
    quantities: list[QuantityView] = []
    peak_memory_bytes: int | None = None  # traced, with what is priced of no tensor


class ExportView(ApiAnswer):
    """Launch files of one plan."""

    plan_id: str
    launcher: str
    files: dict[str, str]
    warnings: list[str]


class ModelFigures(ApiAnswer):
    """A model's name and exact counts of parameters."""

    name: str
    num_parameters: int
    num_active_parameters: int  # that one token uses
    num_mtp_parameters: int  # of multi-token prediction, in addition to num_parameters
    num_trainable_parameters: int  # of adapters next to frozen weights, else num_parameters


class PredictionView(ApiAnswer):
    """Step time and memory of a given configuration, as the cost model predicts them."""

    config: Configuration  # completed: what was left out is filled in
    prediction: Prediction
    breaks: list[str]  # rules of the search space that it breaks
    why: Why  # where its time goes, and what stops it from going faster
    profile: str
    model: ModelFigures
    launcher: str | None = None  # of the launch file
    notes: list[str] = Field(default_factory=list)  # what really runs: defaults that cost something
    unread: list[str] = Field(default_factory=list)  # names of the launch file that are not understood


class ProfileView(ApiAnswer):
    """One stored profile; problems name it by its id."""

    id: str
    kind: Literal["calibration", "measured"]
    title: str
    gpu: str | None
    created_at: datetime
    scope: str | None = None  # cluster and framework of its measurements; null: a client sent it
    version: int | None = None  # 1, 2, … of its scope; the last one is `latest`


class ProfileDetail(ProfileView):
    """One stored profile with its document; of one that can't be read, ``unreadable`` says so there."""

    document: dict[str, Any]


class ProfilePage(ApiAnswer):
    """Profiles, newest first."""

    profiles: list[ProfileView]
    next_page_token: str | None = None


class MeasurementView(ApiAnswer):
    """The calibration learnt from a measured run of a plan."""

    id: str
    plan_id: str
    profile: str  # id of the calibration on all runs of this cluster and framework
    profile_version: int | None = None  # of that cluster's calibration
    num_runs: int
    findings: list[str]  # what looks wrong in them
    prediction: Prediction  # of the plan, under that calibration


class CatalogView(ApiAnswer):
    """Entries of one catalog, by name; ``origin`` stored: the tenant's own, with versions.

    An own entry that can't be read has ``unreadable``, which says why, in place of its figures.
    """

    items: list[dict[str, Any]]
    next_page_token: str | None = None


class DefinitionView(ApiAnswer):
    """One model, cluster or GPU type with every figure spelled out."""

    kind: Literal["model", "cluster", "gpu"]
    name: str
    origin: Literal["catalog", "stored"]
    version: int | None = None
    created_at: datetime | None = None
    unreadable: str | None = None  # why no problem can name it: save it again
    document: dict[str, Any]


class ReadyView(ApiAnswer):
    """The state of this server's database and queue."""

    ready: bool
    database: Literal[
        "ok", "unavailable", "read_only"
    ]  # read_only: it takes no writes, or its disk is full
    migration: Literal["current", "newer", "outdated", "unsupported", "unknown"]  # the first two serve
    queue: Literal["ok", "degraded", "polling"]


PARTLY_READ = "part of what is stored of it can't be read: damaged, or of another release"
View = TypeVar("View", bound=BaseModel)
AnyJobView = TypeVar("AnyJobView", bound=JobView)


def view_of(view: type[View], record: object, **more: object) -> View:
    """A record as the API shows it: its values by their names, seconds (…_at_s) as moments (…_at)."""
    values: dict[str, Any] = {}
    for name in view.model_fields.keys() - more.keys():
        if name == "at" or name.endswith("_at"):
            values[name] = moment(getattr(record, f"{name}_s"))
        else:
            values[name] = getattr(record, name)
    return view(**values, **more)


def job_view(view: type[AnyJobView], job: JobSummary, **more: object) -> AnyJobView:
    """One job as the API shows it; what cannot be read of its row is left out, and said to be."""
    links = _links(job)
    try:
        return view_of(
            view, job, progress=_progress(job), problem=_failure(job.problem), unreadable=None,
            links=links, **more,
        )  # fmt: skip
    except FOREIGN_SHAPE:
        needed = {name: value for name, value in more.items() if view.model_fields[name].is_required()}
        stored = dict.fromkeys(("progress", "problem", "labels", *(more.keys() - needed.keys())))
        return view_of(view, job, unreadable=PARTLY_READ, links=links, **{**stored, **needed})


def job_detail(job: JobRecord) -> JobDetail:
    """One record with its question."""
    return job_view(
        JobDetail,
        job,
        request=dict(job.request),
        infeasible=job.answer.get("infeasible") if job.answer else None,
    )


def moment(time_s: float | None) -> datetime | None:
    """Seconds since 1970 as a moment in UTC."""
    return None if time_s is None else datetime.fromtimestamp(time_s, UTC)


def _progress(job: JobSummary) -> ProgressView | None:
    if job.progress is None:
        return None
    deadline = moment(job.claimed_at_s + job.time_limit_s) if job.claimed_at_s is not None else None
    return record_from_json(ProgressView, {**job.progress, "deadline": deadline})


def _failure(problem: Mapping[str, Any] | None) -> ProblemView | None:
    if problem is None:
        return None
    return ProblemView(
        type=type_of(problem["code"]),
        title=problem["code"].replace("_", " ").capitalize(),
        detail=problem["detail"],
    )


def _links(job: JobSummary) -> LinksView:
    here = f"/v1/jobs/{job.id}"
    if job.kind == FLEET:
        whole = f"/v1/fleets/{job.id}"
        return LinksView(
            self=whole,
            events=f"{here}/events",
            cancel=None if job.state in TERMINAL_STATES else f"{whole}:cancel",
            children=f"{here}/children" if job.has_answer else None,
        )
    return LinksView(
        self=here,
        events=f"{here}/events",
        plans=f"{here}/plans" if job.has_answer else None,
        cancel=None if job.state in TERMINAL_STATES else f"{here}:cancel",
        children=None if job.num_children is None else f"{here}/children",
        parent=None if job.parent_id is None else f"/v1/jobs/{job.parent_id}",
    )


# --------------------------------------------------------------------------------------------------
# What the API shows of fleets.


class FleetView(JobView):
    """One fleet: a job that plans several on one cluster."""

    name: str
    cluster: str
    num_nodes: int  # of the first kind of nodes


class FleetJobView(ApiAnswer):
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
    switches: dict[str, int] | None = None  # nodes by switch, from 0; absent where uplinks are not short
    uplinks: float | None = None  # share of those of each switch that its plan is priced at
    power_limit_w: int | None = None  # of each GPU, 0: none; absent without a shared limit of power
    power_kw: float | None = None  # that its GPUs draw


class FleetSwitchesView(ApiAnswer):
    """Switches with oversubscribed uplinks."""

    nodes: list[int]  # under each, by its number
    oversubscription: float
    shared_by: list[list[str]]  # jobs that use the uplinks of a switch at the same time


class FleetObjectiveView(ApiAnswer):
    """One objective, with its proof."""

    name: Literal["weighted_lateness_hours", "last_end_hours", "node_hours", "cost"]
    value: float
    bound: float  # no schedule is better under the predicted durations
    gap: float


class FleetRuleView(ApiAnswer):
    """A simple rule's schedule."""

    rule: str
    weighted_lateness_hours: float
    last_end_hours: float
    node_hours: float | None = None
    cost: float | None = None  # where the fleet states the price of a node-hour


class FleetAnswerView(ApiAnswer):
    """The schedule of a fleet; of one that has none, the faults of its jobs."""

    status: Literal["optimal", "feasible", "infeasible"]
    faults: list[dict[str, str | None]] | None = None  # of jobs that cannot be planned
    decided_by: str | None = None  # cp-sat, or the rule with a schedule as good
    gap: float | None = None
    objectives: list[FleetObjectiveView] = Field(default_factory=list)  # the first counts most
    nodes: dict[str, int] = Field(default_factory=dict)  # by kind
    max_power_kw: float | None = None  # that all GPUs draw together at most
    switches: FleetSwitchesView | None = None  # absent where uplinks are not short
    jobs: list[FleetJobView] = Field(default_factory=list)
    rules: list[FleetRuleView] = Field(default_factory=list)
    searched: int | None = None  # pairs of a job and a number of nodes that were searched
    choices: int | None = None  # such pairs
    rounds: int | None = None
    left_out: dict[str, list[dict[str, str | None]]] = Field(default_factory=dict)  # faults, by job


class FleetDetail(JobView):
    """One fleet with its question and its schedule."""

    name: str
    replanned_as: str | None = None  # id of the newest fleet that planned this one anew
    request: dict[str, Any]  # the canonical fleet, every figure spelled out
    answer: FleetAnswerView | None = None


class FleetPage(ApiAnswer):
    """Fleets, newest first."""

    fleets: list[FleetView]
    next_page_token: str | None = None


class FleetFilesView(ApiAnswer):
    """Launch files of a fleet by their path in its folder, and ``start.sh``."""

    fleet_id: str
    files: dict[str, str]
    warnings: list[str]


def fleet_view(job: JobSummary, heading: QuestionHeading) -> FleetView:
    """One fleet of a list as the API shows it."""
    return job_view(
        FleetView, job, name=heading.fleet, cluster=heading.cluster, num_nodes=heading.num_nodes
    )


def fleet_detail(job: JobRecord) -> FleetDetail:
    """One fleet with its question and its schedule."""
    return job_view(
        FleetDetail,
        job,
        request=dict(job.request),
        name=str(job.request.get("name", "")),
        answer=job.answer,
    )


# --------------------------------------------------------------------------------------------------
# What the API shows of an answer: its certificate, its plans, and the points of a sweep.


class PointView(ApiAnswer):
    """One point of a sweep with its best plan and its certificate."""

    point: int
    values: dict[str, bool | int | str]  # of every axis
    job_id: str | None  # the child that answered it
    reused: bool  # it was answered before
    state: State
    status: Status | None
    certified_by: list[str]
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
    problem: dict[str, str] | None  # why it failed


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPlan(Plan):
    """A plan in an answer."""

    point: int | None = None  # of a sweep: the place in ``points`` of what it answers


class UnreadablePlan(ApiAnswer):
    """A stored plan that can't be read: damaged, or of another release."""

    plan_id: str
    rank: int
    unreadable: str  # why


class AnswerPage(ApiAnswer):
    """The answer of a job with one page of its plans, best first."""

    job_id: str
    state: State
    certainty: str | None = None  # how good the first plan is, in words; none of older releases
    points: list[PointView] | None = None  # of a sweep
    model: ModelFigures | None = None  # none of a sweep: its points may differ
    plans: list[RankedPlan]
    unreadable: list[UnreadablePlan] | None = None  # of this page
    next_page_token: str | None


_HINTS = get_type_hints(Answer)
# Fields with a default that every stored answer has all the same.
_ALWAYS = ("warnings", "infeasible", "num_gpus_used", "peak_flops", "notes")
_STATED: dict[str, Any] = {
    one.name: (_HINTS[one.name], Field(default_factory=one.default_factory))
    if one.default_factory is not MISSING and one.name not in _ALWAYS
    else (_HINTS[one.name], ... if one.default is MISSING or one.name in _ALWAYS else one.default)
    for one in fields(Answer)
    if one.name not in {*AnswerPage.model_fields, "floors", "choices"}
}
# With every further field of an answer.
AnswerView = create_model("AnswerView", __base__=AnswerPage, __doc__=AnswerPage.__doc__, **_STATED)


# --------------------------------------------------------------------------------------------------
# What the API answers with about keys and the audit trail.


class KeyView(ApiAnswer):
    """One key, without its secret."""

    id: str
    scope: Literal["read", "submit", "admin"]
    title: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    max_cpu_s_per_day: float | None  # null: as the service's settings state
    usable: bool


class NewKeyView(KeyView):
    """One key with its token, which is not stored and cannot be shown again."""

    token: str | None  # null in the answer to a repeated request: revoke the key and make another


class KeyPage(ApiAnswer):
    """Keys, newest first."""

    keys: list[KeyView]
    next_page_token: str | None = None


class ShareLinkView(ApiAnswer):
    """One link to an answer, without its address."""

    id: str
    key_id: str | None  # that made it; null: no keys are demanded
    created_at: datetime
    expires_at: datetime


class NewShareLinkView(ShareLinkView):
    """One link with its address on this server, which is not stored and cannot be shown again."""

    path: str | None  # null in the answer to a repeated request: revoke the link and make another


class TenantLinkView(ShareLinkView):
    """One link of a tenant, with the job that it shows."""

    job_id: str


class ShareLinkPage(ApiAnswer):
    """The active links of a tenant, newest first."""

    links: list[TenantLinkView]
    next_page_token: str | None = None


class ShareLinkList(ApiAnswer):
    """The active links of a job, newest first."""

    links: list[ShareLinkView]


class AuditView(ApiAnswer):
    """One act of an administrator."""

    at: datetime
    actor: str
    action: str
    subject: str
    details: dict[str, Any]


class AuditPage(ApiAnswer):
    """The audit trail, newest first."""

    acts: list[AuditView]
    next_page_token: str | None = None


# --------------------------------------------------------------------------------------------------
# What the API shows of the points of a sweep while they are searched.


class ChildView(JobView):
    """One point of a sweep: a job like any other."""

    point: int
    values: dict[str, bool | int | str]  # of every axis
    reused: bool  # it was answered before


class ChildPage(ApiAnswer):
    """Points of a sweep, in order."""

    children: list[ChildView]
    next_page_token: str | None = None


def child_view(child: JobSummary) -> ChildView:
    """One record as a point."""
    point = child.point or {}
    values = point.get("values", {})
    return job_view(
        ChildView,
        child,
        point=child.position or 0,
        values=values if isinstance(values, dict) else {},
        reused=point.get("reused_from") is not None,
    )


# --------------------------------------------------------------------------------------------------
# What the API shows of re-plans on record.


class ReplanView(ApiAnswer):
    """One re-plan: what a launcher asked."""

    model_config = _shown(
        id="5e0c1d9c2a7b4f0e9d3b6a1f8c7e2d40",
        job_id="0b9e7c1d4f2a4c58a1d3e6f7b8c9d0e1",
        key_id="3f9a1c04be27",
        created_at="2026-01-31T12:00:00Z",
        request={"lost_nodes": 1, "steps_done": 40000, "steps_total": 200000, "saved_step": 39800},
    )

    id: str
    job_id: str
    key_id: str | None  # of the caller; null where no keys are demanded
    created_at: datetime
    request: dict[str, Any]


class ReplanDetail(ReplanView):
    """One re-plan with what the launcher was answered."""

    model_config = ConfigDict(json_schema_extra=None)

    answer: ReplanAnswer


class ReplanPage(ApiAnswer):
    """Re-plans of a job, newest first."""

    replans: list[ReplanView]
    next_page_token: str | None = None


# --------------------------------------------------------------------------------------------------
# What the API shows of use: CPU seconds of keys, and live workers.


class UsageView(ApiAnswer):
    """CPU seconds of the searches of one key that ended on one day (UTC)."""

    model_config = _shown(day="2026-01-31", key_id="3f9a1c04be27", cpu_s=812.5, jobs=41)

    day: date
    key_id: str | None  # null: submitted where no keys were demanded
    cpu_s: float
    jobs: int


class UsageTotal(ApiAnswer):
    """Sums over all the days and keys that were asked for."""

    cpu_s: float
    jobs: int


class UsageList(ApiAnswer):
    """CPU seconds by day and key, newest day first."""

    usage: list[UsageView]
    total: UsageTotal  # of all pages
    next_page_token: str | None = None


class WorkerView(ApiAnswer):
    """One live worker."""

    model_config = _shown(
        name="node-7:4711", kind="search", version="0.1.0", started_at="2026-01-31T08:00:00Z",
        seen_at="2026-01-31T12:00:00Z", busy=True, job_id="0b9e7c1d4f2a4c58a1d3e6f7b8c9d0e1",
        busy_since="2026-01-31T11:59:40Z",
    )  # fmt: skip

    name: str  # host and process
    kind: Literal["search", "verify"]
    version: str
    started_at: datetime
    seen_at: datetime
    busy: bool | None  # it has a job; null: not known of a worker that verifies
    job_id: str | None  # that job, if it is one of your own
    busy_since: datetime | None


class WorkerList(ApiAnswer):
    """The workers that are alive, by name."""

    workers: list[WorkerView]
