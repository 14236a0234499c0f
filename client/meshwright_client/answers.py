"""Jobs and fleets, which know whether they are finished."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright_client.records import FleetAnswer, JobRecord

TERMINAL_STATES = frozenset({"succeeded", "infeasible", "failed", "cancelled", "expired"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(JobRecord):
    """One job."""

    @property
    def is_finished(self) -> bool:
        """Whether it is in the state in which it stays."""
        return self.state in TERMINAL_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """Jobs, newest first."""

    jobs: tuple[Job, ...]
    next_page_token: str | None = None


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
