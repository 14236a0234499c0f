"""The exact inner programs against brute force over every split."""

import numpy as np
import pytest
from hypothesis import given, settings

from meshwright.solver.cost.stages import objective_s
from meshwright.solver.search.fill_kinds import least_objective_s, may_reach_objective
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.splits import best_splits
from tests.draws import draws
from tests.problems.strategies import priced_rows
from tests.property.exhaustive import exhaust

RELATIVE = 1e-6  # the boundary program counts whole nanoseconds


def best_objective_s(rows: Rows) -> float:
    """The closed form of the split that the inner program picks; +inf where it picks none."""
    split = best_splits(rows)[0]
    if split is None:
        return np.inf
    return float(objective_s(rows.prices, rows.columns, rows.stages([split]))[0])


@given(priced_rows(any_schedule=True))
@settings(max_examples=draws(25, of_more=80), deadline=None)
def test_inner_program_equals_brute_force_over_all_splits(rows: Rows) -> None:
    brute = exhaust(rows, 0).objective_s.min(initial=np.inf)
    assert best_objective_s(rows) == pytest.approx(brute, rel=RELATIVE)


@given(priced_rows(mixed=True, max_layers=8, any_schedule=True))
@settings(max_examples=draws(25, of_more=80), deadline=None)
def test_room_by_kind_bounds_the_closed_form_of_every_split_from_below(rows: Rows) -> None:
    if rows.v[0] == 1 or not rows.uneven_stages:
        return
    brute = exhaust(rows, 0).objective_s.min(initial=np.inf)
    least = float(least_objective_s(rows)[0])
    assert least <= brute * (1 + RELATIVE)


@given(priced_rows(mixed=True, max_layers=8, any_schedule=True))
@settings(max_examples=draws(25, of_more=80), deadline=None)
def test_a_row_may_reach_the_closed_form_of_its_best_split(rows: Rows) -> None:
    brute = exhaust(rows, 0).objective_s.min(initial=np.inf)
    assert brute == np.inf or may_reach_objective(rows, brute * (1 + RELATIVE))[0]


@given(priced_rows(any_schedule=True))
@settings(max_examples=draws(10, of_more=30), deadline=None)
def test_chosen_split_is_one_that_the_space_offers_and_memory_holds(rows: Rows) -> None:
    split = best_splits(rows)[0]
    assert split is None or split in exhaust(rows, 0).splits


@given(priced_rows(any_schedule=True))
@settings(max_examples=draws(10, of_more=30), deadline=None)
def test_more_memory_never_makes_the_best_split_worse(rows: Rows) -> None:
    more = Rows(
        columns=rows.columns, prices=rows.prices, layout=rows.layout,
        budget_bytes=rows.budget_bytes * 1.1, uneven_stages=rows.uneven_stages,
    )  # fmt: skip
    assert best_objective_s(more) <= best_objective_s(rows) * (1 + RELATIVE)
