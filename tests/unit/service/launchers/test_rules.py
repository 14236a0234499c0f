"""What launchers lack: the smallest plan taken beside the smallest refused, and all mutants."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from meshwright.profiles.capabilities import launcher_capabilities, model_facts
from meshwright.profiles.errors import RefusedExportError
from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec, MoeSpec
from meshwright.service.launchers.registry import export, launcher_names
from meshwright.service.launchers.rules import within_capabilities
from meshwright.service.launchers.target import Target
from meshwright.solver.configuration import Configuration, StageGroup
from meshwright.solver.space.launcher_rules import problem_faults
from tests.launchers.cases import target
from tests.launchers.mutants import MUTANTS, Mutant
from tests.launchers.plans import problem_of, random_targets

TINY = ModelSpec(
    name="tiny", num_layers=4, hidden_size=8, ffn_hidden_size=8, num_attention_heads=4, num_kv_heads=2,
    head_dim=2, vocab_size=128, rotary_base=10_000,
)  # fmt: skip
EXPERTS = replace(TINY, moe=MoeSpec(num_experts=4, top_k=2, ffn_hidden_size=8))
ONE = Configuration(stage_layers=(4,))
TWO = replace(ONE, data_parallel_size=2)
STAGES = replace(
    ONE, pipeline_parallel_size=2, pipeline_schedule="1f1b", num_microbatches=2, stage_layers=(2, 2)
)
FULL = replace(ONE, recompute_granularity="full", recompute_layers=4)


def sharded(stage: int, shards: int = 2, **more: object) -> Configuration:
    return replace(TWO, zero_stage=stage, zero_shard_size=shards, **more)  # type: ignore[arg-type]


def case(launcher: str, config: Configuration, model: ModelSpec = TINY, **changes: object) -> Target:
    found = target(model, config, seq_length=16)
    workload = replace(found.workload, **changes)  # type: ignore[arg-type]
    return replace(found, problem=replace(found.problem, launcher=launcher, workload=workload))


def fields(found: Target) -> set[str]:
    """Fields that the launcher's data refuse."""
    return {fault.field for fault in within_capabilities(found.problem.launcher)(found)}


PAIRS = [
    ("accelerate", ONE, STAGES, "config.pipeline_schedule"),
    ("accelerate", sharded(2), sharded(1), "config.zero_stage"),
    ("accelerate", FULL, replace(FULL, recompute_layers=2), "config.recompute_layers"),
    ("accelerate", FULL, replace(ONE, recompute_granularity="selective"), "config.recompute_granularity"),
    ("accelerate", TWO, replace(TWO, expert_parallel_size=2), "config.expert_parallel_size"),
    ("accelerate", sharded(2, tensor_parallel_size=2), replace(TWO, tensor_parallel_size=2),
     "config.zero_stage"),
    ("accelerate", sharded(2, tensor_parallel_size=2), sharded(2, 2, context_parallel_size=2),
     "config.zero_stage"),
    ("accelerate", sharded(3), sharded(3, offload="optimizer"), "config.offload"),
    ("deepspeed", sharded(3), sharded(3, tensor_parallel_size=2), "config.tensor_parallel_size"),
    ("deepspeed", sharded(2, tensor_parallel_size=2),
     sharded(2, tensor_parallel_size=2, sequence_parallel=True), "config.sequence_parallel"),
    ("deepspeed", replace(ONE, tensor_parallel_size=2), replace(ONE, tensor_parallel_size=4),
     "config.tensor_parallel_size"),
    ("deepspeed", STAGES, replace(STAGES, stage_layers=(1, 3)), "config.stage_layers"),
    ("deepspeed", STAGES, replace(STAGES, data_parallel_size=2, zero_stage=2, zero_shard_size=2),
     "config.zero_stage"),
    ("deepspeed", sharded(1), sharded(1, 1), "config.zero_shard_size"),
    ("deepspeed", ONE, replace(ONE, context_parallel_size=2), "config.context_parallel_size"),
    ("torchtitan", STAGES, replace(STAGES, num_microbatches=1), "config.pipeline_parallel_size"),
    ("torchtitan", TWO, replace(TWO, tensor_parallel_size=2), "config.zero_stage"),
    ("torchtitan", sharded(3), sharded(3, 1, context_parallel_size=2), "config.zero_stage"),
    ("torchtitan", replace(ONE, zero_stage=2, context_parallel_size=2, zero_shard_size=2),
     replace(ONE, zero_stage=2, context_parallel_size=16, zero_shard_size=16),
     "config.context_parallel_size"),
    ("nanotron", TWO, sharded(2), "config.zero_stage"),
    # The head of 1 024 weights is 2.3 layers of 448, shares of 2 stages are 3.14 layers: no layer is left.
    ("nanotron", ONE, STAGES, "config.pipeline_parallel_size"),
    ("llama-factory", FULL, replace(FULL, recompute_layers=2), "config.recompute_layers"),
    ("ms-swift", sharded(1), sharded(2), "config.zero_stage"),
    ("megatron-bridge", sharded(3), replace(STAGES, data_parallel_size=2, zero_stage=3, zero_shard_size=2),
     "config.zero_stage"),
]  # fmt: skip


@pytest.mark.parametrize(("launcher", "legal", "illegal", "field"), PAIRS)
def test_a_plan_within_the_data_passes_and_one_beyond_them_is_refused(
    launcher: str, legal: Configuration, illegal: Configuration, field: str
) -> None:
    if launcher == "torchtitan" and legal is STAGES:
        legal = replace(legal, data_parallel_size=2, zero_stage=2, zero_shard_size=2)
    assert field not in fields(case(launcher, legal))
    assert field in fields(case(launcher, illegal))


@pytest.mark.parametrize(
    ("launcher", "changes", "field"),
    [
        ("torchtitan", {"precision": "fp16"}, "workload.precision"),
        ("nanotron", {"optimizer": "muon"}, "workload.optimizer"),
        ("accelerate", {"lora_rank": 8}, "workload.lora_targets"),
    ],
)
def test_a_workload_that_a_launcher_does_not_train_is_refused(
    launcher: str, changes: dict[str, Any], field: str
) -> None:
    assert not fields(case(launcher, ONE))
    assert field in fields(case(launcher, ONE, **changes))


def test_a_model_that_a_launcher_cannot_build_is_refused_by_its_features() -> None:
    assert fields(case("torchtitan", ONE, EXPERTS)) == {"model"}
    assert not fields(case("ms-swift", ONE, EXPERTS))
    (fault,) = within_capabilities("nanotron")(case("nanotron", ONE, replace(EXPERTS, mlp_bias=True)))
    assert "bias of the MLP, experts" in fault.message
    assert fault.allowed == "the launchers accelerate, axolotl, deepspeed, trl, none"


MUTANT_CASES = [(name, mutant) for name, mutants in MUTANTS.items() for mutant in mutants()]


@pytest.mark.parametrize(
    ("launcher", "mutant"), MUTANT_CASES, ids=[f"{name}: {mutant.name}" for name, mutant in MUTANT_CASES]
)
def test_every_mutant_is_refused_with_a_field_and_a_reason(launcher: str, mutant: Mutant) -> None:
    with pytest.raises(RefusedExportError) as refused:
        export(mutant.target.plan, mutant.target.problem, launcher)
    assert all(fault.pointer.startswith("/") and fault.message for fault in refused.value.errors)


def test_every_launcher_names_its_source() -> None:
    assert all(launcher_capabilities(name).source for name in (*MUTANTS, "nanotron", "ms-swift"))


PLACED = {
    "stage_groups": replace(
        STAGES, stage_groups=(StageGroup(group="a", num_gpus=1, num_nodes=1.0, tensor_parallel_size=1),) * 2
    ),
    "replicas": replace(ONE, replicas=(ONE, ONE)),
    "stage_recompute_layers": replace(
        STAGES, recompute_granularity="full", recompute_layers=2, stage_recompute_layers=(2, 1)
    ),
}


@pytest.mark.parametrize("launcher", launcher_names())
@pytest.mark.parametrize("field", PLACED)
def test_what_only_the_search_without_a_launcher_places_is_refused_by_name(
    field: str, launcher: str
) -> None:
    found = case(launcher, PLACED[field])
    with pytest.raises(RefusedExportError) as caught:
        export(found.plan, found.problem, launcher)
    assert f"config.{field}" in {fault.field for fault in caught.value.errors}


# The search and every exporter agree: whatever row is proposed for a launcher can be exported.


# One of each kind: plain, biases and learned positions, experts, wide heads, latent attention.
MODELS = ("llama-3.1-8b", "gpt-3-175b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3")


@pytest.mark.parametrize("launcher", launcher_names())
@pytest.mark.parametrize("name", MODELS)
def test_every_row_of_the_search_is_exported(launcher: str, name: str) -> None:
    problem = problem_of(launcher, find_model(name), seq_length=2048)
    targets = list(random_targets(problem, 8, random.Random(f"{launcher} {name}")))
    trainable = not list(problem_faults(problem, launcher_capabilities(launcher)))
    assert bool(targets) == trainable, sorted(model_facts(problem.model))
    for found in targets:
        bundle = export(found.plan, problem, launcher)
        assert {"launch.sh", "launch.sbatch"} < bundle.files.keys()
        world = f"World size {found.config.num_gpus}:"
        assert all(world in text for text in bundle.files.values())
        assert bundle == export(found.plan, problem, launcher), "the same plan gives the same bytes"
