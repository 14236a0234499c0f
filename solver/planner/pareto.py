"""Front of step time and peak memory, and of the number of GPUs if that is open.

Point by point from the fastest: the next point is the fastest layout with every rank a step of
``STEP`` below the peak of the one before, found and proved by the same best-first search under that
smaller budget. So every point is exact: no layout that needs no more memory than its ``budget_bytes``
has a faster best split. Between two points the front is known to within one step of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from meshwright.solver.answer import ParetoFront, ParetoPoint
from meshwright.solver.calibration.credible import require_credible
from meshwright.solver.clock import Watch, look
from meshwright.solver.configuration import Columns
from meshwright.solver.planner.variants import Variant, with_launchers
from meshwright.solver.problem import Problem, changes_of
from meshwright.solver.search.answers import fastest_of
from meshwright.solver.search.priced_space import priced_space
from meshwright.solver.space.enumerate import is_too_large, searched_space

STEP = 0.04  # of the peak before
_MOST_POINTS = 48  # of one number of GPUs
_TOO_MANY = "there are too many configurations to search them all, however long you wait"
_LIGHTER = (
    f"a front lists at most {_MOST_POINTS} points for one number of GPUs, and layouts with "
    "less memory remain"
)


def front_of(asked: Problem, variants: Sequence[Variant], watch: Watch) -> ParetoFront:
    """Return the front over all variants of a request, as far as the time allows.

    Raises:
        InvalidProblemError: a calibration makes a point faster than its software stack has ever been.
    """
    points, found_by = list[ParetoPoint](), dict[int, Variant]()
    cut, left_out = watch.interrupted(), list[str]()
    for variant in variants:
        complete, before = False, len(points)
        workload = changes_of(variant.problem.workload, asked.workload)
        with watch.cut():
            left_out += _add_points(points, variant, workload, watch)
            complete = True
        cut |= not complete
        found_by |= {id(point): variant for point in points[before:]}
    kept = list(undominated(points))
    if asked.launcher == "any":
        plans = with_launchers(variants, [(found_by[id(point)], point.plan) for point in kept])
        kept = [replace(point, plan=plan) for point, plan in zip(kept, plans, strict=True)]
    claim = _claim(ended_by=watch.ended_by if cut else "", left_out=left_out, of_its_own=len(variants) > 1)
    complete = not left_out and not cut
    return ParetoFront(points=tuple(kept), complete=complete, memory_step=STEP, claim=claim)


def _claim(*, ended_by: str, left_out: Sequence[str], of_its_own: bool) -> str:
    missing = "the listed points are proved under our model, but slower ones may be missing"
    if ended_by:
        return f"{ended_by}: {missing}"
    if left_out:
        return f"{left_out[0]}: {missing}"
    layout = "layout with the same launcher, precision, optimizer and switches" if of_its_own else "layout"
    return (
        f"every point is proved under our model and the searched switches: no {layout} within its "
        "budget_bytes is faster on the same number of GPUs"
    )


def undominated(points: Iterable[ParetoPoint]) -> Iterator[ParetoPoint]:
    """Yield points that no other equals or beats in time, memory and GPUs at once, fastest first."""
    kept: list[tuple[float, int, int]] = []
    for point in sorted(points, key=_figures):
        mine = _figures(point)
        if not any(all(other <= own for other, own in zip(found, mine, strict=True)) for found in kept):
            kept.append(mine)
            yield point


def _figures(point: ParetoPoint) -> tuple[float, int, int]:
    """Return the figures that a front trades off; steps of other batches by their sequences."""
    plan = point.plan
    step_s = plan.prediction.step_time_s / plan.config.global_batch_size
    return step_s, plan.prediction.peak_memory_bytes, plan.config.num_gpus


def _add_points(
    points: list[ParetoPoint], variant: Variant, workload: Mapping[str, str], watch: Watch
) -> list[str]:
    """Add the front of each number of GPUs; return why some of its points are missing."""
    missing = list[str]()
    problem = replace(
        variant.problem,
        options=replace(
            variant.problem.options, objective="step_time", deadline_days=None, top_k=1, batch_sizes=()
        ),
    )
    if is_too_large(problem):
        return [_TOO_MANY]
    space = searched_space(problem, legal_only=True, one_by_one=True)
    gpus = (space.rows if isinstance(space.rows, Columns) else space.rows.outer).num_gpus
    for count in np.unique(gpus)[::-1]:
        which = np.flatnonzero(gpus == count)
        some = space.rows.take(which) if isinstance(space.rows, Columns) else space.rows.among(which)
        rows = priced_space(problem, variant.profile, some)
        for _ in range(_MOST_POINTS):
            plan = fastest_of(problem, variant.profile, rows)
            look()  # without a plan because of the time limit there is no front
            if plan is None:
                break
            require_credible(problem, variant.profile, [(plan.config, plan.prediction)])
            plan = replace(plan, workload=workload)
            points.append(ParetoPoint(plan=plan, budget_bytes=int(rows.budget_bytes)))
            rows = replace(rows, budget_bytes=plan.prediction.peak_memory_bytes * (1.0 - STEP))
            watch.tick()
        else:
            if fastest_of(problem, variant.profile, rows) is not None:
                missing.append(_LIGHTER)
            look()
    return missing
