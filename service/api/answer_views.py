"""What the API shows of an answer: its certificate, its plans, and the points of a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, Field

from service.api.schemas import State
from solver.plan import (
    Baseline,
    Configuration,
    Infeasibility,
    ObjectiveClaim,
    ParetoFront,
    Plan,
    SkippedLauncher,
    Status,
)


class PointView(BaseModel):
    """One point of a sweep with its best plan and its certificate."""

    point: int
    values: dict[str, bool | int | str]  # of every axis
    job_id: str | None  # the child that answered it
    reused: bool  # it was answered before
    state: State
    status: Status | None
    certified_by: list[str]
    gap: float | None
    bound_step_time_s: float | None
    plan_id: str | None
    config: Configuration | None
    rank: int | None  # of its best plan among all points' plans
    score: float | None  # what plans are ranked by, of a token; less is better
    step_time_s: float | None
    tokens_per_s: float | None
    tokens_per_s_per_gpu: float | None
    num_gpus: int | None
    peak_memory_bytes: int | None
    efficient: bool  # no other point is faster on as few GPUs, or as fast on fewer
    infeasible: str | None  # the first reason why nothing fits
    problem: dict[str, str] | None  # why it failed


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPlan(Plan):
    """A plan in an answer."""

    point: int | None = None  # of a sweep: the place in ``points`` of what it answers


class AnswerView(BaseModel):
    """The answer of a job with one page of its plans, best first."""

    job_id: str
    state: State
    status: Status
    certified_by: list[str]
    objective_gap: float | None
    objective_excess: float | None
    bound_step_time_s: float | None
    gap: float | None
    space_size: int
    legal: int
    fit: int
    explored: int
    counts: dict[str, int]
    elapsed_s: float
    seed: int
    versions: dict[str, str]
    warnings: list[str]
    infeasible: Infeasibility | None
    num_gpus_used: int | None
    peak_flops: float | None
    notes: dict[str, str]
    objective: ObjectiveClaim | None = None
    baseline: Baseline | None = None
    pareto: ParetoFront | None = None
    points: list[PointView] | None = None  # of a sweep
    space: Literal["usual", "every"] = "usual"  # candidates that rows, bound and proof are of
    skipped_launchers: list[SkippedLauncher] = Field(default_factory=list)  # of a request for any launcher
    plans: list[RankedPlan]
    next_page_token: str | None
