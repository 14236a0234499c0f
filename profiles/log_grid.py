"""Interpolation on a regular grid over the logarithms of positive quantities."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]
_TOLERANCE = 1e-6  # of one step: how far beyond its last node an axis still counts as inside


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAxis:
    """Nodes at ``2^low, 2^(low + step), …``."""

    name: str
    low: float  # log2 of the first node
    step: float  # log2 of the ratio of neighbours
    count: int

    def position(self, quantity: FloatArray) -> FloatArray:
        """Where quantities lie in units of nodes; outside of ``[0, count - 1]`` beyond the ends."""
        return np.asarray((np.log2(quantity) - self.low) / self.step)


def corners(
    axes: tuple[LogAxis, ...], point: tuple[FloatArray, ...]
) -> list[tuple[IndexArray, FloatArray]]:
    """The ``2^d`` nodes round each point, as flat indices of shape (n,), and their multilinear weights.

    Points beyond an end of an axis count as lying on that end.
    """
    sides = []
    for axis, quantity in zip(axes, point, strict=True):
        position = np.clip(axis.position(quantity), 0.0, axis.count - 1.0)
        below = np.minimum(position.astype(np.intp), max(axis.count - 2, 0))
        share = position - below
        sides.append(((below, 1.0 - share), (np.minimum(below + 1, axis.count - 1), share)))
    found = []
    for choice in itertools.product(*sides):
        index, weight = choice[0]
        for axis, (node, share) in zip(axes[1:], choice[1:], strict=True):
            index, weight = index * axis.count + node, weight * share
        found.append((index, weight))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGrid:
    """Values at the nodes of a regular logarithmic grid, multilinear between them."""

    axes: tuple[LogAxis, ...]
    values: FloatArray  # flat, the last axis fastest

    def at(self, point: tuple[FloatArray, ...]) -> FloatArray:
        """Interpolated values of shape (n,) at points of one array per axis; held constant outside."""
        return np.asarray(sum(self.values[index] * weight for index, weight in corners(self.axes, point)))

    def outside(self, point: tuple[FloatArray, ...]) -> BoolArray:
        """Whether each point lies beyond an end of any axis, shape (n,)."""
        beyond = np.zeros(np.broadcast_shapes(*(quantity.shape for quantity in point)), dtype=np.bool_)
        for axis, quantity in zip(self.axes, point, strict=True):
            position = axis.position(quantity)
            beyond |= (position < -_TOLERANCE) | (position > axis.count - 1 + _TOLERANCE)
        return beyond
