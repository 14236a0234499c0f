"""Mixed clusters: exact programs and bounds against brute force over every placement."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.profile import default_profile
from solver.mixed.bounds import floors_of, step_bound_s
from solver.mixed.field import Field
from solver.mixed.frontier import PlacedFrontier
from solver.mixed.program import Program
from solver.mixed.reach import Reach
from solver.problem import Problem
from solver.search.search import search
from tests.mixed_clusters import fields_of, mixed_problems, outer_space, placements

EXAMPLES = int(os.environ.get("BOUND_EXAMPLES", "40"))
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
    p, m = columns.pipeline_parallel_size, columns.num_microbatches
    first = step_bound_s(floors, outer.group_of, p, m, layers)[field.row]
    choice = np.full((len(outer.fleet.groups), 1), -1)
    for berth in field.berths:
        choice[outer.group_of[berth], 0] = berth
    row = slice(field.row, field.row + 1)
    second = step_bound_s(floors.at(choice, np.array([field.row])), None, p[row], m[row], layers)[0]
    simulated = [field.simulated_s(placement) for placement in placements(field)]
    for step in simulated:
        assert max(first, second) <= step
        assert Reach(field).can_beat(step)


@settings(max_examples=max(EXAMPLES // 8, 5), deadline=None)
@given(problem=mixed_problems())
def test_best_first_ranks_as_solving_every_field_does(problem: Problem) -> None:
    outer = outer_space(problem)
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


@pytest.mark.timeout(120)
@settings(max_examples=5, deadline=None)
@given(problem=mixed_problems())
def test_every_plan_passes_the_independent_check(problem: Problem) -> None:
    answer = search(problem, default_profile(problem.cluster, "none"))
    assert answer.status in {"optimal", "infeasible"}
    for plan in answer.plans:
        assert plan.config.num_gpus <= problem.cluster.num_gpus
        assert answer.bound_step_time_s is not None
        assert answer.bound_step_time_s <= plan.prediction.step_time_s
