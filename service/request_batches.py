"""One global batch, a list of them, or a range."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from profiles.errors import InvalidProblemError
from service.json_input import pointer
from service.request_part import Part
from solver.problem import Problem

MAX_BATCH = 2**31 - 1
MAX_SIZES = 16
Count = Annotated[int, Field(ge=1, le=MAX_BATCH)]


class BatchRange(Part):
    """``min``, twice, four times … as much up to ``max``, and ``max`` itself."""

    min: Count
    max: Count


Batches = Count | Annotated[list[Count], Field(min_length=1, max_length=MAX_SIZES)] | BatchRange


def batches_of(given: int | list[int] | BatchRange) -> tuple[int, ...]:
    """Sequences per optimizer step, smallest first.

    Raises:
        InvalidProblemError: a range holds nothing.
    """
    if isinstance(given, int):
        return (given,)
    if isinstance(given, list):
        return tuple(sorted(set(given)))
    if given.min > given.max:
        at = pointer("workload", "global_batch_size")
        raise InvalidProblemError.of(at, "the range is empty", nearest=f"{given.max} to {given.min}")
    doubled = (given.min << times for times in range((given.max // given.min).bit_length()))
    return tuple(sorted({*doubled, given.max}))


def batches_to_json(problem: Problem) -> int | list[int]:
    """The batches of the canonical request."""
    largest = problem.workload.global_batch_size
    return [*problem.options.batch_sizes, largest] if problem.options.batch_sizes else largest
