"""One rank with a ZeRO stage: a launcher builds it, and offload asks for it; else it is stage 0 again."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.capabilities import launcher_capabilities, launcher_names
from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.library import find_cluster, find_gpu, find_model
from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import Answer
from meshwright.solver.check import rule_faults
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.price import price
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem, SearchOptions, Workload
from meshwright.solver.space.enumerate import enumerate_space
from meshwright.solver.space.rules import broken_rules


def one_gpu(gpu: str = "h100-sxm-80gb") -> ClusterSpec:
    """One GPU in a node of its own, with the host memory of a GPU of its usual node."""
    card = find_gpu(gpu)
    (group,) = find_cluster("dgx-h100", num_nodes=1).groups
    return ClusterSpec(
        name=gpu,
        display_name=gpu,
        groups=(
            replace(
                group, gpu=card, gpus_per_node=1, island_gpus=1, intra_node=card.intra_node,
                inter_node=card.inter_node, host_memory_bytes=256 * 2**30, nvme_bytes=2**42,
            ),
        ),
    )  # fmt: skip


def a_request(
    launcher: str, *, gpu: str = "h100-sxm-80gb", model: str = "llama-2-7b", **options: object
) -> Problem:
    return Problem(
        model=find_model(model),
        cluster=one_gpu(gpu),
        workload=Workload(global_batch_size=16, seq_length=2048),
        launcher=launcher,
        options=SearchOptions(**options),  # type: ignore[arg-type]
    )


OFFLOADS = [
    (launcher, word)
    for launcher in launcher_names()
    for word in launcher_capabilities(launcher).offload
    if word != "none" and "activations" not in word
]


@pytest.mark.parametrize(("launcher", "word"), OFFLOADS)
def test_every_way_to_offload_states_has_a_legal_row_on_one_gpu(launcher: str, word: str) -> None:
    problem = a_request(launcher, allow=("offload",), pin={"offload": word, "micro_batch_size": 1})
    space = enumerate_space(problem)
    assert space.num_legal > 0
    legal = space.columns.take(space.legal)
    assert set(legal.zero_shard_size.tolist()) == {1}
    found = legal.configuration(0, (problem.model.num_layers,))
    assert rule_faults(problem, [found]) == [[]]


def test_a_shard_set_has_no_more_ranks_than_there_are_and_more_than_one_of_several() -> None:
    problem = a_request("none")
    alone = Configuration(zero_stage=1, zero_shard_size=1, num_microbatches=16, stage_layers=(32,))
    assert broken_rules(problem, alone) == []
    two = replace(alone, zero_shard_size=2)
    assert broken_rules(problem, two) == ["zero_shard_size divides the ranks that share weights"]
    assert rule_faults(problem, [two])[0] == [
        "zero_shard_size = 2 does not divide the ranks that share weights"
    ]
    eight = replace(problem, cluster=find_cluster("dgx-h100", num_nodes=1))
    several = replace(
        alone, data_parallel_size=8, num_microbatches=2
    )  # a set of one of eight shares nothing
    assert broken_rules(eight, several) == ["zero_shard_size divides the ranks that share weights"]
    assert "zero_shard_size = 1 shards nothing over 8 ranks" in rule_faults(eight, [several])[0]


def answered(problem: Problem) -> Answer:
    return ask(problem, default_profile(problem.cluster, problem.launcher))


def test_a_card_of_24_gb_trains_7b_with_states_and_weights_in_host_memory() -> None:
    # 6.74e9 weights: 13.5 GB in bf16, 13.5 GB of gradients; 81 GB of states go to 256 GiB of host memory.
    found = answered(a_request("deepspeed", gpu="rtx-4090", allow=("offload",))).plans
    assert found[0].config.offload == "optimizer+parameters"
    assert found[0].config.zero_stage == 3
    assert found[0].prediction.out_of_memory_probability < 0.01


def test_plans_of_one_gpu_do_not_differ_in_their_zero_stage_alone() -> None:
    answer = answered(a_request("none", model="llama-3.2-1b", top_k=10))
    meshes = [(one.config.micro_batch_size, one.config.num_microbatches) for one in answer.plans]
    assert len(meshes) == len(set(meshes)) > 1
    assert {one.config.zero_stage for one in answer.plans} == {0}  # alike in time, so the simplest


@pytest.mark.parametrize("launcher", ["none", "deepspeed"])
@pytest.mark.parametrize("count", [1, 4])
def test_a_stage_that_shares_with_nobody_takes_the_time_of_stage_0(launcher: str, count: int) -> None:
    # Gradients of every micro-batch are added to whole ones, whichever rank they would have been sent to.
    problem = a_request(launcher)
    rows = Columns.of(
        [
            Configuration(
                zero_stage=stage, zero_shard_size=1, num_microbatches=count, micro_batch_size=16 // count,
                stage_layers=(32,),
            )
            for stage in (0, 1, 2)
        ]
    )  # fmt: skip
    found = price(problem, rows, default_profile(problem.cluster, launcher))
    for seconds in (found.forward_s, found.backward_s, found.tail_s):
        assert np.allclose(seconds, seconds[0])


def test_fsdp_on_one_rank_casts_whole_weights_for_each_pass() -> None:
    # 4 bytes read and 2 written of each of a layer's weights, at 95 % of 3.35 TB/s, seen to .582 and more.
    problem = a_request("torchtitan")
    rows = Columns.of(
        [Configuration(zero_stage=stage, stage_layers=(32,), micro_batch_size=16) for stage in (0, 3)]
    )
    replicas, alone = price(problem, rows, default_profile(problem.cluster, "torchtitan")).forward_s[:, 0]
    weights = 4 * 4096**2 + 3 * 4096 * 11008
    least = 0.5 * 6 * weights / 3.35e12
    assert least < alone - replicas < 2.5 * least
