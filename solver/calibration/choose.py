"""Which runs to measure, from their configurations alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from solver.columns import FloatArray

Choice = Literal["suggested", "random"]
_FEW = 4  # below and at this many runs, central configurations teach more than extreme ones


def measuring_order(
    features: Sequence[FloatArray],
    count: int,
    *,
    choose: Choice = "suggested",
    seed: int = 0,
    measured: Sequence[int] = (),
) -> list[int]:
    """All runs that are not measured yet in the order in which to measure them.

    ``suggested``: always the run farthest from those taken, from the measured ones on, else from the
    most central one; when few are wanted only among the central half. ``random``: shuffled by the seed.

    Args:
        features: of all runs.
        count: how many runs will be measured in the end.
        choose: how.
        seed: of the random order.
        measured: runs that have been measured; not in the answer.
    """
    n = len(features)
    if choose == "random":
        order = np.random.default_rng(seed).permutation(n)
        return [int(i) for i in order if i not in set(measured)]
    if n == len(set(measured)):
        return []
    points = np.stack(features)
    from_centre = ((points - points.mean(axis=0)) ** 2).sum(axis=1)
    order_taken = [int(i) for i in measured] or [int(from_centre.argmin())]
    allowed = from_centre <= np.median(from_centre) if count <= _FEW else np.ones(n, dtype=bool)
    nearest = np.min([((points - points[i]) ** 2).sum(axis=1) for i in order_taken], axis=0)
    while len(set(order_taken)) < n:
        nearest[order_taken] = -1.0
        candidates = np.where(allowed, nearest, -1.0)
        if candidates.max() < 0.0:
            candidates = nearest
        order_taken.append(int(candidates.argmax()))
        nearest = np.minimum(nearest, ((points - points[order_taken[-1]]) ** 2).sum(axis=1))
    return order_taken[len(measured) :]
