"""Orders of nodes with links that differ: annealing, and the bound on every order."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from meshwright.profiles.links import NodeLinks, SwitchLevel
from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import plan_from_json, settled_problem
from meshwright.solver.configuration import Configuration, plan_id_of
from meshwright.solver.planner.host_order import OrderProblem, best_order, bound_of
from meshwright.solver.planner.plan import ask
from meshwright.solver.predict import predict
from meshwright.solver.problem import SearchOptions, problem_digest
from tests.unit.solver.cost.test_links import a_mesh, on_links


def drawn(num_nodes: int, seed: int, *, asymmetric: bool = False) -> NodeLinks:
    """Bandwidth of every pair, evenly from 5 to 199 GB/s an 8-GPU node."""
    drawn = np.random.default_rng(seed).integers(5, 200, (num_nodes, num_nodes)) * 1e9 / 8
    if not asymmetric:
        drawn = np.triu(drawn, 1) + np.triu(drawn, 1).T
    return NodeLinks(bytes_per_s=tuple(map(tuple, drawn.tolist())), asymmetric=asymmetric)


def asked(links: NodeLinks, mesh: Configuration, num_nodes: int) -> OrderProblem:
    problem = on_links(links, num_nodes=num_nodes)
    profile = default_profile(problem.cluster, "megatron-lm")
    return OrderProblem(problem=problem, profile=profile, config=mesh)


MESHES = [a_mesh(8, 2, 3), a_mesh(8, 1, 6), a_mesh(8, 6, 1), a_mesh(4, 4, 3)]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("both_ways", ["alike", "unlike"])
def test_brute_force_over_all_orders_of_six_nodes_agrees(mesh: Configuration, both_ways: str) -> None:
    one = asked(drawn(6, seed=3, asymmetric=both_ways == "unlike"), replace(mesh, num_microbatches=64), 6)
    least = min(one.exact_s(np.array(order)) for order in permutations(range(6)))
    found = best_order(one, effort=0.2)
    step_s = one.exact_s(np.array(found.order))
    assert step_s == pytest.approx(least, rel=1e-3)
    assert bound_of(one) <= least
    assert found.gap == pytest.approx(1.0 - found.bound_step_time_s / step_s)


def test_unused_nodes_may_be_the_slow_ones() -> None:
    rates = np.full((6, 6), 50e9)
    rates[0, :] = rates[:, 0] = rates[3, :] = rates[:, 3] = 1e9
    links = NodeLinks(bytes_per_s=tuple(map(tuple, rates.tolist())))
    found = best_order(asked(links, a_mesh(8, 1, 4), 6), effort=0.2)
    assert set(found.order[:4]) == {1, 2, 4, 5}
    assert found.gap == pytest.approx(0.0, abs=1e-9)


def test_neighbours_share_a_switch_where_uplinks_are_oversubscribed() -> None:
    links = NodeLinks(levels=(SwitchLevel(nodes=2, oversubscription=8.0),), order=(0, 2, 1, 3))
    found = best_order(asked(links, a_mesh(8, 1, 4), 4), effort=0.2)
    switches = [node // 2 for node in found.order]
    assert sorted(switches[:2]) != [0, 1] or sorted(switches[1:3]) != [0, 1]
    assert found.slowest_bytes_per_s["data"] == pytest.approx(50e9 / 4)


def test_the_same_seed_gives_the_same_order() -> None:
    one = asked(drawn(8, seed=1), a_mesh(8, 2, 4), 8)
    assert best_order(one, seed=5, effort=0.1) == best_order(one, seed=5, effort=0.1)


def test_plans_are_ranked_by_their_step_on_their_order() -> None:
    hosts = tuple(f"n{number}" for number in range(4))
    problem = on_links(
        replace(drawn(4, seed=2), hosts=hosts), options=SearchOptions(top_k=2, certify="none")
    )
    profile = default_profile(problem.cluster, "megatron-lm")
    answer = ask(problem, profile)
    first, second = answer.plans
    assert first.prediction.step_time_s <= second.prediction.step_time_s
    assert first.hosts is not None
    assert sorted(first.hosts.hosts) == sorted(hosts)
    assert first.prediction.step_time_s <= first.hosts.listed_step_time_s
    assert answer.bound_step_time_s is not None
    assert answer.bound_step_time_s <= first.hosts.bound_step_time_s <= first.prediction.step_time_s
    # whoever reads the plan later prices it on its own order
    again = plan_from_json(answer.to_json()["plans"][0])
    assert again == first
    settled = settled_problem(again, problem)
    assert predict(settled, profile, first.config).step_time_s == first.prediction.step_time_s
    assert first.plan_id == plan_id_of(problem_digest(problem), first.config)
    listed = predict(
        settled_problem(replace(first, hosts=None), problem), profile, first.config
    ).step_time_s
    assert listed == pytest.approx(first.hosts.listed_step_time_s)


def test_plans_on_like_links_name_no_order() -> None:
    problem = on_links(
        NodeLinks(rail_only=True), num_nodes=4, options=SearchOptions(top_k=1, certify="none")
    )
    answer = ask(problem, default_profile(problem.cluster, "megatron-lm"))
    assert answer.plans[0].hosts is None
    assert "hosts" not in answer.to_json()["plans"][0]
