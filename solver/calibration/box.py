"""Quadratic programs in a box: the inner step of every fit of bounded constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profiles.calibration import LOWER_BOUNDS, UPPER_BOUNDS
from profiles.profile import Constants
from solver.columns import FloatArray

_TINY = 1e-300


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Bounds of the constants' log offsets, shape (c,) each."""

    lower: FloatArray
    upper: FloatArray

    @classmethod
    def of(cls, constants: Constants, names: Sequence[str]) -> Box:
        """The physical bounds as offsets from these values; a value outside may stay where it is."""
        values = np.array([getattr(constants, name) for name in names])
        lower = np.array([max(LOWER_BOUNDS.get(name, 0.0), _TINY) for name in names])
        upper = np.array([UPPER_BOUNDS.get(name, np.inf) for name in names])
        return cls(
            lower=np.minimum(np.log(lower / values), 0.0), upper=np.maximum(np.log(upper / values), 0.0)
        )


def least_in_box(normal: FloatArray, right: FloatArray, box: Box) -> FloatArray:
    """Minimise ``x' normal x / 2 - right' x`` inside the box.

    What leaves the box is put on its edge and the rest solved again; nothing is let go again, which
    costs a little where two constants trade places and never leaves the box.
    """
    x = np.zeros(len(right))
    free = np.ones(len(right), dtype=bool)
    while free.any():
        held = normal[np.ix_(free, ~free)] @ x[~free]
        x[free] = np.linalg.solve(normal[np.ix_(free, free)], right[free] - held)
        outside = free & ((x < box.lower) | (x > box.upper))
        if not outside.any():
            break
        x[outside] = np.clip(x, box.lower, box.upper)[outside]
        free &= ~outside
    return x
