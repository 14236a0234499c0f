"""Recomputation by stage: the counts, the split and the bounds against everything that could be tried."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings

from meshwright.solver.cost.stages import assemble, objective_s
from meshwright.solver.search.bounds import fractional_s, objective_bound_s, whole_layers_s
from meshwright.solver.search.fill import can_beat
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.splits import best_splits
from tests.draws import draws
from tests.problems.strategies import priced_rows
from tests.property.exhaustive import exhaust

RELATIVE = 1e-6  # the boundary program counts whole nanoseconds
ROUNDING = 1 + 1e-9


def least_of_all_s(rows: Rows) -> float:
    """The least closed form over every split and all counts of its stages, as far as memory allows."""
    free, best = rows, np.inf
    for split in exhaust_splits(free):
        counts = np.array(list(product(*(range(size + 1) for size in split)))[1:])  # not of no layer at all
        many = rows.take([0] * len(counts))
        stages = assemble(many.prices, many.columns, many.layout, np.array([split] * len(counts)), counts)
        fits = stages.peak_memory_bytes.max(axis=1) <= rows.budget_bytes
        found = np.where(fits, objective_s(many.prices, many.columns, stages), np.inf)
        best = min(best, float(found.min()))
    return best


def exhaust_splits(rows: Rows) -> list[tuple[int, ...]]:
    """Every split that fits with some counts."""
    return exhaust(rows, 0).splits


@given(priced_rows(any_schedule=True, per_stage=True, max_layers=7))
@settings(max_examples=draws(20, of_more=60), deadline=None)
def test_split_and_counts_are_the_best_of_all_splits_and_counts(rows: Rows) -> None:
    if not rows.per_stage[0]:
        return
    split = best_splits(rows)[0]
    found = np.inf
    if split is not None:
        stages = rows.stages([split])
        assert stages.peak_memory_bytes.max() <= rows.budget_bytes
        found = float(objective_s(rows.prices, rows.columns, stages)[0])
    assert found == pytest.approx(least_of_all_s(rows), rel=RELATIVE)


@given(priced_rows(any_schedule=True, per_stage=True))
@settings(max_examples=draws(20, of_more=60), deadline=None)
def test_no_bound_lies_above_what_it_bounds(rows: Rows) -> None:
    every = exhaust(rows, 0)
    tiers = [float(fractional_s(rows)[0]), float(whole_layers_s(rows)[0])]
    assert tiers == sorted(tiers)
    assert (tiers[-1] <= every.bound_s * ROUNDING).all()
    assert (every.bound_s <= every.simulated_s * ROUNDING).all()
    assert (objective_bound_s(rows)[0] <= every.objective_s * ROUNDING).all()
    if len(every.splits):
        assert can_beat(rows, np.array([every.simulated_s.min()]))[0]
    else:
        assert not (rows.is_uniform and can_beat(rows, np.array([1e9]))[0])
