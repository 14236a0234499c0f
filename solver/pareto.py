"""The front of step time and peak memory, and of the number of GPUs where that is open.

Point by point from the fastest: the next point is the fastest layout whose every rank stays a step of
``STEP`` below the peak of the one before, found and proved by the same best-first search under that
smaller budget. So every point is exact: no layout that needs no more memory than its ``budget_bytes``
has a faster best split. Between two points the front is known to within one step of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from profiles.profile import Profile
from solver.candidates import searched_space
from solver.plan import ParetoFront, ParetoPoint, Plan
from solver.problem import Problem
from solver.search.answering import plans_of
from solver.search.certify import Certificate
from solver.search.frontier import Frontier
from solver.search.priced import Priced, priced_space
from solver.search.watch import Watch
from solver.variants import Variant, workload_of

STEP = 0.04  # of the peak before
_MOST_POINTS = 48  # of one number of GPUs


def front_of(asked: Problem, variants: Sequence[Variant], watch: Watch) -> ParetoFront:
    """The front over all variants of a request; as far as the time allows."""
    points, finished = list[ParetoPoint](), True
    for variant in variants:
        for point in _points(variant, watch):
            plan = replace(point.plan, workload=workload_of(variant.problem, asked))
            points.append(replace(point, plan=plan))
        finished &= not watch.stopped
    kept = tuple(undominated(points))
    words = (
        "every point is proved: no layout that stays within its budget_bytes on as many GPUs is faster"
        if finished
        else "the time limit came first: points that are listed are proved, slower ones may be missing"
    )
    return ParetoFront(points=kept, complete=finished, memory_step=STEP, claim=words)


def undominated(points: Iterable[ParetoPoint]) -> Iterator[ParetoPoint]:
    """Points that no other equals or beats in time, memory and GPUs at once, fastest first."""
    kept: list[tuple[float, int, int]] = []
    for point in sorted(points, key=_figures):
        mine = _figures(point)
        if not any(all(other <= own for other, own in zip(found, mine, strict=True)) for found in kept):
            kept.append(mine)
            yield point


def _figures(point: ParetoPoint) -> tuple[float, int, int]:
    """What a front weighs against one another; steps of other batches by their sequences."""
    plan = point.plan
    step_s = plan.prediction.step_time_s / plan.config.global_batch_size
    return step_s, plan.prediction.peak_memory_bytes, plan.config.num_gpus


def _points(variant: Variant, watch: Watch) -> Iterator[ParetoPoint]:
    """The front of each number of GPUs."""
    options = replace(
        variant.problem.options, objective="step_time", deadline_days=None, top_k=1, batch_sizes=()
    )
    problem = replace(variant.problem, options=options)
    space = searched_space(problem, watch.interrupted, one_by_one=True)
    columns = space.columns.take(space.legal)
    for count in np.unique(columns.num_gpus)[::-1]:
        rows = priced_space(problem, variant.profile, columns.take(columns.num_gpus == count))
        yield from _descent(problem, variant.profile, rows, watch)


def _descent(problem: Problem, profile: Profile, rows: Priced, watch: Watch) -> Iterator[ParetoPoint]:
    """Fastest plans under smaller and smaller budgets."""
    for _ in range(_MOST_POINTS):
        plan = _fastest(problem, profile, rows, watch)
        if plan is None:
            return
        yield ParetoPoint(plan=plan, budget_bytes=int(rows.budget_bytes))
        rows = replace(rows, budget_bytes=plan.prediction.peak_memory_bytes * (1.0 - STEP))


def _fastest(problem: Problem, profile: Profile, rows: Priced, watch: Watch) -> Plan | None:
    """The fastest plan within the rows' budget; None where there is none, or no time to prove it."""
    if watch.interrupted():
        return None
    frontier = Frontier.of(rows, 1, watch.interrupted)
    frontier.run(lambda _: watch.interrupted())
    if not frontier.finished or not frontier.ranked:
        return None
    return plans_of(problem, profile, frontier, Certificate())[0]
