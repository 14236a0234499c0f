"""The tables. A job row is the truth about its job; everything else is a hint.

Times are seconds since 1970 by the database's clock. ``tenant`` is in every row and every WHERE.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    and_,
    false,
    literal_column,
)

from meshwright.service.db import plan_figures

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

STATES = ("queued", "running", "succeeded", "infeasible", "failed", "cancelled", "expired")

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("request", JSON, nullable=False),  # the canonical problem
    Column("time_limit_s", Double, nullable=False),  # of the search
    Column("priority", Integer, nullable=False, server_default="5"),  # 0 first … 9 last, of one tenant
    Column("created_at_s", Double, nullable=False),
    Column("expires_at_s", Double, nullable=False),  # queued longer than this: expired
    Column("started_at_s", Double),  # first claim
    Column("finished_at_s", Double),
    # The claim: who runs the job, until when, and the number that every write must name.
    Column("fence", Integer, nullable=False, server_default="0"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("worker", String(128)),
    Column("claimed_at_s", Double),
    Column("lease_expires_at_s", Double),
    Column("hinted_at_s", Double),  # when the sweeper last published a wake-up for it
    Column("cancel_requested", Boolean, nullable=False, server_default=false()),
    Column("checkpoint", JSON(none_as_null=True)),  # what a worker that had to leave had found
    # What came of it.
    Column("progress", JSON(none_as_null=True)),
    Column("answer", JSON(none_as_null=True)),  # without its plans
    Column("problem", JSON(none_as_null=True)),  # code and detail of a failure
    Column("cache_key", String(64)),  # set with the answer: request, versions and tenant
    CheckConstraint(f"state IN {STATES}", name="state"),
    Index(None, "state", "tenant", "priority", "created_at_s", "id"),  # the queue of each tenant
    Index(None, "state", "expires_at_s"),
    Index(None, "tenant", "claimed_at_s"),  # the order of turns
    # Where the question came from: W3C trace context, and the request to look for in the log.
    Column("traceparent", String(55)),
    Column("request_id", String(64)),
    Index(None, "finished_at_s"),
    # A sweep is a job of many searches: it runs, without a worker, while its children do.
    Column("parent_id", String(32)),  # no reference: SQLite could add one to a full table only by a copy
    Column("position", Integer),  # of a child among its siblings: 0, 1, …
    Column("point", JSON(none_as_null=True)),  # the values that a child was given
    Column("num_children", Integer),  # of a sweep; every other job has none
    Index(None, "parent_id", "position"),
    # What lists of jobs ask for.
    Column("owner", String(16)),  # the key that submitted it
    Column("model", String(200)),  # its name in the request; a trigger writes it where code does not
    Column("title", String(200)),  # the question in a line; none of what older code adds
    Column("labels", JSON(none_as_null=True)),  # as ``job_labels`` has them
    Column("cpu_s", Double),  # of every worker that had it and could say so
    Column("kind", String(16)),  # fleet, post_training; a search has none
    Column("replanned_as", String(32)),  # the fleet that planned this one anew
    Column("kind_fence", Integer),  # of its last claim by code that knows its kind; no other may claim it
)


def _partial(name: str, table: Table, columns: Sequence[str], where: ColumnElement[bool]) -> None:
    """Add an index of the rows that one kind of query asks for."""
    Index(name, *(table.c[one] for one in columns), sqlite_where=where, postgresql_where=where)


# Lists of jobs name those that were submitted by themselves, all or in one state.
submitted = jobs.c.parent_id.is_(None)
_partial("ix_jobs_submitted", jobs, ("tenant", "created_at_s", "id"), submitted)
_partial("ix_jobs_submitted_by_state", jobs, ("tenant", "state", "created_at_s", "id"), submitted)
for _name in ("model", "owner"):
    _partial(f"ix_jobs_submitted_by_{_name}", jobs, ("tenant", _name, "created_at_s", "id"), submitted)
is_fleet = jobs.c.kind == literal_column("'fleet'")  # written out in queries too, for SQLite
_partial("ix_jobs_fleets", jobs, ("tenant", "created_at_s", "id"), is_fleet)
_partial("ix_jobs_answered", jobs, ("tenant", "cache_key", "finished_at_s"), jobs.c.cache_key.is_not(None))

# Written out in queries too: SQLite takes such an index only for a condition that it can see.
is_queued = jobs.c.state == literal_column("'queued'")
_partial("ix_jobs_queued", jobs, ("created_at_s",), is_queued)

# Jobs that a worker has: few, compared with any number of sweeps that wait for their points. The columns
# are those of the condition too, or SQLite takes the index of the queue, and then looks at each sweep.
has_worker = and_(jobs.c.state == literal_column("'running'"), jobs.c.num_children.is_(None))
_partial("ix_jobs_with_worker", jobs, ("state", "tenant", "num_children"), has_worker)

# One row for each label of a submitted job, so that an index finds jobs by it.
job_labels = Table(
    "job_labels",
    metadata,
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("name", String(63), primary_key=True),
    Column("value", String(63), nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("created_at_s", Double, nullable=False),  # of the job
    Index(None, "tenant", "name", "value", "created_at_s", "job_id"),
)

# Sums over all jobs on record, as signed parts: triggers of the database add one for each job, and for each
# change of its state one that takes the old job away and one that adds the new (migration 0015). A sweep of
# the workers folds them. Rows that many transactions updated would make each wait for the others.
job_totals = Table(
    "job_totals",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("state", String(16), nullable=False),
    Column("jobs", BigInteger, nullable=False),
    Column("attempts", BigInteger, nullable=False),
    Column("lost_leases", BigInteger, nullable=False),
    Column("solve_bucket", Integer),  # of a search that has ended: the place of its time among the bounds
    Column("solve_s", Double, nullable=False),
    Column("gap_bucket", Integer),  # the same of its gap; None: it has none
    Column("gap", Double, nullable=False),
)

# What clients can see of a job, in order. Triggers of the database write it (migration 0005).
job_events = Table(
    "job_events",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("at_s", Double, nullable=False),
    Column("state", String(16), nullable=False),
    Column("cancel_requested", Boolean, nullable=False),
    Column("progress", JSON(none_as_null=True)),
    Index(None, "job_id", "id"),
)

# One row: the revision of the oldest code that can serve this schema.
schema_compatibility = Table(
    "schema_compatibility",
    metadata,
    Column("oldest_code", String(32), primary_key=True),
)

# The role ``clock`` has no leader: its moment is how far steps of the clock have moved moments, in seconds.
leaders = Table(
    "leaders",
    metadata,
    Column("role", String(32), primary_key=True),
    Column("holder", String(128), nullable=False),
    Column("expires_at_s", Double, nullable=False),  # a silent leader is replaced
)

plans = Table(
    "plans",
    metadata,
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("plan_id", String(64), nullable=False),
    Column("body", JSON, nullable=False),
    Index(None, "tenant", "plan_id"),
    *plan_figures.columns(),  # None: not in the body
    Column("num_measurements", Integer, nullable=False, server_default="0"),
    # When a newer job found the same plan; None: no other has, 0: a plan of a sweep, which a point found.
    # Triggers of the database write it (migration 0015).
    Column("superseded_at_s", Double),
)

CLOSEST_RANK = 0  # of a plan that does not fit: no list of plans holds it, its id finds it
is_newest = plans.c.superseded_at_s.is_(None)
for _name in plan_figures.sorted_figures():
    _listed = and_(is_newest, plans.c[_name].is_not(None))
    _partial(f"ix_plans_by_{_name}", plans, ("tenant", _name, "job_id", "rank"), _listed)
_partial("ix_plans_newest", plans, ("tenant", "plan_id"), is_newest)
_partial("ix_plans_superseded", plans, ("tenant", "superseded_at_s"), plans.c.superseded_at_s.is_not(None))

# What launchers were answered when they asked for a re-plan of a job.
replans = Table(
    "replans",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("key_id", String(16)),  # of the caller; None: no keys are demanded
    Column("request", JSON, nullable=False),  # as it was sent
    Column("answer", JSON, nullable=False),
    Column("created_at_s", Double, nullable=False),
    Index(None, "job_id", "created_at_s", "id"),
)

# Links that show one answer to whoever has them. A revoked or expired link has no row.
share_links = Table(
    "share_links",
    metadata,
    Column("id", String(16), primary_key=True),  # the public part of a token: finds the row
    Column("tenant", String(64), nullable=False),
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("key_id", String(16)),  # that made it; None: no keys are demanded
    Column("secret_sha256", String(64), nullable=False),
    Column("created_at_s", Double, nullable=False),
    Column("expires_at_s", Double, nullable=False),
    Index(None, "job_id", "created_at_s", "id"),
    Index(None, "tenant", "created_at_s", "id"),
    Index(None, "key_id"),
)

verifications = Table(
    "verifications",
    metadata,
    Column("tenant", String(64), primary_key=True),
    Column("plan_id", String(64), primary_key=True),
    Column("state", String(32), nullable=False),  # queued, running, done
    Column("asked_at_s", Double, nullable=False),
    Column("claimed_at_s", Double),
    Column("fence", Integer, nullable=False, server_default="0"),  # raised by each claim
    Column("attempts", Integer, nullable=False, server_default="0"),  # claims that were not given back
    Column("body", JSON(none_as_null=True)),  # what the launcher built
    Column("owner", String(16)),  # the key whose CPU seconds it takes
    Index(None, "state", "asked_at_s"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("tenant", String(64), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("body_sha256", String(64), nullable=False),
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE")),  # that was submitted
    Column("created_at_s", Double, nullable=False),
    Index(None, "created_at_s"),
    Index(None, "job_id"),
    Column("subject", String(64)),  # of any other POST: the id of what it made
)

profiles = Table(
    "profiles",
    metadata,
    Column("tenant", String(64), primary_key=True),
    Column("id", String(32), primary_key=True),  # of the content: equal documents are one profile
    Column("kind", String(16), nullable=False),  # calibration, measured
    Column("gpu", String(64)),
    Column("title", String(200), nullable=False),
    Column("document", JSON, nullable=False),
    Column("created_at_s", Double, nullable=False),
    Index(None, "id"),
    Index(None, "tenant", "created_at_s", "id"),
    # Calibrations that measurements made: what they serve, and 1, 2, … among those; None: sent by a client.
    Column("scope", String(64)),
    Column("version", Integer),
    Index(None, "tenant", "scope", "version", unique=True),  # several without a scope do not conflict
)

measurements = Table(
    "measurements",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("scope", String(64), nullable=False),  # cluster and framework that one calibration serves
    Column("plan_id", String(64), nullable=False),
    # The configuration and its question are kept here, so that a measurement outlives its job.
    Column("request", JSON, nullable=False),
    Column("config", JSON, nullable=False),
    Column("body", JSON, nullable=False),  # as it was sent
    Column("profile_id", String(32), nullable=False),  # the calibration that it led to
    Column("idempotency_key", String(255)),
    Column("created_at_s", Double, nullable=False),
    Index(None, "tenant", "scope", "created_at_s"),
    Index(None, "tenant", "plan_id"),
    Index(None, "tenant", "idempotency_key", unique=True),  # several without a key do not conflict
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(16), primary_key=True),  # the public part of a token: finds the row
    Column("tenant", String(64), nullable=False),
    Column("scope", String(16), nullable=False),  # read, submit, admin; each includes those before it
    Column("title", String(200), nullable=False),
    Column("secret_sha256", String(64), nullable=False),
    Column("created_at_s", Double, nullable=False),
    Column("expires_at_s", Double),
    Column("revoked_at_s", Double),  # a revoked key keeps its row: a database with keys demands one
    Column("max_cpu_s_per_day", Double),  # None: as the settings state
    Index(None, "tenant", "created_at_s", "id"),
)

# CPU seconds of searches by the key that submitted them and the day (UTC) on which they ended.
key_usage = Table(
    "key_usage",
    metadata,
    Column("tenant", String(64), primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),  # since 1970
    Column("key_id", String(16), primary_key=True),  # empty: no keys were demanded
    Column("cpu_s", Double, nullable=False),
    Column("jobs", Integer, nullable=False),  # that ended
    Index(None, "day"),
)

workers = Table(
    "workers",
    metadata,
    Column("name", String(128), primary_key=True),  # as jobs name it
    Column("kind", String(16), nullable=False),  # search, verify
    Column("version", String(64), nullable=False),
    Column("started_at_s", Double, nullable=False),
    Column("seen_at_s", Double, nullable=False),
)

# What all processes of a service must know, and nobody else.
secrets = Table(
    "secrets",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("value", String(64), nullable=False),
)

# A person signed in to the pages: a browser holds this instead of a key.
sessions = Table(
    "sessions",
    metadata,
    Column("token_sha256", String(64), primary_key=True),
    Column("key_id", ForeignKey("api_keys.id", ondelete="CASCADE"), nullable=False),
    Column("expires_at_s", Double, nullable=False),
    Index(None, "expires_at_s"),
    Index(None, "key_id", "expires_at_s"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("tenant", String(64), nullable=False),
    Column("at_s", Double, nullable=False),
    Column("actor", String(64), nullable=False),  # id of a key, or where the act came from
    Column("action", String(64), nullable=False),
    Column("subject", String(64), nullable=False),
    Column("details", JSON, nullable=False),
    Index(None, "tenant", "id"),
)

definitions = Table(
    "definitions",
    metadata,
    Column("tenant", String(64), primary_key=True),
    Column("kind", String(16), primary_key=True),  # model, cluster, gpu
    Column("name", String(64), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),  # 1, 2, …; never used twice
    Column("document", JSON, nullable=False),  # complete, as in a canonical problem
    Column("created_at_s", Double, nullable=False),
    Column("deleted_at_s", Double),
)
