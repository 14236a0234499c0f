"""What the service answers with: jobs, and the launch files of a plan. Times are the service's, in UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal

State = Literal["queued", "running", "succeeded", "infeasible", "failed", "cancelled", "expired"]
TERMINAL_STATES = frozenset({"succeeded", "infeasible", "failed", "cancelled", "expired"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a running search has come."""

    stage: str
    explored: int
    total: int
    elapsed_s: float
    incumbent_step_time_s: float | None = None
    bound_step_time_s: float | None = None
    gap: float | None = None
    deadline: datetime | None = None  # when the search's own time limit ends


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProblem:
    """Why a job failed."""

    type: str
    title: str
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasibility:
    """Why nothing fits, proved."""

    reasons: tuple[str, ...]  # sentences: which limit, which stage, how many GiB
    conflicts: tuple[tuple[str, ...], ...] = ()  # limits that cannot hold together
    changes: tuple[str, ...] = ()  # the smallest ones that make it fit
    nearest: Mapping[str, Any] | None = None  # the configuration that lacks least, and what it lacks
    remedies: tuple[Mapping[str, Any], ...] = ()  # the changes with the plans that they bring
    closest: Mapping[str, Any] | None = None  # the plan nearest to fitting; ``export`` takes its plan_id
    verdict: str = ""  # the answer in one sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job."""

    id: str
    state: State
    created_at: datetime
    expires_at: datetime  # unclaimed until then: expired
    priority: int
    attempts: int
    cancel_requested: bool
    links: Mapping[str, str]
    model: str | None = None  # its name in the request
    title: str | None = None  # the question in a line
    owner: str | None = None  # id of the key that submitted it
    labels: Mapping[str, str] | None = None
    cpu_s: float | None = None  # CPU seconds of its workers
    started_at: datetime | None = None
    finished_at: datetime | None = None
    progress: Progress | None = None
    problem: JobProblem | None = None
    infeasible: Infeasibility | None = None
    request: Mapping[str, Any] | None = None  # the canonical problem; absent in a list of jobs

    @property
    def is_finished(self) -> bool:
        """Whether it is in the state in which it stays."""
        return self.state in TERMINAL_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """Jobs, newest first."""

    jobs: tuple[Job, ...]
    next_page_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Launch files of one plan."""

    plan_id: str
    launcher: str
    files: Mapping[str, str]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUsage:
    """CPU seconds of the searches of one key that ended on one day (UTC)."""

    day: date
    key_id: str | None  # None: submitted where no keys were demanded
    cpu_s: float
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageList:
    """CPU seconds by day and key, newest day first."""

    usage: tuple[KeyUsage, ...]
    next_page_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One live worker."""

    name: str  # host and process
    kind: Literal["search", "verify"]
    version: str
    started_at: datetime
    seen_at: datetime
    busy: bool | None  # it has a job; None: not known of a worker that verifies
    job_id: str | None  # that job, if it is one of your own
    busy_since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerList:
    """The workers that are alive, by name."""

    workers: tuple[Worker, ...]
