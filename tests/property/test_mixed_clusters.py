"""Mixed clusters: exact programs and bounds against brute force over every placement."""

from dataclasses import replace
from itertools import chain, combinations, pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright.profiles.profile import default_profile
from meshwright.solver.cost.stages import objective_s
from meshwright.solver.problem import Problem
from meshwright.solver.search.candidates import fastest
from meshwright.solver.search.placement.bounds import Reach, field_bound_s, floors_of, step_bound_s
from meshwright.solver.search.placement.frontier import PlacedFrontier
from meshwright.solver.search.placement.program import Field, Program
from meshwright.solver.search.placement.replicas import least_split_s, shares_of, solve_split, split_bound_s
from meshwright.solver.search.proof import least_objective
from meshwright.solver.search.proof import placed_objective_bound_s as objective_bound_s
from meshwright.solver.search.search import search
from tests.draws import draws
from tests.problems.mixed_clusters import fields_of, mixed_problems, outer_space, placements

EXAMPLES = draws(6)
NS = 1e-9


def some_field(problem: Problem, data: st.DataObject) -> Field | None:
    outer = outer_space(problem)
    if not len(outer):
        return None
    row = data.draw(st.integers(0, len(outer) - 1))
    fields = list(fields_of(outer, row))
    return data.draw(st.sampled_from(fields)) if fields else None


@settings(max_examples=EXAMPLES, deadline=None)
@given(problem=mixed_problems(), data=st.data())
def test_the_program_finds_the_least_closed_form_of_all_placements(
    problem: Problem, data: st.DataObject
) -> None:
    field = some_field(problem, data)
    if field is None:
        return
    known = [field.objective_s(placement) for placement in placements(field)]
    best = Program(field).solve()
    assert (best is None) == (not known)
    if best is not None:
        # whole nanoseconds of each of p stages, and of the slowest
        assert best.objective_s <= min(known) + field.straggler * (field.p + 1) * NS
        assert best.placement in set(placements(field))


@settings(max_examples=EXAMPLES, deadline=None)
@given(problem=mixed_problems(), data=st.data())
def test_no_placement_simulates_below_the_bounds(problem: Problem, data: st.DataObject) -> None:
    field = some_field(problem, data)
    if field is None:
        return
    outer, columns = field.outer, field.outer.columns
    floors = floors_of(outer)
    layers = outer.layout.num_layers
    first = step_bound_s(floors, outer.group_of, outer.columns, layers)[field.row]
    choice = np.full((len(outer.fleet.groups), 1), -1)
    for berth in field.berths:
        choice[outer.group_of[berth], 0] = berth
    alone, row = floors.at(choice, np.array([field.row])), columns.take(np.array([field.row]))
    second = step_bound_s(alone, None, row, layers)[0]
    third = field_bound_s(alone, row, layers)[0]
    least = [objective_bound_s(floors, outer.group_of, columns, layers)[field.row]]
    least.append(objective_bound_s(alone, None, row, layers)[0])
    assert all(max(least) <= field.objective_s(placement) for placement in placements(field))
    simulated = [field.simulated_s(placement) for placement in placements(field)]
    reach, every = Reach(field), set(placements(field))
    for step in simulated:
        assert max(first, second, third) <= step
        assert reach.can_beat(step)
        assert reach.placement(step) in every


@settings(max_examples=EXAMPLES, deadline=None)
@given(problem=mixed_problems(), data=st.data())
def test_no_split_of_a_group_simulates_below_the_bounds_of_its_share(
    problem: Problem, data: st.DataObject
) -> None:
    outer, batch = outer_space(problem), problem.workload.global_batch_size
    assume(len(outer))  # a return would let the property hold of nothing
    share = data.draw(st.sampled_from(shares_of(outer)))
    n = data.draw(st.integers(1, batch))
    able = share.able(n)
    assume(len(able))
    row = share.rows(np.array([data.draw(st.sampled_from(able.tolist()))]), n)
    bound, p, layers = share.bound_s[n], int(row.p[0]), outer.layout.num_layers
    for cut in combinations(range(1, layers), p - 1):
        edges = (0, *cut, layers)
        split = tuple(end - start for start, end in pairwise(edges))
        if row.stages([split]).peak_memory_bytes.max() <= row.budget_bytes:
            step, _ = fastest(row, [split])
            assert bound <= step
            assert share.objective_s[n] <= objective_s(row.prices, row.columns, row.stages([split]))[0]
            assert share.may_step_within(n, step)


def every_set(count: int) -> chain[tuple[int, ...]]:
    return chain.from_iterable(combinations(range(count), size) for size in range(2, count + 1))


@settings(max_examples=max(EXAMPLES // 4, 5), deadline=None)
@given(problem=mixed_problems())
def test_the_bound_over_splits_of_a_batch_is_below_the_best_split(problem: Problem) -> None:
    outer = outer_space(problem)
    shares = shares_of(outer) if len(outer) else []
    for groups in every_set(len(shares)):
        exchange = outer.fleet.exchange_s(groups)
        best = solve_split(shares, groups, exchange)
        if best is not None:
            assert least_split_s(shares, groups) + exchange <= best.score_s
            assert split_bound_s(shares, groups, exchange, best.score_s) <= best.score_s


@settings(max_examples=max(EXAMPLES // 8, 3), deadline=None)
@given(problem=mixed_problems(), zero_stage=st.integers(0, 3), micro_batch_size=st.sampled_from([1, 2]))
def test_best_first_ranks_as_solving_every_field_does(
    problem: Problem, zero_stage: int, micro_batch_size: int
) -> None:
    pins: dict[str, int] = {
        "zero_stage": zero_stage,
        "micro_batch_size": micro_batch_size,
    }  # a tenth of the rows
    options = replace(problem.options, pin=pins)
    outer = outer_space(replace(problem, options=options))
    if not len(outer):
        return
    frontier = PlacedFrontier.of(outer, 3)
    frontier.run(lambda _: False)
    every = PlacedFrontier.of(outer, 3)
    for row in range(len(outer)):
        for field in fields_of(outer, row):
            every.settle(field, unconditionally=True)
    assert [one.key for one in frontier.ranked] == [one.key for one in every.ranked]
    if frontier.ranked:
        best = frontier.ranked[0].score_s
        bound = frontier.least_bound_s(best)
        simulated = [
            field.simulated_s(placement)
            for row in range(len(outer))
            for field in fields_of(outer, row)
            for placement in placements(field)
        ]
        assert bound <= min(simulated)
        own = frontier.ranked[0].objective_s
        least = least_objective(frontier, shares_of(outer), own)
        assert least.bound_s <= min(every.objectives.values()) * (1 + 1e-9)
        assert least.known_s in {own, *every.objectives.values()}


@pytest.mark.timeout(120)
@settings(max_examples=max(EXAMPLES // 4, 3), deadline=None)
@given(problem=mixed_problems())
def test_every_plan_passes_the_independent_check(problem: Problem) -> None:
    answer = search(problem, default_profile(problem.cluster, "none"))
    assert answer.status in {"optimal", "infeasible"}
    for plan in answer.plans:
        assert plan.config.num_gpus <= problem.cluster.num_gpus
        assert answer.bound_step_time_s is not None
        assert answer.bound_step_time_s <= plan.prediction.step_time_s
