"""Sets of node groups that classes of replicas may stand on."""

from __future__ import annotations

from itertools import combinations


def sets_of(count: int) -> list[tuple[int, ...]]:
    """Sets of two or more of ``count`` groups, the largest first."""
    return [one for size in range(count, 1, -1) for one in combinations(range(count), size)]
