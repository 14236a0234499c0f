"""Figures of all jobs on record, for operators; they run in the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from sqlalchemy import Column, Connection, Row, delete, func, insert, select

from meshwright.service.db.clock import now_s
from meshwright.service.db.rows import readable
from meshwright.service.db.tables import (
    is_fleet,
    is_queued,
    job_totals,
    jobs,
    key_usage,
    leaders,
    verifications,
    workers,
)
from meshwright.service.db.usage_records import LIVE_S, TODAY

# The bounds that migration 0015 counts by.
SOLVE_BOUNDS_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
GAP_BOUNDS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
FOLDED = 10_000  # parts of sums that one transaction folds


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Numbers of values up to each bound, their total number, and their sum."""

    bounds: tuple[float, ...]
    at_most: tuple[int, ...]
    count: int
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """All jobs on record, of all tenants."""

    by_state: dict[str, int]
    oldest_queued_age_s: float  # 0: none is queued
    attempts: int  # claims that counted
    lost_leases: int  # of them, those with a worker that died or froze
    solve_s: Distribution  # from the first claim to the end, of searches and not of sweeps
    gap: Distribution  # between the best plan and the bound, at the end


def job_figures(connection: Connection) -> JobFigures:
    """Read the sums that the database keeps; no job but the oldest queued one is read."""
    found = _by_state(connection)
    age = select(now_s() - func.min(jobs.c.created_at_s)).where(is_queued)
    return JobFigures(
        by_state={row.state: int(row.jobs) for row in found if row.jobs},
        oldest_queued_age_s=connection.execute(age).scalar() or 0.0,
        attempts=sum(int(row.attempts) for row in found),
        lost_leases=sum(int(row.lost_leases) for row in found),
        solve_s=_distribution(connection, totals.solve_bucket, totals.solve_s, SOLVE_BOUNDS_S),
        gap=_distribution(connection, totals.gap_bucket, totals.gap, GAP_BOUNDS),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderFigures:
    """The worker that sweeps, and the steps of the database's clock that it moved moments by."""

    lease_left_s: float  # below 0: nobody leads
    clock_steps_s: float  # their sum


def leader_figures(connection: Connection) -> LeaderFigures:
    """Read who leads."""
    rows = connection.execute(select(leaders.c.role, leaders.c.expires_at_s, now_s().label("now"))).all()
    found = {row.role: (float(row.expires_at_s), float(row.now)) for row in rows}
    until, now = found.get("sweeper", (0.0, 0.0))
    return LeaderFigures(lease_left_s=until - now, clock_steps_s=found.get("clock", (0.0, 0.0))[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSearch:
    """One search that ended: how, and what it took."""

    end: str  # what is proved of its answer, or the state of a job without one
    cpu_s: float | None
    rows: float | None  # configurations that were settled
    gap: float | None  # between the best plan and the bound


def last_searches(connection: Connection, *, most: int) -> list[EndedSearch]:
    """Read the searches that ended last, fleets and sweeps left out; few rows, whatever is on record."""
    ended = jobs.c.finished_at_s.is_not(None), jobs.c.kind.is_(None), jobs.c.num_children.is_(None)
    figures = (jobs.c.progress[name].as_float() for name in ("explored", "gap"))
    query = select(jobs.c.state, jobs.c.answer["status"].as_string(), jobs.c.cpu_s, *figures).where(*ended)
    query = query.where(*readable(connection, jobs.c.progress, jobs.c.answer))
    found = connection.execute(query.order_by(jobs.c.finished_at_s.desc()).limit(most))
    return [EndedSearch(end=status or state, cpu_s=cpu_s, rows=rows, gap=gap)
            for state, status, cpu_s, rows, gap in found]  # fmt: skip


def open_verifications(connection: Connection) -> dict[str, int]:
    """Return how many plans wait for their launcher, and how many it builds now."""
    table = verifications.c
    open_ = table.state.in_(["queued", "running"])
    rows = connection.execute(select(table.state, func.count()).where(open_).group_by(table.state))
    return {state: int(number) for state, number in rows}


def open_fleets(connection: Connection) -> dict[str, int]:
    """Return how many fleets wait and are planned."""
    state = jobs.c.state.concat("")  # an index of states would lead SQLite past all jobs
    open_ = is_fleet, state.in_(["queued", "running"])
    rows = connection.execute(select(state, func.count()).where(*open_).group_by(state))
    return {state: int(number) for state, number in rows}


def workers_alive(connection: Connection) -> dict[str, int]:
    """Return the live workers by kind."""
    alive = workers.c.seen_at_s > now_s() - LIVE_S
    rows = connection.execute(select(workers.c.kind, func.count()).where(alive).group_by(workers.c.kind))
    return {kind: int(number) for kind, number in rows}


def cpu_by_tenant(connection: Connection, *, most: int) -> list[tuple[str, float]]:
    """Return today's CPU seconds of the tenants that used the most, the largest first."""
    spent = func.sum(key_usage.c.cpu_s)
    query = select(key_usage.c.tenant, spent).where(key_usage.c.day == TODAY)
    found = connection.execute(query.group_by(key_usage.c.tenant).order_by(spent.desc()).limit(most))
    return [(tenant, float(cpu_s)) for tenant, cpu_s in found]


def cpu_today(connection: Connection) -> float:
    """Return today's CPU seconds of all keys."""
    spent = select(func.coalesce(func.sum(key_usage.c.cpu_s), 0.0)).where(key_usage.c.day == TODAY)
    return float(connection.execute(spent).scalar_one())


def fold_totals(connection: Connection) -> int:
    """Add up to ``FOLDED`` parts of the sums to a few; return how many they were.

    A part that another transaction adds meanwhile is left alone.
    """
    oldest = select(totals.id).order_by(totals.id).limit(FOLDED).with_for_update(skip_locked=True)
    parts = connection.execute(
        delete(job_totals).where(totals.id.in_(oldest.scalar_subquery())).returning(*_KEYS, *_SUMMED)
    ).all()
    sums: dict[tuple[object, ...], list[float]] = {}
    for part in parts:
        whole = sums.setdefault(tuple(part[: len(_KEYS)]), [0] * len(_SUMMED))
        for place, value in enumerate(part[len(_KEYS) :]):
            whole[place] += value
    names = [column.name for column in (*_KEYS, *_SUMMED)]
    rows = [dict(zip(names, (*key, *whole), strict=True)) for key, whole in sums.items() if any(whole)]
    if rows:
        connection.execute(insert(job_totals), rows)
    return len(parts)


totals = job_totals.c
_KEYS = (totals.state, totals.solve_bucket, totals.gap_bucket)
_SUMMED = (totals.jobs, totals.attempts, totals.lost_leases, totals.solve_s, totals.gap)


def _by_state(connection: Connection) -> Sequence[Row[tuple[str, int, int, int]]]:
    sums = (func.sum(one).label(one.name) for one in (totals.jobs, totals.attempts, totals.lost_leases))
    return connection.execute(select(totals.state, *sums).group_by(totals.state)).all()


def _distribution(
    connection: Connection, bucket: Column[int], value: Column[float], bounds: Sequence[float]
) -> Distribution:
    rows = connection.execute(
        select(bucket, func.sum(totals.jobs), func.sum(value)).where(bucket.is_not(None)).group_by(bucket)
    ).all()
    counts = {place: int(count) for place, count, _ in rows}
    at_most = accumulate(counts.get(place, 0) for place in range(len(bounds)))
    return Distribution(
        bounds=tuple(bounds),
        at_most=tuple(at_most),
        count=sum(counts.values()),
        total=max(0.0, sum(float(total) for _, _, total in rows)),
    )
