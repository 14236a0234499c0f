"""Two configurations held against one another: plain records; ``solver.why.compare`` fills them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from solver.plan import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One difference, carried over."""

    change: str
    step_change_s: float  # of the step time; below 0: faster
    terms_s: Mapping[str, float]  # the same by term of the waterfall; sums to it
    fits: bool  # the stop after it fits in memory
    breaks: tuple[str, ...]  # rules that this stop breaks


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """From one configuration to another."""

    first: Prediction
    second: Prediction
    first_waterfall_s: Mapping[str, float]
    second_waterfall_s: Mapping[str, float]
    steps: tuple[Step, ...]  # their changes sum to the difference of the step times
