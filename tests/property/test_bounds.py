"""Bounds hold for every split, and each tier is at most the next."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.solver.configuration import ALL_LAYERS, RECOMPUTE, SCHEDULES, SPLIT_BACKWARD
from meshwright.solver.schedules.schedule import AUTOMATIC, BYPASSES_SYNC, V_SHAPED, rank_of_chunk
from meshwright.solver.search.bounds import (
    Bounds,
    fractional_s,
    least_end_s,
    objective_bound_s,
    split_s,
    whole_layers_s,
)
from meshwright.solver.search.branch import (
    SimulationBudget,
    SplitBound,
    dominators,
    is_branchable,
    least_simulation_s,
)
from meshwright.solver.search.fill import Fill, FillBounds, bounds_s, can_beat, least_bound_s
from meshwright.solver.search.frontier import Frontier
from meshwright.solver.search.listed import patterns_of, shape_of
from meshwright.solver.search.memory_limits import kinds_may_fit, layer_caps, may_fit
from meshwright.solver.search.priced_space import Priced
from meshwright.solver.search.proof import least_of_candidates_s, least_step_bound_s
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.splits import are_offered, best_splits, least_offered_s
from tests.draws import draws
from tests.problems.strategies import Shape, columns_of, layout_of, priced_rows, prices_of
from tests.property.exhaustive import exhaust, simulated_s

ROUNDING = 1 + 1e-9
EXAMPLES = draws(7, of_more=20)


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
        least = least_bound_s(rows, low, high)
        assert low <= least <= high
        near = 3e-5 * high  # both are bisected to 1e-5
        each = bounds_s(rows, np.full(len(rows), low), np.full(len(rows), high))
        assert abs(float(each.min()) - least) <= near


@given(priced_rows(any_schedule=False))
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_first_chunks_before_a_rank_hold_no_fewer_layers_than_the_fill_counts(rows: Rows) -> None:
    row = rows.take([0])
    p, caps = int(row.p[0]), layer_caps(row)
    fill = Fill.of(FillBounds.of(row, caps.least, caps.most), np.array([1.0]))
    for split in exhaust(rows, 0).splits:
        held = [sum(split[rank::p]) for rank in range(p)]
        for rank in range(1, p):
            used = np.full(fill.tries.shape, float(sum(held[:rank])))
            assert fill.first_chunks(rank, used)[0, held[0] - 1] <= sum(split[:rank]) * ROUNDING


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


@given(st.one_of(priced_rows(any_schedule=True), priced_rows(in_turn=True, max_layers=12)))
@settings(max_examples=3 * EXAMPLES, deadline=None)
def test_memory_refutes_no_kind_that_has_a_row_with_a_split_that_fits(rows: Rows) -> None:
    columns, full = rows.columns, RECOMPUTE.index("full")
    again = np.where(columns.recompute == full, ALL_LAYERS, columns.recompute_layers)
    fewest = np.minimum(columns.virtual_pipeline_size, 2)
    lightest = replace(rows, columns=replace(columns, virtual_pipeline_size=fewest, recompute_layers=again))
    assert kinds_may_fit(lightest)[0] or not exhaust(rows, 0).splits


@given(priced_rows(in_turn=True, max_layers=12))
@settings(max_examples=3 * EXAMPLES, deadline=None)
def test_where_chunks_have_gradients_in_turn_memory_refutes_no_split_that_fits(rows: Rows) -> None:
    fits = bool(exhaust(rows, 0).splits)
    assert may_fit(rows)[0] or not fits
    able = bool(can_beat(rows, np.array([1e9]))[0])
    assert able == fits if rows.is_uniform else able or not fits
    assert (best_splits(rows)[0] is not None) == fits


@given(priced_rows(mixed=False, any_schedule=True), st.floats(0.8, 1.3))
@settings(max_examples=EXAMPLES, deadline=None)
def test_ranks_fixed_one_after_the_other_bound_every_split(rows: Rows, share: float) -> None:
    every = exhaust(rows, 0)
    if not len(every.splits):
        return
    fastest = float(every.simulated_s.min())
    target = share * fastest
    if is_branchable(rows, target):
        found = least_simulation_s(rows, target, SimulationBudget(2**24)).step_s
        assert found <= min(target, fastest) * ROUNDING
        if target <= fastest and not np.isfinite(rows.budget_bytes):
            assert found <= target
        below = fastest * 1e-6  # less than the work of the ranks: no split of any such row is as fast
        assert least_simulation_s(rows, below, SimulationBudget(2**24)) == SplitBound(below, for_all=True)
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
            held = least_simulation_s(rows, target, SimulationBudget(2**24))
            found = held.step_s
            assert held.for_all  # memory decided nothing
            # of orders made for the times the one that ends first is run, even where another, with the
            # ranks' tails, would be the shorter step: the bound takes the shorter
            assert found <= target if rows.makes_order[0] else found == target
            target *= 1 + 2e-6
            assert least_simulation_s(rows, target, SimulationBudget(2**24)).step_s < target


@given(priced_rows(mixed=False, any_schedule=True))
@settings(max_examples=EXAMPLES, deadline=None)
def test_every_split_on_offer_is_made_of_patterns(rows: Rows) -> None:
    p, v = int(rows.p[0]), int(rows.v[0])
    holder = rank_of_chunk(rows.columns, p * v)[0]
    for split in exhaust(rows, 0).splits if rows.uneven_stages else []:
        for rank in range(p):
            own = tuple(np.array(split)[holder == rank].tolist())
            assert own in {tuple(way) for way in patterns_of(shape_of(rows, 0), rank, [sum(own)]).tolist()}
            assert len(own) == v


@given(priced_rows(mixed=False, max_rows=3, one_layout=True, any_schedule=True))
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_row_that_dominates_another_simulates_no_slower_under_any_split(rows: Rows) -> None:
    rows = replace(rows, budget_bytes=np.inf)
    bypasses = SCHEDULES[rows.columns.pipeline_schedule[0]] in BYPASSES_SYNC
    if dominators(rows, 1)[0] and not bypasses:  # of those rank 0's end alone
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


@given(priced_rows(mixed=True, any_schedule=True, max_rows=6))
@settings(max_examples=EXAMPLES, deadline=None)
def test_offered_splits_bound_a_row_as_the_best_of_them_does_without_a_memory_limit(rows: Rows) -> None:
    index = np.flatnonzero(are_offered(rows))
    some = rows.take(index)
    boundless = replace(some, budget_bytes=np.inf)
    for row, bound_s in enumerate(least_offered_s(some).tolist()):
        assert (bound_s <= exhaust(some, row).simulated_s * ROUNDING).all()
        assert np.isclose(bound_s, exhaust(boundless, row).bound_s.min(initial=np.inf), rtol=1e-9)


# The zero-bubble family, whose backward passes are split, against the simulation of its passes.


@st.composite
def zero_bubble_rows(draw: st.DrawFn) -> tuple[Rows, tuple[int, ...]]:
    """One row of any schedule with a split backward pass, and a split of its layers."""
    schedule, pp = draw(st.sampled_from(SPLIT_BACKWARD)), draw(st.integers(2, 5))
    vpp = 2 if schedule in V_SHAPED else draw(st.integers(2, 3)) if schedule == "interleaved_zb" else 1
    m = pp * draw(st.integers(2, 4)) if vpp > 1 else draw(st.integers(1, 14))
    split = tuple(draw(st.lists(st.integers(1, 3), min_size=pp * vpp, max_size=pp * vpp)))
    shape = Shape(pp=pp, vpp=vpp, num_microbatches=m, recompute=0, recompute_layers=0)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    columns = replace(columns_of([shape]), pipeline_schedule=np.array([SCHEDULES.index(schedule)]))
    prices = prices_of([shape], 1, rng)
    share = rng.uniform(0.2, 0.6, prices.backward_s.shape)
    prices = replace(prices, weight_gradient_s=prices.backward_s * share)
    layout = layout_of([False] * sum(split))
    return Rows(columns=columns, prices=prices, layout=layout, budget_bytes=np.inf), split


@given(zero_bubble_rows())
@settings(max_examples=EXAMPLES, deadline=None)
def test_no_bound_lies_above_the_simulation(drawn: tuple[Rows, tuple[int, ...]]) -> None:
    rows, split = drawn
    simulated = simulated_s(rows, [split])[0]
    tiers = [float(tier(rows)[0]) for tier in (fractional_s, whole_layers_s)]
    tiers.append(float(split_s(rows, rows.stages([split]))[0]))
    assert tiers[0] <= tiers[1] <= tiers[2] * ROUNDING
    assert tiers[2] <= simulated * ROUNDING
    assert tiers[2] > 0.5 * simulated
    assert can_beat(rows, np.array([simulated]))[0]


def test_zb_h1_ends_like_its_bound_where_all_passes_take_a_second() -> None:
    # 2 ranks, 4 micro-batches, F = I = W = 1: rank 0 waits for 2 F and 1 I, ran 2 F early and has
    # (4 - 2) F + 4 I + 4 W left: at least 13 of the 13 that the simulation takes; rank 1 is busy for 12
    shape = Shape(pp=2, vpp=1, num_microbatches=4, recompute=0, recompute_layers=0)
    columns = replace(columns_of([shape]), pipeline_schedule=np.array([SCHEDULES.index("zb_h1")]))
    prices = prices_of([shape], 1, np.random.default_rng(0))
    one, ends = np.array([[1.0, 0.0, 0.0]]), np.zeros((1, 3))
    prices = replace(prices, forward_s=one, backward_s=2 * one, weight_gradient_s=one, replay_s=ends,
                     tail_s=ends, every_forward_s=np.zeros(1), every_backward_s=np.zeros(1))  # fmt: skip
    rows = Rows(columns=columns, prices=prices, layout=layout_of([False] * 2), budget_bytes=np.inf)
    assert least_end_s(rows, rows.stages([(1, 1)])).tolist() == [[13.0, 12.0]]
