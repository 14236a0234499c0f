"""Nothing fits on a mixed cluster: the placement that lacks least memory on its worst stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, product

import numpy as np

from profiles.profile import Profile
from profiles.units import GIB
from solver.columns import FloatArray
from solver.cost.memory import memory_limit_bytes
from solver.mixed.field import Field
from solver.mixed.fleet import Fleet
from solver.mixed.frontier import Placed
from solver.mixed.outer import Outer, outer_of
from solver.mixed.pipeline import placed_pipeline
from solver.mixed.plans import of_placement
from solver.mixed.program import Program
from solver.plan import Shortfall
from solver.problem import Problem
from solver.search.fitting import lightest
from solver.search.watch import Watch, look

_ROWS = 24  # rows looked at closely, those with most room for their layers
_FIELDS = 512  # choices of berths of these rows
_ANY = 2**60 - 1  # of a stage's time
_LARGEST_BYTES = 2.0**44  # more than any stage lacks
_CLOSE_BYTES = 2.0**20  # the shortfall is known to a MiB
_STATIC_TERMS = ("weights", "gradients", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """The nearest configuration, and what it lacks in words."""

    shortfall: Shortfall
    reason: str
    group: str
    log_memory_sigma: float  # of that group's predictions


def nearest_lack(problem: Problem, profile: Profile, watch: Watch) -> Lack | None:
    """The placement that lacks least, among the rows that have most room; None where no row is legal.

    A row is as heavy as its lightest choice: the smallest micro-batch, every layer recomputed. Where the
    time is over before, it is the least of what was tried, if anything was.
    """
    tried = list[tuple[float, Placed]]()
    outer = Outer.of_nothing(fleet := Fleet.of(problem, profile))
    with watch.cut():
        outer, _ = outer_of(fleet, wide=True)
        for one in islice(_fields(outer, _roomiest(outer)) if len(outer) else (), _FIELDS):
            look()
            _try_less(one, tried)
    return _told(problem, profile, outer, tried[-1][1]) if tried else None


def _roomiest(outer: Outer) -> list[int]:
    """Light rows by how many times their layers fit in the memory of the stages there is room for."""
    light = lightest(outer.columns)
    capacity = np.stack([_capacity(outer, berth, light) for berth in range(len(outer.berths))])
    groups, p = outer.group_of, outer.columns.pipeline_parallel_size[light]
    best = np.stack([capacity[groups == at].max(axis=0) for at in np.unique(groups)])
    room = np.stack([outer.room[groups == at][:, light].max(axis=0) for at in np.unique(groups)])
    order = np.argsort(-best, axis=0, kind="stable")
    best, room = np.take_along_axis(best, order, axis=0), np.take_along_axis(room, order, axis=0)
    taken = np.diff(np.minimum(np.cumsum(room, axis=0), p), axis=0, prepend=0)
    order = np.argsort(-(taken * best).sum(axis=0), kind="stable")
    return [int(row) for row in light[order[:_ROWS]]]


def _capacity(outer: Outer, berth: int, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> FloatArray:
    """Layers of one stage that a berth's memory holds, however large the parts are, (n,)."""
    one = outer.rows[berth].take(rows)
    kept = np.where(one.every_layer[:, None] > 0, one.prices.checkpoint_bytes, one.prices.activation_bytes)
    each = (one.state_bytes + kept)[:, :-2].min(axis=1)
    room = (one.budget_bytes - one.prices.context_bytes) / one.prices.reserve - one.prices.buffer_bytes
    return np.asarray(np.where(outer.room[berth, rows] > 0, np.maximum(room, 1.0) / each, 0.0))


def _fields(outer: Outer, rows: list[int]) -> Iterator[Field]:
    """Every choice of berths of the rows."""
    groups = outer.group_of
    for row in rows:
        by_group = [
            [None, *(int(b) for b in np.flatnonzero((groups == at) & (outer.room[:, row] > 0)))]
            for at in range(len(outer.fleet.groups))
        ]
        for choice in product(*by_group):
            berths = tuple(berth for berth in choice if berth is not None)
            one = Field(outer=outer, row=row, berths=berths)
            if berths and len(berths) <= one.p <= sum(one.room):
                yield one


def _fits_with(one: Field, more_bytes: float) -> Placed | None:
    """A placement of a field where every GPU had so much more memory."""
    rows = tuple(replace(rows, budget_bytes=rows.budget_bytes + more_bytes) for rows in one.outer.rows)
    found = Program(replace(one, outer=replace(one.outer, rows=rows))).least_sum(_ANY)
    return None if found is None else Placed((), 0.0, 0.0, one.row, one.berths, found[1])


def _try_less(one: Field, tried: list[tuple[float, Placed]]) -> None:
    """Add placements of a field with ever less further memory than those before, and that memory."""
    least = tried[-1][0] if tried else _LARGEST_BYTES
    able = _fits_with(one, least - _CLOSE_BYTES)
    if able is None:
        return
    low, high = 0.0, least - _CLOSE_BYTES
    tried.append((high, able))
    while high - low > _CLOSE_BYTES:
        look()
        middle = (low + high) / 2.0
        able = _fits_with(one, middle)
        if able is None:
            low = middle
        else:
            high = middle
            tried.append((high, able))


def _told(problem: Problem, profile: Profile, outer: Outer, found: Placed) -> Lack:
    """The stage that lacks most, its group and its terms."""
    config = of_placement(outer, found).config
    pipeline = placed_pipeline(problem, profile, config)
    budgets = pipeline.budgets_bytes()
    memory = [stage.memory_bytes() for stage in pipeline.stages]
    short = [sum(terms.values()) - budget for terms, budget in zip(memory, budgets, strict=True)]
    at = int(np.argmax(short))
    on, needed = pipeline.stages[at].on, sum(memory[at].values())
    static = sum(memory[at][term] for term in _STATIC_TERMS)
    limit, group = memory_limit_bytes(on.problem), config.stage_groups[at].group
    reason = (
        f"memory: stage {at} on {group} of the nearest configuration needs {needed / GIB:.1f} GiB "
        f"({static / GIB:.1f} GiB of it weights, gradients and optimizer states), {short[at] / GIB:.1f} "
        f"GiB more than a predicted peak may fill there: {budgets[at] / GIB:.1f} of {limit / GIB:.1f} GiB"
    )
    shortfall = Shortfall(
        config=config, stage=at, needed_bytes=needed, limit_bytes=int(budgets[at]), memory_bytes=memory[at]
    )
    return Lack(
        shortfall=shortfall, reason=reason, group=group, log_memory_sigma=on.profile.log_memory_sigma
    )
