"""What holds for a kind of rows holds for every row of it, and looking kind by kind changes no answer."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings

from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.answer import Answer
from meshwright.solver.configuration import ALL_LAYERS, BoolArray, Columns, FloatArray
from meshwright.solver.cost.price import busy_of_passes, least_busy, price, shared_passes
from meshwright.solver.cost.stages import LayerLayout
from meshwright.solver.problem import Problem
from meshwright.solver.search import priced_space as unopened
from meshwright.solver.search.bounds import least_of_kind_s, objective_bound_s
from meshwright.solver.search.frontier import Frontier
from meshwright.solver.search.memory_limits import kinds_may_fit
from meshwright.solver.search.priced_space import Unopened, priced_rows, priced_space
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import enumerate_space
from meshwright.solver.space.factored import Crossing, Kinds
from tests.builders import a_cluster, a_model, a_problem
from tests.draws import draws
from tests.problems.small_problems import small_problems
from tests.property.exhaustive import exhaust_all

EXAMPLES = draws(2, of_more=3)
ROUNDING = 1 + 1e-9


def bounds_of_kinds(problem: Problem) -> tuple[Crossing, Kinds, FloatArray, FloatArray, BoolArray]:
    """Every kind's bound on the step, on the closed form, and whether memory leaves it standing."""
    rows = priced_space(
        problem, profile_of(problem), crossing := enumerate_space(problem, legal_only=True).rows
    )
    assert isinstance(crossing, Crossing)
    assert rows.by_kind is not None
    kinds = rows.by_kind.kinds
    queue = Unopened.of(rows, rows.by_kind)
    queue.open_objectives(np.inf)  # takes all families apart
    steps, objectives = (np.zeros(len(kinds)) for _ in range(2))
    steps[queue.order], objectives[queue.order] = queue.bound_s, queue.objective_s
    able = np.isin(np.arange(len(kinds)), rows.by_kind.families.members)
    return crossing, kinds, steps, objectives, able


def profile_of(problem: Problem) -> Profile:
    return default_profile(problem.cluster, problem.launcher)


@given(small_problems())
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_bounds_of_a_kind_hold_for_every_split_of_its_rows(problem: Problem) -> None:
    if not len(enumerate_space(problem, legal_only=True).rows):
        return
    crossing, kinds, steps, objectives, able = bounds_of_kinds(problem)
    every = np.arange(len(crossing))
    rows = priced_rows(problem, profile_of(problem), crossing.take(every))
    by_kind = priced_space(problem, profile_of(problem), crossing).by_kind
    assert by_kind is not None
    of_passes = by_kind.bounds_s(np.arange(len(kinds)))
    assert (of_passes[0] <= np.where(able, steps, np.inf) * ROUNDING).all()
    for found, kind in zip(exhaust_all(rows), kinds.of(every).tolist(), strict=True):
        assert able[kind] or not found.splits
        if found.splits:
            assert steps[kind] <= found.simulated_s.min() * ROUNDING
            assert objectives[kind] <= found.objective_s.min() * ROUNDING
            assert of_passes[1][kind] <= found.objective_s.min() * ROUNDING


@given(small_problems())
@settings(max_examples=EXAMPLES, deadline=None)
def test_how_many_rows_are_opened_together_changes_no_plan_and_no_claim(problem: Problem) -> None:
    profile, usual = profile_of(problem), unopened.AT_ONCE

    def answer(at_once: int) -> Answer:
        unopened.AT_ONCE = at_once
        try:
            found = search(problem, profile)
        finally:
            unopened.AT_ONCE = usual
        return found

    one, many = answer(1), answer(usual)
    assert (one.status, one.explored) == (many.status, many.space_size)
    assert [replace(plan, gap=None, bound_step_time_s=None) for plan in one.plans] == [
        replace(plan, gap=None, bound_step_time_s=None) for plan in many.plans
    ]
    for name in ("bound_step_time_s", "objective_excess") if one.plans else ():  # bounds are halved to 1e-5
        assert getattr(one, name) == pytest.approx(getattr(many, name), rel=2e-5, abs=1e-9), name
    for some in (
        *one.plans,
        *many.plans,
    ):  # floors of ranks: how far they are raised depends on what was opened
        assert some.bound_step_time_s is not None
        assert some.bound_step_time_s <= some.prediction.step_time_s * ROUNDING


def with_every_shard_size(launcher: str) -> Problem:
    """Eight nodes whose launcher shards over some of the ranks that share weights, in every size."""
    problem = a_problem(model=a_model(num_layers=8), cluster=a_cluster(num_nodes=8), batch=64)
    return replace(problem, launcher=launcher)


@pytest.mark.parametrize("launcher", ["none", "megatron-lm", "torchtitan"])
def test_a_family_is_bounded_and_refuted_as_each_shard_size_of_it_by_itself(launcher: str) -> None:
    problem = with_every_shard_size(launcher)
    profile = profile_of(problem)
    crossing = enumerate_space(problem, legal_only=True, wide=True).rows
    assert isinstance(crossing, Crossing)
    rows = priced_space(problem, profile, crossing)
    assert rows.by_kind is not None
    kinds, families = rows.by_kind.kinds, rows.by_kind.families
    every = kinds.families
    assert sorted(every.members.tolist()) == list(range(len(kinds)))
    lightest = kinds.lightest(np.arange(len(kinds)))
    fits = kinds_may_fit(priced_rows(problem, profile, lightest))
    assert np.array_equal(np.flatnonzero(fits), np.sort(families.members))

    which = np.repeat(np.arange(len(families)), families.sizes)
    sizes = kinds.quickest(families.members).zero_shard_size
    assert families.sizes.max() > 3
    assert (np.diff(sizes)[np.diff(which) == 0] > 0).all()
    alike = [f.name for f in fields(Columns) if f.name != "zero_shard_size"]
    first = kinds.quickest(families.members[families.begin[:-1]])
    for name in alike:
        own = getattr(kinds.quickest(families.members), name)
        assert np.array_equal(own, getattr(first, name)[which]), name
    steps, closed_forms = rows.by_kind.bounds_s(families.members[families.begin[:-1]])
    apart = rows.joined(kinds.quickest(families.members), rows.prices.at(families.members))
    assert (steps[which] <= least_of_kind_s(apart) * ROUNDING).all()
    assert (closed_forms[which] <= objective_bound_s(apart) * ROUNDING).all()


@pytest.mark.parametrize("launcher", ["none", "megatron-lm", "deepspeed"])
@pytest.mark.parametrize("changed", [{}, {"gradient_dtype": "bf16"}, {"moe_dispatcher": "allgather"}])
def test_passes_that_many_rows_share_take_as_long_as_priced_row_by_row(
    launcher: str, changed: dict[str, str]
) -> None:
    moe = MoeSpec(num_experts=8, top_k=2, ffn_hidden_size=2048, num_dense_layers=1)
    problem = a_problem(model=a_model(num_layers=8, moe=moe), cluster=a_cluster(num_nodes=4), batch=64)
    problem = replace(problem, launcher=launcher)
    columns = enumerate_space(problem, legal_only=True).rows  # not all launchers have every option
    problem = replace(problem, workload=replace(problem.workload, framework_options=changed))
    profile = profile_of(problem)
    every = columns.take(np.arange(len(columns)))
    rows = every.take(np.flatnonzero(every.zero_stage < 2)[:20_000])  # no weights travel in their passes
    apart = price(problem, rows, profile)
    assert len(rows) > 50
    (least,) = shared_passes([problem], rows, profile)
    parts = np.append(LayerLayout.of(problem.model).cumulative[-1], (1, 1))
    replayed = np.where(rows.recompute_layers == ALL_LAYERS, apart.replay_s @ parts, 0.0)
    whole = (apart.forward_s + apart.backward_s) @ parts + replayed
    assert (least.whole_s <= whole * ROUNDING).all()
    np.testing.assert_allclose(least.whole_s, whole, rtol=0.02)
    busy = busy_of_passes(LayerLayout.of(problem.model), apart.breakdown_s, apart.replay_s)
    np.testing.assert_allclose(least_busy(problem, rows, profile), busy, rtol=1e-12)


@given(small_problems())
@settings(max_examples=EXAMPLES, deadline=None)
def test_families_beyond_a_limit_are_left_and_bounded_all_the_same(problem: Problem) -> None:
    space = enumerate_space(problem, legal_only=True)
    if not len(space.rows):
        return
    rows = priced_space(problem, profile_of(problem), space.rows)
    assert rows.by_kind is not None
    every = Unopened.of(rows, rows.by_kind)
    limit = every.least_s * 1.2
    some = Unopened.of(rows, rows.by_kind, limit)
    assert some.least_objective_s <= every.least_objective_s * ROUNDING
    assert min(some.least_s, limit) == pytest.approx(min(every.least_s, limit))
    for queue in (every, some):
        queue.open_objectives(np.inf)  # takes all families apart, those beyond the limit too
    assert sorted(every.order.tolist()) == sorted(some.order.tolist())


def test_a_search_prices_few_of_the_shard_sizes_one_by_one() -> None:
    problem = with_every_shard_size("megatron-lm")
    space = enumerate_space(problem, legal_only=True, wide=True)
    rows = priced_space(problem, profile_of(problem), space.rows)
    usual, unopened.AT_ONCE = unopened.AT_ONCE, 256
    try:
        frontier = Frontier.of(rows, 3)
        frontier.run(lambda _: False)
    finally:
        unopened.AT_ONCE = usual
    assert frontier.finished
    assert rows.by_kind is not None
    assert len(rows.prices.table) < len(rows.by_kind.families.members) / 2
