"""The independent verdict on what a request asked for: pins, prohibitions, bounds, constraints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from solver.constraints import constraint_of, holds_for
from solver.plan import Configuration
from solver.problem import Problem


def request_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Pins, forbidden values, bounds and constraints of the request."""
    options = problem.options
    for name, value in options.pin.items():
        if value not in _meanings(problem, config, name):
            yield f"{name} is pinned to {value}"
    if options.stage_layers and config.stage_layers != options.stage_layers:
        yield "stage_layers is pinned to another split"
    for name, values in options.forbid.items():
        if set(_meanings(problem, config, name)) <= set(values):
            yield f"{name} = {getattr(config, name)} is forbidden"
    for name, (low, high) in options.bounds.items():
        if not any(low <= int(value) <= high for value in _meanings(problem, config, name)):
            yield f"{name} must be {low} to {high}"
    yield from _constraint_faults(problem, config)


def _constraint_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Side constraints, evaluated for this one configuration."""
    for text in problem.options.constraints:
        meanings = _meanings(problem, config, "recompute_layers")
        if not any(holds_for(constraint_of(text), _values(config, layers)) for layers in meanings):
            yield f"the constraint {text} does not hold"


def _values(config: Configuration, recompute_layers: int | str) -> dict[str, Any]:
    """Every variable of the glossary that a constraint may name."""
    derived = {"num_gpus": config.num_gpus, "global_batch_size": config.global_batch_size}
    return {**asdict(config), **derived, "recompute_layers": recompute_layers}


def _meanings(problem: Problem, config: Configuration, name: str) -> tuple[int | str, ...]:
    """The values of a variable that a request may have meant.

    A configuration that recomputes every layer of its chunks also recomputes every layer of the model.
    """
    value: int | str = getattr(config, name)
    if name == "recompute_layers" and config.recompute_granularity == "full":
        every = config.recompute_layers >= max(config.stage_layers)
        return (value, problem.model.num_layers) if every else (value,)
    return (value,)
