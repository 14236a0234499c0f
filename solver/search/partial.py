"""How long splits take at least of which some ranks are known, many side by side.

Where a schedule fixes the order of passes that is their simulation with the least layers elsewhere, as far
as it only grows with them; where orders are made for the times it is what the bounds say, and splits that
are known whole are simulated in every order that ``simulate`` tries.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from solver.columns import SCHEDULES, BoolArray, FloatArray, IntArray
from solver.cost.assemble import Stages, assemble
from solver.cost.schedule import AUTOMATIC, BYPASSES_SYNC
from solver.search.automatic_many import automatic_finish_of_many_s
from solver.search.bounds import SAFETY, split_s
from solver.search.rows import Rows
from solver.search.watch import look
from solver.search.wavefront import finish_of_many_s

MAKES_ORDER = np.array([name in AUTOMATIC for name in SCHEDULES])
_AT_ONCE = 2**21  # passes simulated together


def makes_its_order(row: Rows) -> bool:
    """Whether the schedule makes its order for the times."""
    return bool(MAKES_ORDER[row.columns.pipeline_schedule[0]])


def passes_of(row: Rows) -> int:
    """Passes of a step, of all ranks together."""
    return (2 + int(row.splits_backward[0])) * int(row.p[0] * row.v[0]) * int(row.m[0])


def least_steps_s(row: Rows, sizes: IntArray, tick: Callable[[], object]) -> FloatArray:
    """Simulated step of every split, rounded down, shape (k,); its bound where the row makes its order."""
    size = max(_AT_ONCE // passes_of(row), 1)
    found = []
    for start in range(0, len(sizes), size):
        look()
        tick()
        part = sizes[start : start + size]
        many = row.take(np.zeros(len(part), dtype=np.int64))
        stages = assemble(many.prices, many.columns, many.layout, part, with_memory=False)
        if makes_its_order(row):
            found.append(split_s(many, stages))
        else:
            found.append(_step_s(row, _finish_s(row, stages), stages))
    return np.concatenate(found) if found else np.zeros(0)


def _finish_s(row: Rows, stages: Stages) -> FloatArray:
    """When the ranks of one row end under several splits, (k, p)."""
    schedule, m = SCHEDULES[int(row.columns.pipeline_schedule[0])], int(row.m[0])
    finish = finish_of_many_s(
        stages.chunk_forward_s,
        stages.chunk_backward_s,
        weight_s=stages.chunk_weight_s,
        pp=int(row.p[0]),
        num_microbatches=m,
        schedule=schedule,
    )
    if schedule in BYPASSES_SYNC and schedule not in AUTOMATIC:
        # a later start is no later end: their work is all that only grows
        finish[:, 1:] = m * stages.rank_time_s[:, 1:]
    return finish


def made_steps_s(row: Rows, sizes: IntArray) -> FloatArray:
    """Simulated step of every split where the order is made for the times, at least, shape (k,).

    The least of all orders; ``simulate`` takes the one that ends first before the ranks' tails.
    """
    many = row.take(np.zeros(len(sizes), dtype=np.int64))
    stages = assemble(many.prices, many.columns, many.layout, sizes, with_memory=False)
    forward, weight = stages.chunk_forward_s, stages.chunk_weight_s
    made = automatic_finish_of_many_s(
        forward,
        stages.chunk_backward_s - weight,
        weight,
        num_microbatches=int(row.m[0]),
        schedule=SCHEDULES[int(row.columns.pipeline_schedule[0])],
    )
    made = made - (np.cumsum(forward, axis=1) - forward)  # from each rank's own start
    steps = [_step_s(row, finish, stages) for finish in (_finish_s(row, stages), *made)]
    return np.asarray(np.minimum.reduce(steps))


def fits(row: Rows, sizes: IntArray) -> BoolArray:
    """Which splits fit in memory, shape (k,)."""
    many = row.take(np.zeros(len(sizes), dtype=np.int64))
    stages = assemble(many.prices, many.columns, many.layout, sizes)
    return np.asarray(stages.peak_memory_bytes.max(axis=1) <= row.budget_bytes)


def _step_s(row: Rows, finish_s: FloatArray, stages: Stages) -> FloatArray:
    """The step from the ends of the ranks, rounded down, shape (k,)."""
    last = (finish_s + stages.rank_tail_s).max(axis=1)
    return np.asarray((row.prices.straggler[0] * last + row.prices.fixed_s[0]) * SAFETY)
