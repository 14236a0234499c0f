"""Whether the side constraints of a request can be read; faults point at the character."""

from __future__ import annotations

from collections.abc import Iterator

from profiles.documents import pointer
from profiles.errors import FieldError
from solver.constraints import constraint_of
from solver.expressions import ExpressionError
from solver.problem import Problem


def constraints(problem: Problem) -> Iterator[FieldError]:
    """Every side constraint is an expression over the glossary's variables."""
    for index, text in enumerate(problem.options.constraints):
        try:
            constraint_of(text)
        except ExpressionError as fault:
            at = pointer("search", "constraints", index)
            yield FieldError(pointer=at, message=str(fault), nearest=fault.nearest)
