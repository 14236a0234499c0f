"""A submission as rows: one job, a sweep with its children, or a fleet; and whether its answer is known."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection

from meshwright.service.db import records
from meshwright.service.db.records import (
    JobRecord,
    NewChild,
    NewJob,
    Origin,
    answered_jobs,
    insert_sweep,
)
from meshwright.service.jobs.answers import cache_key_of, versions_of
from meshwright.service.jobs.spending import Spender
from meshwright.service.jobs.states import FLEET
from meshwright.service.report.question import sweep_title, title_of
from meshwright.service.requests.fields import DEFAULT_PRIORITY
from meshwright.service.requests.jobs import Sweep
from meshwright.service.requests.parse import problem_to_mapping
from meshwright.solver.problem import Problem

POSITION_DIGITS = 4  # hexadecimal, at the end of a child's id


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAsked:
    """A fleet, or the roles of post-training, in the form that is stored."""

    request: Mapping[str, object]
    versions: Mapping[str, str]  # of what would answer it
    time_limit_s: float
    replans: str | None = None  # id of the fleet that it plans anew
    kind: str = FLEET  # or another question that is no search
    title: str | None = None  # in a line; none of a fleet, which has a name


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A client's submission: the question, and how it may be answered."""

    problem: Problem | None = None  # of a sweep, its first; None: a fleet
    fleet: FleetAsked | None = None
    body: Mapping[str, object]  # as it was sent; the idempotency key is bound to it
    idempotency_key: str | None = None
    fresh: bool = False  # True: search again even if the answer is known
    origin: Origin = field(default_factory=Origin)
    priority: int = DEFAULT_PRIORITY
    deadline_s: float | None = None  # None: the service's own
    sweep: Sweep | None = None
    owner: str | None = None  # id of the caller's key
    max_cpu_s_per_day: float | None = None  # of that key; None: the service's own
    labels: Mapping[str, str] = field(default_factory=dict)

    def spender(self, tenant: str) -> Spender:
        """Return whose CPU seconds its searches are."""
        return Spender(tenant=tenant, key_id=self.owner, most_s=self.max_cpu_s_per_day)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSubmission:
    """A submission in the form that is stored, and what its answer may be reused under."""

    request: Mapping[str, object]
    cache_key: str
    time_limit_s: float
    kind: str | None = None  # fleet, post_training
    title: str | None = None  # in a line; none of a fleet, which has a name
    parts: tuple[NewChild, ...] = ()  # of a sweep


def question_of(tenant: str, submission: Submission) -> StoredSubmission:
    """Return the canonical question of a submission.

    Raises:
        ValueError: it has neither a problem nor a fleet.
    """
    fleet, problem, sweep = submission.fleet, submission.problem, submission.sweep
    if fleet is not None:
        return StoredSubmission(
            request=fleet.request,
            cache_key=cache_key_of(tenant, fleet.request, fleet.versions),
            time_limit_s=fleet.time_limit_s,
            kind=fleet.kind,
            title=fleet.title,
        )
    if problem is None:
        raise ValueError("a submission needs a problem or a fleet")
    request, key = _canonical(tenant, problem)
    limit_s = problem.options.time_limit_s
    if sweep is None:
        return StoredSubmission(
            request=request, cache_key=key, time_limit_s=limit_s, title=title_of(problem)
        )
    parts = []
    for point, one in zip(sweep.points, sweep.problems, strict=True):
        own, own_key = _canonical(tenant, one)
        part_key = cache_key_of(tenant, own, versions_of(one), is_part=True)
        parts.append(
            NewChild(
                values=point.values, request=own, title=title_of(one), cache_key=part_key, job_key=own_key
            )
        )
    key = sweep_key(tenant, [part.values for part in parts], [part.cache_key for part in parts])
    return StoredSubmission(
        request={**request, "sweep": {name: list(given) for name, given in sweep.axes.items()}},
        cache_key=key,
        time_limit_s=limit_s,
        title=sweep_title(problem, sweep.axes, len(parts)),
        parts=tuple(parts),
    )


def sweep_key(tenant: str, values: Sequence[Mapping[str, object]], keys: Sequence[str]) -> str:
    """Return the key for reusing the answer of a sweep: the points, and the keys of theirs."""
    return cache_key_of(tenant, {"points": [dict(one) for one in values], "keys": list(keys)}, {})


def add(
    connection: Connection,
    tenant: str,
    submission: Submission,
    question: StoredSubmission,
    timeout_s: float,
) -> JobRecord:
    """Add the job of a submission, inside the transaction that binds its key."""
    new = NewJob(
        id=uuid.uuid4().hex,
        tenant=tenant,
        request=question.request,
        time_limit_s=question.time_limit_s,
        kind=question.kind,
        title=question.title,
        queue_timeout_s=submission.deadline_s or timeout_s,
        priority=submission.priority,
        origin=submission.origin,
        owner=submission.owner,
        labels=submission.labels,
    )
    if not question.parts:
        return records.insert_job(connection, new)
    keys = [] if submission.fresh else [key for part in question.parts for key in part.keys]
    known = answered_jobs(connection, tenant, keys)
    children = [
        replace(part, known=next((known[key] for key in part.keys if key in known), None))
        for part in question.parts
    ]
    return insert_sweep(connection, new, children, uuid.uuid4().hex[:-POSITION_DIGITS])


def _canonical(tenant: str, problem: Problem) -> tuple[dict[str, object], str]:
    request = problem_to_mapping(problem)
    return request, cache_key_of(tenant, request, versions_of(problem))
