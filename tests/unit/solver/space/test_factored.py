"""Legal rows alone are those that the whole space calls legal, in the same order."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.clock import OutOfTime, Watch
from meshwright.solver.configuration import ALL_LAYERS, RECOMPUTE, Columns
from meshwright.solver.problem import Problem
from meshwright.solver.schedules.schedule import fill_share
from meshwright.solver.search.feasible import recompute_alike
from meshwright.solver.search.priced_space import priced_space
from meshwright.solver.space.enumerate import enumerate_space
from meshwright.solver.space.factored import Crossing, Kinds
from tests.builders import a_cluster, a_moe_model, a_problem


def dense(**options: Any) -> Problem:  # noqa: ANN401
    return a_problem(cluster=a_cluster(num_nodes=2), batch=64, **options)


def limited() -> Problem:
    return dense(
        pin={"tensor_parallel_size": 4},
        forbid={"recompute_granularity": ["full"]},
        bounds={"virtual_pipeline_size": (1, 3)},
        constraints=(
            "zero_stage == 1 => recompute_layers == 0",
            "micro_batch_size * num_microbatches <= 16",
        ),
    )


def experts() -> Problem:
    return a_problem(model=a_moe_model(), cluster=a_cluster(num_nodes=2), batch=48)


def without_a_legal_row() -> Problem:
    return dense(pin={"tensor_parallel_size": 3})


@pytest.mark.parametrize("problem", [dense(), limited(), experts(), without_a_legal_row()])
def test_legal_rows_are_the_same_with_and_without_the_others(problem: Problem) -> None:
    legal = enumerate_space(problem, legal_only=True)
    whole = enumerate_space(problem, wide=legal.every)  # all candidates, where none of the usual is legal
    expected = whole.columns.take(whole.legal)
    for field in fields(Columns):
        assert np.array_equal(getattr(legal.columns, field.name), getattr(expected, field.name))
    assert legal.size == whole.size == len(whole.columns)
    assert legal.legal.all()


@pytest.mark.parametrize("problem", [dense(), limited(), experts()])
def test_rows_are_taken_in_any_order_and_more_than_once(problem: Problem) -> None:
    space = enumerate_space(problem, legal_only=True)
    index = np.random.default_rng(0).integers(0, space.size - space.refuted, 500)
    taken, whole = space.rows.take(index), space.columns.take(index)
    for field in fields(Columns):
        assert np.array_equal(getattr(taken, field.name), getattr(whole, field.name))


def test_an_array_of_taken_rows_is_not_gathered_once_the_time_is_over() -> None:
    rows = enumerate_space(dense(), legal_only=True).rows
    taken = rows.take(np.zeros(2**19, dtype=np.int64))  # of others there are millions
    with Watch(time_limit_s=0.0).cut(), pytest.raises(OutOfTime):
        taken.tensor_parallel_size  # noqa: B018 - gathered at its first use


@pytest.mark.parametrize("problem", [dense(max_out_of_memory_probability=1.0), experts()])
def test_rows_of_one_kind_share_the_price_that_each_has_of_its_own(problem: Problem) -> None:
    profile = default_profile(problem.cluster, problem.launcher)
    space = enumerate_space(problem, legal_only=True)
    shared = priced_space(problem, profile, space.rows)
    apart = priced_space(problem, profile, space.columns)
    assert shared.by_kind is not None
    kinds, families = shared.by_kind.kinds, shared.by_kind.families
    index = np.arange(0, len(space.columns), 7)
    index = index[np.isin(kinds.of(index), families.members)]
    assert len(index) > 100
    for name in ("forward_s", "backward_s", "tail_s", "activation_bytes", "weights_bytes", "fixed_s"):
        mine, own = (getattr(rows.take(index).prices, name) for rows in (shared, apart))
        assert np.array_equal(mine, own)
    assert len(shared.prices.table) <= len(space.columns) / 2


@pytest.mark.parametrize("problem", [dense(), limited(), experts()])
def test_every_row_is_of_one_kind_and_its_representative_has_no_more_chunks(problem: Problem) -> None:
    crossing = enumerate_space(problem, legal_only=True).rows
    assert isinstance(crossing, Crossing)
    kinds = Kinds(crossing=crossing)
    every = np.arange(len(kinds))
    rows = kinds.rows(every)
    assert np.array_equal(np.sort(rows), np.arange(len(crossing)))
    assert np.array_equal(kinds.of(rows), np.repeat(every, kinds.sizes))
    one, quickest, lightest = (
        crossing.take(rows),
        kinds.quickest(kinds.of(rows)),
        kinds.lightest(kinds.of(rows)),
    )
    for name in ("virtual_pipeline_size", "recompute_layers"):
        assert (getattr(quickest, name) <= getattr(one, name)).all()
    assert (lightest.recompute_layers >= one.recompute_layers).all()
    for field in fields(Columns):
        if field.name not in {"virtual_pipeline_size", "recompute_layers"}:
            assert np.array_equal(getattr(quickest, field.name), getattr(one, field.name))
    assert (kinds.least_fill[kinds.of(rows)] <= fill_share(one)).all()


def test_kinds_that_differ_in_the_size_of_shard_sets_alone_are_one_family() -> None:
    crossing = enumerate_space(dense(), legal_only=True).rows
    assert isinstance(crossing, Crossing)
    kinds = Kinds(crossing=crossing)
    rows = kinds.quickest(np.arange(len(kinds)))  # one of each kind
    others = [getattr(rows, field.name) for field in fields(Columns) if field.name != "zero_shard_size"]
    assert len(kinds.families) == len({*zip(*(values.tolist() for values in others), strict=True)})


def test_rows_that_may_not_recompute_are_seen_beside_those_that_may() -> None:
    some = enumerate_space(a_problem(), legal_only=True).rows
    assert isinstance(some, Crossing)
    every = (1, RECOMPUTE.index("full"), ALL_LAYERS, 0)
    inner = np.array([(1, 0, 0, 0), every, (1, 0, 0, 0)])
    tied = replace(some, outer=some.outer.take(np.arange(2)), inner=inner, begin=np.array([0, 2]),
                   first=np.array([0, 2, 3]))  # fmt: skip
    free = replace(tied, begin=np.array([0, 0]), first=np.array([0, 2, 4]))
    assert not recompute_alike(tied)
    assert recompute_alike(free)
