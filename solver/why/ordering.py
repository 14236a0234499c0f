"""In which order the differences of two configurations are carried over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from solver.why.differences import Difference

MOST = 10  # differences whose orders are looked through; more are carried over in their own order
ILLEGAL, TOO_BIG = 100, 1  # what a stop costs the path
_DIGITS = 9  # of seconds; what is less is rounding


def best_order(
    differences: Sequence[Difference], prices: Mapping[int, tuple[int, float]]
) -> list[Difference]:
    """The order with the fewest stops that break a rule, then that lack memory, then the shortest way.

    Args:
        differences: of the two configurations.
        prices: of each set of carried differences, as bits: what it costs a path, and its step in seconds.
    """
    full = (1 << len(differences)) - 1

    @cache
    def best(done: int) -> tuple[int, float, tuple[int, ...]]:
        if done == full:
            return 0, 0.0, ()
        options = []
        for at in range(len(differences)):
            if not done >> at & 1:
                penalty, step_s = prices[done | 1 << at]
                cost, way_s, rest = best(done | 1 << at)
                way_s = round(way_s + abs(step_s - prices[done][1]), _DIGITS)
                options.append((cost + penalty, way_s, (at, *rest)))
        return min(options)

    return [differences[at] for at in best(0)[2]]
