"""The inner problem of a mixed cluster, exactly: groups to stages and layers to stages, in one program.

State after s + 1 stages: (which groups were used, the group of the last stage, how many stages in a row
it has, the boundary behind it). Which stages of earlier groups there were does not matter any more, since
a group has one run; so there are 2^B B p boundaries of states, not a product over groups. ``sweep``
carries the least sum, the least maximum, or the least sum under limits to every state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from solver.columns import BoolArray, FloatArray, IntArray
from solver.mixed.field import Field, Placement, Stop
from solver.search.watch import look

_NS = 1e9
_NEVER = 2**60
_EVEN = 4096  # steps in which squares of stage times break ties

Layers: TypeAlias = IntArray | FloatArray


def sweep(
    field: Field,
    cost: Layers,
    *,
    never: float,
    limit: FloatArray | None = None,
    largest: bool = False,
) -> list[Layers]:
    """Best values after every stage, arrays (B, 2^B, C, L + 1); ``never`` where there is no way.

    C counts the stages of the last run. ``cost`` (B, B, p, L + 1, L + 1) is that of layers i … j - 1 by
    the berth before the stage (its own for the first) and its own; sums must stay within ``limit`` of that
    shape. ``largest`` takes the maximum of the costs, else their sum.
    """
    count, width = len(field.berths), field.num_layers + 1
    shape = (count, 1 << count, max(field.room), width)
    values: Layers = np.broadcast_to(cost[0, 0, 0, 0, 0], shape).copy()
    values[...] = never
    for b in range(count):
        first = cost[b, b, 0, 0]
        values[b, 1 << b, 0] = (
            first if limit is None else np.where(first <= limit[b, b, 0, 0], first, never)
        )
    found = [values]
    for stage in range(1, field.p):
        look()
        within = None if limit is None else limit[:, :, stage]
        found.append(_next(field, found[-1], cost[:, :, stage], within, largest=largest, never=never))
    return found


def _next(
    field: Field, before: Layers, cost: Layers, limit: FloatArray | None, *, largest: bool, never: float
) -> Layers:
    """Values after one more stage: every state that has a way, stayed on or left for another berth."""
    after = np.full_like(before, never)
    ends = before.min(axis=2)
    own, mask, run = np.nonzero((before < never).any(axis=3))
    longer = run + 1 < np.array(field.room)[own]
    own, mask, run = own[longer], mask[longer], run[longer]
    left, used, into = np.nonzero(_open_berths(ends, never))
    source = np.concatenate([before[own, mask, run], ends[left, used]])
    if not len(source):
        return after
    berth_before, berth = np.concatenate([own, left]), np.concatenate([own, into])
    columns = np.flatnonzero((source < never).any(axis=0))
    here = slice(columns[0], columns[-1] + 1)
    values, more = source[:, here, None], cost[berth_before, berth, here]
    reached = np.maximum(values, more) if largest else values + more
    if limit is not None:
        reached = np.where(reached <= limit[berth_before, berth, here], reached, np.inf)
    best = np.minimum(reached.min(axis=1), never)
    after[own, mask, run + 1] = best[: len(own)]
    states = (into, used | (1 << into), np.zeros_like(into))
    np.minimum.at(after, states, best[len(own) :])
    return after


def _open_berths(ends: Layers, never: float) -> BoolArray:
    """Which berths a state may be left for, (B, 2^B, B): those that have no run yet."""
    count, masks = len(ends), np.arange(ends.shape[1])
    unused = (masks[:, None] >> np.arange(count)[None, :]) & 1 == 0
    alive: BoolArray = np.any(ends < never, axis=2, keepdims=False)
    return np.asarray(alive[:, :, None] & unused[None])


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The placement of least closed form."""

    placement: Placement
    objective_s: float


class Program:
    """The exact program of one field; costs in whole nanoseconds, so that ties are ties."""

    def __init__(self, field: Field) -> None:
        self.field = field
        times, fits = field.entered_s, np.broadcast_to(field.fits, field.entered_s.shape)
        square = times**2
        most = float(np.where(fits, square, 0.0).max(initial=0.0)) or 1.0
        even = np.floor(np.minimum(square / most, 1.0) * ((_EVEN - 1) / field.p))
        slowest = np.rint(((field.m - 1.0) * times + field.tail_s) * _NS)
        self.slowest = np.where(fits, slowest, _NEVER).astype(np.int64)
        whole = np.rint(times * _NS).astype(np.int64) * _EVEN + even.astype(np.int64)
        self.sum = np.where(fits, whole, _NEVER)

    def least_slowest(self) -> int:
        """Least largest stage of any placement; ``_NEVER`` where none fits."""
        values = sweep(self.field, self.slowest, largest=True, never=_NEVER)
        return int(values[-1][:, -1, :, -1].min())

    def least_sum(self, cap: int) -> tuple[int, Placement] | None:
        """The placement of least sum whose stages all stay within ``cap``."""
        cost = np.where(self.slowest <= cap, self.sum, _NEVER)
        values = sweep(self.field, cost, never=_NEVER)
        least = int(values[-1][:, -1, :, -1].min())
        if least >= _NEVER:
            return None
        return least // _EVEN, _traced(self.field, values, cost)

    def largest_of(self, placement: Placement) -> int:
        """The largest stage of a placement."""
        before, largest = placement[0].berth, 0
        for stage, stop in enumerate(placement):
            largest = max(largest, int(self.slowest[before, stop.berth, stage, stop.start, stop.end]))
            before = stop.berth
        return largest

    def solve(self) -> Best | None:
        """Least largest stage first, then smaller sums for a larger one while that can still pay."""
        floor = self.least_slowest()
        unbound = None if floor >= _NEVER else self.least_sum(int(_NEVER) - 1)
        if unbound is None:
            return None
        cap, best, placement = floor, unbound[0] + self.largest_of(unbound[1]), unbound[1]
        while cap >= floor:
            found = self.least_sum(cap)
            if found is None:
                break
            largest = self.largest_of(found[1])
            if found[0] + largest < best:
                best, placement = found[0] + largest, found[1]
            below = largest - 1 if cap > floor else int(_NEVER)
            cap = min(below, best - unbound[0] - 1)
            if cap <= floor:
                break
        return Best(placement=placement, objective_s=self.field.objective_s(placement))


def _traced(field: Field, values: list[Layers], cost: Layers) -> Placement:
    """The placement behind the least value, from the last stage to the first."""
    end = values[-1][:, -1, :, -1]
    berth, run = (int(at) for at in np.unravel_index(int(end.argmin()), end.shape))
    mask, layer, stops = (1 << len(field.berths)) - 1, field.num_layers, list[Stop]()
    for stage in range(field.p - 1, 0, -1):
        before = values[stage - 1]
        if run:
            start = int((before[berth, mask, run - 1] + cost[berth, berth, stage, :, layer]).argmin())
            stops.append(Stop(berth, start, layer))
            run, layer = run - 1, start
            continue
        ways = before[:, mask ^ (1 << berth)] + cost[:, berth, stage, None, :, layer]
        ways[berth] = _NEVER
        entered, length, start = (int(at) for at in np.unravel_index(int(ways.argmin()), ways.shape))
        stops.append(Stop(berth, start, layer))
        mask, berth, run, layer = mask ^ (1 << berth), entered, length, start
    stops.append(Stop(berth, 0, layer))
    return tuple(reversed(stops))
