"""Why a plan is as it is: where its time goes, what stops it from going faster, how sure its rank is.

Plain records; ``solver.why`` fills them, answers carry them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Time between the ideal step and the real one that has one cause."""

    term: str  # a key of the waterfall
    seconds: float
    share: float  # of the step
    lowered_by: str  # changes that make it smaller, each simulated; empty: none that was tried does
    change: str | None = None  # the legal single change that lowers it most, if any does
    saves_s: float | None = None  # of this loss, simulated
    step_change_s: float | None = None  # of the whole step with it, simulated; below 0: faster


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What alone stands between a plan and a faster neighbour."""

    name: str  # of the rule, or memory with its stage and largest term
    change: str  # what would be faster without it
    gain_s: float  # by how much, simulated


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The reasons of one plan."""

    waterfall_s: Mapping[str, float]  # from the ideal step to the real one; sums to step_time_s
    losses: tuple[Loss, ...]  # the three largest
    limits: tuple[Limit, ...]  # that bind; the costliest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Odds:
    """What the error band of the cost model leaves open about a rank, among the plans of one answer."""

    best_probability: float  # that this plan is the fastest of them
    regret_p90: float  # 90th percentile of step / fastest step - 1


def why_from_json(raw: Mapping[str, Any] | None) -> Why | None:
    """The reasons that ``Plan.to_json`` wrote; unknown keys raise TypeError."""
    if raw is None:
        return None
    return Why(
        waterfall_s=raw["waterfall_s"],
        losses=tuple(Loss(**loss) for loss in raw["losses"]),
        limits=tuple(Limit(**limit) for limit in raw["limits"]),
    )
