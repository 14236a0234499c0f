"""Best first against exhaustive search over random rows."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.solver.search.frontier import Frontier, layouts_of
from meshwright.solver.search.priced_space import Priced
from meshwright.solver.search.proof import floors_of
from meshwright.solver.search.rows import Rows
from tests.draws import draws
from tests.problems.strategies import priced_rows
from tests.property.exhaustive import candidates_s, exhaust_all


def ranked(rows: Rows, top_k: int) -> list[int]:
    """Rows in the order of the best-first search."""
    frontier = Frontier.of(Priced.of(rows), top_k)
    frontier.run(lambda _: False)
    assert frontier.finished
    assert frontier.settled == len(rows)
    return [one.row for one in frontier.ranked]


def layout_of(rows: Rows, row: int) -> tuple[int, int]:
    """What these rows differ in beside recomputation and chunks a rank."""
    return int(rows.p[row]), int(rows.m[row])


def scores_of(rows: Rows) -> dict[int, float]:
    """The score of every row that has a split: its fastest candidate, written out."""
    found = dict[int, float]()
    for row, tried in candidates_s(rows):
        found[row] = min(tried, found.get(row, np.inf))
    return found


@given(priced_rows(max_rows=12), st.integers(1, 5))
@settings(max_examples=draws(12, of_more=40), deadline=None)
def test_best_first_equals_the_best_score_of_every_layout(rows: Rows, top_k: int) -> None:
    scores = scores_of(rows)
    layouts: dict[tuple[int, int], float] = {}
    for row, score in scores.items():
        layout = layout_of(rows, row)
        layouts[layout] = min(score, layouts.get(layout, np.inf))
    found = ranked(rows, top_k)
    assert len({layout_of(rows, row) for row in found}) == len(found)
    assert np.allclose([scores[row] for row in found], sorted(layouts.values())[:top_k], rtol=1e-9)


@given(priced_rows(max_rows=40, one_layout=True, max_layers=6))
@settings(max_examples=draws(10, of_more=30), deadline=None)
def test_the_best_row_of_a_layout_stands_for_it_whichever_is_found_first(rows: Rows) -> None:
    scores = scores_of(rows)
    found = [scores[row] for row in ranked(rows, 3)]
    assert np.allclose(found, sorted(scores.values())[:1], rtol=1e-9)


@given(priced_rows(max_rows=12), st.integers(1, 5))
@settings(max_examples=draws(10, of_more=30), deadline=None)
def test_the_best_k_are_a_prefix_of_the_best_k_plus_one(rows: Rows, top_k: int) -> None:
    assert ranked(rows, top_k) == ranked(rows, top_k + 1)[:top_k]


@given(priced_rows(max_rows=6))
@settings(max_examples=draws(8, of_more=25), deadline=None)
def test_the_order_of_rows_changes_no_score(rows: Rows) -> None:
    backwards = np.arange(len(rows))[::-1]
    scores = [
        f.ranked[0].score_s
        for f in (Frontier.of(Priced.of(some), 1) for some in (rows, rows.take(backwards)))
        if run(f)
    ]
    assert len(set(scores)) <= 1


@given(priced_rows(max_rows=6), st.integers(1, 3))
@settings(max_examples=draws(5, of_more=10), deadline=None)
def test_no_split_of_a_layout_simulates_below_the_floor_of_that_layout(rows: Rows, top_k: int) -> None:
    frontier = Frontier.of(Priced.of(rows), top_k)
    if not run(frontier):
        return
    floors = floors_of(frontier, 0.0).layouts
    assert floors
    for layout, every in zip(layouts_of(rows.columns, [*range(len(rows))]), exhaust_all(rows), strict=True):
        least_s = every.simulated_s.min(initial=np.inf)
        assert floors.get(layout, 0.0) <= least_s * (1.0 + 1e-9)


def run(frontier: Frontier) -> bool:
    """Search to the end; whether there is a plan."""
    frontier.run(lambda _: False)
    return bool(frontier.ranked)
