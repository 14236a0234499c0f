"""From columns to priced rows, some at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np

from profiles.capabilities import launcher_capabilities
from profiles.profile import Profile
from solver.columns import Columns
from solver.cost.memory import memory_budget_bytes
from solver.cost.price import price
from solver.cost.prices import LayerLayout, RowPrices
from solver.problem import Problem
from solver.search.rows import Rows

CHUNK = 65536  # rows priced between two looks at the clock: well under half a second


def priced_rows(problem: Problem, profile: Profile, columns: Columns) -> Rows:
    """Rows of a problem with their prices and the memory that each rank may use."""
    return Rows(
        columns=columns,
        prices=price(problem, columns, profile),
        layout=LayerLayout.of(problem.model),
        budget_bytes=memory_budget_bytes(problem, profile, problem.options.max_out_of_memory_probability),
        uneven_stages=launcher_capabilities(problem.launcher).uneven_stages,
    )


def priced_in_chunks(
    problem: Problem, profile: Profile, columns: Columns, interrupted: Callable[[], bool]
) -> Rows | None:
    """The same in chunks of CHUNK rows; None when ``interrupted`` says to give up."""
    if len(columns) <= CHUNK:
        return None if interrupted() else priced_rows(problem, profile, columns)
    parts = []
    for start in range(0, len(columns), CHUNK):
        if interrupted():
            return None
        parts.append(priced_rows(problem, profile, columns.take(slice(start, start + CHUNK))))
    first = parts[0]
    return Rows(
        columns=columns,
        prices=_joined([part.prices for part in parts]),
        layout=first.layout,
        budget_bytes=first.budget_bytes,
        uneven_stages=first.uneven_stages,
    )


def _joined(parts: list[RowPrices]) -> RowPrices:
    """All prices, one after the other."""

    def arrays(name: str) -> np.ndarray | dict[str, np.ndarray]:
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], dict):
            return {key: np.concatenate([value[key] for value in values]) for key in values[0]}
        return np.concatenate(values)

    return RowPrices(**{f.name: arrays(f.name) for f in fields(RowPrices)})  # type: ignore[arg-type]
