"""The figures of a plan that lists show, filter and sort by: each is declared here, once.

Their columns of ``plans``, what is read of a plan's body, the sorts of ``GET /v1/plans`` with their
indexes, and the summaries that it answers with follow from these records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_type_hints

from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, String
from sqlalchemy.types import TypeEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What is known of a figure beside its type."""

    part: Literal["config", "prediction", ""] = ""  # of a plan's body that states it under its name
    sorts: bool = False  # lists may be sorted by it; each sort has an index of its own
    size: int = 0  # characters of a text, at most


_CONFIGURED, _PREDICTED = Figure(part="config"), Figure(part="prediction")
_RANKED = Figure(part="prediction", sorts=True)
_SORTED = Figure(sorts=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """The figures of a plan that lists show; None in a row of an older version."""

    job_id: str
    rank: int
    plan_id: str
    model: Annotated[str | None, Figure(size=200)]
    cluster: Annotated[str | None, Figure(size=200)]
    launcher: Annotated[str | None, Figure(size=64)]
    num_gpus: Annotated[int | None, _SORTED]
    tensor_parallel_size: Annotated[int | None, _CONFIGURED]
    pipeline_parallel_size: Annotated[int | None, _CONFIGURED]
    context_parallel_size: Annotated[int | None, _CONFIGURED]
    expert_parallel_size: Annotated[int | None, _CONFIGURED]
    data_parallel_size: Annotated[int | None, _CONFIGURED]
    micro_batch_size: Annotated[int | None, _CONFIGURED]
    zero_stage: Annotated[int | None, _CONFIGURED]
    step_time_s: Annotated[float | None, _RANKED]
    step_time_low_s: Annotated[float | None, _PREDICTED]  # 80 % interval
    step_time_high_s: Annotated[float | None, _PREDICTED]
    tokens_per_s_per_gpu: Annotated[float | None, _RANKED]
    mfu: Annotated[float | None, _RANKED]
    peak_memory_bytes: Annotated[int | None, _RANKED]
    out_of_memory_probability: Annotated[float | None, _RANKED]
    cost: Annotated[float | None, _SORTED]
    verified: Annotated[str | None, Figure(size=32)]  # queued, running, or the verdict; None: never asked


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigures(PlanRow):
    """One row of ``plans`` without its body."""

    found_at_s: Annotated[float | None, _SORTED]
    # Of all measurements of this plan.
    num_measurements: int
    measured_step_time_s: Annotated[float | None, _SORTED]  # the median
    measured_peak_memory_bytes: Annotated[int | None, _SORTED]  # the highest
    measured_out_of_memory: Annotated[bool | None, Figure()]  # of any run


def columns() -> list[Column[Any]]:
    """Return the columns of ``plans`` for its figures."""
    return [Column(name, _type_of(name, kind, figure)) for name, kind, figure in _figures()]


def figures_in(part: str) -> tuple[str, ...]:
    """Return the figures that a part of a plan's body states."""
    return tuple(name for name, _, figure in _figures() if figure.part == part)


def sorted_figures() -> tuple[str, ...]:
    """Return the figures that lists may be sorted by."""
    return tuple(name for name, _, figure in _figures() if figure.sorts)


def names() -> tuple[str, ...]:
    """Return the columns of one row of a list."""
    return tuple(one.name for one in fields(PlanFigures))


def _type_of(name: str, kind: type, figure: Figure) -> TypeEngine[Any]:
    if kind is str:
        return String(figure.size)
    if kind is int and name.endswith("_bytes"):
        return BigInteger()
    types: dict[type, TypeEngine[Any]] = {int: Integer(), float: Double(), bool: Boolean()}
    return types[kind]


@cache
def _figures() -> tuple[tuple[str, type, Figure], ...]:
    return tuple(_stated())


def _stated() -> Iterator[tuple[str, type, Figure]]:
    for name, hint in get_type_hints(PlanFigures, include_extras=True).items():
        kind, *facts = get_args(hint) or (hint,)
        for figure in facts:
            if isinstance(figure, Figure):
                yield name, get_args(kind)[0], figure
