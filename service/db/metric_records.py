"""Figures of all jobs on record, for operators; they run in the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, case, func, select

from meshwright.service.db.clock import now_s
from meshwright.service.db.tables import jobs

SOLVE_BOUNDS_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
GAP_BOUNDS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


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
    """Read everything once."""
    by_state = select(jobs.c.state, func.count()).group_by(jobs.c.state)
    age = select(now_s() - func.min(jobs.c.created_at_s)).where(jobs.c.state == "queued")
    lost = case((jobs.c.attempts > 1, jobs.c.attempts - 1), else_=0)
    tried, again = connection.execute(
        select(func.coalesce(func.sum(jobs.c.attempts), 0), func.coalesce(func.sum(lost), 0))
    ).one()
    return JobFigures(
        by_state={state: count for state, count in connection.execute(by_state).all()},  # noqa: C416 - rows
        oldest_queued_age_s=connection.execute(age).scalar() or 0.0,
        attempts=tried,
        lost_leases=again,
        solve_s=_distribution(connection, jobs.c.finished_at_s - jobs.c.started_at_s, SOLVE_BOUNDS_S),
        gap=_distribution(connection, jobs.c.progress["gap"].as_float(), GAP_BOUNDS),
    )


def _distribution(
    connection: Connection, value: ColumnElement[float], bounds: Sequence[float]
) -> Distribution:
    at_most = [func.coalesce(func.sum(case((value <= bound, 1), else_=0)), 0) for bound in bounds]
    whole = (func.count(value), func.coalesce(func.sum(value), 0.0))
    searched = jobs.c.finished_at_s.is_not(None), jobs.c.num_children.is_(None)
    row = connection.execute(select(*at_most, *whole).where(*searched)).one()
    *counts, count, total = row
    return Distribution(bounds=tuple(bounds), at_most=tuple(counts), count=count, total=float(total))
