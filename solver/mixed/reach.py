"""The inner problem of a mixed cluster, exactly: groups to stages and layers to stages, in one program.

State after s + 1 stages: (which groups were used, the group of the last stage, how many stages in a row
it has, the boundary behind it). Which stages of earlier groups there were does not matter any more, since
a group has one run; so there are 2^B B p boundaries of states, not a product over groups. ``sweep``
carries the least sum, the least maximum, or the least sum under limits to every state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from solver.columns import FloatArray, IntArray
from solver.mixed.field import Field, Placement, Stop
from solver.search.bounds import SAFETY

_NS = 1e9
_NEVER = 2**60
_EVEN = 4096  # steps in which squares of stage times break ties

Layers: TypeAlias = IntArray | FloatArray
# (berth, stage, seconds more for the berth before it) -> cost and limit of layers i … j - 1
Cost = Callable[[int, int, float], tuple[Layers, FloatArray | None]]


def _relaxed(
    before: Layers, cost: Layers, limit: FloatArray | None, *, largest: bool, never: float
) -> Layers:
    """From values (X, L + 1) by first boundary to values by last boundary; lost ways cost no time."""
    after = np.full_like(before, never)
    alive = before < never
    rows, columns = np.flatnonzero(alive.any(axis=1)), np.flatnonzero(alive.any(axis=0))
    if not len(rows):
        return after
    here = slice(columns[0], columns[-1] + 1)
    values = before[rows, here]
    reached = np.maximum(values[:, :, None], cost[here]) if largest else values[:, :, None] + cost[here]
    if limit is not None:
        reached = np.where(reached <= limit[here], reached, np.inf)
    after[rows] = np.minimum(reached.min(axis=1), never)
    return after


def sweep(field: Field, cost: Cost, *, largest: bool = False, never: float = _NEVER) -> list[Layers]:
    """Best values after every stage, arrays (B, 2^B, C, L + 1); ``never`` where there is no way.

    C counts the stages of the last run. ``largest`` takes the maximum of the costs, else their sum.
    """
    count, width = len(field.berths), field.num_layers + 1
    shape = (count, 1 << count, max(field.room), width)
    first_s, _ = cost(0, 0, 0.0)
    values: Layers = np.broadcast_to(first_s[0, 0], shape).copy()
    values[...] = never
    for b in range(count):
        first, limit = cost(b, 0, 0.0)
        values[b, 1 << b, 0] = (
            first[0] if limit is None else np.where(first[0] <= limit[0], first[0], never)
        )
    found: list[Layers] = [values]
    for stage in range(1, field.p):
        found.append(_next(field, found[-1], cost, stage, largest=largest, never=never))
    return found


def _next(field: Field, before: Layers, cost: Cost, stage: int, *, largest: bool, never: float) -> Layers:
    """Values after one more stage."""
    count, width = len(field.berths), field.num_layers + 1
    after = np.full_like(before, never)
    runs_end = before.min(axis=2)
    masks = np.arange(1 << count)
    for b in range(count):
        having, lacking = masks[(masks >> b) & 1 == 1], masks[(masks >> b) & 1 == 0]
        longest = field.room[b] - 1
        stay = before[b][having, :longest].reshape(-1, width)
        own, limit = cost(b, stage, 0.0)
        kept = _relaxed(stay, own, limit, largest=largest, never=never)
        after[b][having, 1 : longest + 1] = kept.reshape(len(having), longest, width)
        for a in range(count):
            if a != b:
                own, limit = cost(b, stage, float(field.enter_s[a, b]))
                come = _relaxed(runs_end[a][lacking], own, limit, largest=largest, never=never)
                into = lacking | (1 << b)
                after[b][into, 0] = np.minimum(after[b][into, 0], come)
    return after


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The placement of least closed form."""

    placement: Placement
    objective_s: float


class Program:
    """The exact program of one field; costs in whole nanoseconds, so that ties are ties."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.share = field.m - 1.0
        square = field.time_s**2
        most = float(np.where(field.fits, square, 0.0).max(initial=0.0)) or 1.0
        self._even = np.floor(np.minimum(square / most, 1.0) * ((_EVEN - 1) / field.p)).astype(np.int64)

    def _slowest(self, berth: int, stage: int, more_s: float) -> IntArray:
        """(m - 1) t + tail in nanoseconds."""
        field, at = self.field, (berth, stage)
        whole = np.rint((self.share * (field.time_s[at] + more_s) + field.tail_s[at]) * _NS)
        return np.where(field.fits[at], whole, _NEVER).astype(np.int64)

    def _sum(self, berth: int, stage: int, more_s: float) -> IntArray:
        """T in nanoseconds, and behind it the square that breaks ties."""
        field, at = self.field, (berth, stage)
        whole = np.rint((field.time_s[at] + more_s) * _NS).astype(np.int64) * _EVEN + self._even[at]
        return np.asarray(np.where(field.fits[at], whole, _NEVER))

    def least_slowest(self) -> int:
        """Least largest stage of any placement; ``_NEVER`` where none fits."""
        values = sweep(self.field, lambda *at: (self._slowest(*at), None), largest=True)
        return int(values[-1][:, -1, :, -1].min())

    def least_sum(self, cap: int) -> tuple[int, Placement] | None:
        """The placement of least sum whose stages all stay within ``cap``."""

        def cost(berth: int, stage: int, more_s: float) -> tuple[Layers, None]:
            slowest = self._slowest(berth, stage, more_s)
            return np.where(slowest <= cap, self._sum(berth, stage, more_s), _NEVER), None

        values = sweep(self.field, cost)
        least = int(values[-1][:, -1, :, -1].min())
        if least >= _NEVER:
            return None
        return least // _EVEN, _traced(self.field, values, cost)

    def largest_of(self, placement: Placement) -> int:
        """The largest stage of a placement."""
        before, largest = placement[0].berth, 0
        for stage, stop in enumerate(placement):
            more = float(self.field.enter_s[before, stop.berth])
            largest = max(largest, int(self._slowest(stop.berth, stage, more)[stop.start, stop.end]))
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


def _traced(field: Field, values: list[Layers], cost: Cost) -> Placement:
    """The placement behind the least value, from the last stage to the first."""
    end = values[-1][:, -1, :, -1]
    berth, run = (int(at) for at in np.unravel_index(int(end.argmin()), end.shape))
    mask, layer, stops = (1 << len(field.berths)) - 1, field.num_layers, list[Stop]()
    for stage in range(field.p - 1, 0, -1):
        if run:
            own, _ = cost(berth, stage, 0.0)
            start = int((values[stage - 1][berth, mask, run - 1] + own[:, layer]).argmin())
            stops.append(Stop(berth, start, layer))
            run, layer = run - 1, start
            continue
        ways = [
            values[stage - 1][a, mask ^ (1 << berth)]
            + cost(berth, stage, float(field.enter_s[a, berth]))[0][:, layer]
            for a in range(len(field.berths))
        ]
        stacked = np.stack(ways)
        stacked[berth] = _NEVER
        before, length, start = (int(at) for at in np.unravel_index(int(stacked.argmin()), stacked.shape))
        stops.append(Stop(berth, start, layer))
        mask, berth, run, layer = mask ^ (1 << berth), before, length, start
    stops.append(Stop(berth, 0, layer))
    return tuple(reversed(stops))


class Reach:
    """Whether some placement of a field may simulate within a time; *no* is a proof.

    Bounds (A) and (B) of ``search.bounds``, with the least sum of stage times that leads to a state and a
    lower bound on the sum behind it; (C) with the least share of forward time. Smaller sums never make
    a limit tighter, so carrying the least one is enough.
    """

    def __init__(self, field: Field) -> None:
        self.field = field
        times = np.where(field.fits, field.time_s, np.inf)
        self._tail_s = float(np.where(field.fits, field.tail_s, np.inf)[:, 0].min(initial=np.inf))
        self._least_s = times.min(axis=0) + min(0.0, float(field.enter_s.min()))
        self._forward_share = min(self._share(0.0), self._share(min(0.0, float(field.enter_s.min()))))

    def _share(self, more_s: float) -> float:
        """Least share of forward time in any stage's, where the berth before it adds ``more_s``."""
        field = self.field
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (field.forward_s + more_s / 2.0) / (field.time_s + more_s)
        return float(np.clip(np.where(field.fits, share, 0.5).min(initial=0.5), 0.0, 0.5))

    def _sums_behind(self, least_s: FloatArray) -> FloatArray:
        """Least sum of the stages after each, by the boundary before them, (p, L + 1)."""
        behind = np.full((self.field.p, self.field.num_layers + 1), np.inf)
        behind[-1, -1] = 0.0
        for stage in range(self.field.p - 2, -1, -1):
            behind[stage] = (least_s[stage + 1] + behind[stage + 1][None, :]).min(axis=1)
        return behind

    def can_beat(self, step_s: float) -> bool:
        """Whether the bounds leave a placement that steps within ``step_s``."""
        field = self.field
        room_s = (step_s / SAFETY**2 - field.fixed_s) / field.straggler
        short = field.m * self._least_s <= room_s - self._tail_s
        behind_s = self._sums_behind(np.where(short, self._least_s, np.inf))

        def cost(berth: int, stage: int, more_s: float) -> tuple[Layers, FloatArray]:
            at = (berth, stage)
            time = np.where(field.fits[at], field.time_s[at] + more_s, np.inf)
            later, early = field.m - 1.0, min(field.m, field.p - stage) - 1.0
            tail = np.where(field.fits[at], field.tail_s[at], 0.0) if stage == 0 else self._tail_s
            chain = room_s - tail - later * time
            back = chain - behind_s[stage][None, :] + early * (field.forward_s[at] + more_s / 2.0)
            own_s = room_s - field.tail_s[at] - (later + 1.0) * time
            away = own_s / max(self._forward_share, 1e-9) + time
            return time, np.minimum(np.minimum(chain, back), np.where(own_s < 0.0, -np.inf, away))

        with np.errstate(invalid="ignore"):
            values = sweep(field, cost, never=np.inf)
        return bool(np.isfinite(values[-1][:, -1, :, -1].min()))
