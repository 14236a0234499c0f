"""Host memory of a node: who reads weights, what is gathered, and what a plan says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.profiles.units import GIB
from meshwright.solver.answer import HostMemory, Plan, Prediction
from meshwright.solver.check import violations
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.explain.sentences import loading_warnings
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from meshwright.solver.space.rules import rules_of
from tests.builders import a_cluster, a_moe_model
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
        ("axolotl", {}, {"model": a_moe_model()}, 8, 2),  # experts are merged
        ("deepspeed", SHARDED, {"model": a_moe_model()}, 1, 2),
        ("trl", {}, {"lora_rank": 8}, 0, 0),  # frozen weights stay in bf16: views of the mapped files
        ("deepspeed", {"zero_stage": 2, "zero_shard_size": 8}, {}, 0, 0),
        ("axolotl", {}, {}, 0, 0),
    ],
)
def test_ranks_hold_what_they_read_where_it_is_copied(
    framework: str, layout: dict[str, Any], workload: dict[str, Any], readers: int, each: int
) -> None:
    host = predicted(asked(**workload), framework, **layout)[1].host
    if not readers:
        assert host is None
        return
    weights = workload.get("model", GPT).num_parameters()
    assert host is not None
    assert (host.readers, host.loading_bytes) == (readers, readers * each * weights)
    assert host.saving_bytes == (4 * WEIGHTS if framework == "trl" and layout else 0)


@pytest.mark.parametrize(("host_gib", "readers"), [(4.0, 8), (2.0, 4), (0.2, 0)])
def test_the_search_chooses_no_plan_that_its_hosts_cannot_load(host_gib: float, readers: int) -> None:
    # .1 billion weights take a rank .4 GiB in fp32; nine tenths may be filled: 9, 4 and no copies
    problem = replace(asked(host_gib=host_gib), launcher="trl")
    rules = [one for one in rules_of(problem) if one.name == "weights that ranks read fit the hosts"]
    rows = Columns.of(
        [a_layout(data_parallel_size=dp) for dp in (1, 4, 5, 16)]
        + [a_layout(data_parallel_size=16, **SHARDED)]
    )
    broken = rules[0].violated(rows) if rules else np.zeros(len(rows), dtype=np.bool_)
    assert broken.tolist() == [readers < 1, readers < 4, readers < 5, readers < 8, readers < 1]
    profile, config = a_profile(problem, "trl"), a_layout(data_parallel_size=16)
    seen = [one for one in violations(problem, profile, config) if "weights that ranks read" in one]
    assert bool(seen) == (readers < 8)


@pytest.mark.parametrize(
    ("launcher", "workload", "each"),
    [
        ("axolotl", {"model": a_moe_model(), "optimizer": "adamw-8bit-bf16"}, 2),
        ("trl", {"model": a_moe_model(), "lora_rank": 8}, 2),
        ("trl", {"lora_rank": 8, "base_precision": "fp32"}, 4),
        ("trl", {"optimizer": "adamw-8bit"}, 4),
    ],
)
def test_the_check_knows_every_copy_that_the_search_counts(
    launcher: str, workload: dict[str, Any], each: int
) -> None:
    weights = workload.get("model", GPT).num_parameters()
    room_gib = 8 * each * weights / GIB  # of a node, for eight ranks
    for share, is_short in ((0.8, True), (1.3, False)):
        problem = replace(asked(host_gib=share * room_gib, **workload), launcher=launcher)
        config = a_layout(data_parallel_size=8)
        rules = [one for one in rules_of(problem) if one.name == "weights that ranks read fit the hosts"]
        assert any(rule.violated(Columns.of([config])).any() for rule in rules) == is_short
        faults = violations(problem, a_profile(problem, launcher), config)
        assert any("weights that ranks read" in one for one in faults) == is_short


def test_a_node_with_fewer_gpus_has_fewer_ranks_that_read() -> None:
    problem = replace(asked(host_gib=4.0), launcher="trl")  # .5 GiB a GPU, of which a rank takes .4
    (large,) = problem.cluster.groups
    small = replace(large, gpus_per_node=2, island_gpus=2, host_memory_bytes=GIB)
    problem = replace(problem, cluster=replace(problem.cluster, groups=(large, small)))
    assert "weights that ranks read fit the hosts" not in {one.name for one in rules_of(problem)}
    faults = violations(problem, a_profile(problem, "trl"), a_layout(data_parallel_size=8))
    assert not [one for one in faults if "weights that ranks read" in one]


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
