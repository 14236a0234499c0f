"""Limits on what the search that places stages on unlike node groups does not vary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from profiles.documents import pointer
from profiles.errors import FieldError
from solver.constraints import constraint_of, holds_for
from solver.expressions import Node, names_in
from solver.options import SearchOptions
from solver.problem import Problem

Values = Mapping[str, tuple[int | str, ...]]

# Sizes and words that ``solver.mixed`` does not vary: its rows have no other value.
PLACED_ONLY: Mapping[str, int | str] = {
    "virtual_pipeline_size": 1,
    "expert_tensor_parallel_size": 1,
    "offload": "none",
    "context_parallel_mode": "ring",
    "rank_order": "tp-cp-dp-pp",
}


def placed_limit_faults(problem: Problem) -> Iterator[FieldError]:
    """A limit of the request that leaves none of a variable's values is not searched: it is refused.

    Else the answer would be that nothing fits, proved, in a space that never held what was asked for.
    """
    values = _searched(problem)
    yield from _constraint_faults(problem, values)
    for name, every in values.items():
        for section in _emptied(problem.options, name, every):
            allowed = ", ".join(map(str, every))
            yield FieldError(
                pointer=pointer("search", section, name),
                message=f"only {allowed} is searched where stages are placed on node groups",
                allowed=allowed,
                nearest=str(every[0]),
            )


def _searched(problem: Problem) -> Values:
    """The few values of each variable that is hardly searched."""
    values: dict[str, tuple[int | str, ...]] = {name: (only,) for name, only in PLACED_ONLY.items()}
    values["pipeline_schedule"] = ("none", "1f1b")
    values["recompute_layers"] = (0, problem.model.num_layers)  # all of a stage's, or none
    return values


def _constraint_faults(problem: Problem, values: Values) -> Iterator[FieldError]:
    """Constraints, or parts joined by ``and``, of these variables alone that none of their values keeps."""
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
    """The constraints that one with ``and`` is made of."""
    if node.sign != "and":
        yield node
        return
    for operand in node.operands:
        yield from _parts(operand)


def _may_hold(node: Node, names: Sequence[str], values: Values) -> bool:
    """Whether some of the values keep a constraint."""
    every = product(*(values[name] for name in names))
    return any(holds_for(node, dict(zip(names, one, strict=True))) for one in every)


def _emptied(options: SearchOptions, name: str, every: tuple[int | str, ...]) -> Iterator[str]:
    """The sections whose limit none of the values keeps."""
    if name in options.pin and options.pin[name] not in every:
        yield "pin"
    if set(every) <= set(options.forbid.get(name, ())):
        yield "forbid"
    if name in options.bounds:
        low, high = options.bounds[name]
        if not any(isinstance(value, int) and low <= value <= high for value in every):
            yield "bounds"
