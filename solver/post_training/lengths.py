"""Lengths of answers: their distribution, and those that one engine gets in a step.

All lengths that people state are of a prompt and its answer together, as NeMo-RL's
``max_total_sequence_length`` counts them. Without percentiles the logarithm of an answer's length is normal
with ``SIGMA``, and one answer in a hundred runs to the limit. Without it a step of a large model comes out
at half of what it takes, because a step waits for its longest answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.sequences import SequenceLengths

FloatArray = NDArray[np.float64]

SIGMA = 0.6  # of the logarithm of an answer's length; assumed
SIGMAS = (0.3, 0.9)  # that an answer is tried with; assumed
RUNAWAY = 0.01  # share of answers that run to the limit; assumed
_GRID = 2048  # quantiles that a distribution is kept at
_STATED = (1, 5, 10, 25, 50, 75, 90, 95, 99)  # percentiles that the update's packing reads
_BISECTIONS = 60


@dataclass(frozen=True, kw_only=True)
class AnswerLengths:
    """Lengths of prompts and answers of one step, in tokens."""

    prompt: float
    longest: int  # prompt and answer together
    mean: float  # the same
    percentiles: tuple[tuple[float, float], ...] = ()  # of both together; empty: assumed from the mean
    sigma: float = SIGMA
    runaway: float = RUNAWAY

    def __post_init__(self) -> None:
        """Refuse a mean that no distribution of these limits has.

        Raises:
            InvalidProblemError: the mean is not between the prompt and the longest answer.
        """
        if not self.prompt < self.mean < self.longest:
            raise InvalidProblemError.of(
                "/lengths/mean",
                f"{self.mean:g} tokens of prompt and answer are not between the prompt's {self.prompt:g} "
                f"and the longest, {self.longest}",
                allowed=f"above {self.prompt:g} and below {self.longest}",
                nearest=f"{(self.prompt + self.longest) / 2:.0f}",
            )

    @cached_property
    def is_assumed(self) -> bool:
        """Return whether the tail follows from the mean alone."""
        return not self.percentiles

    @cached_property
    def answers(self) -> FloatArray:
        """Return quantiles of the answers' lengths in the middle of equal shares, ascending."""
        shares = (np.arange(_GRID) + 0.5) / _GRID
        if self.percentiles:
            percents, tokens = np.array(self.percentiles, dtype=np.float64).T
            return np.asarray(np.maximum(np.interp(100.0 * shares, percents, tokens) - self.prompt, 1.0))
        return _from_mean(
            self.mean - self.prompt, self.longest - self.prompt, self.sigma, round(self.runaway * _GRID)
        )

    def drawn(self, number: int, of: int) -> FloatArray:
        """Return ``number`` answers of the busiest engine: quantiles, and the longest of ``of`` answers."""
        shares = (np.arange(number) + 0.5) / number
        shares[-1] = max(shares[-1], 1.0 - 0.5 / of)
        at = (np.arange(_GRID) + 0.5) / _GRID
        found = np.interp(shares, at, self.answers)
        if shares[-1] > at[-1]:
            found[-1] = self.longest - self.prompt if self.runaway or self.percentiles else found[-1]
        return np.asarray(found)

    @cached_property
    def documents(self) -> SequenceLengths:
        """Return prompts with answers as the documents that the update packs."""
        found: list[tuple[float, int]] = []
        whole = self.answers + self.prompt
        for percent in _STATED:
            tokens = min(round(float(np.quantile(whole, percent / 100.0))), self.longest)
            if not found or found[-1][1] < tokens < self.longest:
                found.append((float(percent), max(tokens, 1)))
        return SequenceLengths(percentiles=(*found, (100.0, self.longest)))

    def varied(
        self, *, mean: float = 1.0, sigma: float | None = None, runaway: float | None = None
    ) -> AnswerLengths:
        """Return the distribution with another mean, spread, or share of answers that run to the limit."""
        least = self.prompt + 1.0
        return AnswerLengths(
            prompt=self.prompt,
            longest=self.longest,
            mean=min(max(self.mean * mean, least), 0.95 * self.longest),
            sigma=self.sigma if sigma is None else sigma,
            runaway=self.runaway if runaway is None else runaway,
        )


def lengths_of_percentiles(prompt: float, percentiles: Mapping[float, float]) -> AnswerLengths:
    """Return the distribution of stated percentiles of prompt and answer together; p100 is the longest."""
    stated = tuple(sorted(percentiles.items()))
    shares = (np.arange(_GRID) + 0.5) / _GRID
    percents, tokens = np.array(stated, dtype=np.float64).T
    mean = float(np.interp(100.0 * shares, percents, tokens).mean())
    return AnswerLengths(
        prompt=min(prompt, 0.9 * mean), longest=int(stated[-1][1]), mean=mean, percentiles=stated
    )


@lru_cache(maxsize=128)
def _from_mean(mean: float, most: float, sigma: float, runaways: int) -> FloatArray:
    """Return quantiles with that mean: log-normal, cut at ``most``, with ``runaways`` of them there."""
    others = _GRID - runaways
    target = max((mean * _GRID - runaways * most) / others, 1.0)
    normal = NormalDist()
    z = np.array([normal.inv_cdf((at + 0.5) / others) for at in range(others)])
    low, high = 0.0, math.log(most * 50.0)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        if np.minimum(np.exp(middle + sigma * z), most).mean() > target:
            high = middle
        else:
            low = middle
    body = np.minimum(np.exp(low + sigma * z), most)
    return np.append(body, np.full(runaways, float(most)))
