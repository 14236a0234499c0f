"""Queries over jobs and plans; they run in the caller's transaction.

The tenant is in every WHERE: another tenant's id is not found.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    bindparam,
    case,
    func,
    insert,
    literal,
    null,
    select,
    tuple_,
    update,
)

from meshwright.service.db.clock import now_s
from meshwright.service.db.rows import all_of, one_of, readable
from meshwright.service.db.tables import (
    CLOSEST_RANK,
    is_fleet,
    is_newest,
    job_events,
    job_labels,
    jobs,
    plans,
    submitted,
)
from meshwright.service.errors import NotFoundError
from meshwright.service.stored import Unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """One row of ``jobs`` without its bodies; times are seconds since 1970 by the database's clock."""

    id: str
    state: str
    time_limit_s: float
    created_at_s: float
    expires_at_s: float
    started_at_s: float | None
    finished_at_s: float | None
    claimed_at_s: float | None
    attempts: int
    cancel_requested: bool
    progress: Mapping[str, Any] | None
    problem: Mapping[str, Any] | None
    priority: int
    parent_id: str | None  # the sweep that this job is a point of
    position: int | None  # of a point
    point: Mapping[str, Any] | None  # its values, and the job that had answered it before
    num_children: int | None  # of a sweep
    model: str | None  # its name in the question
    title: str | None  # the question in a line; none of jobs of older releases
    owner: str | None  # id of the key that submitted it
    labels: Mapping[str, str] | None
    cpu_s: float | None  # of its workers
    kind: str | None  # fleet
    replanned_as: str | None  # of a fleet: the newest that planned it anew
    has_answer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord(JobSummary):
    """One row of ``jobs`` with its question and its answer."""

    request: Mapping[str, Any]
    answer: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of a question: kept with its job, for logs and traces."""

    request_id: str | None = None
    traceparent: str | None = None  # W3C trace context


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs a list names: those with all that is given here."""

    state: str | None = None
    model: str | None = None
    owner: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    fleets: bool = False  # only these

    @property
    def columns(self) -> dict[str, str]:
        """Return the columns that are asked for with their values, the most selective first."""
        given = {"owner": self.owner, "model": self.model, "state": self.state}
        return {name: value for name, value in given.items() if value is not None}


EVERY_JOB = JobFilter()
MAX_LOOKED_AT = 1_000  # jobs for one page of a list with several filters: 3 ms
Position = tuple[float, str]  # of a job in a list: created_at_s, id
MAX_NAME = 200  # characters of a model's or cluster's name; longer ones are cut
_CREATED = jobs.c.created_at_s
_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HAS_ANSWER = jobs.c.answer.is_not(null()).label("has_answer")
_BEHIND_ALL = 10  # priority of a fleet that an older worker passed over; requests state 9 at most
_PRIORITY = case((jobs.c.priority < _BEHIND_ALL, jobs.c.priority), else_=_BEHIND_ALL - 1).label("priority")
_SUMMARY = (
    *(jobs.c[field.name] for field in fields(JobSummary) if field.name not in {"has_answer", "priority"}),
    _HAS_ANSWER,
    _PRIORITY,
)
_RECORD = (*_SUMMARY, jobs.c.request, jobs.c.answer)

# Built once: what every request asks would cost more to write down than to answer.
_ASKED = jobs.c.tenant == bindparam("asker"), jobs.c.id == bindparam("asked")
_FIND = select(*_RECORD).where(*_ASKED)
_NEWEST_EVENT = select(func.max(job_events.c.id)).where(job_events.c.job_id == jobs.c.id)
_LOOK = select(*_RECORD, func.coalesce(_NEWEST_EVENT.scalar_subquery(), 0).label("newest")).where(*_ASKED)
_ANSWERED = (
    select(jobs.c.id)
    .where(
        jobs.c.tenant == bindparam("asker"),
        jobs.c.cache_key == bindparam("asked"),
        jobs.c.state.in_(["succeeded", "infeasible"]),
    )
    .order_by(jobs.c.finished_at_s.desc())
    .limit(1)
)
_MOMENTS: dict[str, ColumnElement[float]] = {
    "created_at_s": now_s(),
    "expires_at_s": now_s() + bindparam("queue_timeout_s", type_=Double()),
}
_INSERT = insert(jobs).values(_MOMENTS).returning(*(jobs.c[name] for name in _MOMENTS))
_QUEUED: dict[str, Any] = dict.fromkeys(one.name for one in fields(JobRecord)) | {
    "attempts": 0, "cancel_requested": False, "has_answer": False,
}  # fmt: skip


def is_identifier(text: str) -> bool:
    """Return whether ``text`` could be the id of a job or plan; PostgreSQL cannot even look for a NUL."""
    return _IDENTIFIER.fullmatch(text) is not None


def name_in(request: Mapping[str, Any], part: str) -> str | None:
    """Return the name of the model or cluster in a question."""
    name = (request.get(part) or {}).get("name")
    return str(name)[:MAX_NAME] if name else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to add; ``priority`` 0 goes before 9 among the tenant's own."""

    id: str
    tenant: str
    request: Mapping[str, object]
    time_limit_s: float
    queue_timeout_s: float  # unclaimed this long: expired
    priority: int
    origin: Origin = field(default_factory=Origin)
    owner: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    kind: str | None = None
    title: str | None = None  # the question in a line


def _stated(new: NewJob) -> dict[str, Any]:
    """Return the columns of a queued job but for its moments."""
    return {
        "id": new.id,
        "tenant": new.tenant,
        "state": "queued",
        "request": new.request,
        "time_limit_s": new.time_limit_s,
        "priority": new.priority,
        "request_id": new.origin.request_id,
        "traceparent": new.origin.traceparent,
        "owner": new.owner,
        "model": name_in(new.request, "model"),
        "title": new.title and new.title[:MAX_NAME],
        "labels": dict(new.labels) or None,
        "kind": new.kind,
    }


def job_values(new: NewJob) -> dict[str, Any]:
    """Return the columns of a job that is queued now."""
    return {**_stated(new), "created_at_s": now_s(), "expires_at_s": now_s() + new.queue_timeout_s}


def insert_job(connection: Connection, new: NewJob) -> JobRecord:
    """Add a queued job and return its row, of which the database makes the moments alone."""
    given = _stated(new)
    moments = connection.execute(_INSERT, {**given, "queue_timeout_s": new.queue_timeout_s}).one()
    known = {name: value for name, value in given.items() if name in _QUEUED}
    return _labelled(connection, new, JobRecord(**_QUEUED | known | moments._asdict()))


def _labelled(connection: Connection, new: NewJob, job: JobRecord) -> JobRecord:
    if new.labels:
        known = {"job_id": job.id, "tenant": new.tenant, "created_at_s": job.created_at_s}
        rows = [{**known, "name": name, "value": value} for name, value in new.labels.items()]
        connection.execute(insert(job_labels), rows)
    return job


def find_job(connection: Connection, tenant: str, job_id: str) -> JobRecord | None:
    """Return one job of this tenant."""
    if not is_identifier(job_id):
        return None
    return one_of(connection, JobRecord, _FIND, {"asker": tenant, "asked": job_id})


def required_job(connection: Connection, tenant: str, job_id: str) -> JobRecord:
    """Return one job of this tenant.

    Raises:
        NotFoundError: it has no such job.
    """
    job = find_job(connection, tenant, job_id)
    if job is None:
        raise NotFoundError("there is no such job")
    return job


def look_at(connection: Connection, tenant: str, job_id: str) -> tuple[JobRecord, int] | None:
    """Return one job of this tenant, and the id of its newest event, in one look."""
    if not is_identifier(job_id):
        return None
    row = connection.execute(_LOOK, {"asker": tenant, "asked": job_id}).mappings().one_or_none()
    if row is None:
        return None
    values = dict(row)
    newest = values.pop("newest")
    return JobRecord(**values), newest


def newest_jobs(
    connection: Connection,
    tenant: str,
    wanted: JobFilter = EVERY_JOB,
    *,
    limit: int,
    before: Position | None,
) -> tuple[list[JobSummary], Position | None]:
    """Return up to ``limit`` submitted jobs, newest first, after ``before``, and where to go on.

    An index finds the jobs with the first label, or else the fleets, or else the owner, the model or the
    state. If there are more filters, at most ``MAX_LOOKED_AT`` of these are looked at: a page may hold
    fewer jobs than ``limit``, even none, and the list goes on.
    """
    place = (job_labels.c.created_at_s, job_labels.c.job_id) if wanted.labels else (_CREATED, jobs.c.id)
    found_by, rest = _conditions(tenant, wanted)
    if before is not None:
        found_by.append(tuple_(*place) < before)
    order = [one.desc() for one in place]
    edge: Position | None = None
    if rest:
        last = select(*place).where(*found_by).order_by(*order).limit(1).offset(MAX_LOOKED_AT - 1)
        edge = next((tuple(row) for row in connection.execute(last)), None)
    query = select(*_SUMMARY).where(*found_by, *rest).order_by(*order).limit(limit)
    if wanted.labels:
        query = query.join(job_labels, job_labels.c.job_id == jobs.c.id)
    if edge is not None:
        query = query.where(tuple_(*place) >= edge)
    found = all_of(connection, JobSummary, query)
    return found, (found[-1].created_at_s, found[-1].id) if len(found) == limit else edge


def _conditions(
    tenant: str, wanted: JobFilter
) -> tuple[list[ColumnElement[bool]], list[ColumnElement[bool]]]:
    """Return what an index finds jobs by, and the other conditions, which no index is to be used for."""
    labels, columns = list(wanted.labels.items()), list(wanted.columns.items())
    if labels:
        name, value = labels.pop(0)
        label = job_labels.c
        found_by = [label.tenant == tenant, label.name == name, label.value == value]
    else:
        found_by = [jobs.c.tenant == tenant, is_fleet if wanted.fleets else submitted]
        if not wanted.fleets:
            found_by += [jobs.c[name] == value for name, value in columns[:1]]
            columns = columns[1:]
    rest = [jobs.c[name].concat("") == value for name, value in columns]
    rest += [_label(name) == value for name, value in labels]
    if wanted.fleets and wanted.labels:
        rest.append(jobs.c.kind.concat("") == "fleet")
    return found_by, rest


def _label(name: str) -> ColumnElement[str]:
    """Return a label of a job by the rows that hold them, so that no document is read."""
    own = job_labels.alias()
    found = select(own.c.value).where(own.c.job_id == jobs.c.id, own.c.name == name)
    return found.scalar_subquery()


def answered_job(connection: Connection, tenant: str, cache_key: str) -> str | None:
    """Return the id of the newest job that holds the proved or complete answer to the same question."""
    return connection.execute(_ANSWERED, {"asker": tenant, "asked": cache_key}).scalar_one_or_none()


def plans_of(
    connection: Connection, tenant: str, job_id: str, *, after: int, limit: int
) -> list[Mapping[str, Any]]:
    """Return up to ``limit`` plan bodies of a job, by rank, after rank ``after``.

    One that cannot be read is an ``Unreadable`` with its rank and id.
    """
    query = (
        select(plans.c.rank, plans.c.plan_id, plans.c.body)
        .where(plans.c.tenant == tenant, plans.c.job_id == job_id, plans.c.rank > after)
        .order_by(plans.c.rank)
        .limit(limit)
    )
    return [_body_of(row.rank, row.plan_id, row.body) for row in connection.execute(query)]


def _body_of(rank: int, plan_id: str, body: Mapping[str, Any] | None) -> Mapping[str, Any]:
    is_its_own = body is not None and (body.get("rank"), body.get("plan_id")) == (rank, plan_id)
    return body if body is not None and is_its_own else Unreadable(rank=rank, plan_id=plan_id)


def find_plan(connection: Connection, tenant: str, plan_id: str) -> tuple[str, Mapping[str, Any]] | None:
    """Return the newest plan of that id and the job that found it; sweeps only rank points' plans."""
    if not is_identifier(plan_id):
        return None
    query = select(plans.c.job_id, plans.c.body)
    query = query.where(plans.c.tenant == tenant, plans.c.plan_id == plan_id, is_newest)
    row = connection.execute(query.limit(1)).one_or_none()
    if row is None:  # the closest plan of a job in which nothing fits
        own = plans.c.tenant == tenant, plans.c.plan_id == plan_id, plans.c.rank == CLOSEST_RANK
        query = select(plans.c.job_id, plans.c.body).where(*own).order_by(plans.c.found_at_s.desc())
        row = connection.execute(query.limit(1)).one_or_none()
    return None if row is None else (row.job_id, row.body)


def count_queued(connection: Connection, tenant: str, *, limit: int) -> int:
    """Return how many jobs of a tenant wait, up to ``limit``; of a sweep, its points that wait."""
    waits = select(literal(1)).where(jobs.c.tenant == tenant, jobs.c.state == "queued").limit(limit)
    return connection.execute(select(func.count()).select_from(waits.subquery())).scalar_one()


def wait_for_submits(connection: Connection, tenant: str, limit: int, *, window_s: float) -> float | None:
    """Return seconds until fewer than ``limit`` jobs were added in the last ``window_s``; None: now."""
    query = (
        select(jobs.c.created_at_s + window_s - now_s())
        .where(jobs.c.tenant == tenant, submitted, jobs.c.created_at_s > now_s() - window_s)
        .order_by(jobs.c.created_at_s.desc())
        .offset(limit - 1)
        .limit(1)
    )
    return connection.execute(query).scalar_one_or_none()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionHeading:
    """The part of a question that a list shows."""

    model: str
    cluster: str
    num_nodes: int  # of the first group
    fleet: str  # its name; every other question has none


UNREADABLE_HEADING = QuestionHeading(model="", cluster="", num_nodes=0, fleet="unreadable")


def headings_of(connection: Connection, tenant: str, job_ids: Sequence[str]) -> dict[str, QuestionHeading]:
    """Return the headings of some of this tenant's jobs, by id, without reading their bodies.

    A question that cannot be read has none.
    """
    if not job_ids:  # SQLite would look for none of them at each job of the tenant
        return {}
    question = jobs.c.request
    query = select(
        jobs.c.id,
        question[("model", "name")].as_string().label("model"),
        question[("cluster", "name")].as_string().label("cluster"),
        question[("cluster", "groups", 0, "num_nodes")].as_integer().label("num_nodes"),
        question["name"].as_string().label("fleet"),
    ).where(jobs.c.tenant == tenant, jobs.c.id.in_(job_ids))
    query = query.where(*readable(connection, jobs.c.request))
    return {
        row.id: QuestionHeading(
            model=row.model or "",
            cluster=row.cluster or "",
            num_nodes=row.num_nodes or 0,
            fleet=row.fleet or "",
        )
        for row in connection.execute(query)
    }


# --------------------------------------------------------------------------------------------------
# Queries over sweeps and their children; they run in the caller's transaction.


_COPIED = ("tenant", "state", "progress", "answer", "problem")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewChild:
    """One point of a new sweep; ``known``: the job that has answered it already."""

    values: Mapping[str, object]
    request: Mapping[str, object]
    title: str | None = None
    cache_key: str = ""  # shared with an earlier point of the same request
    job_key: str = ""  # shared with an earlier job of the same request
    known: str | None = None

    @property
    def keys(self) -> tuple[str, str]:
        """Return the keys of the answers that answer it."""
        return self.cache_key, self.job_key


def insert_sweep(connection: Connection, new: NewJob, children: Sequence[NewChild], stem: str) -> JobRecord:
    """Add a sweep that runs, and its children; the name of a child is ``stem`` and its place, in hex."""
    whole = {**job_values(new), "state": "running", "num_children": len(children)}
    row = connection.execute(insert(jobs).values(whole).returning(*_RECORD)).mappings().one()
    own = {"labels": None}  # lists name the sweep
    for position, child in enumerate(children):
        values = {**job_values(new), **own, "id": f"{stem}{position:04x}", "request": child.request}
        values["title"] = child.title and child.title[:MAX_NAME]
        values |= {"parent_id": new.id, "position": position}
        values["point"] = {"values": dict(child.values), "reused_from": child.known}
        copied = {**values, "cache_key": child.cache_key}
        if child.known is None or not _copy(connection, new.tenant, child.known, copied):
            values["point"] = {"values": dict(child.values), "reused_from": None}
            connection.execute(insert(jobs).values(values))
    return _labelled(connection, new, JobRecord(**row))


def parts_of(
    connection: Connection, tenant: str, fleet_id: str
) -> dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return the question and the first plan of each part of an answered fleet, by its job's name."""
    query = (
        select(jobs.c.point, jobs.c.request, plans.c.body)
        .join(plans, plans.c.job_id == jobs.c.id)
        .where(jobs.c.tenant == tenant, jobs.c.parent_id == fleet_id, plans.c.rank == 1)
        .order_by(jobs.c.position)
    )
    return {row.point["values"]["job"]: (row.request, row.body) for row in connection.execute(query)}


def note_replanned(connection: Connection, tenant: str, fleet_id: str, new_id: str) -> None:
    """Write on a fleet which one planned it anew."""
    connection.execute(
        update(jobs).where(jobs.c.tenant == tenant, jobs.c.id == fleet_id).values(replanned_as=new_id)
    )


def insert_answered(connection: Connection, new: NewJob, position: int, part: Mapping[str, Any]) -> None:
    """Add a part of an answered fleet: a job that has ended, with its answer, and without its plans."""
    values = {**job_values(new), "state": "succeeded", "started_at_s": now_s(), "finished_at_s": now_s()}
    connection.execute(insert(jobs).values({**values, **part, "position": position}))


def children_of(
    connection: Connection, tenant: str, parent_id: str, *, after: int, limit: int
) -> list[JobSummary]:
    """Return up to ``limit`` children of a sweep, in order, after the position ``after``."""
    return all_of(
        connection,
        JobSummary,
        select(*_SUMMARY)
        .where(jobs.c.tenant == tenant, jobs.c.parent_id == parent_id, jobs.c.position > after)
        .order_by(jobs.c.position)
        .limit(limit),
    )


def child_at(connection: Connection, parent_id: str, position: int) -> JobRecord | None:
    """Return one child with its question and its answer."""
    return one_of(
        connection,
        JobRecord,
        select(*_RECORD).where(jobs.c.parent_id == parent_id, jobs.c.position == position),
    )


def child_keys(connection: Connection, parent_id: str) -> list[tuple[Mapping[str, Any], str | None]]:
    """Return the children's values and the keys for reusing their answers, in order; None: no reuse."""
    query = select(jobs.c.point, jobs.c.cache_key).where(jobs.c.parent_id == parent_id)
    return [(point["values"], key) for point, key in connection.execute(query.order_by(jobs.c.position))]


def answered_jobs(connection: Connection, tenant: str, cache_keys: Collection[str]) -> dict[str, str]:
    """Return the newest job that has answered each question, of those questions that were answered."""
    found = {key: answered_job(connection, tenant, key) for key in set(cache_keys)}
    return {key: job_id for key, job_id in found.items() if job_id is not None}


def _copy(connection: Connection, tenant: str, known: str, values: Mapping[str, Any]) -> bool:
    """Add a child that has ended already, with the answer and the plans of the job ``known``.

    False: that job was forgotten a moment ago. Else it stays until all of it is copied.
    """
    moments = {"started_at_s": now_s(), "finished_at_s": now_s()}
    own = {name: value for name, value in {**values, **moments}.items() if name not in _COPIED}
    new = [  # expressions of SQL stay
        value if hasattr(value, "self_group") else literal(value, jobs.c[name].type)
        for name, value in own.items()
    ]
    source = select(*(jobs.c[name] for name in _COPIED), *new).where(
        jobs.c.id == known, jobs.c.tenant == tenant
    )
    copied = (
        insert(jobs).from_select([*_COPIED, *own], source.with_for_update(read=True)).returning(jobs.c.id)
    )
    if connection.execute(copied).first() is None:  # psycopg has forgotten how many rows it inserted
        return False
    names = [column.name for column in plans.c if column.name not in {"job_id", "superseded_at_s"}]
    unlisted = case((plans.c.rank == CLOSEST_RANK, 0.0), else_=None)
    copies = select(literal(values["id"]), unlisted, *(plans.c[name] for name in names)).where(
        plans.c.job_id == known
    )
    connection.execute(insert(plans).from_select(["job_id", "superseded_at_s", *names], copies))
    return True
