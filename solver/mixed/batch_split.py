"""Which share of a batch goes to which group so that the slowest is soonest done: exact, for any times.

A time is enough if sums of shares within it reach the batch; the sums that g groups can reach are the
bits of one integer, so a decision costs a few shifts.
"""

from __future__ import annotations

import numpy as np

from solver.columns import FloatArray
from solver.search.watch import look

_TOGETHER = 256  # shifts between two looks at the clock


def best_split(shares: list[FloatArray], batch: int) -> tuple[float, tuple[int, ...]] | None:
    """The split of the batch over all of ``shares`` whose largest entry is least; None: there is none.

    Entries (batch + 1,) by number of sequences. Bisects over the values: a time is enough if sums of
    entries within it reach the batch.
    """
    values = np.unique(np.concatenate([one[np.isfinite(one)] for one in shares]))
    low, high = 0, len(values) - 1
    if not len(values) or _sums(shares, float(values[-1]))[-1] >> batch & 1 == 0:
        return None
    while low < high:
        middle = (low + high) // 2
        if _sums(shares, float(values[middle]))[-1] >> batch & 1:
            high = middle
        else:
            low = middle + 1
    split = split_within(shares, float(values[low]), batch)
    return None if split is None else (float(values[low]), split)


def _sums(shares: list[FloatArray], limit_s: float) -> list[int]:
    """Reachable sums of the first g entries within a time, as bits."""
    reached, found = 1, [1]
    for one in shares:
        after = 0
        for at, n in enumerate(np.flatnonzero(one <= limit_s).tolist()):
            if at % _TOGETHER == 0:
                look()
            after |= reached << n
        reached = after & ((1 << len(one)) - 1)
        found.append(reached)
    return found


def split_within(shares: list[FloatArray], limit_s: float, batch: int) -> tuple[int, ...] | None:
    """A split of the batch whose entries stay within a time, the quickest at the last group first."""
    sums, left, chosen = _sums(shares, limit_s), batch, list[int]()
    if sums[-1] >> batch & 1 == 0:
        return None
    for at in range(len(shares) - 1, -1, -1):
        able = [n for n in np.flatnonzero(shares[at] <= limit_s).tolist()
                if n <= left and sums[at] >> (left - n) & 1]  # fmt: skip
        best = min(able, key=lambda n: (float(shares[at][n]), n))
        chosen.append(best)
        left -= best
    return tuple(reversed(chosen))
