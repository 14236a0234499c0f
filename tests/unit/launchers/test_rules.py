"""What launchers lack: the smallest plan taken next to the smallest refused, and all mutants."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from meshwright.launchers.registry import export, launcher_names
from meshwright.launchers.rules import ranks_start_under, runs_under
from meshwright.launchers.target import Target
from meshwright.profiles.adapters import SINGLE_TARGETS
from meshwright.profiles.capabilities import launcher_capabilities, model_facts
from meshwright.profiles.errors import RefusedExportError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MlaSpec, MoeSpec
from meshwright.solver.configuration import Configuration, StageGroup
from meshwright.solver.problem import can_start
from meshwright.solver.space.launcher_rules import problem_faults, unwritten
from tests.draws import draws
from tests.launchers.cases import target
from tests.launchers.mutants import MUTANTS, Mutant
from tests.launchers.plans import CASES, problem_of, random_targets

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
    return {fault.field for fault in runs_under(found.problem.launcher)(found)}


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
    ("deepspeed", sharded(3, tensor_parallel_size=2), replace(STAGES, tensor_parallel_size=2),
     "config.tensor_parallel_size"),
    ("deepspeed", sharded(1, tensor_parallel_size=2, offload="optimizer"),
     replace(TWO, tensor_parallel_size=2, offload="optimizer"), "config.zero_stage"),
    ("deepspeed", sharded(2, tensor_parallel_size=2),
     sharded(2, tensor_parallel_size=2, sequence_parallel=True), "config.sequence_parallel"),
    ("deepspeed", replace(ONE, tensor_parallel_size=2), replace(ONE, tensor_parallel_size=4),
     "config.tensor_parallel_size"),
    ("deepspeed", STAGES, replace(STAGES, stage_layers=(1, 3)), "config.stage_layers"),
    ("deepspeed", STAGES, replace(STAGES, data_parallel_size=2, zero_stage=2, zero_shard_size=2),
     "config.zero_stage"),
    ("deepspeed", sharded(1), sharded(1, 1), "config.zero_shard_size"),
    ("deepspeed", ONE, replace(ONE, context_parallel_size=2), "config.context_parallel_size"),
    ("torchtitan", STAGES, replace(STAGES, num_microbatches=1), "config.pipeline_schedule"),
    ("torchtitan", replace(STAGES, num_microbatches=1, pipeline_schedule="gpipe"),
     replace(STAGES, num_microbatches=1), "config.pipeline_schedule"),
    ("torchtitan", replace(TWO, tensor_parallel_size=2), replace(TWO, context_parallel_size=2),
     "config.zero_stage"),
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


@pytest.mark.parametrize(
    ("launcher", "changes", "refused"),
    [
        ("llama-factory-accelerate", {}, False),
        ("accelerate", {}, True),
        ("llama-factory-accelerate", {"lora_targets": ("linear_qkv",)}, True),
        ("none", {"framework_options": {"oft": True, "dora": True}}, True),
        ("none", {"framework_options": {"oft": True}}, False),
    ],
)
def test_rotations_of_inputs_are_llama_factorys_and_of_single_layers(
    launcher: str, changes: dict[str, Any], refused: bool
) -> None:
    plain: dict[str, Any] = {
        "lora_rank": 8,
        "lora_targets": ("q_proj",),
        "framework_options": {"oft": True},
    }
    asked = plain | changes
    found = fields(case(launcher, ONE, **asked))
    assert ("workload.framework_options.oft" in found) == refused


def test_all_linear_layers_of_a_model_with_mixers_alone_are_not_adapted() -> None:
    model = model_from_config({"model_type": "nemotron_h"}, name="x")
    every = fields(case("accelerate", ONE, model, lora_rank=8, lora_targets=SINGLE_TARGETS))
    assert "workload.lora_targets" in every
    some = fields(case("accelerate", ONE, model, lora_rank=8, lora_targets=SINGLE_TARGETS[:4]))
    assert "workload.lora_targets" not in some


def test_a_model_that_a_launcher_cannot_build_is_refused_by_its_features() -> None:
    assert fields(case("torchtitan", ONE, replace(EXPERTS, mlp_bias=True))) == {"model"}
    assert not fields(case("torchtitan", ONE, EXPERTS))
    assert not fields(case("ms-swift", ONE, EXPERTS))
    (fault,) = runs_under("nanotron")(case("nanotron", ONE, replace(EXPERTS, mlp_bias=True)))
    assert "bias of the MLP, experts" in fault.message
    assert (
        fault.allowed == "the launchers accelerate, axolotl, deepspeed, llama-factory-accelerate, trl, none"
    )


def test_a_model_is_refused_where_no_single_model_of_the_launcher_has_all_its_facts() -> None:
    # torchtitan predicts further tokens with latent attention alone, and normalises queries without it
    further = replace(TINY, num_mtp_layers=1, query_key_norm="per_head")
    (fault,) = runs_under("torchtitan")(case("torchtitan", ONE, further))
    assert fault.message == "torchtitan cannot express multi-token prediction"


WHOLE_EXPERTS = sharded(3, expert_parallel_size=2)
SPLIT_EXPERTS = sharded(3, tensor_parallel_size=2, sequence_parallel=True, expert_tensor_parallel_size=2)
WHOLE_ON_BOTH = replace(SPLIT_EXPERTS, expert_tensor_parallel_size=1)


@pytest.mark.parametrize(
    ("legal", "illegal", "field"),
    [
        # experts lie on shards and tensor ranks: 2 * 1 and 2 * 2 ranks here, never on 4 of 2
        (WHOLE_EXPERTS, replace(WHOLE_EXPERTS, expert_parallel_size=4), "config.zero_shard_size"),
        # they are whole, or split over all tensor ranks
        (
            SPLIT_EXPERTS,
            replace(SPLIT_EXPERTS, expert_tensor_parallel_size=1),
            "config.tensor_parallel_size",
        ),
        (
            SPLIT_EXPERTS,
            replace(SPLIT_EXPERTS, expert_parallel_size=2),
            "config.expert_tensor_parallel_size",
        ),
    ],
)
def test_torchtitan_takes_the_ranks_of_experts_from_shards_and_tensor_ranks(
    legal: Configuration, illegal: Configuration, field: str
) -> None:
    assert not fields(case("torchtitan", legal, EXPERTS))
    assert field in fields(case("torchtitan", illegal, EXPERTS))


def test_more_shards_than_experts_cut_each_of_them_evenly() -> None:
    # 8 shards of 4 experts cut their sides, 24 and 8: by 8 evenly; 3 experts over 16 do not
    many = sharded(3, 8, data_parallel_size=8)
    model = replace(EXPERTS, moe=MoeSpec(num_experts=4, top_k=2, ffn_hidden_size=24))
    assert not fields(case("torchtitan", many, model))
    model = replace(EXPERTS, moe=MoeSpec(num_experts=4, top_k=2, ffn_hidden_size=20))
    assert fields(case("torchtitan", many, model)) == {"config.zero_shard_size"}


def test_tokens_ahead_are_predicted_on_one_stage_of_torchtitan_without_rings() -> None:
    latent = MlaSpec(q_lora_rank=0, kv_lora_rank=4, qk_nope_head_dim=2, qk_rope_head_dim=2, v_head_dim=2)
    model = replace(TINY, num_kv_heads=4, head_dim=4, mla=latent, num_mtp_layers=1)
    stages = replace(STAGES, data_parallel_size=2, zero_stage=2, zero_shard_size=2)
    assert not fields(case("torchtitan", ONE, model))
    assert fields(case("torchtitan", stages, model)) == {"config.pipeline_parallel_size"}


def test_8_bits_of_torchtitan_are_its_own_recipe() -> None:
    recipe = "workload.framework_options.precision_recipe"
    assert fields(case("torchtitan", ONE, precision="fp8")) == {recipe}
    own = case("torchtitan", ONE, precision="fp8", framework_options={"precision_recipe": "fp8-rowwise"})
    assert not fields(own)
    other = case("torchtitan", ONE, precision="fp8", framework_options={"precision_recipe": "fp8-delayed"})
    assert fields(other) == {recipe}


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
    if (launcher, field) == ("flagscale", "stage_recompute_layers"):
        return  # which it runs: recompute_num_layers_per_stage_micro_batch
    found = case(launcher, PLACED[field])
    with pytest.raises(RefusedExportError) as caught:
        export(found.plan, found.problem, launcher)
    assert f"config.{field}" in {fault.field for fault in caught.value.errors}


# The search and every exporter agree: whatever row is proposed for a launcher can be exported.


# One of each kind: plain, biases and learned positions, experts, wide heads, latent attention.
MODELS = ("llama-3.1-8b", "gpt-3-175b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2")


@pytest.mark.parametrize("launcher", launcher_names())
@pytest.mark.parametrize("name", MODELS)
def test_every_row_of_the_search_is_exported(launcher: str, name: str) -> None:
    problem = problem_of(launcher, find_model(name), seq_length=2048)
    targets = list(random_targets(problem, draws(3, of_more=8), random.Random(f"{launcher} {name}")))
    able = launcher_capabilities(launcher)
    trainable = not [*problem_faults(problem, able), *unwritten(problem)]
    assert bool(targets) == trainable, sorted(model_facts(problem.model))
    for found in targets:
        bundle = export(found.plan, problem, launcher)
        slurm = set() if launcher == "flagscale" else {"launch.sbatch"}  # its runner starts hosts by ssh
        assert {"launch.sh"} | slurm < bundle.files.keys()
        world = f"World size {found.config.num_gpus}:"
        assert all(world in text for text in bundle.files.values())
        assert bundle == export(found.plan, problem, launcher), "the same plan gives the same bytes"


def test_torchtitan_has_no_stages_without_layers_beside_context_parallelism() -> None:
    # distributed/context_parallel/api.py reads the first block of every chunk
    found = CASES["torchtitan"]["llama-3.1-70b-standalone"]
    export(found.plan, found.problem, "torchtitan")
    rings = replace(
        found.config, context_parallel_size=2, data_parallel_size=4, zero_shard_size=4, num_microbatches=8
    )
    with pytest.raises(RefusedExportError, match="context_parallel_size == 1"):
        export(replace(found.plan, config=rings), found.problem, "torchtitan")


@pytest.mark.parametrize("launcher", ["accelerate", "trl", "axolotl", "llama-factory-accelerate"])
def test_no_rings_of_transformers_classes_have_alibi(launcher: str) -> None:
    # torch's rings are of sdpa without a mask, which no class with ALiBi takes
    rings = replace(ONE, context_parallel_size=2, zero_stage=3, zero_shard_size=2)
    alibi = replace(TINY, rotary_base=None, alibi_positions=True)
    whole, cut = (
        {fault.message for fault in runs_under(launcher)(case(launcher, rings, model))}
        for model in (TINY, alibi)
    )
    (why,) = cut - whole
    assert "context_parallel_size == 1" in why
    assert "ALiBi" in why


@pytest.mark.parametrize("launcher", ["trl", "ms-swift"])
@pytest.mark.parametrize("sizes", [(8, 4), (8, 8), (4, 8)])
def test_an_exporter_starts_the_numbers_of_gpus_that_the_search_starts(
    launcher: str, sizes: tuple[int, int]
) -> None:
    plain = problem_of(launcher, TINY, num_nodes=1, batch=5040)
    (group,) = plain.cluster.groups
    groups = tuple(replace(group, gpus_per_node=size, island_gpus=size) for size in sizes)
    problem = replace(plain, cluster=replace(plain.cluster, groups=groups))
    for gpus in range(1, sum(sizes) + 1):
        found = replace(target(TINY, replace(ONE, data_parallel_size=gpus)), problem=problem)
        assert (not list(ranks_start_under(launcher)(found))) == can_start(problem, gpus)
