"""Types of workers and records about a job: its states, a claim, how it ended, results of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from meshwright.service.requests.fields import POST_TRAINING

TERMINAL_STATES = frozenset({"succeeded", "infeasible", "failed", "cancelled", "expired"})
MAX_ATTEMPTS = 3  # a job that lost its worker this often is poison
MAX_EXCUSED = 9  # fence up to which a claim that a living worker gave up does not count

FLEET = "fleet"  # kind of a job that plans several on one cluster
KINDS = FLEET, POST_TRAINING  # besides searches, what workers of this release run

Beat = Literal["ok", "cancel", "lost"]
FinalState = Literal["succeeded", "infeasible", "failed", "cancelled"]
EndState = FinalState | Literal["expired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right of one worker to run one job, until its lease ends or the fence moves on."""

    job_id: str
    tenant: str
    fence: int
    attempts: int
    request: Mapping[str, Any]
    time_limit_s: float
    request_id: str | None = None  # of the request that asked for it
    traceparent: str | None = None  # W3C trace context of that request
    checkpoint: Mapping[str, Any] | None = None  # what an earlier worker had found when it had to leave
    parent_id: str | None = None  # of the sweep that this job is a point of
    owner: str | None = None  # the key that submitted it
    kind: str | None = None  # fleet, post_training; None: a search
    cancel_requested: bool = False  # before the claim: only a sweep is claimed after that


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredPart:
    """One job of an answered fleet, stored as a job of its own that has ended."""

    job_id: str
    name: str
    request: Mapping[str, Any]
    answer: Mapping[str, Any]  # without its plans
    plans: Sequence[Mapping[str, Any]]
    cache_key: str | None
    kind: str | None = None  # post_training


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a job, and everything that is stored about it in one transaction."""

    state: EndState
    answer: Mapping[str, Any] | None = None  # without its plans
    plans: Sequence[Mapping[str, Any]] = ()  # plan_id, rank, …; best first
    problem: Mapping[str, str] | None = None  # code and detail of a failure
    progress: Mapping[str, Any] | None = None  # the last report
    cache_key: str | None = None  # None: never reuse this answer
    parts: Sequence[AnsweredPart] = ()  # of a fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCleanup:
    """The changes made by one sweep."""

    requeued: int = 0
    poisoned: int = 0
    cancelled: int = 0
    expired: int = 0
    waiting: tuple[str, ...] = field(default=())  # queued jobs to publish again
