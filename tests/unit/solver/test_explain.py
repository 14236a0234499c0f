"""Why nothing fits: minimal, complete, and every change verified."""

import math
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.profiles.profile import default_profile
from meshwright.profiles.units import GIB
from meshwright.solver.answer import Infeasibility
from meshwright.solver.explain.infeasible import minimal_hitting_sets, minimal_masks
from meshwright.solver.problem import Problem
from meshwright.solver.search.search import search
from tests.builders import a_cluster, a_gpu, a_model, a_problem


def explained(problem: Problem) -> Infeasibility:
    """The reasons of an infeasible problem."""
    answer = search(problem, default_profile(problem.cluster, problem.launcher))
    assert answer.status == "infeasible"
    assert answer.infeasible is not None
    return answer.infeasible


def fits(problem: Problem) -> bool:
    """Whether a problem has a plan."""
    return bool(search(problem, default_profile(problem.cluster, problem.launcher)).plans)


MASKS = st.lists(st.integers(1, 63), min_size=1, max_size=12)


@given(MASKS)
def test_minimal_masks_have_no_part_among_the_others(masks: list[int]) -> None:
    kept = minimal_masks(masks)  # type: ignore[arg-type]
    assert all(any(k & mask == k for k in kept) for mask in masks)
    assert not any(a & b == a for a, b in combinations(kept, 2))


@given(MASKS)
def test_hitting_sets_meet_every_set_and_none_can_lose_a_bit(masks: list[int]) -> None:
    found = minimal_hitting_sets(masks, largest=6)
    assert found
    for hitting in found:
        assert all(hitting & mask for mask in masks)
        smaller = [hitting & ~(1 << bit) for bit in range(6) if hitting >> bit & 1]
        assert not any(all(part & mask for mask in masks) for part in smaller)


def test_a_model_too_large_names_the_stage_and_the_missing_memory() -> None:
    problem = a_problem(cluster=a_cluster(num_nodes=1), certify="none")
    found = explained(problem)
    assert found.nearest is not None
    assert found.nearest.needed_bytes > found.nearest.limit_bytes
    assert found.reasons[0].startswith(f"memory: stage {found.nearest.stage} of the nearest configuration")
    assert len(found.conflicts) == 1
    assert found.conflicts[0][0].startswith("memory of ")


@pytest.mark.parametrize("z", [0.8, 1.0, 1.2, 1.5, 1.8, 2.1])
def test_a_risk_that_is_offered_is_enough(z: float) -> None:
    # memory that lies z spreads above the least peak: the risk is Phi(-z), 21 % to 1.8 %
    model = a_model(num_layers=24, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32)

    def on_two_gpus(memory_bytes: float) -> Problem:
        group = a_cluster(num_nodes=1, gpu=a_gpu(memory_bytes=int(memory_bytes))).groups[0]
        cluster = replace(a_cluster(), groups=(replace(group, gpus_per_node=2, island_gpus=2),))
        return a_problem(model=model, cluster=cluster, batch=8, certify="none")

    nearest = explained(on_two_gpus(GIB)).nearest
    assert nearest is not None
    sigma = default_profile(a_cluster(), "megatron-lm").log_memory_sigma
    problem = on_two_gpus(nearest.needed_bytes * math.exp(sigma * z))
    risks = [change for change in explained(problem).changes if change.startswith("an out-of-memory")]
    risk = float(risks[0].split()[-2]) / 100
    options = replace(problem.options, max_out_of_memory_probability=risk)
    assert fits(replace(problem, options=options))


def test_more_nodes_are_offered_and_really_fit() -> None:
    problem = a_problem(cluster=a_cluster(num_nodes=1), certify="none")
    nodes = next(change for change in explained(problem).changes if change.endswith("nodes"))
    assert fits(replace(problem, cluster=a_cluster(num_nodes=int(nodes.split()[0]))))


def test_a_pin_that_costs_the_memory_is_named_with_it_and_its_removal_fits() -> None:
    model = a_model(num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32)
    pins = {"pin": {"tensor_parallel_size": 1, "zero_stage": 0, "pipeline_parallel_size": 1}}
    problem = a_problem(model=model, cluster=a_cluster(num_nodes=1), batch=64, certify="none", **pins)
    found = explained(problem)
    assert any("memory" in words[-1] and len(words) > 1 for words in found.conflicts)
    without = [change for change in found.changes if change.startswith("without pin ")]
    assert without
    dropped = without[0].removeprefix("without pin ").split(" = ")[0]
    options = replace(problem.options, pin={k: v for k, v in pins["pin"].items() if k != dropped})
    assert fits(replace(problem, options=options))


def test_a_pin_that_no_rule_allows_is_told_with_the_rule() -> None:
    found = explained(a_problem(cluster=a_cluster(num_nodes=4), pin={"tensor_parallel_size": 16}))
    assert found.conflicts == (("pin tensor_parallel_size = 16",),)
    assert "divides an island" in found.reasons[0]
    assert found.nearest is None


def test_limits_that_each_alone_stand_in_the_way_are_one_conflict_however_many_they_are() -> None:
    # 1, 2, 4, 8 and 16 leave no choice; of 32 and 64 one is enough
    assert minimal_hitting_sets([1, 2, 4, 8, 16, 96]) == [31 + 32, 31 + 64]
    assert minimal_hitting_sets([]) == []
