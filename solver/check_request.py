"""The independent verdict on what a request asked for: pins, prohibitions, bounds, constraints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from solver.constraints import constraint_of, holds_for
from solver.plan import Configuration
from solver.problem import Problem


def request_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Pins, forbidden values, bounds and constraints of the request."""
    options = problem.options
    for name, value in options.pin.items():
        if value != getattr(config, name):
            yield f"{name} is pinned to {value}"
    if options.stage_layers and config.stage_layers != options.stage_layers:
        yield "stage_layers is pinned to another split"
    for name, values in options.forbid.items():
        if getattr(config, name) in values:
            yield f"{name} = {getattr(config, name)} is forbidden"
    for name, (low, high) in options.bounds.items():
        if not low <= int(getattr(config, name)) <= high:
            yield f"{name} must be {low} to {high}"
    yield from _constraint_faults(problem, config)


def _constraint_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Side constraints, evaluated for this one configuration."""
    derived = {"num_gpus": config.num_gpus, "global_batch_size": config.global_batch_size}
    for text in problem.options.constraints:
        if not holds_for(constraint_of(text), {**asdict(config), **derived}):
            yield f"the constraint {text} does not hold"
