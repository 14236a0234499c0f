"""Bounds hold for every split, and each tier is at most the next."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.solver.configuration import SCHEDULES
from meshwright.solver.schedules.schedule import AUTOMATIC, BYPASSES_SYNC, rank_of_chunk
from meshwright.solver.search.bounds import Bounds, fractional_s, objective_bound_s, whole_layers_s
from meshwright.solver.search.branch import (
    Effort,
    is_branchable,
    least_simulation_s,
    makes_its_order,
    patterns,
)
from meshwright.solver.search.fill import can_beat, least_bound_s
from meshwright.solver.search.frontier import Frontier
from meshwright.solver.search.priced_space import Priced
from meshwright.solver.search.proof import dominates, least_of_candidates_s, least_step_bound_s
from meshwright.solver.search.rows import Rows
from tests.draws import draws
from tests.problems.strategies import priced_rows
from tests.property.exhaustive import exhaust

ROUNDING = 1 + 1e-9
EXAMPLES = draws(80)


@given(priced_rows(any_schedule=True))
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_bound_of_a_split_never_exceeds_its_simulation(rows: Rows) -> None:
    every = exhaust(rows, 0)
    assert (every.bound_s <= every.simulated_s * ROUNDING).all()


@given(priced_rows(any_schedule=True))
@settings(max_examples=EXAMPLES, deadline=None)
def test_tiers_are_ordered_and_below_every_split_that_fits(rows: Rows) -> None:
    every = exhaust(rows, 0)
    tiers = [float(fractional_s(rows)[0]), float(whole_layers_s(rows)[0])]
    assert tiers == sorted(tiers)
    assert (tiers[-1] <= every.bound_s * ROUNDING).all()
    assert (objective_bound_s(rows)[0] <= every.objective_s * ROUNDING).all()


@given(priced_rows(any_schedule=True))
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
    # tails of the layers aside: a split is also bounded by those of the ranks on a way back
    rows = replace(rows, prices=replace(rows.prices, tail_s=rows.prices.tail_s * np.array([0.0, 1.0, 1.0])))
    every = exhaust(rows, 0)
    if rows.v[0] == 1 and len(every.splits):
        assert not can_beat(rows, np.array([every.bound_s.min() * (1 - 1e-6)]))[0]


@given(priced_rows(mixed=False, any_schedule=True))
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_row_without_a_split_that_fits_cannot_beat_any_time(rows: Rows) -> None:
    fits = bool(exhaust(rows, 0).splits)
    assert bool(can_beat(rows, np.array([1e9]))[0]) == fits


@given(priced_rows(mixed=False, any_schedule=True), st.floats(0.8, 1.3))
@settings(max_examples=EXAMPLES, deadline=None)
def test_ranks_fixed_one_after_the_other_bound_every_split(rows: Rows, share: float) -> None:
    every = exhaust(rows, 0)
    if not len(every.splits):
        return
    fastest = float(every.simulated_s.min())
    target = share * fastest
    if is_branchable(rows, target):
        found = least_simulation_s(rows, target, Effort(2**24)).step_s
        assert found <= min(target, fastest) * ROUNDING
        if target <= fastest and not np.isfinite(rows.budget_bytes):
            assert found <= target
    low = float(whole_layers_s(rows)[0])
    assert low <= least_step_bound_s(rows, low, fastest) <= fastest


@given(priced_rows(mixed=False, any_schedule=True))
@settings(max_examples=EXAMPLES, deadline=None)
def test_without_a_memory_limit_all_ranks_fixed_are_the_fastest_split(rows: Rows) -> None:
    rows = replace(rows, budget_bytes=np.inf)
    every = exhaust(rows, 0)
    bypasses = SCHEDULES[rows.columns.pipeline_schedule[0]] in set(BYPASSES_SYNC) - set(AUTOMATIC)
    if len(every.splits) and rows.uneven_stages and not bypasses:  # of those rank 0's end alone counts
        target = float(every.simulated_s.min()) * (1 - 1e-6)
        if is_branchable(rows, target):
            found = least_simulation_s(rows, target, Effort(2**24)).step_s
            # of orders made for the times the one that ends first is run, even where another, with the
            # ranks' tails, would be the shorter step: the bound takes the shorter
            assert found <= target if makes_its_order(rows) else found == target
            target *= 1 + 2e-6
            assert least_simulation_s(rows, target, Effort(2**24)).step_s < target


@given(priced_rows(mixed=False, any_schedule=True))
@settings(max_examples=EXAMPLES, deadline=None)
def test_every_split_on_offer_is_made_of_patterns(rows: Rows) -> None:
    p, v = int(rows.p[0]), int(rows.v[0])
    holder = rank_of_chunk(rows.columns, p * v)[0]
    for split in exhaust(rows, 0).splits if rows.uneven_stages else []:
        for rank in range(p):
            own = tuple(np.array(split)[holder == rank].tolist())
            assert own in {
                tuple(way) for way in patterns(rows, rank, range(sum(own), sum(own) + 1)).tolist()
            }
            assert len(own) == v


@given(priced_rows(mixed=False, max_rows=3, one_layout=True, any_schedule=True))
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_row_that_dominates_another_simulates_no_slower_under_any_split(rows: Rows) -> None:
    rows = replace(rows, budget_bytes=np.inf)
    bypasses = SCHEDULES[rows.columns.pipeline_schedule[0]] in BYPASSES_SYNC
    if dominates(rows, 0, 1) and not bypasses:  # of those rank 0's end alone
        assert (exhaust(rows, 0).simulated_s <= exhaust(rows, 1).simulated_s * ROUNDING).all()


@given(priced_rows(mixed=True, any_schedule=True))
@settings(max_examples=EXAMPLES // 2, deadline=None)
def test_mixed_layers_in_several_chunks_a_rank_are_bounded_by_their_fastest_split(rows: Rows) -> None:
    every = exhaust(rows, 0)
    if rows.v[0] > 1 and len(every.splits):
        fastest = float(every.simulated_s.min())
        bounds = Bounds(1)
        bounds[0] = 0.0
        solved = Frontier(rows=Priced.of(rows), top_k=1, bound_s=bounds).solve([0])
        found = least_of_candidates_s(rows, solved, 2.0 * fastest)
        assert fastest / ROUNDING <= found <= fastest
        assert least_of_candidates_s(rows, solved, 0.5 * fastest) == 0.5 * fastest
