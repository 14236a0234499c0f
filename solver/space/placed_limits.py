"""What a request cannot ask where stages are placed on unlike node groups.

The search that places them ranks plans by step alone, and varies less than others: limits of a request must
leave each variable a value. Else the answer would be that nothing fits, proved, in a space that never held
what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from meshwright.profiles.documents import pointer
from meshwright.profiles.errors import FieldError
from meshwright.profiles.optimizers import UNPAGED
from meshwright.profiles.switches import NO_SWITCH
from meshwright.solver.configuration import PLACED_ONLY
from meshwright.solver.problem import Problem, SearchOptions
from meshwright.solver.space.expressions import Node, names_in
from meshwright.solver.space.request_rules import constraint_of, holds_for

NOT_PLACED = "is not available for stages on different node groups"


def placed_faults(problem: Problem) -> Iterator[FieldError]:
    """Yield what keeps a request from stages that are placed on node groups; nothing where none are."""
    if not problem.places_stages:
        return
    options, paged = problem.options, problem.workload.optimizer in UNPAGED
    beside = {
        ("search", "objective"): options.objective != "step_time",
        ("search", "pareto"): options.pareto,
        ("search", "allow"): bool(set(options.allow) - {NO_SWITCH, *("offload",) * paged}),
        ("workload", "global_batch_size"): bool(options.batch_sizes),
        ("workload", "optimizer"): paged,  # its pages may leave
    }
    named = {"global_batch_size": "several batches", "optimizer": problem.workload.optimizer}
    for path in (path for path, given in beside.items() if given):
        what = named.get(path[-1], path[-1])
        yield FieldError(pointer=pointer(*path), message=f"{what} {NOT_PLACED}")
    yield from _limit_faults(problem)


Values = Mapping[str, tuple[int | str, ...]]


_NO_CHUNKS = ": no launcher here interleaves chunks over unlike groups"  # fs: train/arguments.py:151
_WHY = {"virtual_pipeline_size": _NO_CHUNKS, "pipeline_schedule": _NO_CHUNKS}


def _limit_faults(problem: Problem) -> Iterator[FieldError]:
    values = _searched(problem)
    yield from _constraint_faults(problem, values)
    for name, every in values.items():
        for section in _emptied(problem.options, name, every):
            allowed = ", ".join(map(str, every))
            yield FieldError(
                pointer=pointer("search", section, name),
                message=f"only {allowed} is searched where stages are placed on node groups"
                + _WHY.get(name, ""),
                allowed=allowed,
                nearest=str(every[0]),
            )


def _searched(problem: Problem) -> Values:
    values: dict[str, tuple[int | str, ...]] = {name: (only,) for name, only in PLACED_ONLY.items()}
    values["pipeline_schedule"] = ("none", "1f1b")
    values["recompute_layers"] = (0, problem.model.num_layers)  # all of a stage's, or none
    return values


def _constraint_faults(problem: Problem, values: Values) -> Iterator[FieldError]:
    """Yield the constraints (or parts joined by ``and``) on these variables that no value satisfies."""
    for index, text in enumerate(problem.options.constraints):
        for part in _parts(constraint_of(text)):
            names = sorted(names_in(part))
            if not names or not set(names) <= set(values) or _may_hold(part, names, values):
                continue
            searched = "; ".join(f"{name}: {', '.join(map(str, values[name]))}" for name in names)
            yield FieldError(
                pointer=pointer("search", "constraints", index),
                message=f"where stages are placed on node groups only this is searched: {searched}",
                allowed=searched,
            )


def _parts(node: Node) -> Iterator[Node]:
    if node.sign != "and":
        yield node
        return
    for operand in node.operands:
        yield from _parts(operand)


def _may_hold(node: Node, names: Sequence[str], values: Values) -> bool:
    every = product(*(values[name] for name in names))
    return any(holds_for(node, dict(zip(names, one, strict=True))) for one in every)


def _emptied(options: SearchOptions, name: str, every: tuple[int | str, ...]) -> Iterator[str]:
    if name in options.pin and options.pin[name] not in every:
        yield "pin"
    if set(every) <= set(options.forbid.get(name, ())):
        yield "forbid"
    if name in options.bounds:
        low, high = options.bounds[name]
        if not any(isinstance(value, int) and low <= value <= high for value in every):
            yield "bounds"
