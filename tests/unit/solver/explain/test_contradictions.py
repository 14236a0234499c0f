"""Limits of a request that contradict each other: the smallest set of them, each one needed."""

from collections.abc import Mapping
from typing import Any

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.explain.infeasible import minimal_hitting_sets, smallest_hitting_set
from meshwright.solver.problem import Problem
from meshwright.solver.search.search import search
from meshwright.solver.space.request_rules import request_rules, without_limits
from tests.builders import a_cluster, a_model, a_problem
from tests.problems.asked import searched_with_reasons

FIVE = ("dp != 1", "dp != 2", "dp != 4", "dp < 8 or zero_stage > 1", "zero_stage < 2")
# Requests on eight GPUs, and how many of their limits contradict each other.
CASES: tuple[tuple[Mapping[str, Any], int], ...] = (
    ({"pin": {"tensor_parallel_size": 2}, "constraints": ("tp >= 4", "pp <= 4")}, 2),
    ({"bounds": {"tensor_parallel_size": (4, 8)}, "constraints": ("tp * pp <= 2", "mbs <= 4")}, 2),
    ({"pin": {"data_parallel_size": 2}, "constraints": ("tp > pp", "pp > cp", "cp > 1", "mbs < 9")}, 3),
    ({"pin": {"recompute_granularity": "full"}, "constraints": ("recompute_granularity != 'full'",)}, 2),
    ({"constraints": (*FIVE, "mbs < 9")}, 5),
)  # fmt: skip


def small(**options: Any) -> Problem:  # noqa: ANN401 - options of a search
    """Eight layers on eight GPUs, without switches."""
    given = {"top_k": 1, "allow": ("none",), "certify": "none"} | options
    model = a_model(num_layers=8, hidden_size=1024, ffn_hidden_size=4096, num_attention_heads=16)
    return a_problem(model=model, cluster=a_cluster(num_nodes=1), batch=16, **given)


def has_plan(problem: Problem) -> bool:
    """Whether a search finds a plan."""
    return bool(search(problem, default_profile(problem.cluster, problem.launcher)).plans)


@pytest.mark.parametrize(("options", "count"), CASES)
def test_a_contradiction_is_the_smallest_set_of_limits_and_each_of_them_is_needed(
    options: Mapping[str, Any], count: int
) -> None:
    problem = small(**options)
    found = searched_with_reasons(problem).infeasible
    assert found is not None
    names = [rule.name for rule in request_rules(problem)]
    conflict = found.conflicts[0]
    assert len(conflict) == count
    assert {*conflict} <= {*names}
    assert all(any(name in reason for reason in found.reasons) for name in conflict)
    alone = without_limits(problem, [name for name in names if name not in conflict])
    assert not has_plan(alone)
    for name in conflict:
        assert has_plan(without_limits(alone, [name])), name


def test_sets_that_many_limits_must_meet_have_a_smallest_one_too() -> None:
    apart = [1 << bit | 1 << bit + 8 for bit in range(6)]  # six pairs without a limit in common
    assert minimal_hitting_sets(apart) == []
    assert smallest_hitting_set(apart).bit_count() == 6
    assert smallest_hitting_set([0, 3]) == 0
