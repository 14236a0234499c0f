"""The tables of launchers' arguments: exact names, and what is free decides nothing."""

from __future__ import annotations

from dataclasses import fields

import pytest

from meshwright.launchers.flags import flag_names, flags_of, programs
from meshwright.launchers.reading.fields import affected
from meshwright.launchers.reading.foreign import preferences
from meshwright.profiles.frameworks import FrameworkFacts
from meshwright.profiles.mixers import MixerSpec
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MlaSpec, MoeSpec
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Workload

PROGRAMS = programs()


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_harmless_argument_is_one_of_training_on_preferences_or_decides_by_its_words(
    program: str,
) -> None:
    harmless = {name: flag for name, flag in flags_of(program).items() if flag.role == "harmless"}
    # those of a trainer whose own argument turns it on, and that is read
    loss, old = "arithmetic of the loss", "older releases"
    of_loss = {name for name, flag in harmless.items() if flag.why == loss or flag.of == old}
    assert [name for name in harmless if name in preferences() and name not in of_loss] == []
    deciding = [name for name, flag in harmless.items() if affected(None, name, "2") and not flag.sets]
    apart = [name for name in deciding if harmless[name].why.startswith(("read ", "a section"))]
    assert {*deciding} - {*apart} == NOT_OF_THE_STEP.get(program, set())


# Their words are those of arguments that decide a step, but no step depends on them.
NOT_OF_THE_STEP = {
    "accelerate": {
        "parallelism_config.parallelism_config_cp_comm_strategy", "parallelism_config_cp_comm_strategy",
        "parallelism_config.parallelism_config_sp_attn_implementation",
        "parallelism_config.parallelism_config_sp_backend",
        "parallelism_config.parallelism_config_sp_seq_length",
        "parallelism_config.parallelism_config_sp_seq_length_is_variable",
        "parallelism_config_sp_attn_implementation", "parallelism_config_sp_backend",
        "parallelism_config_sp_seq_length", "parallelism_config_sp_seq_length_is_variable",
    },
    "axolotl": {
        "export.quantize", "qlora_sharded_model_loading", "quantization.group_size",
        "sample_packing_group_size", "shard", "fsdp_config.sharding_strategy",
    },
    "deepspeed": {
        "aio.intra_op_parallelism", "checkpoint.parallel_write", "data_parallel_group",
    },
    "llama-factory": {"sglang_tp_size"},
    "maxtext": {
        "context_parallel_reorder_strategy", "data_sharding", "debug_sharding",
        "input_data_sharding_logical_axes", "shard_mode", "sharding_tolerance",
        "mhc_pallas_kernel_bwd_block_size", "mhc_pallas_kernel_bwd_feature_block_size",
        "mhc_pallas_kernel_fwd_block_size", "mtc_data_parallelism", "train_shard_in_read",
    },
    "megatron-bridge": {
        "checkpoint.fully_parallel_load", "comm_overlap.data_parallel_size", "dataset.data_sharding",
        "dist.eval_context_parallel_size",
        "inference.inference_dynamic_batching_mamba_memory_ratio",
        "inference.inference_dynamic_batching_prefix_caching_mamba_gb",
        "inference.mamba_inference_conv_states_dtype", "inference.mamba_inference_ssm_states_dtype",
        "model.moe_pad_experts_for_cuda_graph_inference", "model.moe_shared_expert_glu_interleave_size",
        "train.check_weight_hash_across_dp_replicas_interval",
    },
    "megatron-core": {"fully_parallel_load"},
    "megatron-lm": {
        "async_tensor_model_parallel_allreduce", "check_weight_hash_across_dp_replicas_interval",
        "disable_moe_top2_2nd_expert_sampling",
        "enable_expert_tensor_parallelism", "fault_injector_num_ranks",
        "moe_pad_experts_for_cuda_graph_inference", "moe_shared_expert_glu_interleave_size",
        "no_async_tensor_model_parallel_allreduce", "no_data_sharding", "no_pipeline_parallel",
    },
    "ms-swift": {
        "data_sharding", "max_shard_size", "no_async_tensor_model_parallel_allreduce",
        "target_pipeline_model_parallel_size", "target_tensor_model_parallel_size",
        "ref_model_type", "use_shared_expert_gate",
    },
    "nanotron": {
        "lighteval.batch_size", "lighteval.parallelism", "lighteval.parallelism.context_parallel_size",
        "lighteval.parallelism.expert_parallel_size", "lighteval.parallelism.pp",
        "lighteval.parallelism.tp",
    },
    "torchtitan": {
        "fault_tolerance.group_size", "fault_tolerance.min_replica_size", "fault_tolerance.replica_id",
        "parallelism.context_parallel_ptrr_mask_key", "parallelism.context_parallel_rotate_method",
        "validation.local_batch_size",
    },
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_argument_has_a_type_and_a_role_and_harmless_and_refused_ones_a_reason(program: str) -> None:
    lacking = [
        name
        for name, flag in flags_of(program).items()
        if not (flag.type and flag.role)
        or (flag.role in ("harmless", "refused") and not flag.why)
        or (flag.role == "priced" and not flag.sets)
        or (flag.role == "means" and not flag.means)
    ]
    assert lacking == []


def test_what_megatron_lm_requires_and_excludes_are_arguments_and_words_of_its_table() -> None:
    flags = flags_of("megatron-lm")
    others = [other for row in flags.values() for other in (*row.requires, *row.excludes)]
    assert others
    for name, _, word in (other.partition(" ") for other in others):
        assert word in ("", *flags[name].words, *flags[name].choices)
        assert "_" not in word  # which is spelled as names are


def test_an_argument_of_megatron_lm_or_of_a_fork_is_decided_or_listed_for_a_reason() -> None:
    flags = flags_of("megatron-lm").items()
    assert [name for name, flag in flags if flag.role == "listed" and not flag.why] == []


def test_what_a_spelling_means_is_a_priced_argument() -> None:
    for program in PROGRAMS:
        table = {**flags_of(program), **flags_of("megatron-lm")}
        for name, flag in flags_of(program).items():
            by_value = [one for one in flag.means.values() if isinstance(one, dict)]
            for meaning in by_value or [dict(flag.means)]:
                assert [new for new in meaning if not table[new].sets] == [], name


def test_what_an_argument_needs_is_one_of_the_table() -> None:
    for program in PROGRAMS:
        table = {**flags_of("megatron-lm"), **flags_of("trl"), **flags_of(program)}
        assert [flag.needs for flag in table.values() if flag.needs and flag.needs not in table] == []


@pytest.mark.parametrize("name", ["model", "option", "plan", "workload"])
def test_what_an_argument_sets_is_a_field(name: str) -> None:
    records = {"model": ModelSpec, "option": FrameworkFacts, "plan": Configuration, "workload": Workload}
    known = {f"{name}.{one.name}" for one in fields(records[name])} | {name}
    known |= {f"model.mla.{one.name}" for one in fields(MlaSpec)}
    known |= {f"model.moe.{one.name}" for one in fields(MoeSpec)}
    known |= {f"model.mixer.{one.name}" for one in fields(MixerSpec)}
    tables = [flags_of(program) for program in PROGRAMS]
    said = {flag.sets for table in tables for flag in table.values() if flag.sets}
    assert {one for one in said if one.partition(".")[0] == name} <= known


def test_a_name_is_free_by_itself_or_by_its_section_and_never_by_its_beginning() -> None:
    names = flag_names("transformers", "deepspeed")
    assert all(
        map(names.is_free, ("logging_steps", "--logging-steps", "scheduler.params.warmup_num_steps"))
    )
    for other in ("logging_parallel_size", "data_parallel_size", "schedulers.params", "scheduler_params"):
        assert not names.is_free(other)
        assert other not in names
    assert "deepspeed" in names
    assert not names.is_free("deepspeed")


def test_defaults_are_those_of_the_newest_release_that_has_the_argument() -> None:
    assert flags_of("transformers")["warmup_ratio"].of == "older releases"
    assert flags_of("transformers")["seed"].default == 42
    names = flag_names("transformers")
    assert names.is_default("group_by_length", "False")
    assert not names.is_default("group_by_length", True)
    assert not names.is_default("not_an_argument", None)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_reason_for_an_argument_is_text(program: str) -> None:
    assert {type(flag.why) for flag in flags_of(program).values()} == {str}
