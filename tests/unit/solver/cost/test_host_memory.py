"""Host memory of a node: who reads weights, what is gathered, and what a plan says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.profiles.units import GIB
from meshwright.solver.answer import HostMemory, Plan, Prediction
from meshwright.solver.configuration import Configuration
from meshwright.solver.explain.sentences import loading_warnings
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from tests.builders import a_cluster
from tests.problems.pricing import GPT, a_layout, a_problem, a_profile

WEIGHTS = GPT.num_parameters()
SHARDED = {"zero_stage": 3, "zero_shard_size": 8}


def asked(host_gib: float | None = None, **workload: object) -> Problem:
    problem = a_problem(cluster=a_cluster(num_nodes=2), **workload)  # type: ignore[arg-type]
    if host_gib is None:
        return problem
    groups = tuple(
        replace(group, host_memory_bytes=round(host_gib * GIB)) for group in problem.cluster.groups
    )
    return replace(problem, cluster=replace(problem.cluster, groups=groups))


def predicted(problem: Problem, framework: str, **layout: object) -> tuple[Configuration, Prediction]:
    config = a_layout(data_parallel_size=8, num_microbatches=1, **layout)
    return config, predict(problem, a_profile(problem, framework), config)


@pytest.mark.parametrize(
    ("framework", "layout", "workload", "readers", "each"),
    [
        ("trl", {}, {}, 8, 4),  # every rank reads fp32
        ("trl", SHARDED, {}, 1, 4),  # with FSDP the first rank of each node
        ("trl", {}, {"lora_rank": 8}, 8, 2),  # frozen weights stay in bf16
        ("deepspeed", SHARDED, {}, 1, 2),
        ("deepspeed", {"zero_stage": 2, "zero_shard_size": 8}, {}, 8, 2),
        ("axolotl", {}, {}, 8, 2),
    ],
)
def test_ranks_that_read_weights_hold_each_all_of_them(
    framework: str, layout: dict[str, Any], workload: dict[str, Any], readers: int, each: int
) -> None:
    host = predicted(asked(**workload), framework, **layout)[1].host
    assert host is not None
    assert (host.readers, host.loading_bytes) == (readers, readers * each * WEIGHTS)
    assert host.saving_bytes == (4 * WEIGHTS if framework == "trl" and layout else 0)


@pytest.mark.parametrize("framework", ["megatron-core", "fsdp", "maxtext"])
def test_models_that_are_built_on_the_gpu_take_no_host_memory(framework: str) -> None:
    assert predicted(asked(), framework)[1].host is None


def test_a_node_that_cannot_load_a_plan_is_named_with_what_to_set() -> None:
    # 8 ranks x 4 bytes of .1 billion weights are 3.1 GiB; nine tenths of 2 GiB may be filled
    config, seen = predicted(asked(host_gib=2.0), "trl")
    plan = Plan(plan_id="a", rank=1, config=config, prediction=seen, objective_s=1.0)
    (warning,) = loading_warnings([plan])
    assert warning.startswith("#1: loading takes")
    assert "8 ranks read all weights, and 2 GiB of its host memory may be filled" in warning
    assert "set dtype to bfloat16, or FSDP or ZeRO-3" in warning
    sharded = replace(plan, prediction=predicted(asked(host_gib=2.0), "trl", **SHARDED)[1])
    assert loading_warnings([sharded]) == ()
    saving = HostMemory(
        loading_bytes=GIB, readers=1, training_bytes=2 * GIB, saving_bytes=GIB, limit_bytes=2 * GIB
    )
    (warning,) = loading_warnings([replace(plan, rank=0, prediction=replace(seen, host=saving))])
    assert warning.startswith("saving takes 3 GiB of a node")
