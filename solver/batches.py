"""The global batches that a request leaves open."""

from __future__ import annotations

from dataclasses import replace

from solver.problem import Problem


def batch_sizes(problem: Problem) -> tuple[int, ...]:
    """Sequences per optimizer step, largest first; the largest is the workload's own."""
    return tuple(sorted({problem.workload.global_batch_size, *problem.options.batch_sizes}, reverse=True))


def with_batch(problem: Problem, batch: int) -> Problem:
    """The problem with one global batch alone."""
    if batch == problem.workload.global_batch_size and not problem.options.batch_sizes:
        return problem
    return replace(
        problem,
        workload=replace(problem.workload, global_batch_size=batch),
        options=replace(problem.options, batch_sizes=()),
    )
