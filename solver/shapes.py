"""Advice on a model's shape: plain records; ``solver.why.shapes`` fills them."""

from __future__ import annotations

from dataclasses import dataclass

from solver.plan import Configuration, Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One nearby shape with its price."""

    change: str  # ``vocabulary 50257 → 50304``
    why: str  # what it makes possible
    num_parameters: int
    parameters_change: float  # relative
    step_time_s: float  # of its own best plan
    gain: float  # time of a token and used parameter that it saves against the asked shape; below 0: none
    gain_in_place: (
        float | None
    )  # the same in the layout of the asked shape's plan; None: it cannot run there
    config: Configuration
    tensor_parallel_sizes: tuple[int, ...]  # up to a node, that divide heads and widths


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeAdvice:
    """The asked shape's best plan, and nearby shapes by what they save."""

    config: Configuration
    prediction: Prediction
    num_parameters: int
    shapes: tuple[Shape, ...]
    not_searched: tuple[str, ...] = ()  # changes with too many configurations to look at all of them
