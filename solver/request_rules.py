"""The limits that a request adds: pins, forbidden values, bounds and side constraints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from solver.columns import BoolArray, IntArray
from solver.constraints import broken_by, column_of, constraint_of
from solver.options import WORDS
from solver.problem import Problem
from solver.rule import Rule
from solver.splits import Prescribed


def coded(variable: str, value: int | str) -> int:
    """A word as columns store it; -1 for a word they do not know. Numbers stay."""
    words = WORDS.get(variable)
    if words is None:
        return int(value)
    return words.index(str(value)) if value in words else -1


def request_rules(problem: Problem) -> Iterator[Rule]:
    """Pins, forbidden values, bounds and constraints of the request."""
    layers, options = problem.model.num_layers, problem.options

    def rule(name: str, variable: str, breaks: Callable[[IntArray], BoolArray]) -> Rule:
        return Rule(
            name=name,
            reason="the request asks for it",
            violated=lambda c: breaks(column_of(c, variable, layers)),
            of_request=True,
        )

    for variable, value in sorted(options.pin.items()):
        yield rule(f"pin {variable} = {value}", variable, partial(np.not_equal, coded(variable, value)))
    for variable, values in sorted(options.forbid.items()):
        words = ", ".join(str(value) for value in values)
        taboo = np.array([coded(variable, value) for value in values], dtype=np.int64)
        yield rule(f"forbid {variable} = {words}", variable, partial(np.isin, test_elements=taboo))
    for variable, (low, high) in sorted(options.bounds.items()):
        name = f"bounds {low} <= {variable} <= {high}"
        yield rule(name, variable, partial(_outside, low=low, high=high))
    if options.stage_layers:
        yield Rule(
            name=f"pin stage_layers with {len(options.stage_layers)} chunks",
            reason="the request asks for it",
            violated=Prescribed.of(problem).lacking,
            of_request=True,
        )
    for text in options.constraints:
        yield Rule(
            name=f"constraint {text}",
            reason="the request asks for it",
            violated=partial(broken_by, constraint_of(text), num_layers=layers),
            of_request=True,
        )


def _outside(values: IntArray, low: int, high: int) -> BoolArray:
    """Which values lie outside an inclusive range."""
    return (values < low) | (values > high)
