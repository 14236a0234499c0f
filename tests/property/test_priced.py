"""One price for many rows is the price of each of them."""

from dataclasses import fields

import numpy as np
import pytest

from profiles.model import ModelSpec
from profiles.profile import default_profile
from solver.cost.price import price
from solver.search.priced import priced_space
from solver.space import enumerate_space
from tests.builders import a_cluster, a_model, a_moe_model, a_problem


@pytest.mark.parametrize("model", [a_model(num_layers=8), a_moe_model()])
def test_rows_that_share_a_price_are_priced_alike(model: ModelSpec) -> None:
    problem = a_problem(model=model, cluster=a_cluster(num_nodes=2), batch=64)
    profile = default_profile(problem.cluster, problem.launcher)
    columns = enumerate_space(problem).columns
    priced = priced_space(problem, profile, columns)
    assert len(priced.table) < len(columns) / 2
    index = np.random.default_rng(0).integers(0, len(columns), 3000)
    shared, own = priced.take(index).prices, price(problem, columns.take(index), profile)
    for name in (f.name for f in fields(own) if not f.name.endswith("breakdown_s")):
        assert np.array_equal(getattr(shared, name), getattr(own, name)), name
