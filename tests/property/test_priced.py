"""One price for many rows is the price of each of them."""

from dataclasses import fields, replace

import numpy as np
import pytest

from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import default_profile
from meshwright.solver.cost.price import price
from meshwright.solver.search.priced_space import priced_space
from meshwright.solver.space.enumerate import enumerate_space
from tests.builders import a_cluster, a_model, a_moe_model, a_problem


@pytest.mark.parametrize("model", [a_model(num_layers=8), a_moe_model()])
def test_rows_that_share_a_price_are_priced_alike(model: ModelSpec) -> None:
    problem = a_problem(model=model, cluster=a_cluster(num_nodes=2), batch=64)
    profile = default_profile(problem.cluster, problem.launcher)
    columns = enumerate_space(problem).columns
    priced = priced_space(problem, profile, columns)
    assert len(priced.prices.table) < len(columns) / 2
    index = np.random.default_rng(0).integers(0, len(columns), 3000)
    shared, own = priced.take(index).prices, price(problem, columns.take(index), profile)
    for name in (f.name for f in fields(own) if not f.name.endswith(("breakdown_s", "moments"))):
        assert np.array_equal(getattr(shared, name), getattr(own, name)), name


def test_kinds_of_torchs_pipelines_share_no_price_across_chunks_or_schedules() -> None:
    # it gathers the weights of more than three chunks a rank again and again, in the schedule's order
    problem = a_problem(model=a_model(num_layers=32), cluster=a_cluster(num_nodes=4), batch=64)
    problem = replace(problem, launcher="torchtitan")
    profile = default_profile(problem.cluster, problem.launcher)
    priced = priced_space(problem, profile, enumerate_space(problem, legal_only=True).rows)
    assert priced.by_kind is not None
    kinds, families = priced.by_kind.kinds, priced.by_kind.families
    index = np.flatnonzero(np.isin(kinds.of(np.arange(len(priced))), families.members))
    index = np.random.default_rng(0).choice(index, min(3000, len(index)), replace=False)
    rows = priced.take(index)
    assert {4, 8} <= set(rows.columns.virtual_pipeline_size.tolist())
    own = price(problem, rows.columns, profile)
    for name in (f.name for f in fields(own) if not f.name.endswith(("breakdown_s", "moments"))):
        assert np.array_equal(getattr(rows.prices, name), getattr(own, name)), name
