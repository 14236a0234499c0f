"""All GPUs means at most all: the best step over every number of GPUs that can start, against each."""

from dataclasses import replace
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.profiles.profile import default_profile
from meshwright.profiles.units import GIB
from meshwright.solver.answer import Answer
from meshwright.solver.configuration import mesh_of
from meshwright.solver.problem import PER_GPU, Objective, Problem, on_gpus
from meshwright.solver.search.fewer_gpus import IDLE
from meshwright.solver.search.gpu_seconds import least_gpu_s, least_pass_gpu_s
from meshwright.solver.search.priced_space import priced_rows
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import (
    enumerate_space,
    is_of_fewer,
    numbers_of_gpus,
    searched_space,
)
from tests.builders import a_cluster, a_gpu, a_model, a_problem
from tests.draws import draws
from tests.property.exhaustive import candidates_s

EXAMPLES = draws(2, of_more=3)
ROUNDING = 1 + 1e-9
EACH = 2  # GPUs of a node


def on_nodes(problem: Problem, nodes: int) -> Problem:
    (group,) = problem.cluster.groups
    return replace(problem, cluster=replace(problem.cluster, groups=(replace(group, num_nodes=nodes),)))


@st.composite
def few_nodes(draw: st.DrawFn) -> Problem:
    """2 to 7 layers on 3 to 7 nodes of 2 GPUs, and a batch that mostly has other factors."""
    model = a_model(
        num_layers=draw(st.integers(2, 7)), hidden_size=2048, ffn_hidden_size=8192,
        num_attention_heads=16, vocab_size=32000,
    )  # fmt: skip
    memory = draw(st.sampled_from([12, 24, 79]))
    cluster = a_cluster(num_nodes=draw(st.integers(3, 7)), gpu=a_gpu(memory_bytes=memory * GIB))
    group = replace(cluster.groups[0], gpus_per_node=EACH, island_gpus=EACH)
    pin: dict[str, int | str] = {"context_parallel_size": 1, "micro_batch_size": 1}
    if draw(st.booleans()):
        pin["tensor_parallel_size"] = draw(st.sampled_from([1, 2]))
    problem = a_problem(
        model=model, cluster=replace(cluster, groups=(group,)), certify="none",
        batch=draw(st.sampled_from([4, 6, 8, 12, 25])), top_k=draw(st.integers(1, 4)),
        pin=pin, bounds={"zero_stage": (0, 1)},
    )  # fmt: skip
    return replace(problem, launcher=draw(st.sampled_from(["megatron-lm", "none", "nanotron"])))


def steps_on(problem: Problem, num_gpus: int) -> list[float]:
    """The simulated steps of all candidates of every legal row on so many GPUs; nothing is skipped."""
    asked = on_gpus(problem, (num_gpus,))
    space = searched_space(asked)
    rows = priced_rows(
        asked, default_profile(asked.cluster, asked.launcher), space.columns.take(space.legal)
    )
    return [step_s for _, step_s in candidates_s(rows)]


def steps_s(answer: Answer) -> list[float]:
    return [plan.prediction.step_time_s for plan in answer.plans]


def are_of_unlike_meshes(answer: Answer) -> bool:
    """Else other layouts of a mesh are listed, as there are too few meshes."""
    return len({mesh_of(plan.config) for plan in answer.plans}) == len(answer.plans)


def is_legal_on(problem: Problem, num_gpus: int) -> bool:
    return searched_space(on_gpus(problem, (num_gpus,))).num_legal > 0


@given(few_nodes())
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_best_step_is_the_least_over_all_numbers_of_nodes_and_never_rises_with_nodes(
    problem: Problem,
) -> None:
    """A part of the last node may be idle, under nanotron only where no legal row uses all of several."""
    profile = default_profile(problem.cluster, problem.launcher)
    steps, legal = (
        cache(lambda gpus: steps_on(problem, gpus)),
        cache(lambda gpus: is_legal_on(problem, gpus)),
    )
    before_s = np.inf
    for nodes in range(1, problem.cluster.num_nodes + 1):
        answer = search(on_nodes(problem, nodes), profile)
        numbers = [
            gpus
            for gpus in range(1, nodes * EACH + 1)
            if problem.launcher != "nanotron"
            or gpus % EACH == 0
            or gpus < EACH
            or not legal(gpus + gpus % EACH)
        ]
        every = {gpus: min(steps(gpus), default=np.inf) for gpus in numbers}
        least_s = min(every.values())
        assert answer.status == ("infeasible" if least_s == np.inf else "optimal")
        own_s = answer.plans[0].prediction.step_time_s if answer.plans else np.inf
        assert own_s == pytest.approx(least_s, rel=1e-9)
        assert own_s <= before_s * ROUNDING
        assert answer.bound_step_time_s is None or answer.bound_step_time_s <= least_s * ROUNDING
        before_s = own_s
        # the number that shares the batch best comes first, or the one with the least bound
        for limit in ("MANY_OUTER", "_CROWDED"):
            module = "meshwright.solver.search.fewer_gpus"
            with patch(f"{module}.{limit}", 0), patch(f"{module}._LITTLE_WORK", 0):
                other = search(on_nodes(problem, nodes), profile)
            assert other.status == answer.status
            assert steps_s(other)[:1] == pytest.approx(steps_s(answer)[:1], rel=1e-9)
            if are_of_unlike_meshes(answer) and are_of_unlike_meshes(other):
                assert steps_s(other) == pytest.approx(steps_s(answer), rel=1e-9)
            assert other.bound_step_time_s is None or other.bound_step_time_s <= least_s * ROUNDING
        for plan in answer.plans:
            at_peak_s = least_gpu_s(problem, profile) / plan.config.num_gpus
            passes_s = least_pass_gpu_s(problem, profile, wide=True) / plan.config.num_gpus
            known = problem.launcher != "nanotron"  # whose passes read the number of stages
            assert passes_s <= every[plan.config.num_gpus] * ROUNDING
            assert passes_s > at_peak_s if known else passes_s == 0.0
            assert at_peak_s <= every[plan.config.num_gpus] <= plan.prediction.step_time_s * ROUNDING
        used = answer.plans[0].config.num_gpus if answer.plans else nodes * EACH
        if used < nodes * EACH and steps(nodes * EACH):
            assert "idle" in answer.notes[IDLE]
        for text in (text for text in answer.warnings if is_of_fewer(text)):
            most = max(gpus for gpus in numbers if legal(gpus))
            assert text.startswith(f"at most {most} of {nodes * EACH} GPUs")
        named = (*range(1, nodes, 2), nodes)
        some = {gpus: step_s for gpus, step_s in every.items() if -(-gpus // EACH) in named}
        asked = replace(problem, options=replace(problem.options, num_nodes=named))
        chosen = search(asked, profile)
        chosen_s = chosen.plans[0].prediction.step_time_s if chosen.plans else np.inf
        assert chosen_s == pytest.approx(min(some.values()), rel=1e-9)
        assert {-(-plan.config.num_gpus // EACH) for plan in chosen.plans} <= {*named}
        assert chosen.bound_step_time_s is None or chosen.bound_step_time_s <= chosen_s * ROUNDING


@given(few_nodes(), st.sampled_from(PER_GPU), st.sampled_from([0.5, 1.0]))
@settings(max_examples=EXAMPLES, deadline=None)
def test_what_rates_a_gpu_ranks_plans_by_step_on_as_many_gpus(
    problem: Problem, objective: Objective, share: float
) -> None:
    """Also where all candidates are just as many as are searched, or twice as many."""
    problem = replace(problem, options=replace(problem.options, pin={"context_parallel_size": 1}))
    profile, counts = default_profile(problem.cluster, problem.launcher), numbers_of_gpus(problem)
    rated = replace(problem, options=replace(problem.options, objective=objective))
    few = round(share * enumerate_space(on_gpus(problem, counts), legal_only=True, wide=True).num_legal)
    with patch("meshwright.solver.space.enumerate._FEW", few):
        answer, by_step = (search(one, profile) for one in (rated, on_gpus(problem, counts)))
    assert (answer.status, answer.space) == (by_step.status, by_step.space)
    assert steps_s(answer) == pytest.approx(steps_s(by_step), rel=1e-9)
    assert [plan.config for plan in answer.plans] == [plan.config for plan in by_step.plans]
    assert answer.bound_step_time_s == pytest.approx(by_step.bound_step_time_s, rel=1e-9)
    assert answer.gap == pytest.approx(by_step.gap, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(("used", "each"), [(4, 5), (4, 7), (6, 7), (6, 8)])
def test_some_gpus_of_a_node_take_the_steps_that_a_node_of_so_many_takes(used: int, each: int) -> None:
    """Their tensor-parallel sizes divide them, not the node: all of them share its fast link."""
    model = a_model(
        num_layers=4, hidden_size=1536, ffn_hidden_size=6144, num_attention_heads=12, num_kv_heads=12,
    )  # fmt: skip
    found = []
    for size in (used, each):
        cluster = a_cluster(num_nodes=1)
        group = replace(cluster.groups[0], gpus_per_node=size, island_gpus=size)
        problem = on_gpus(
            a_problem(model=model, cluster=replace(cluster, groups=(group,)), batch=12, top_k=20), (used,)
        )
        answer = search(problem, default_profile(problem.cluster, problem.launcher))
        assert answer.status == "optimal"
        found.append([(plan.config, plan.prediction.step_time_s) for plan in answer.plans])
    assert found[0] == found[1]
    assert {used // 2, used} & {config.tensor_parallel_size for config, _ in found[0]}
