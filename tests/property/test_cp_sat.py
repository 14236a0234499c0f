"""CP-SAT against the exact program: two methods, one minimum."""

import pytest
from hypothesis import given, settings

from meshwright.solver.cost.stages import objective_s
from meshwright.solver.search.certify.request import Request, is_expressible
from meshwright.solver.search.certify.row_request import row_request
from meshwright.solver.search.certify.split_model import CpSatResult, judge
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.splits import best_splits
from tests.draws import draws
from tests.problems.strategies import priced_rows

ROUNDING_S = 2e-6


def asked(rows: Rows, objectives: dict[int, float], splits: list[tuple[int, ...] | None]) -> CpSatResult:
    """The verdict over the rows that have a split; the hint is the best row and the worst split of it."""
    fitting = sorted(objectives)
    best = min(fitting, key=lambda row: objectives[row])
    request = Request(
        num_layers=rows.layout.num_layers,
        cumulative=rows.layout.cumulative.T.tolist(),
        rows=[row_request(rows, row) for row in fitting],
        hint_row=fitting.index(best),
        hint_split=splits[best] or (),
        seed=0,
        time_limit_s=20.0,
        deterministic_limit=20.0,
    )
    assert is_expressible(request)
    return judge(Request.from_json(request.to_json()))


@given(
    priced_rows(max_layers=12, max_rows=3, any_schedule=True, per_stage=True)
    | priced_rows(max_layers=10, in_turn=True)
)
@settings(max_examples=draws(12, of_more=40), deadline=None)
def test_cp_sat_proves_the_minimum_of_the_exact_program(rows: Rows) -> None:
    splits = best_splits(rows)
    objectives = {}
    for row, split in enumerate(splits):
        if split is not None:
            one = rows.take([row])
            objectives[row] = float(objective_s(one.prices, one.columns, one.stages([split]))[0])
    if not objectives:
        return
    verdict = asked(rows, objectives, splits)
    assert verdict.status == "OPTIMAL"
    assert verdict.objective_us is not None
    assert verdict.objective_us * 1e-6 == pytest.approx(min(objectives.values()), abs=ROUNDING_S)


@given(
    priced_rows(max_layers=8, any_schedule=True, per_stage=True) | priced_rows(max_layers=8, in_turn=True)
)
@settings(max_examples=draws(10, of_more=30), deadline=None)
def test_cp_sat_finds_a_split_exactly_where_the_exact_program_does(rows: Rows) -> None:
    split = best_splits(rows)[0]
    request = Request(
        num_layers=rows.layout.num_layers,
        cumulative=rows.layout.cumulative.T.tolist(),
        rows=[row_request(rows, 0)],
        hint_row=0,
        hint_split=(),
        seed=0,
        time_limit_s=20.0,
        deterministic_limit=20.0,
    )
    assert is_expressible(request)
    assert judge(request).status == ("INFEASIBLE" if split is None else "OPTIMAL")
