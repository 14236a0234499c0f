"""How far a search has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One report of a running search."""

    stage: str  # enumerating, bounding, solving, certifying, done
    explored: int
    total: int
    incumbent_step_time_s: float | None
    bound_step_time_s: (
        float | None
    )  # no plan that may still be ranked is faster; the answer bounds every split
    gap: float | None
    elapsed_s: float


OnProgress = Callable[[Progress], None]
ShouldStop = Callable[[], bool]
