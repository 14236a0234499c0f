"""Lower bounds on the simulated step of rows of a mixed cluster, before any placement is looked at.

Whatever the order of the stages: some stage takes at least tau, the least time in which the stages that
the berths have room for can hold all layers together. Then (A) gives ``m tau``, and (B)
``sum t + (m - 1) tau - (w - 1) F``, w - 1 <= min(m, p) - 1, F at most the largest share of tau. Every
layer is counted as the cheapest kind, every transfer as the cheapest, memory as if one micro-batch were
in flight; so neither can exceed what a placement simulates to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import BoolArray, Columns, FloatArray, IntArray
from meshwright.solver.cost.pipelines import Berth, NodeGroups
from meshwright.solver.cost.stages import end_of_step_s, step_of_end_s
from meshwright.solver.search.bounds import SAFETY
from meshwright.solver.search.placement.program import (
    Bands,
    Field,
    Placement,
    Routes,
    Steps,
    Stop,
    routes_of,
)
from meshwright.solver.search.placement.rows import Outer
from meshwright.solver.search.rows import Rows

_BISECTIONS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """The least that a stage may take on each berth, arrays (K, n)."""

    layer_s: FloatArray
    beside_s: FloatArray  # transfers
    embedding_s: FloatArray
    head_s: FloatArray
    most_layers: FloatArray  # of a stage, by memory
    forward_share: FloatArray  # at most, of a stage's time
    tail_s: FloatArray  # of the first stage
    any_tail_s: FloatArray  # of any stage
    straggler: FloatArray
    fixed_s: FloatArray
    room: IntArray

    def at(self, berths: IntArray, rows: IntArray) -> Floors:
        """Rows (C,) on choices of berths (G, C): arrays (G, C); -1 is no berth."""
        parts = {name: getattr(self, name)[berths, rows] for name in self.__slots__}
        parts["room"] = np.where(berths < 0, 0, parts["room"])
        return Floors(**parts)

    def least(self, values: FloatArray) -> FloatArray:
        """Of the berths that there is room on, (n,)."""
        return np.asarray(np.where(self.room > 0, values, np.inf).min(axis=0))

    def total_s(self, p: IntArray, layers: int) -> FloatArray:
        """Least sum of all stages' times, (n,)."""
        return layers * self.least(self.layer_s) + (p - 1) * self.least(self.beside_s) + self.ends_s

    @property
    def ends_s(self) -> FloatArray:
        """The least that embedding and head take, be they on two berths, (n,)."""
        return self.least(self.embedding_s) + self.least(self.head_s)


def floors_of(outer: Outer) -> Floors:
    """The floors of all rows on all berths."""
    hops = [_least_hop_s(outer, at) for at in range(len(outer.berths))]
    parts = []
    for rows, hop in zip(outer.rows, hops, strict=True):
        look()
        parts.append(_of_berth(rows, hop))
    stacked = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    return Floors(room=outer.room, **stacked)


def _least_hop_s(outer: Outer, berth: int) -> FloatArray:
    """The cheapest transfer into a berth, its own group's included, (n,)."""
    look()
    own, group = outer.rows[berth].prices.transfer_s, outer.berths[berth].group
    least, sent = own.copy(), outer.sent_bytes[berth]
    for other in {one.group for one in outer.berths} - {group}:
        sizes, which = np.unique(sent, return_inverse=True)
        least = np.minimum(least, outer.fleet.hop_s(other, group, sizes)[which])
    return np.asarray(np.where(outer.columns.pipeline_parallel_size > 1, least, 0.0))


def _of_berth(rows: Rows, hop_s: FloatArray) -> dict[str, FloatArray]:
    """One berth's floors, (n,) each."""
    prices, layers = rows.prices, slice(None, -2)
    each = (rows.state_bytes + rows.least_kept_bytes)[:, layers].min(axis=1)
    time = np.maximum(prices.forward_s + prices.backward_s, 1e-30)
    share = (prices.forward_s / time).max(axis=1)
    return {
        "layer_s": rows.layer_s.min(axis=1),
        "beside_s": 2.0 * hop_s,
        "embedding_s": rows.embedding_s,
        "head_s": rows.head_s,
        "most_layers": np.floor(np.maximum(rows.parts_room_bytes, 0.0) / each * (1.0 + 1e-12)),
        "forward_share": np.maximum(share, 0.5),
        "tail_s": prices.rank_tail_s + prices.tail_s[:, -2] + prices.tail_s[:, layers].min(axis=1),
        "any_tail_s": prices.rank_tail_s + prices.tail_s[:, layers].min(axis=1),
        "straggler": prices.straggler,
        "fixed_s": prices.fixed_s,
    }


def _held(floors: Floors, tau_s: FloatArray) -> FloatArray:
    """Layers that a stage of each berth can hold in ``tau_s`` (n,), (K, n)."""
    whole = np.floor((tau_s - floors.beside_s) / floors.layer_s * (1.0 + 1e-12))
    return np.asarray(np.clip(whole, 0.0, floors.most_layers))


def _enough(
    floors: Floors, groups: IntArray | None, tau_s: FloatArray, p: IntArray, layers: int
) -> BoolArray:
    """Whether p stages may hold all layers in ``tau_s`` each, (n,); False is a proof.

    Without ``groups`` every berth that has room has a stage.
    """
    look()
    held = np.where(floors.room > 0, _held(floors, tau_s), 0.0)
    if groups is not None:  # berths of one group exclude one another
        each = np.minimum(floors.room, p) * held
        together = sum(each[groups == at].max(axis=0) for at in np.unique(groups))
        return np.asarray(np.minimum(together, p * held.max(axis=0)) >= layers)
    present = floors.room > 0  # each holds one stage or more, the others stand where most goes in
    order = np.argsort(-held, axis=0, kind="stable")
    room = np.take_along_axis(floors.room - present, order, axis=0)
    most = np.take_along_axis(held, order, axis=0)
    upto = np.minimum(np.cumsum(room, axis=0), p - present.sum(axis=0))
    further = (np.diff(upto, axis=0, prepend=0) * most).sum(axis=0)
    alone = np.where(present, held, np.inf).min(axis=0) >= 1.0
    return np.asarray((held.sum(axis=0) + further >= layers) & alone)


def least_stage_s(floors: Floors, groups: IntArray | None, p: IntArray, layers: int) -> FloatArray:
    """tau: some stage of any placement takes at least this, (n,); +inf where the layers never fit."""
    present = floors.room > 0
    low = np.zeros(len(p))
    high = np.where(present, floors.layer_s * layers + floors.beside_s, 0.0).max(axis=0) * (1.0 + 1e-9)
    never = ~_enough(floors, groups, high, p, layers)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        able = _enough(floors, groups, middle, p, layers)
        low, high = np.where(able, low, middle), np.where(able, middle, high)
    return np.where(never, np.inf, low)


def counts_of(floors: Floors, groups: IntArray, p: IntArray) -> tuple[FloatArray, FloatArray]:
    """The p fastest stages there is room for: seconds of a layer, and number, by group, fastest first."""
    names = np.unique(groups)
    layer_s = np.where(floors.room > 0, floors.layer_s, np.inf)
    each = np.stack([layer_s[groups == at].min(axis=0) for at in names])
    room = np.stack([floors.room[groups == at].max(axis=0) for at in names])
    order = np.argsort(each, axis=0, kind="stable")
    each, room = np.take_along_axis(each, order, axis=0), np.take_along_axis(room, order, axis=0)
    upto = np.minimum(np.cumsum(room, axis=0), p)
    return each, np.diff(upto, axis=0, prepend=0).astype(np.float64)


def _chain_s(floors: Floors, groups: IntArray, p: IntArray, m: IntArray, layers: int) -> FloatArray:
    """Least end_0 that all (A) together leave, layers divisible, whatever the order, (n,).

    Sorted by falling time, stages obey ``m x_j + sum_{i<j} x_i <= Z`` too, so with the fastest berths
    first the most layers go in when all of these are tight: ``x_j = Z / m (1 - 1 / m)^j``.
    """
    each, count = counts_of(floors, groups, p)
    q = 1.0 - 1.0 / m
    start = np.cumsum(count, axis=0) - count
    held = (q**start - q ** (start + count)) / np.where(count > 0, each, 1.0)  # layers for each second
    present = floors.room > 0
    beside = np.where(present, floors.beside_s, np.inf).min(axis=0)
    lost = (count / np.where(count > 0, each, 1.0)).sum(axis=0) * beside
    return np.asarray((layers + lost) / np.maximum(held.sum(axis=0), 1e-30))


def step_bound_s(floors: Floors, groups: IntArray | None, columns: Columns, layers: int) -> FloatArray:
    """Lower bound of every row over all placements on the berths it has room on, (n,).

    ``groups`` (K,) are the berths'; None: they are of different groups, and each has a stage.
    """
    p, m, present = columns.pipeline_parallel_size, columns.num_microbatches, floors.room > 0
    stage_s = least_stage_s(floors, groups, p, layers)
    least, total = floors.least, floors.total_s(p, layers)
    share = np.where(present, floors.forward_share, 0.0).max(axis=0)
    slope = np.maximum(m - 1.0 - (np.minimum(m, p) - 1.0) * share, 0.0)
    chain_s = _chain_s(floors, np.arange(len(present)) if groups is None else groups, p, m, layers)
    with np.errstate(invalid="ignore"):
        ends = np.maximum(np.maximum(m * stage_s, chain_s), total + slope * stage_s)
        ends = ends + least(floors.tail_s)
        step = step_of_end_s(ends, least(floors.straggler), least(floors.fixed_s))
    return np.asarray(np.where(np.isfinite(stage_s), step * SAFETY**2, np.inf))


# --------------------------------------------------------------------------------------------------
# The same for a choice of berths, each of which has a stage: what all stages take together depends on how
# long the slowest may take.
#
# With x its time, a berth holds at most the layers that its stages have time and memory for, so that the
# sum is least with the fastest berths full. It falls with x: between two values of x the larger one's sum P
# and the smaller one bound (B) and (H) of ``Reach`` for the slowest stage, wherever it stands. With w < m
# micro-batches in flight p - w stages are before it, none slower, so R >= P - (p - w + 1) x behind it.


_STEP, _STEPS = 1.01, 48  # values of x from tau on, to 1.6 tau; the last one counts for all above
_UNLIMITED = 1e6


def field_bound_s(floors: Floors, columns: Columns, layers: int) -> FloatArray:
    """Lower bound of every row over all placements on its berths, each with a stage, (n,)."""
    p, m, present = columns.pipeline_parallel_size, columns.num_microbatches, floors.room > 0
    slowest_s = least_stage_s(floors, None, p, layers)
    able = np.isfinite(slowest_s)
    share = np.where(present, floors.forward_share, 0.0).max(axis=0)
    each, _, forced = stages_of(floors, None, p)
    order = np.argsort(np.where(present, floors.layer_s, np.inf), axis=0, kind="stable")
    beside = (p - 1) * floors.least(floors.beside_s) + floors.ends_s
    flight = np.arange(1, int(np.minimum(m, p).max(initial=1)) + 1)[:, None]
    ends, below = np.full(len(p), np.inf), np.where(able, slowest_s, 1.0)
    for step in range(_STEPS):
        above = below * (_STEP if step < _STEPS - 1 else _UNLIMITED)
        held = np.where(present, floors.room * _held(floors, above), 0.0)
        total = filled_s(each, np.take_along_axis(held, order, axis=0), forced, layers) + beside
        late = total + (m - 1.0) * below - (flight - 1.0) * share * below
        with np.errstate(invalid="ignore"):
            there = total + (m - flight) * below + np.maximum(total - (p - flight + 1.0) * above, 0.0)
            least = np.where(flight < m, np.maximum(late, there), late)
        ends = np.minimum(ends, np.where(flight <= np.minimum(m, p), least, np.inf).min(axis=0))
        below = above
    with np.errstate(invalid="ignore"):
        ends = ends + floors.least(floors.tail_s)
        step_s = step_of_end_s(ends, floors.least(floors.straggler), floors.least(floors.fixed_s))
    return np.asarray(np.where(able, step_s * SAFETY**2, np.inf))


def stages_of(
    floors: Floors, groups: IntArray | None, p: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds of a layer, most stages and least layers by group, fastest first, (G, n).

    Without ``groups`` every berth that has room has a stage with a layer.
    """
    if groups is not None:
        each, count = counts_of(floors, groups, p)
        return np.where(np.isfinite(each), each, 1.0), count, np.zeros_like(count)
    present = floors.room > 0
    each = np.where(present, floors.layer_s, np.inf)
    order = np.argsort(each, axis=0, kind="stable")
    each = np.take_along_axis(each, order, axis=0)
    forced = np.take_along_axis(present, order, axis=0).astype(np.float64)
    room = np.take_along_axis(np.maximum(floors.room - 1, 0), order, axis=0)
    upto = np.minimum(np.cumsum(room, axis=0), p - present.sum(axis=0))
    count = np.diff(upto, axis=0, prepend=0) + forced
    return np.where(np.isfinite(each), each, 1.0), count, forced


def filled_s(each: FloatArray, room: FloatArray, forced: FloatArray, layers: int) -> FloatArray:
    """Seconds of all layers, the fastest berths filled first; +inf where they have no room, (n,)."""
    free = np.cumsum(np.maximum(room - forced, 0.0), axis=0)
    taken = np.diff(np.minimum(free, layers - forced.sum(axis=0)), axis=0, prepend=0.0)
    placed = (taken + forced).sum(axis=0) * (1.0 + 1e-9) >= layers
    return np.asarray(np.where(placed, ((taken + forced) * each).sum(axis=0), np.inf))


# --------------------------------------------------------------------------------------------------
# Whether some placement of a field may simulate within a time; *no* is a proof.
#
# For a time Z a stage with P seconds of stages before it and R behind it must keep, with w = min(m, p -
# s),
#
# (A) ``P + m T + tail_0 <= Z``
# (B) ``P + T + R + (m - 1) T - (w - 1) F + tail_0 <= Z``
# (H) ``P + T + R + (m - w) T + R + tail_0 <= Z`` where w < m: the first micro-batch goes down and back to
#     stage s, the stage works until it has passed the last one on, and that goes down and back as well
# (C), (D) the same with ``f P`` for P, without the way back, and tail_s; f: the least share of forward
#   time.
#
# R is the least sum behind a state, P the least sum of all ways into it that kept every limit, and P +
# tail_0 the least of those sums with the tail of their own first stage. All only make limits looser than
# they are, so if any placement keeps them all, its ways stay. Ways that break one are left out when R is
# found anew, and so on to and fro while some go and ``_ROUNDS`` last.


_ROUNDS = 5  # to and fro
Table = TypeVar("Table", FloatArray, BoolArray)


@dataclass(frozen=True, slots=True)
class _Step:
    """One stage's ways within a time: arrays (K, n, I) over ways, numbers of layers, first layers."""

    stage: int
    start: IntArray  # (I,) first layers
    end: IntArray  # (n, I) places of ``start + n`` among the boundaries behind, the last: none
    time_s: FloatArray
    forward_s: FloatArray
    tail_s: FloatArray
    behind_s: FloatArray  # least sum of the stages after


class Reach:
    """The bounds of one field under any time."""

    def __init__(self, field: Field) -> None:
        self.field, self.bands = field, Bands.of(field)
        self.routes = routes_of(field.p, field.room)
        fits = self.bands.fits
        self.tail_s = float(np.where(fits, self.bands.tail_s, np.inf)[:, 0].min(initial=np.inf))
        hop = field.enter_s[:, :, None, None, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(fits, (self.bands.forward_s + hop / 2.0) / (self.bands.time_s + hop), 0.5)
        self.share = max(float(np.clip(share.min(initial=0.5), 0.0, 0.5)), 1e-9)

    def can_beat(self, step_s: float) -> bool:
        """Whether the bounds leave a placement that steps within ``step_s``."""
        return self._search(step_s, traced=False) is not None

    def placement(self, step_s: float) -> Placement | None:
        """A placement that keeps the bounds within ``step_s``."""
        return self._search(step_s, traced=True)

    def _search(self, step_s: float, *, traced: bool) -> Placement | None:
        """The placement of least sum; empty where it is not asked for; None: there is none."""
        if self.routes is None or not np.isfinite(self.tail_s):
            return None
        room_s = end_of_step_s(step_s / SAFETY**2, self.field.straggler, self.field.fixed_s)
        windows = self._windows(room_s)
        if windows is None:
            return None
        return _Within(self, self.routes, room_s, windows).found(traced=traced)

    def _windows(self, room_s: float) -> list[tuple[int, int, int]] | None:
        """Of each stage: most layers, first and last boundary behind it; None: there are too few layers."""
        field, bands = self.field, self.bands
        short = bands.fits & (field.m * bands.time_s <= room_s - self.tail_s)
        some = short.any(axis=(0, 3))  # (p, N)
        most = np.where(some, np.arange(1, some.shape[1] + 1), 0).max(axis=1)
        if (most == 0).any():
            return None
        upto, total = np.cumsum(most), field.num_layers
        number = np.arange(1, field.p + 1)
        high = np.minimum(upto, total - field.p + number)
        low = np.maximum(number, total - (upto[-1] - upto))
        if (low > high).any():
            return None
        return list(zip(most.tolist(), low.tolist(), high.tolist(), strict=True))


def _alive(ways: list[FloatArray]) -> int:
    """Ways that keep every limit."""
    return sum(int(np.isfinite(one[0]).sum()) for one in ways)


class _Within:
    """One field under one time."""

    def __init__(
        self, reach: Reach, routes: Routes, room_s: float, windows: list[tuple[int, int, int]]
    ) -> None:
        self.reach, self.routes, self.room_s, self.windows = reach, routes, room_s, windows
        self.field, self.bands = reach.field, reach.bands

    def found(self, *, traced: bool) -> Placement | None:
        """Back from the end for the least sums behind, forward within the limits, and again."""
        steps, behind_s = list[_Step](), self._none_behind_s()
        for stage in range(self.field.p - 1, 0, -1):
            look()
            steps.append(self._step(stage, behind_s))
            behind_s = self._passed_s(steps[-1])
        sums, ways = self._forward(steps[::-1], behind_s)
        for _ in range(_ROUNDS):
            left = _alive(ways)
            if not np.isfinite(sums).any():
                return None
            steps, behind_s = self._without(steps, ways)
            sums, ways = self._forward(steps[::-1], behind_s)
            if _alive(ways) == left:
                break
        if not np.isfinite(sums).any():
            return None
        return self._traced(steps, sums, ways) if traced else ()

    def _none_behind_s(self) -> FloatArray:
        """Behind the last stage there is nothing."""
        return np.zeros((self.routes.num_states[-1], 1))

    def _passed_s(self, one: _Step) -> FloatArray:
        """Least sums behind the states before a step."""
        first = self.routes.steps[one.stage - 1].first_of_source
        return np.asarray(np.minimum.reduceat((one.time_s + one.behind_s).min(axis=1), first, axis=0))

    def _behind_s(self, stage: int, end: IntArray, behind_s: FloatArray) -> FloatArray:
        """What is behind each way; nothing is behind the place after the last boundary."""
        padded = np.concatenate([behind_s, np.full((len(behind_s), 1), np.inf)], axis=1)
        return np.asarray(padded[:, end][self.routes.steps[stage - 1].target])

    def _without(self, steps: list[_Step], ways: list[FloatArray]) -> tuple[list[_Step], FloatArray]:
        """The steps, last first, without the ways that broke a limit."""
        kept, behind_s = list[_Step](), self._none_behind_s()
        for one, reached in zip(steps, reversed(ways), strict=True):
            time = np.where(np.isfinite(reached[0]), one.time_s, np.inf)
            behind = self._behind_s(one.stage, one.end, behind_s)
            kept.append(replace(one, time_s=time, behind_s=behind))
            behind_s = self._passed_s(kept[-1])
        return kept, behind_s

    def _step(self, stage: int, behind_s: FloatArray) -> _Step:
        """The ways into a stage with what is behind it, (states, boundaries)."""
        ways, (most, low, high) = self.routes.steps[stage - 1], self.windows[stage]
        _, first, last = self.windows[stage - 1]
        start = np.arange(first, last + 1)
        end = start[None, :] + np.arange(1, most + 1)[:, None] - low
        end = np.where((end >= 0) & (end <= high - low), end, high - low + 1)
        hop = self.field.enter_s[ways.before, ways.berth][:, None, None]
        place = (ways.berth, stage, slice(None, most))
        time = self._at(self.bands.time_s, place, start) + hop
        tail = self._at(self.bands.tail_s, place, start)
        fits = self._at(self.bands.fits, place, start)
        fits = fits & (self.field.m * time <= self.room_s - np.minimum(self.reach.tail_s, tail))
        return _Step(
            stage=stage,
            start=start,
            end=end,
            time_s=np.where(fits, time, np.inf),
            forward_s=self._at(self.bands.forward_s, place, start) + hop / 2.0,
            tail_s=tail,
            behind_s=self._behind_s(stage, end, behind_s),
        )

    def _at(self, table: Table, place: tuple[IntArray, int, slice], start: IntArray) -> Table:
        """Entries of the ways' berths, (K, n, I), or (K, n, 1) where the first layer does not matter."""
        berth, stage, layers = place
        found = table[:, stage, layers][berth]
        return found if found.shape[2] == 1 else found[:, :, start]

    def _work_s(self, stage: int, time: FloatArray, forward: FloatArray, behind: FloatArray) -> FloatArray:
        """From a stage's start to the end of the way back, or of its own work: (A), (B) and (H)."""
        m, w = self.field.m, min(self.field.m, self.field.p - stage)
        with np.errstate(invalid="ignore"):
            work = np.maximum(m * time, m * time - (w - 1) * forward + behind)
            return np.maximum(work, (m - w + 1) * time + 2.0 * behind) if w < m else work

    def _forward(self, steps: list[_Step], behind_s: FloatArray) -> tuple[FloatArray, list[FloatArray]]:
        """Least sums into every state of the last stage, and by every way: with the first tail, without."""
        sums, ways = self._first_sums(behind_s), list[FloatArray]()
        for one in steps:
            look()
            tailed, plain = sums[:, self.routes.steps[one.stage - 1].source][:, :, None, :]
            room = self.room_s - self._work_s(one.stage, one.time_s, one.forward_s, one.behind_s)
            kept = (tailed <= room) & (self.reach.share * plain <= room - one.tail_s)
            time = np.where(kept, one.time_s, np.inf)
            ways.append(np.stack([tailed + time, plain + time]))
            sums = self._sums(one, ways[-1])
        return sums, ways

    def _first_sums(self, behind_s: FloatArray) -> FloatArray:
        """What the first stage takes, by state and boundary behind it."""
        _, low, high = self.windows[0]
        bands, berth, count = self.bands, self.routes.first, np.arange(low, high + 1)
        time, forward, tail = (
            table[berth, 0][:, count - 1, 0] for table in (bands.time_s, bands.forward_s, bands.tail_s)
        )
        fits = bands.fits[berth, 0][:, count - 1, 0]
        kept = fits & (tail + self._work_s(0, time, forward, behind_s) <= self.room_s)
        time = np.where(kept, time, np.inf)
        return np.stack([time + tail, time])

    def _sums(self, one: _Step, reached: FloatArray) -> FloatArray:
        """Least sums by state and boundary behind a stage."""
        steps, (_, low, high) = self.routes.steps[one.stage - 1], self.windows[one.stage]
        best = np.full((2, len(steps.source), high - low + 2), np.inf)
        for number, end in enumerate(one.end):
            best[:, :, end] = np.minimum(best[:, :, end], reached[:, :, number])
        return np.asarray(np.minimum.reduceat(best[:, steps.by_target, :-1], steps.first_of_target, axis=1))

    def _traced(self, steps: list[_Step], sums: FloatArray, ways: list[FloatArray]) -> Placement:
        """The placement behind the least sum, from the last stage to the first."""
        state, layer, stops = int(sums[0, :, -1].argmin()), self.field.num_layers, list[Stop]()
        for one, reached in zip(steps, reversed(ways), strict=True):
            into: Steps = self.routes.steps[one.stage - 1]
            there: BoolArray = one.start[None, :] + np.arange(1, len(one.end) + 1)[:, None] == layer
            mine = there[None] & (into.target == state)[:, None, None]
            way, _, at = np.unravel_index(int(np.where(mine, reached[0], np.inf).argmin()), mine.shape)
            start = int(one.start[at])
            stops.append(Stop(int(into.berth[way]), start, layer))
            state, layer = int(into.source[way]), start
        stops.append(Stop(int(self.routes.first[state]), 0, layer))
        return tuple(reversed(stops))


# --------------------------------------------------------------------------------------------------
# The pipelines of one node group under the bounds of placed stages, (H) among them.


def may_step_within(fleet: NodeGroups, rows: Rows, step_s: float) -> bool:
    """Whether some row has a split that the bounds leave within a time; *no* is a proof.

    Each row is a field with room for all of its stages on one berth, which no transfer leaves.
    """
    outer = Outer(
        fleet=fleet,
        columns=rows.columns,
        berths=(Berth(group=0, tensor_parallel_size=1),),  # named by no price
        rows=(rows,),
        room=rows.p[None, :],
        sent_bytes=np.zeros((1, len(rows))),
    )
    fields = (Field(outer=outer, row=row, berths=(0,)) for row in range(len(rows)))
    return any(Reach(field).can_beat(step_s) for field in fields)
