"""Measured parts of a step correct the prices of the parts.

Each part has a factor of its own. Its logarithm is normal around 0 before anything is measured, as wide as
``spread_of`` says; a measured step tells it up to ``NOISE``. The factor moves to other roles but for
``TRANSFER``. Where a log counts the transfer of weights as generation, one factor is both parts'.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

GENERATE_SIGMA, OTHER_SIGMA = 0.2, 0.5  # spreads of ln(measured / predicted) of a part; assumed
TRAINING_SIGMA = 0.3  # of updates and passes: what trainers add to pretraining; assumed
NOISE, TRANSFER = 0.05, 0.1  # of one measured step, and between roles of one trainer; assumed
OF_TRAINING = ("update", "log_probabilities", "critic")
_IN_GENERATION = ("generate", "refit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What measured steps say of one part."""

    factor: float  # times the price
    sigma: float  # of the logarithm of what is left
    steps: int  # that measured it


def spread_of(part: str) -> float:
    """Return the standard deviation of a part's logarithm before anything is measured."""
    known = {"generate": GENERATE_SIGMA, **dict.fromkeys(OF_TRAINING, TRAINING_SIGMA)}
    return known.get(part, OTHER_SIGMA)


def corrections_of(
    steps: Sequence[tuple[Mapping[str, float], Mapping[str, float]]],
) -> dict[str, Correction]:
    """Return the corrections of all parts that were measured.

    Args:
        steps: seconds of each part, (predicted, measured).
    """
    logs = dict[str, list[float]]()
    for predicted, measured in steps:
        for part, value in _ratios(predicted, measured):
            logs.setdefault(part, []).append(value)
    return {part: _correction(part, values) for part, values in logs.items()}


def _ratios(predicted: Mapping[str, float], measured: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    together = "generate" in measured and "refit" not in measured
    for part, seconds in measured.items():
        if part == "generate" and together:
            ratio = math.log(seconds / sum(predicted[name] for name in _IN_GENERATION))
            yield from ((name, ratio) for name in _IN_GENERATION)
        elif predicted.get(part, 0.0) > 0.0:
            yield part, math.log(seconds / predicted[part])


def _correction(part: str, logs: Sequence[float]) -> Correction:
    prior, number = spread_of(part) ** -2, len(logs) * NOISE**-2
    mean = number * (sum(logs) / len(logs)) / (prior + number)
    return Correction(
        factor=math.exp(mean), sigma=math.hypot((prior + number) ** -0.5, TRANSFER), steps=len(logs)
    )
