"""The inner problem of a mixed cluster, exactly: groups to stages and layers to stages, in one program.

State after s + 1 stages: (which groups were used, the group of the last stage, how many stages in a row
it has, the boundary behind it). Which stages of earlier groups there were does not matter any more, since
a group has one run; so there are 2^B B p boundaries of states, not a product over groups. ``sweep``
carries the least sum, the least maximum, or the least sum under limits to every state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import SCHEDULES, BoolArray, FloatArray, IntArray
from meshwright.solver.cost.stages import stage_bytes, step_of_end_s
from meshwright.solver.schedules.simulate import rank_finish_s
from meshwright.solver.search.placement.rows import Outer
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.splits import StageTables, one_cell

# --------------------------------------------------------------------------------------------------
# One row on one choice of berths: what every stage would take, and every placement's price.
#
# A *field* is a row with at most one berth of each group, every one of which must be used: the stages of
# a group are neighbours (a *run*), so a slow link is crossed once for each further group. What a stage
# takes depends on its number in the pipeline (activations in flight, embedding, head), its layers i … j -
# 1, its berth, and the berth before it (the transfer between them, forward and backward, is the later
# stage's).


@dataclass(frozen=True, slots=True)
class Stop:
    """One stage of a placement: a berth of the field and its layers."""

    berth: int
    start: int
    end: int


Placement = tuple[Stop, ...]


@dataclass(frozen=True, kw_only=True)
class Field:
    """One row on B berths of different groups."""

    outer: Outer
    row: int
    berths: tuple[int, ...]  # among ``Outer.berths``

    @cached_property
    def tables(self) -> tuple[StageTables, ...]:
        """Times and memory of layers i … j - 1 as stage s on each berth."""
        return tuple(StageTables(self.outer.rows[berth].take([self.row])) for berth in self.berths)

    @property
    def p(self) -> int:
        """Stages."""
        return int(self.outer.columns.pipeline_parallel_size[self.row])

    @property
    def m(self) -> int:
        """Micro-batches."""
        return int(self.outer.columns.num_microbatches[self.row])

    @property
    def num_layers(self) -> int:
        """L."""
        return self.outer.layout.num_layers

    @cached_property
    def room(self) -> tuple[int, ...]:
        """Most stages on each berth."""
        return tuple(min(int(self.outer.room[berth, self.row]), self.p) for berth in self.berths)

    @cached_property
    def asked_layers(self) -> IntArray:
        """Layers that the request prescribes for each stage, (p,); 0: any."""
        asked = self.outer.fleet.problem.options.stage_layers
        return np.array(asked if len(asked) == self.p else (0,) * self.p)

    @cached_property
    def fits(self) -> BoolArray:
        """Whether the layers are legal there, as the request says, and fit the berth's memory."""
        asked = self.asked_layers[:, None, None]
        return np.stack([table.fits & ((asked == 0) | (table.size == asked)) for table in self.tables])

    @cached_property
    def straggler(self) -> float:
        """Of the slowest berth."""
        return max(float(self.outer.rows[at].prices.straggler[self.row]) for at in self.berths)

    @cached_property
    def fixed_s(self) -> float:
        """Of the slowest berth."""
        return max(float(self.outer.rows[at].prices.fixed_s[self.row]) for at in self.berths)

    @cached_property
    def enter_s(self) -> FloatArray:
        """What a stage on berth b takes more when berth a is before it, (B, B), both directions."""
        count = len(self.berths)
        more = np.zeros((count, count))
        for a in range(count):
            for b in range(count):
                if a != b:
                    own = float(self.outer.rows[self.berths[b]].prices.transfer_s[self.row])
                    more[a, b] = 2.0 * (self.outer.hop_s(self.row, self.berths[a], self.berths[b]) - own)
        return more

    def stage_times_s(self, placement: Placement) -> tuple[list[float], list[float], list[float]]:
        """Forward, backward and tail of every stage."""
        forward, backward, tail = list[float](), list[float](), list[float]()
        before = placement[0].berth
        for number, stop in enumerate(placement):
            table, at = self.tables[stop.berth], one_cell(number, stop.start, stop.end)
            hop, forward_s = self.enter_s[before, stop.berth] / 2.0, table.forward_at(at)
            forward.append(float(forward_s[0] + hop))
            backward.append(float(table.time_at(at)[0] - forward_s[0] + hop))
            tail.append(float(table.tail_at(at)[0]))
            before = stop.berth
        return forward, backward, tail

    def objective_s(self, placement: Placement) -> float:
        """The closed form: ``straggler (sum_s t_s + max_s ((m - 1) t_s + tail_s)) + fixed``."""
        forward, backward, tail = self.stage_times_s(placement)
        times = [f + b for f, b in zip(forward, backward, strict=True)]
        slowest = max((self.m - 1) * time + last for time, last in zip(times, tail, strict=True))
        return step_of_end_s(sum(times) + slowest, self.straggler, self.fixed_s)

    def simulated_s(self, placement: Placement) -> float:
        """The step time by event simulation."""
        forward, backward, tail = self.stage_times_s(placement)
        finish = rank_finish_s(
            forward,
            backward,
            pp=self.p,
            num_microbatches=self.m,
            schedule=SCHEDULES[int(self.outer.columns.pipeline_schedule[self.row])],
        )
        last = max(end + more for end, more in zip(finish, tail, strict=True))
        return step_of_end_s(last, self.straggler, self.fixed_s)


# --------------------------------------------------------------------------------------------------
# The ways through a field: which berth each stage may stand on, and what may follow it.
#
# State after a stage: (which berths were used, the berth of the stage, how many stages in a row it has).
# Which stages of earlier berths there were does not matter any more, since a berth has one run. Only
# states that lead from the first stage to a last one with every berth used are kept; they depend on the
# number of stages and the room on each berth alone, so many fields share them.


State: TypeAlias = tuple[int, int, int]  # berths used as bits, berth, stages in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Every way from a state of one stage to a state of the next, ordered by ``source``, arrays (K,)."""

    source: IntArray  # index among the states before
    target: IntArray  # index among the states after
    before: IntArray  # berth
    berth: IntArray
    first_of_source: IntArray  # where the ways of each state begin, every state having one or more
    by_target: IntArray  # the same ways ordered by target
    first_of_target: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """All states of p stages, and the p - 1 steps between them."""

    first: IntArray  # berth of each state of stage 0
    num_states: tuple[int, ...]  # of each stage
    steps: tuple[Steps, ...]


def _following(state: State, room: tuple[int, ...]) -> Iterator[State]:
    """States of the next stage: one more on the berth, or the first on another."""
    used, berth, run = state
    if run < room[berth]:
        yield (used, berth, run + 1)
    for other, most in enumerate(room):
        if most and not used >> other & 1:
            yield (used | 1 << other, other, 1)


@lru_cache(maxsize=1024)
def routes_of(p: int, room: tuple[int, ...]) -> Routes | None:
    """The routes of p stages over berths with that room each; None: there is none."""
    stages: list[set[State]] = [{(1 << berth, berth, 1) for berth in range(len(room))}]
    for _ in range(p - 1):
        stages.append({after for state in stages[-1] for after in _following(state, room)})
    every = (1 << len(room)) - 1
    stages[-1] = {state for state in stages[-1] if state[0] == every}
    for stage in range(p - 2, -1, -1):
        behind = stages[stage + 1]
        stages[stage] = {state for state in stages[stage] if behind & set(_following(state, room))}
    if not stages[0]:
        return None
    ordered = [sorted(states) for states in stages]
    return Routes(
        first=np.array([state[1] for state in ordered[0]]),
        num_states=tuple(len(states) for states in ordered),
        steps=tuple(_steps(ordered[at], ordered[at + 1], room) for at in range(p - 1)),
    )


def _steps(before: list[State], after: list[State], room: tuple[int, ...]) -> Steps:
    """All ways between the states of two stages."""
    index = {state: at for at, state in enumerate(after)}
    ways = [
        (at, index[state], one[1], state[1])
        for at, one in enumerate(before)
        for state in _following(one, room)
        if state in index
    ]
    source, target, left, entered = np.array(ways).T
    by_target = np.argsort(target, kind="stable")
    return Steps(
        source=source,
        target=target,
        before=left,
        berth=entered,
        first_of_source=np.searchsorted(source, np.arange(len(before))),
        by_target=by_target,
        first_of_target=np.searchsorted(target[by_target], np.arange(len(after))),
    )


# --------------------------------------------------------------------------------------------------
# The exact program: the best value of every state after every stage, and the placement behind it.


_NS = 1e9
_NEVER = 2**60
_EVEN = 4096  # steps in which squares of stage times break ties


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What stages cost behind each berth, where they fit: elsewhere ``_NEVER``.

    Layers i … j - 1 fit a stage for few i and j, 1 to 3 % where memory is short: only those are kept.
    """

    begin: IntArray  # (p + 1,) where the cells of each stage begin
    berth: IntArray  # (K,) its own
    start: IntArray  # i
    end: IntArray  # j
    values: IntArray  # (B, K) by the berth before the stage, its own for the first
    num_layers: int

    def of_stage(self, stage: int) -> IntArray:
        """Those of one stage, (B, B, L + 1, L + 1): the berth before it, its own, i and j."""
        count, width = len(self.values), self.num_layers + 1
        table = np.full((count, count, width, width), _NEVER)
        here = slice(self.begin[stage], self.begin[stage + 1])
        table[:, self.berth[here], self.start[here], self.end[here]] = self.values[:, here]
        return table

    def of(self, stage: int, before: int, stop: Stop) -> int:
        """What one stage that fits costs behind a berth."""
        here = slice(self.begin[stage], self.begin[stage + 1])
        alike = (self.start[here] == stop.start) & (self.end[here] == stop.end)
        own = np.flatnonzero(alike & (self.berth[here] == stop.berth))[0]
        return int(self.values[before, self.begin[stage] + own])


def sweep(costs: Costs, routes: Routes, *, largest: bool = False) -> list[IntArray]:
    """Return the best value of every state after every stage, (S, L + 1); ``_NEVER`` where there is no way.

    ``largest`` takes the maximum of the costs, else their sum.
    """
    found = [costs.of_stage(0)[routes.first, routes.first, 0]]
    for stage, ways in enumerate(routes.steps, 1):
        look()
        found.append(_next(found[-1], ways, costs.of_stage(stage), largest=largest))
    return found


def _next(before: IntArray, ways: Steps, cost: IntArray, *, largest: bool) -> IntArray:
    """Return the values after one more stage, of states that have a way to them."""
    after = np.full((len(ways.first_of_target), before.shape[1]), _NEVER)
    reached = before < _NEVER
    alive = np.asarray(reached.any(axis=1))
    able = ways.by_target[alive[ways.source[ways.by_target]]]
    if not len(able):
        return after
    columns = np.flatnonzero(reached.any(axis=0))
    here = slice(columns[0], columns[-1] + 1)
    values = before[ways.source[able], here, None]
    more = cost[ways.before[able], ways.berth[able], here]
    best = (np.maximum(values, more) if largest else values + more).min(axis=1)
    target, first = np.unique(ways.target[able], return_index=True)
    after[target] = np.minimum(np.minimum.reduceat(best, first, axis=0), _NEVER)
    return after


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The placement of least closed form."""

    placement: Placement
    objective_s: float


class Program:
    """The exact program of one field; costs in whole nanoseconds, so that ties are ties."""

    def __init__(self, field: Field) -> None:
        self.field, self.routes = field, routes_of(field.p, field.room)
        stage, berth, start, end = np.nonzero(field.fits.swapaxes(0, 1))
        time_s, tail_s = np.empty(len(stage)), np.empty(len(stage))
        for own, table in enumerate(field.tables):
            here = berth == own
            cells = (stage[here], start[here], end[here])
            time_s[here], tail_s[here] = table.time_at(cells), table.tail_at(cells)
        times = time_s + field.enter_s[:, berth]
        square = times**2
        most = float(square.max(initial=0.0)) or 1.0
        even = np.floor(np.minimum(square / most, 1.0) * ((_EVEN - 1) / field.p))
        slowest = np.rint(((field.m - 1.0) * times + tail_s) * _NS)
        self.slowest = Costs(
            begin=np.searchsorted(stage, np.arange(field.p + 1)),
            berth=berth,
            start=start,
            end=end,
            values=slowest.astype(np.int64),
            num_layers=field.num_layers,
        )
        self.sum = np.rint(times * _NS).astype(np.int64) * _EVEN + even.astype(np.int64)  # (B, K)

    def least_slowest(self) -> int:
        """Least largest stage of any placement; ``_NEVER`` where none fits."""
        if self.routes is None:
            return _NEVER
        return int(sweep(self.slowest, self.routes, largest=True)[-1][:, -1].min())

    def least_sum(self, cap: int) -> tuple[int, Placement] | None:
        """The placement of least sum whose stages all stay within ``cap``."""
        if self.routes is None:
            return None
        costs = replace(self.slowest, values=np.where(self.slowest.values <= cap, self.sum, _NEVER))
        values = sweep(costs, self.routes)
        least = int(values[-1][:, -1].min())
        if least >= _NEVER:
            return None
        return least // _EVEN, _traced(costs, self.routes, values)

    def largest_of(self, placement: Placement) -> int:
        """The largest stage of a placement."""
        before = (placement[0], *placement[:-1])
        return max(
            self.slowest.of(stage, one.berth, stop)
            for stage, (one, stop) in enumerate(zip(before, placement, strict=True))
        )

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


def _traced(costs: Costs, routes: Routes, values: list[IntArray]) -> Placement:
    """Return the placement behind the least value, from the last stage to the first."""
    state, layer, stops = int(values[-1][:, -1].argmin()), costs.num_layers, list[Stop]()
    for stage in range(len(routes.steps), 0, -1):
        ways = routes.steps[stage - 1]
        into = np.flatnonzero(ways.target == state)
        berth, source = int(ways.berth[into[0]]), ways.source[into]
        more = costs.of_stage(stage)[ways.before[into], berth, :, layer]
        reached = values[stage - 1][source] + more
        way, start = (int(at) for at in np.unravel_index(int(reached.argmin()), reached.shape))
        stops.append(Stop(berth, start, layer))
        state, layer = int(source[way]), start
    stops.append(Stop(int(routes.first[state]), 0, layer))
    return tuple(reversed(stops))


# --------------------------------------------------------------------------------------------------
# What a stage of n layers takes on each berth, for every stage of a row: the tables that bounds read.
#
# The same sums as ``splits.StageTables``, by number of layers and first layer instead of first and last
# one. Where all layers are of one kind the first does not matter and its axis has one entry, so that a
# field costs a few thousand numbers. Memory is judged with room for rounding: what fits there fits here.


_ROUNDING = 1.0 + 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Bands:
    """Arrays (B, p, N, W): berth, stage, number of layers less one, first layer (W = 1: any)."""

    time_s: FloatArray  # forward and backward of one micro-batch behind a stage of the same berth
    forward_s: FloatArray
    tail_s: FloatArray
    fits: BoolArray  # the layers are as the request says and fit the berth's memory

    @classmethod
    def of(cls, field: Field) -> Bands:
        """The tables of a field."""
        outer, most = field.outer, field.num_layers - field.p + 1
        sums = outer.layout.cumulative
        if len(outer.layout.kinds) == 1:
            held = sums[1 : most + 1, None, :] - sums[:1, None, :]
        else:
            ends = np.arange(1, most + 1)[:, None] + np.arange(len(sums))[None, :]
            held = sums[np.minimum(ends, field.num_layers)] - sums[None, :, :]
        layers = held.astype(np.float64)
        tables = [_of_berth(field, outer.rows[berth], layers) for berth in field.berths]
        return cls(
            time_s=np.stack([table.time_s for table in tables]),
            forward_s=np.stack([table.forward_s for table in tables]),
            tail_s=np.stack([table.tail_s for table in tables]),
            fits=np.stack([table.fits for table in tables]),
        )


def _of_berth(field: Field, rows: Rows, layers: FloatArray) -> Bands:
    """One berth's tables, (p, N, W); ``layers`` (N, W, K) of each kind."""
    prices, row, p = rows.prices, field.row, field.p
    stage = np.arange(p)[:, None, None]
    ends = (stage == 0, stage == p - 1)
    everyone = bool(rows.every_layer[row])

    def spread(price: FloatArray) -> FloatArray:
        return np.asarray(layers @ price[:-2] + ends[0] * price[-2] + ends[1] * price[-1])

    forward = spread(prices.forward_s[row]) + prices.transfer_s[row]
    backward = prices.backward_s[row] + (prices.replay_s[row] if everyone else 0.0)
    kept = prices.activation_bytes[row].copy()
    if everyone:
        kept[:-2] = prices.checkpoint_bytes[row, :-2]
    held = rows.held[row, :p, None, None]
    used = stage_bytes(prices, row, spread(rows.state_bytes[row]) + held * spread(kept), ends[1])
    asked, number = field.asked_layers[:, None, None], np.arange(1, len(layers) + 1)[:, None]
    return Bands(
        time_s=forward + spread(backward) + prices.transfer_s[row],
        forward_s=forward,
        tail_s=spread(prices.tail_s[row]) + prices.rank_tail_s[row],
        fits=(used <= rows.budget_bytes * _ROUNDING) & ((asked == 0) | (asked == number)),
    )
