"""One global batch, a list of them, or a range."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from profiles.documents import pointer
from profiles.errors import FieldError, InvalidProblemError
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


class RampRequest(Part):
    """One earlier stage of a batch ramp."""

    batch: Count
    until_tokens: int = Field(ge=1, le=10**18)


def ramp_limits(problem: Problem) -> Iterator[FieldError]:
    """A ramp grows in batches and tokens up to the workload's own, and is ranked by its time alone."""
    options, batch = problem.options, problem.workload.global_batch_size
    if not options.batch_ramp:
        return
    at = pointer("workload", "batch_ramp")
    stages = [*options.batch_ramp, (batch, options.total_tokens or 0)]
    if options.total_tokens is None:
        here = pointer("workload", "total_tokens")
        yield FieldError(pointer=here, message="is required beside a ramp: where its last stage ends")
    elif any(one[0] >= other[0] or one[1] >= other[1] for one, other in pairwise(stages)):
        yield FieldError(pointer=at, message="batches and tokens must grow from stage to stage")
    others = {
        "objective": options.objective != "step_time", "gpus": options.gpus == "fewest",
        "deadline_days": options.deadline_days is not None, "pareto": options.pareto,
        "baseline": options.baseline is not None, "allow": bool(set(options.allow) - {"offload"}),
    }  # fmt: skip
    for name in (name for name, given in others.items() if given):
        yield FieldError(pointer=pointer("search", name), message="does not go with a batch ramp")
    if options.batch_sizes:
        here = pointer("workload", "global_batch_size")
        yield FieldError(pointer=here, message="is one number beside a batch ramp")


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
