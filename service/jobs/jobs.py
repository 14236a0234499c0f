"""Operations of clients on jobs: submit, read, list, cancel, fetch plans. One transaction each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from meshwright.service.db import plan_records, records
from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.event_records import EventRecord, events_after
from meshwright.service.db.plan_figures import PlanFigures
from meshwright.service.db.plan_records import PlanFilter, type_of_sort
from meshwright.service.db.records import EVERY_JOB, JobFilter, JobRecord, JobSummary, children_of
from meshwright.service.errors import (
    BadPageTokenError,
    NotFoundError,
    NotReadyError,
    RateLimit,
    TooManyRequestsError,
)
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.idempotency import Repeatable, digest_of, made_before, remember, settled
from meshwright.service.jobs.pagination import Page, decode_token, encode_token, page_of
from meshwright.service.jobs.queue import MAX_HINTS, WakeUpQueue
from meshwright.service.jobs.spending import Spending
from meshwright.service.jobs.states import FLEET, TERMINAL_STATES
from meshwright.service.jobs.submission import Submission, add, question_of
from meshwright.service.jobs.sweeps import Sweeps
from meshwright.service.requests.fields import POST_TRAINING

# --------------------------------------------------------------------------------------------------
# How many more jobs a tenant may queue, without counting its queue for each of them.


SHARE = 16  # of the room, filled between two counts
REMEMBER_S = 1.0  # jobs that come back to the queue are counted at most that much later
MAX_TENANTS = 4096


@dataclass(slots=True, kw_only=True)
class _Left:
    """The number of jobs that one tenant may queue here before its queue is counted again."""

    jobs: int
    until_s: float  # by the monotonic clock


class Room:
    """The room of every tenant, for one API process; safe to share between threads.

    Counting a queue takes as long as the queue is. Of the room that a count finds, a ``SHARE``-th is filled
    without another count, within a second; so a small room is counted for every job. Jobs that leave only
    make more room: one process holds the limit as if each job were counted. Each further process may fill
    a share that it counted before the others filled the rest: a sixteenth of the limit more at most.
    """

    def __init__(self) -> None:
        self._left: dict[str, _Left] = {}
        self._lock = threading.Lock()

    def admits(self, tenant: str, count_room: Callable[[], int], *, places: int = 1) -> bool:
        """Return whether so many more jobs may be queued; ``count_room`` counts free places."""
        with self._lock:
            left = self._left.get(tenant)
            if left is not None and left.jobs >= places and time.monotonic() <= left.until_s:
                left.jobs -= places
                return True
        room = count_room()
        if room < places:
            return False
        with self._lock:
            if len(self._left) >= MAX_TENANTS:
                self._left.clear()
            self._left[tenant] = _Left(jobs=(room - places) // SHARE, until_s=time.monotonic() + REMEMBER_S)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """Limits of one tenant; exact up to the requests in flight and shares of other processes (``room``)."""

    max_queued_jobs: int = 10_000
    max_submits_per_minute: int | None = None  # None: as many as it likes
    refuses_beyond_cpu: bool = True  # of keys that have used up their CPU seconds; False: jobs wait
    idempotency_ttl_s: float = 86_400.0  # then a key may be used again


_NO_LIMITS_SET = TenantLimits()
WINDOW_S = 60.0
MAX_EVENTS = 500  # read at once
_SEARCHED_PAGE = 200  # plans of a job that are looked through at once
QUEUE_RETRY_S = 5.0  # a tenant with a full queue is asked to come back after this


class Jobs:
    """The use cases of one service process."""

    def __init__(
        self,
        database: Database,
        engine: JobEngine,
        queue: WakeUpQueue,
        *,
        queue_timeout_s: float,
        limits: TenantLimits = _NO_LIMITS_SET,
        spending: Spending | None = None,
    ) -> None:
        self._database = database
        self._engine = engine
        self._queue = queue
        self._queue_timeout_s = queue_timeout_s
        self._limits = limits
        self._room = Room()
        self._spending = spending or Spending(database, most_s=None)
        self._sweeps = Sweeps(database, engine, worker="api")

    def submit(self, tenant: str, submission: Submission) -> JobRecord:
        """Store the job, then wake a worker; the same key or a known answer gives the earlier job.

        Raises:
            IdempotencyConflictError: the key was used with another body.
            TooManyRequestsError: this tenant has asked for as much as it may.
        """
        job, is_new = settled(lambda: self._submit_once(tenant, submission))
        if is_new:
            self._wake(job)
        return job

    def read(self, tenant: str, job_id: str) -> JobRecord:
        """Return one job.

        Raises:
            NotFoundError: this tenant has no such job.
        """
        with self._database.read() as connection:
            return records.required_job(connection, tenant, job_id)

    def look(self, tenant: str, job_id: str) -> tuple[JobRecord, int]:
        """Return one job, and the id of an event that it is at least as new as.

        Raises:
            NotFoundError: this tenant has no such job.
        """
        with self._database.read() as connection:
            found = records.look_at(connection, tenant, job_id)
        if found is None:
            raise NotFoundError("there is no such job")
        return found

    def events(self, tenant: str, job_id: str, *, after: int) -> list[EventRecord]:
        """Return a job's next events after the event ``after``, in order; the next call has the rest."""
        with self._database.read() as connection:
            return events_after(connection, tenant, job_id, after=after, limit=MAX_EVENTS)

    def page(
        self, tenant: str, wanted: JobFilter = EVERY_JOB, *, page_size: int, page_token: str | None
    ) -> Page[JobSummary]:
        """Return jobs, newest first; with several filters, a page may be short although the list goes on.

        Raises:
            BadPageTokenError: the token is not one of ours.
        """
        before = decode_token(page_token, float, str) if page_token else None
        with self._database.read() as connection:
            found, last = records.newest_jobs(
                connection, tenant, wanted, limit=page_size + 1, before=before
            )
        if len(found) > page_size:
            found.pop()
            last = found[-1].created_at_s, found[-1].id
        return Page(items=tuple(found), next_page_token=None if last is None else encode_token(*last))

    def headings(self, tenant: str, job_ids: Sequence[str]) -> Mapping[str, records.QuestionHeading]:
        """Return the headings of some jobs, by id."""
        with self._database.read() as connection:
            return records.headings_of(connection, tenant, job_ids)

    def cancel(self, tenant: str, job_id: str, *, key: str | None = None) -> JobRecord:
        """Cancel a job, and with a sweep its points; a finished one does not change.

        Raises:
            NotFoundError: this tenant has no such job.
            IdempotencyConflictError: the key was used for something else.
        """
        repeatable = self._repeatable(key, "cancel", job_id)
        with self._database.read() as connection:
            made_before(connection, tenant, repeatable)
        if not records.is_identifier(job_id) or not self._engine.cancel(tenant, job_id):
            raise NotFoundError("there is no such job")
        settled(lambda: self._remember(tenant, repeatable, job_id))
        job = self.read(tenant, job_id)
        family = job.id if job.num_children is not None else job.parent_id
        if family is None:
            return job
        self._sweeps.child_ended(family)
        return self.read(tenant, job_id)

    def children(
        self, tenant: str, job_id: str, *, page_size: int, page_token: str | None
    ) -> Page[JobSummary]:
        """Return the points of a sweep, in order; other jobs have none.

        Raises:
            NotFoundError: this tenant has no such job.
        """
        after = decode_token(page_token, int)[0] if page_token else -1
        with self._database.read() as connection:
            job = records.required_job(connection, tenant, job_id)
            found = children_of(connection, tenant, job.id, after=after, limit=page_size + 1)
        return page_of(found, page_size, lambda one: (one.position,))

    def plans(
        self, tenant: str, job_id: str, *, page_size: int, page_token: str | None
    ) -> tuple[JobRecord, Page[Mapping[str, Any]]]:
        """Return a finished job, with its answer, and one page of its plans, best first.

        Raises:
            NotFoundError: this tenant has no such job, or it is a fleet.
            NotReadyError: the job is not finished, or ended without an answer.
        """
        after = decode_token(page_token, int)[0] if page_token else 0
        with self._database.read() as connection:
            job = records.required_job(connection, tenant, job_id)
            if job.kind == FLEET:
                raise NotFoundError("a fleet has no plans: get its jobs from GET /v1/fleets/{id}")
            if job.answer is None:
                raise NotReadyError(
                    f"the job is {job.state} and has no answer", finished=job.state in TERMINAL_STATES
                )
            found = records.plans_of(connection, tenant, job_id, after=after, limit=page_size + 1)
        return job, page_of(found, page_size, lambda one: (one["rank"],))

    def parts(
        self, tenant: str, fleet: JobRecord
    ) -> Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Return the problem and the plan of each job of an answered fleet, by its name.

        Raises:
            NotReadyError: the fleet is not finished, or ended without a schedule.
        """
        with self._database.read() as connection:
            found = records.parts_of(connection, tenant, fleet.id)
        if not found:
            raise NotReadyError(
                f"the fleet is {fleet.state} and has no schedule", finished=fleet.state in TERMINAL_STATES
            )
        return found

    def plan(
        self, tenant: str, plan_id: str, *, roles: bool = False
    ) -> tuple[JobRecord, Mapping[str, Any]]:
        """Return one plan and the job that found it (the newest one, when several did).

        Args:
            tenant: of the caller.
            plan_id: of the plan.
            roles: whether it may be a placement of the roles of post-training.

        Raises:
            NotFoundError: this tenant has no such plan, or it is a placement of roles.
        """
        with self._database.read() as connection:
            found = records.find_plan(connection, tenant, plan_id)
            if found is None:
                raise NotFoundError("there is no such plan")
            job_id, body = found
            job = records.required_job(connection, tenant, job_id)
            if job.kind == POST_TRAINING and not roles:
                raise NotFoundError(f"the plan places roles: see GET /v1/jobs/{job_id}/plans")
            return job, body

    def plan_of_job(
        self, tenant: str, job_id: str, plan_id: str | None
    ) -> tuple[JobRecord, Mapping[str, Any]]:
        """Return a finished job and the plan of it with that id; the first one, where none is named.

        Raises:
            NotFoundError: this tenant has no such job, it has no such plan, or it is a sweep.
            NotReadyError: as ``plans``.
        """
        token: str | None = None
        while True:
            job, page = self.plans(tenant, job_id, page_size=_SEARCHED_PAGE, page_token=token)
            if job.num_children is not None:
                raise NotFoundError("a sweep has no plan: name one of its points")
            for body in page.items:
                if plan_id in {None, body["plan_id"]}:
                    return job, body
            token = page.next_page_token
            if token is None:
                raise NotFoundError("the job has no such plan")

    def plans_like(
        self, tenant: str, wanted: PlanFilter, *, page_size: int, page_token: str | None
    ) -> Page[PlanFigures]:
        """Return the plans of all jobs, filtered and sorted; all pages as of the first request.

        A page may be short, or empty, although the list goes on: so many plans are looked at for each.

        Raises:
            BadPageTokenError: the token is not one of ours, or of a list that is sorted otherwise.
        """
        after, found_by_s = None, None
        if page_token:
            sort, value, job_id, rank, found_by_s = decode_token(
                page_token, str, type_of_sort(wanted.column), str, int, float
            )
            if sort != wanted.sort:
                raise BadPageTokenError("the page token belongs to a list with another sort order")
            after = (value, job_id, rank)
        with self._database.read() as connection:
            if found_by_s is None:
                found_by_s = connection.execute(select(now_s())).scalar_one()
            found, last = plan_records.plans_like(
                connection, tenant, wanted, limit=page_size + 1, after=after, found_by_s=found_by_s
            )
        if len(found) > page_size:
            found.pop()
            last = wanted.position(found[-1])
        return Page(
            items=tuple(found),
            next_page_token=None if last is None else encode_token(wanted.sort, *last, found_by_s),
        )

    def _submit_once(self, tenant: str, submission: Submission) -> tuple[JobRecord, bool]:
        question = question_of(tenant, submission)
        repeatable = self._repeatable(submission.idempotency_key, submission.body)

        def store(connection: Connection) -> tuple[JobRecord, bool]:
            made = made_before(connection, tenant, repeatable)
            if made is not None:
                return records.required_job(connection, tenant, made), False
            known = None if submission.fresh else _answered(connection, tenant, question.cache_key)
            job = known
            if job is None:
                self._require_room(connection, tenant, places=max(1, len(question.parts)))
                if self._limits.refuses_beyond_cpu:
                    self._spending.require(connection, submission.spender(tenant))
                job = add(connection, tenant, submission, question, self._queue_timeout_s)
            if submission.fleet is not None and submission.fleet.replans is not None:
                records.note_replanned(connection, tenant, submission.fleet.replans, job.id)
            remember(connection, tenant, repeatable, job_id=job.id)
            return job, known is None

        return self._database.write_together(
            store,
            by_one_statement=not (
                repeatable.key or submission.labels or question.parts or submission.fleet
            ),
        )

    def _remember(self, tenant: str, repeatable: Repeatable, subject: str) -> None:
        """Bind the key of a request that changed no other row with it, unless it is bound."""
        if repeatable.key is None:
            return
        with self._database.write() as connection:
            if made_before(connection, tenant, repeatable) is None:
                remember(connection, tenant, repeatable, subject=subject)

    def _repeatable(self, key: str | None, *parts: object) -> Repeatable:
        return Repeatable(
            key=key, digest="" if key is None else digest_of(*parts), ttl_s=self._limits.idempotency_ttl_s
        )

    def _wake(self, job: JobRecord) -> None:
        """Wake a worker; for a sweep so many as there may be, and join it if all is known already."""
        for _ in range(min(job.num_children or 1, MAX_HINTS)):
            self._queue.wake(job.id)
        if job.num_children is not None:
            self._sweeps.child_ended(job.id)

    def _require_room(self, connection: Connection, tenant: str, *, places: int) -> None:
        """Refuse more jobs than this tenant may have; a sweep takes a place for each point.

        Raises:
            TooManyRequestsError: with the time after which to try again.
        """
        per_minute, most = self._limits.max_submits_per_minute, self._limits.max_queued_jobs
        if per_minute is not None:
            wait_s = records.wait_for_submits(connection, tenant, per_minute, window_s=WINDOW_S)
            if wait_s is not None:
                limit = RateLimit(name="submits", quota=per_minute, window_s=int(WINDOW_S))
                message = f"at most {per_minute} jobs a minute"
                raise TooManyRequestsError(message, retry_after_s=wait_s, limit=limit)

        def count_room() -> int:
            return most - records.count_queued(connection, tenant, limit=most)

        if not self._room.admits(tenant, count_room, places=places):
            limit = RateLimit(name="queue", quota=most, unit="jobs")
            message = f"at most {most} jobs may be queued"
            message += f", and a sweep of {places} points is {places} of them" if places > 1 else ""
            raise TooManyRequestsError(message, retry_after_s=QUEUE_RETRY_S, limit=limit)


def _answered(connection: Connection, tenant: str, cache_key: str) -> JobRecord | None:
    """Return the job that answered the same question; None also if it was forgotten a moment ago."""
    known = records.answered_job(connection, tenant, cache_key)
    return None if known is None else records.find_job(connection, tenant, known)
