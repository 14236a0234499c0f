"""Figures of all jobs on record, for operators; they run in the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from sqlalchemy import Column, Connection, Row, delete, func, insert, select

from meshwright.service.db.clock import now_s
from meshwright.service.db.tables import is_queued, job_totals, jobs

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
