"""The inner factor of the outer space: chunks a rank, recomputation and schedule of each pipeline size."""

from __future__ import annotations

import numpy as np

from profiles.capabilities import launcher_capabilities
from solver.columns import ALL_LAYERS, PER_STAGE, RECOMPUTE, SCHEDULES, IntArray
from solver.constraints import names_of
from solver.cost.schedule import SPLIT_BACKWARD, plain_schedule, schedules_of
from solver.problem import Problem

_MAX_NAMED = 64  # values that bounds add to the candidates
_FULL = RECOMPUTE.index("full")


def with_request(problem: Problem, variable: str, candidates: list[int]) -> list[int]:
    """The candidates, the pinned value, and what the request's bounds name beside them."""
    pinned, bounds = problem.options.pin.get(variable), problem.options.bounds.get(variable)
    named = [] if pinned is None else [int(pinned)]
    if bounds is not None:
        low = max(bounds[0], 0 if variable == "zero_stage" else 1)
        named += range(low, min(bounds[1], low + _MAX_NAMED) + 1)
    return sorted({*candidates, *named})


def chunkings_of(problem: Problem, pp: int) -> IntArray:
    """(vpp, recompute, recompute_layers, pipeline_schedule) rows of a pipeline of ``pp`` stages."""
    layers, options = problem.model.num_layers, problem.options
    limited = "recompute_layers" in options.named | names_of(options.constraints)
    # Energy's weights would depend on the split; the stages of a ramp would each have counts of their own.
    alike = limited or options.objective == "energy_per_token" or bool(options.batch_ramp)
    per_stage = launcher_capabilities(problem.launcher).recompute_per_stage and not alike
    rows: list[tuple[int, int, int, int]] = []
    virtual = list(range(1, layers // pp + 1)) if pp > 1 else [1]
    for vpp in with_request(problem, "virtual_pipeline_size", virtual):
        even = layers // (pp * vpp)
        last = even if layers % (pp * vpp) else even - 1  # all of an even split: ALL_LAYERS
        for name in _schedules(problem, pp, vpp):
            word = SCHEDULES.index(name)
            rows += [(vpp, recompute, 0, word) for recompute in range(_FULL)]
            rows.append((vpp, _FULL, ALL_LAYERS, word))
            if per_stage and vpp == 1 and pp > 1 and name not in SPLIT_BACKWARD:
                rows.append((vpp, _FULL, PER_STAGE, word))
            if name not in SPLIT_BACKWARD:  # where whole layers are not recomputed, one row says so
                rows += [(vpp, _FULL, count, word) for count in range(1, last + 1)]
    return np.array(rows, dtype=np.int64)


def _schedules(problem: Problem, pp: int, vpp: int) -> list[str]:
    """The plain schedule, and what else the launcher has or the request pins, for so many chunks."""
    pinned = problem.options.pin.get("pipeline_schedule")
    able = {*launcher_capabilities(problem.launcher).schedules, pinned}
    plain, *others = schedules_of(pp, vpp) or (plain_schedule(pp, vpp),)
    return [plain, *(name for name in others if name in able)]
