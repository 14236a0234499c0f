"""Bounds hold for every split, and each tier is at most the next.

``BOUND_EXAMPLES=2500`` tries that many problems instead of the few that suffice from day to day.
"""

import os

import numpy as np
from hypothesis import given, settings

from solver.search.bounds import fractional_s, objective_bound_s, whole_layers_s
from solver.search.reach import can_beat, least_bound_s
from solver.search.rows import Rows
from tests.property.exhaustive import exhaust
from tests.strategies import priced_rows

ROUNDING = 1 + 1e-9
EXAMPLES = int(os.environ.get("BOUND_EXAMPLES", "120"))


@given(priced_rows())
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_bound_of_a_split_never_exceeds_its_simulation(rows: Rows) -> None:
    every = exhaust(rows, 0)
    assert (every.bound_s <= every.simulated_s * ROUNDING).all()


@given(priced_rows())
@settings(max_examples=EXAMPLES, deadline=None)
def test_tiers_are_ordered_and_below_every_split_that_fits(rows: Rows) -> None:
    every = exhaust(rows, 0)
    tiers = [float(fractional_s(rows)[0]), float(whole_layers_s(rows)[0])]
    assert tiers == sorted(tiers)
    assert (tiers[-1] <= every.bound_s * ROUNDING).all()
    assert (objective_bound_s(rows)[0] <= every.objective_s * ROUNDING).all()


@given(priced_rows())
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_row_is_refuted_only_below_what_its_splits_simulate_to(rows: Rows) -> None:
    every = exhaust(rows, 0)
    if len(every.splits):
        assert can_beat(rows, np.array([every.bound_s.min()]))[0]
        high = float(every.simulated_s.min())
        low = float(whole_layers_s(rows)[0])
        assert low <= least_bound_s(rows, low, high) <= high


@given(priced_rows(mixed=False))
@settings(max_examples=EXAMPLES, deadline=None)
def test_reach_is_exact_for_layers_of_one_kind_without_interleaving(rows: Rows) -> None:
    every = exhaust(rows, 0)
    if rows.v[0] == 1 and len(every.splits):
        assert not can_beat(rows, np.array([every.bound_s.min() * (1 - 1e-6)]))[0]


@given(priced_rows(mixed=False))
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_row_without_a_split_that_fits_cannot_beat_any_time(rows: Rows) -> None:
    fits = bool(exhaust(rows, 0).splits)
    assert bool(can_beat(rows, np.array([1e9]))[0]) == fits
