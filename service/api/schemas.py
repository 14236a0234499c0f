"""What the API answers with. Plans, predictions and reasons keep the solver's own shapes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from service.api.problems import ProblemView, type_of
from service.db.profile_records import ProfileRecord
from service.db.records import JobRecord, JobSummary
from service.engine.states import TERMINAL_STATES
from solver.plan import (
    Configuration,
    Infeasibility,
    Plan,
    Prediction,
)
from solver.reasons import Why

State = Literal["queued", "running", "succeeded", "infeasible", "failed", "cancelled", "expired"]


class ProgressView(BaseModel):
    """How far a running search has come."""

    stage: str
    explored: int
    total: int
    incumbent_step_time_s: float | None = None
    bound_step_time_s: float | None = None
    gap: float | None = None
    elapsed_s: float
    deadline: datetime | None = None  # when the search's own time limit ends


class LinksView(BaseModel):
    """Where to go from a job; a link is absent where it leads nowhere yet."""

    self: str
    events: str
    plans: str | None = None
    cancel: str | None = None
    children: str | None = None  # of a sweep: its points
    parent: str | None = None  # of a point: its sweep


class JobView(BaseModel):
    """One job; times are the database's, in UTC."""

    id: str
    state: State
    created_at: datetime
    expires_at: datetime  # unclaimed until then: expired
    priority: int  # 0 goes before 9 among this tenant's own
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempts: int
    cancel_requested: bool
    progress: ProgressView | None = None
    problem: ProblemView | None = None  # why the job failed
    links: LinksView


class JobDetail(JobView):
    """One job with the question it answers."""

    infeasible: Infeasibility | None = None  # why nothing fits, where that was proved
    request: dict[str, Any]  # the canonical problem, every figure spelled out


class EventView(BaseModel):
    """The data of one server-sent event: the job as it was from then on."""

    job_id: str
    state: State
    at: datetime
    cancel_requested: bool
    progress: ProgressView | None = None


class JobPage(BaseModel):
    """Jobs, newest first."""

    jobs: list[JobView]
    next_page_token: str | None = None


class PlanView(BaseModel):
    """One plan and the job that found it."""

    job_id: str
    plan: Plan


class ExportView(BaseModel):
    """Launch files of one plan."""

    plan_id: str
    launcher: str
    files: dict[str, str]
    warnings: list[str]


class PredictionView(BaseModel):
    """What the cost model expects of a given configuration."""

    config: Configuration  # completed: what was left out is filled in
    prediction: Prediction
    breaks: list[str]  # rules of the search space that it breaks
    why: Why  # where its time goes, and what stops it from going faster
    profile: str
    launcher: str | None = None  # whose launch file it was
    notes: list[str] = Field(default_factory=list)  # what really runs: defaults that cost something
    unread: list[str] = Field(default_factory=list)  # names of the launch file that are not understood


class ProfileView(BaseModel):
    """One stored profile; problems name it by its id."""

    id: str
    kind: Literal["calibration", "measured"]
    title: str
    gpu: str | None
    created_at: datetime


class ProfileDetail(ProfileView):
    """One stored profile with its document."""

    document: dict[str, Any]


class ProfilePage(BaseModel):
    """Profiles, newest first."""

    profiles: list[ProfileView]
    next_page_token: str | None = None


class MeasurementView(BaseModel):
    """What was learnt from a measured run of a plan."""

    id: str
    plan_id: str
    profile: str  # id of the calibration on all runs of this cluster and framework
    num_runs: int
    findings: list[str]  # what looks wrong in them
    prediction: Prediction  # of the plan, under that calibration


class CatalogView(BaseModel):
    """Entries of one catalog, by name; ``origin`` tells the tenant's own, which have versions."""

    items: list[dict[str, Any]]
    next_page_token: str | None = None


class DefinitionView(BaseModel):
    """One model or cluster with every figure spelled out."""

    kind: Literal["model", "cluster"]
    name: str
    origin: Literal["catalog", "stored"]
    version: int | None = None
    created_at: datetime | None = None
    document: dict[str, Any]


class ReadyView(BaseModel):
    """What this server stands on."""

    ready: bool
    database: Literal["ok", "unavailable"]
    migration: Literal["current", "outdated", "unknown"]
    queue: Literal["ok", "degraded", "polling"]


def job_fields(job: JobSummary) -> dict[str, Any]:
    """The fields of ``JobView`` for one record."""
    return {
        "id": job.id,
        "state": job.state,
        "created_at": moment(job.created_at_s),
        "expires_at": moment(job.expires_at_s),
        "priority": job.priority,
        "started_at": moment(job.started_at_s),
        "finished_at": moment(job.finished_at_s),
        "attempts": job.attempts,
        "cancel_requested": job.cancel_requested,
        "progress": _progress(job),
        "problem": _failure(job.problem),
        "links": _links(job),
    }


def job_detail(job: JobRecord) -> JobDetail:
    """One record with its question."""
    infeasible = job.answer.get("infeasible") if job.answer else None
    return JobDetail(**job_fields(job), infeasible=infeasible, request=dict(job.request))


def profile_fields(record: ProfileRecord) -> dict[str, Any]:
    """The fields of ``ProfileView`` for one record."""
    return {
        "id": record.id,
        "kind": record.kind,
        "title": record.title,
        "gpu": record.gpu,
        "created_at": moment(record.created_at_s),
    }


def moment(time_s: float | None) -> datetime | None:
    """Seconds since 1970 as a moment in UTC."""
    return None if time_s is None else datetime.fromtimestamp(time_s, UTC)


def _progress(job: JobSummary) -> ProgressView | None:
    """The last progress report; its deadline counts from the claim."""
    if job.progress is None:
        return None
    deadline = moment(job.claimed_at_s + job.time_limit_s) if job.claimed_at_s is not None else None
    return ProgressView(**job.progress, deadline=deadline)


def _failure(problem: Mapping[str, Any] | None) -> ProblemView | None:
    """Why a job failed."""
    if problem is None:
        return None
    title = problem["code"].replace("_", " ").capitalize()
    return ProblemView(type=type_of(problem["code"]), title=title, detail=problem["detail"])


def _links(job: JobSummary) -> LinksView:
    """Where to go from here."""
    here = f"/v1/jobs/{job.id}"
    return LinksView(
        self=here,
        events=f"{here}/events",
        plans=f"{here}/plans" if job.has_answer else None,
        cancel=None if job.state in TERMINAL_STATES else f"{here}:cancel",
        children=None if job.num_children is None else f"{here}/children",
        parent=None if job.parent_id is None else f"/v1/jobs/{job.parent_id}",
    )
