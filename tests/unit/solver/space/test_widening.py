"""Variables that few requests turn are in the space where they may be, and pinned ones everywhere."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.answer import Answer
from meshwright.solver.configuration import OFFLOAD
from meshwright.solver.problem import Problem
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import enumerate_space
from meshwright.solver.space.widening import _between
from tests.builders import a_cluster, a_model, a_moe_model, a_problem

SHAPE = {"num_layers": 6, "hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 16}


def dense(num_nodes: int = 2, **options: object) -> Problem:
    """6 layers on 16 GPUs."""
    defaults: dict[str, object] = {"certify": "cp-sat-all", "top_k": 2}
    return a_problem(
        model=a_model(**SHAPE), cluster=a_cluster(num_nodes=num_nodes), batch=32, **defaults | options
    )


def experts(**options: object) -> Problem:
    """8 layers of 8 experts on 8 GPUs."""
    defaults: dict[str, object] = {"certify": "none", "top_k": 1}
    return a_problem(
        model=replace(a_moe_model(), num_layers=8), cluster=a_cluster(num_nodes=1), batch=16,
        **defaults | options,
    )  # fmt: skip


def profile_of(problem: Problem) -> Profile:
    return default_profile(problem.cluster, problem.launcher)


def answered(problem: Problem) -> Answer:
    return search(problem, profile_of(problem))


def test_experts_are_split_as_attention_is_or_not_at_all() -> None:
    space = enumerate_space(experts())
    columns = space.columns.take(space.legal)
    both = columns.tensor_parallel_size > 1
    split = columns.expert_tensor_parallel_size
    assert set(np.unique(split[both]).tolist()) == {1, 2, 4, 8}
    assert ((split == 1) | (split == columns.tensor_parallel_size)).all()


def test_a_pinned_expert_tensor_size_is_found_and_kept() -> None:
    pin = {"expert_tensor_parallel_size": 2, "tensor_parallel_size": 4}
    answer = answered(experts(pin=pin))
    assert answer.status == "optimal"
    assert answer.plans[0].config.expert_tensor_parallel_size == 2


def test_shards_inside_an_island_stand_beside_shards_over_all_ranks() -> None:
    # 16 GPUs in islands of 8: with tp 2, 4 ranks of an island share; 8 ranks share in all
    space = enumerate_space(dense(pin={"tensor_parallel_size": 2, "pipeline_parallel_size": 1,
                                       "context_parallel_size": 1, "zero_stage": 1}))  # fmt: skip
    sizes = space.columns.take(space.legal).zero_shard_size
    assert set(np.unique(sizes).tolist()) == {4, 8}


@pytest.mark.parametrize(
    ("ranks", "inside", "sizes"),
    [
        (256, 8, [64, 32]),  # 32 islands: 8 in each of 4 sets, 4 in each of 8
        (128, 2, [16, 8]),  # 64 islands: 8 in each of 8 sets, 4 in each of 16
        (960, 8, [96, 80]),  # 120 islands: 12 and 10 divide them
        (64, 8, [64, 64]),  # too few ranks: one set
        (131, 8, [131, 1]),  # a prime: no size between
    ],
)
def test_shards_between_an_island_and_all_are_in_about_as_many_sets_as_a_set_has_islands(
    ranks: int, inside: int, sizes: list[int]
) -> None:
    found = _between(np.array([ranks, 64]), np.array([inside, 8]))
    assert [values.tolist() for values in found] == [[size, 64] for size in sizes]


def test_a_pinned_shard_size_is_found_and_kept() -> None:
    answer = answered(dense(pin={"zero_shard_size": 2, "zero_stage": 1}))
    assert answer.status == "optimal"
    assert {plan.config.zero_shard_size for plan in answer.plans} == {2}


def test_smaller_shard_sets_need_more_memory() -> None:
    pins = {"zero_stage": 1, "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "micro_batch_size": 1}
    peaks = [
        answered(dense(pin={**pins, "zero_shard_size": size}, top_k=1)).plans[0].prediction
        for size in (2, 4, 8, 16)
    ]
    states = [peak.stages[0].memory_bytes["optimizer"] for peak in peaks]
    assert states == pytest.approx([states[3] * 8, states[3] * 4, states[3] * 2, states[3]])


def test_sequence_parallelism_goes_with_tensor_parallelism_unless_the_request_says_otherwise() -> None:
    columns = enumerate_space(dense()).columns
    assert ((columns.tensor_parallel_size > 1) == (columns.sequence_parallel == 1)).all()
    pin = {"sequence_parallel": False, "tensor_parallel_size": 2}
    answer = answered(dense(pin=pin))
    assert not answer.plans[0].config.sequence_parallel
    without = answered(dense(forbid={"sequence_parallel": (True,)}, pin={"tensor_parallel_size": 2}))
    assert without.plans[0].config == answer.plans[0].config


def test_nothing_is_offloaded_unless_the_request_allows_it() -> None:
    assert (enumerate_space(dense()).columns.offload == 0).all()
    allowed = enumerate_space(replace(dense(allow=("offload",)), launcher="none"))
    able = launcher_capabilities("none").offload
    assert set(np.unique(allowed.columns.offload).tolist()) == {OFFLOAD.index(word) for word in able}


@pytest.mark.parametrize("split", [(2, 1, 3), (1, 1, 2, 2), (3, 3), (2, 2, 1, 1), (6,)])
def test_a_pinned_split_is_the_split_of_every_plan_and_is_certified(split: tuple[int, ...]) -> None:
    answer = answered(dense(stage_layers=split, num_nodes=1 if len(split) != 3 else 3))
    assert answer.status == "optimal"
    assert {plan.config.stage_layers for plan in answer.plans} == {split}
    assert {plan.certified_by for plan in answer.plans} == {("exact-dp", "cp-sat")}
    assert answer.bound_step_time_s is not None
    assert answer.bound_step_time_s <= answer.plans[0].prediction.step_time_s


def test_the_split_of_the_best_plan_pinned_finds_the_best_plan_again() -> None:
    free = answered(dense(pin={"pipeline_parallel_size": 4}))
    split = free.plans[0].config.stage_layers
    again = answered(dense(pin={"pipeline_parallel_size": 4}, stage_layers=split))
    assert again.plans[0].config == free.plans[0].config


def test_every_variable_of_the_best_plan_pinned_finds_it_again() -> None:
    free = answered(dense()).plans[0].config
    names = ("tensor_parallel_size", "pipeline_parallel_size", "virtual_pipeline_size", "zero_stage",
             "context_parallel_size", "data_parallel_size", "zero_shard_size", "micro_batch_size",
             "num_microbatches", "pipeline_schedule", "recompute_granularity", "sequence_parallel",
             "expert_parallel_size", "expert_tensor_parallel_size", "offload")  # fmt: skip
    pin = {name: getattr(free, name) for name in names}
    assert answered(dense(pin=pin)).plans[0].config == free


def test_a_split_that_does_not_fit_is_proved_infeasible() -> None:
    problem = a_problem(model=a_model(num_layers=12), cluster=a_cluster(num_nodes=1), batch=16,
                        stage_layers=(11, 1), pin={"tensor_parallel_size": 1})  # fmt: skip
    assert answered(problem).status == "infeasible"
