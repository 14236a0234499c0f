"""Fleets as the service answers them: several jobs on one cluster, planned together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from meshwright_client.answers import Job
from meshwright_client.plans import Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetJob:
    """One job of a planned fleet; hours count from the beginning of the plan."""

    name: str
    start_hours: float
    end_hours: float
    late_hours: float
    nodes: int
    kind: str  # of nodes
    steps: int
    plan_id: str
    job_id: str  # which holds the plan
    step_time_s: float
    launcher: str
    layout: str  # the configuration in words
    config: Configuration
    due_hours: float | None = None  # None: never late


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetObjective:
    """One objective, with its proof."""

    name: str
    value: float
    bound: float  # no schedule is better under the predicted durations
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAnswer:
    """The schedule of a fleet; of one that has none, the faults of its jobs."""

    status: Literal["optimal", "feasible", "infeasible"]
    decided_by: str | None = None
    gap: float | None = None
    objectives: tuple[FleetObjective, ...] = ()  # the first counts most
    nodes: Mapping[str, int] | None = None  # by kind
    jobs: tuple[FleetJob, ...] = ()
    rules: tuple[Mapping[str, Any], ...] = ()  # schedules of simple rules
    searched: int | None = None  # pairs of a job and a number of nodes that were searched
    choices: int | None = None  # such pairs
    faults: tuple[Mapping[str, Any], ...] = ()  # of jobs that cannot be planned
    left_out: Mapping[str, Any] | None = None  # faults of jobs that were left out, by job


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet(Job):
    """One fleet: a job of the service; ``wait``, ``cancel`` and ``delete`` take it."""

    name: str
    answer: FleetAnswer | None = None  # absent in a list of fleets
    replanned_as: str | None = None  # id of the newest fleet that planned this one anew


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPage:
    """Fleets, newest first."""

    fleets: tuple[Fleet, ...]
    next_page_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFiles:
    """Launch files of a fleet by their path, and ``start.sh``, which queues them with Slurm."""

    fleet_id: str
    files: Mapping[str, str]
    warnings: tuple[str, ...]
