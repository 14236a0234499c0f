"""Axes: from figures to places, with ticks at round numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_MARGIN = 0.08  # of the range, on both sides


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """One mark of an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A range of figures laid over a range of places; ``is_log`` lays their logarithms."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Where a figure stands, to a tenth."""
        low, high, here = self.low, self.high, value
        if self.is_log:
            low, high, here = math.log(low), math.log(high), math.log(value)
        share = (here - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 1)


def linear_axis(values: Iterable[float], start: float, end: float, *, from_zero: bool = False) -> Axis:
    """An axis around some figures, with a little room beside them."""
    seen = list(values) or [0.0, 1.0]
    low, high = min(seen), max(seen)
    room = (high - low) * _MARGIN or abs(high) * _MARGIN or 1.0
    return Axis(low=0.0 if from_zero else low - room, high=high + room, start=start, end=end)


def log_axis(values: Iterable[float], start: float, end: float) -> Axis:
    """A logarithmic axis that begins and ends at powers of ten, or at halves of them."""
    seen = list(values)
    low = 10.0 ** (math.floor(2 * math.log10(min(seen))) / 2)
    high = 10.0 ** (math.ceil(2 * math.log10(max(seen))) / 2)
    return Axis(low=low, high=high * (1.0 if high > low else 10.0), start=start, end=end, is_log=True)


def ticks(axis: Axis, most: int, *, digits: int | None = None) -> list[Tick]:
    """Marks at round numbers, ``most`` of them at most (powers of ten on logarithmic axes)."""
    values = _powers(axis) if axis.is_log else _steps(axis, most)
    least = min((b - a for a, b in itertools.pairwise(values)), default=1.0)
    places = max(0, -math.floor(math.log10(least))) if digits is None else digits
    return [Tick(at=axis.at(value), label=f"{value:.{places}f}") for value in values]


def _steps(axis: Axis, most: int) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten."""
    rough = (axis.high - axis.low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in _ROUND if factor * power >= rough)
    first = math.ceil(axis.low / step)
    return [number * step for number in range(first, math.floor(axis.high / step) + 1)]


def _powers(axis: Axis) -> list[float]:
    """Powers of ten inside."""
    first, last = math.ceil(math.log10(axis.low)), math.floor(math.log10(axis.high))
    return [10.0**power for power in range(first, last + 1)]
