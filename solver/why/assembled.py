"""Whole configurations, priced and added up in a few array operations; nothing is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiles.profile import Profile
from solver.columns import Columns, FloatArray
from solver.cost.assemble import Chunks, Stages, assemble, chunks_of, objective_s
from solver.cost.price import price
from solver.cost.prices import LayerLayout, RowPrices
from solver.plan import Configuration
from solver.predict import padded, replayed_layers
from solver.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """n configurations with their prices, chunks and stages."""

    columns: Columns
    layout: LayerLayout
    prices: RowPrices
    chunks: Chunks
    stages: Stages

    @classmethod
    def of(cls, problem: Problem, profile: Profile, configurations: Sequence[Configuration]) -> Assembled:
        """Price and add up; there is at least one configuration."""
        columns, splits = Columns.of(configurations), padded(configurations)
        layout, prices = LayerLayout.of(problem.model), price(problem, columns, profile)
        replayed = replayed_layers(configurations, columns)
        return cls(
            columns=columns,
            layout=layout,
            prices=prices,
            chunks=chunks_of(columns, layout, splits, replayed),
            stages=assemble(prices, columns, layout, splits, replayed),
        )

    def objective_s(self) -> FloatArray:
        """The closed-form step time, shape (n,)."""
        return objective_s(self.prices, self.columns, self.stages)
