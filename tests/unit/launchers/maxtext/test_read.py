"""MaxText's YAML, and commands with values of their own over its base.yml."""

from __future__ import annotations

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError

START = (
    "python3 -m MaxText.train src/maxtext/configs/base.yml model_name=llama3.1-8b hardware=gpu "
    "attention=cudnn_flash_te grad_dtype=bfloat16 max_target_length=8192 per_device_batch_size=2 "
    "gradient_accumulation_steps=4"
)


def read(words: str = "", num_gpus: int = 16) -> LaunchFile:
    source = Source(name="run.sh", text=f"{START} {words}\n")
    return read_launch_files(source, Overrides(num_gpus=num_gpus))


def test_a_command_over_base_yml_shards_over_every_gpu_of_a_slice() -> None:
    found = read()
    config = found.configuration
    assert (found.launcher, found.model.name, found.workload.seq_length) == (
        "maxtext",
        "llama-3.1-8b",
        8192,
    )
    # One slice of 16: ici_fsdp_parallelism -1 is 16, and 2 sequences a GPU four times over are 128.
    assert (config.data_parallel_size, config.zero_stage, config.zero_shard_size) == (16, 3, 16)
    assert (config.micro_batch_size, config.num_microbatches, config.global_batch_size) == (2, 4, 128)
    assert config.recompute_granularity == "full"
    assert "ici_fsdp_parallelism -1 is 16" in found.notes


def test_two_slices_replicate_shards_and_split_tensors() -> None:
    config = read("num_slices=2 ici_tensor_sequence_parallelism=4 per_device_batch_size=0.5").configuration
    # 8 GPUs of a slice: tp 4 * fsdp 2; two slices hold replicas. 0.5 * 16 GPUs are 2 of each of 4 ranks.
    assert (config.tensor_parallel_size, config.zero_shard_size, config.data_parallel_size) == (4, 2, 4)
    assert (config.sequence_parallel, config.micro_batch_size) == (True, 2)


def test_the_axis_tensor_is_priced_as_tensor_sequence_with_a_note() -> None:
    found = read("ici_tensor_parallelism=4 per_device_batch_size=1")
    assert (found.configuration.tensor_parallel_size, found.configuration.sequence_parallel) == (4, True)
    assert any("the axis tensor splits hidden states" in note for note in found.notes)


@pytest.mark.parametrize(
    ("policy", "granularity", "modules"),
    [
        ("full", "full", None),
        ("None", "full", None),  # pyconfig.py takes it in any case
        ("save_dot_except_mlp", "selective", None),
        ("save_qkv_proj", "selective", "core_attn+attn_proj+layernorm+mlp_up"),
        ("minimal", "selective", "core_attn+layernorm"),
        ("minimal_with_context", "selective", "layernorm"),
        ("minimal_flash", "selective", "layernorm"),  # its older name
    ],
)
def test_a_policy_is_what_it_keeps(policy: str, granularity: str, modules: str | None) -> None:
    found = read(f"remat_policy={policy}")
    assert found.configuration.recompute_granularity == granularity
    assert found.workload.framework_options.get("recompute_modules") == modules


_OFFLOADING = "remat_policy=custom query_proj=offload key_proj=offload value_proj=offload"


@pytest.mark.parametrize(
    ("words", "granularity", "sent"),
    [
        ("remat_policy=qkv_proj_offloaded", "selective", "core_attn"),
        ("remat_policy=minimal_offloaded", "selective", "core_attn+mlp_norm+mlp_act"),
        ("remat_policy=custom decoder_layer_input=offload", "full", None),  # all that it keeps
        (_OFFLOADING, "selective", "core_attn"),
        (f"{_OFFLOADING} decoder_layer_input=offload", "selective", None),
        (f"{_OFFLOADING} context=offload out_proj=device", "selective", "core_attn+attn_proj"),
    ],
)
def test_a_policy_names_the_tensors_that_go_to_the_host(
    words: str, granularity: str, sent: str | None
) -> None:
    found = read(words)
    assert (found.configuration.offload, found.configuration.recompute_granularity) == (
        "activations", granularity,
    )  # fmt: skip
    assert found.workload.framework_options.get("offload_modules") == sent


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "remat_policy=custom query_proj=offload key_proj=device value_proj=device",
            "key_proj: line 1: is not in host memory like",
        ),
        ("remat_policy=FULL", '"FULL" is not supported'),  # nnx_decoders.py stops: its check is exact
        ("ici_fsdp_parallelism=3", "3 ranks of fsdp, context and expert do not divide 4096 rows"),
        ("ici_context_parallelism=2", "all_gather of context ranks is not supported"),
        ("ici_expert_parallelism=2", "2 ranks for no experts"),
        ("ici_data_parallelism=-1", "may be -1"),
        ("ici_pipeline_parallelism=4 num_pipeline_microbatches=6", "6 micro-batches for 4 stages"),
        ("ici_pipeline_parallelism=4 num_pipeline_microbatches=1", "1 micro-batches for 4 stages"),
        ("ici_fsdp_transpose_parallelism=2", "ranks along this axis are not supported"),
        ("quantization=fp8", "products in 8 or 4 bits are not supported"),
        ("model_name=gemma9-1b", "gemma9-1b is not in the catalog"),
        ("per_device_batch_size=0.03", "0 sequences of a pass are not a multiple of 16"),
        ("ici_tensor_sequence_parallelism=zero", "is not a whole number"),
    ],
)
def test_what_is_not_priced_or_contradicts_is_refused_with_its_name(words: str, said: str) -> None:
    with pytest.raises(InvalidProblemError) as fault:
        read(words)
    assert said in " ".join(one.sentence() for one in fault.value.errors)


def test_an_embedding_by_one_hot_rows_is_priced() -> None:
    assert read("use_iota_embed=true").workload.framework_options["embedding_products"] is True
    assert "embedding_products" not in read("use_iota_embed=false").workload.framework_options


def test_a_named_models_sizes_replace_a_files_and_a_commands_are_refused() -> None:
    file = (
        "model_name: llama3.1-8b\nbase_num_decoder_layers: 5\nper_device_batch_size: 1\n"
        "max_target_length: 8192\nici_fsdp_parallelism: 8\n"
    )
    found = read_launch_files(Source(name="run.yml", text=file), Overrides(num_gpus=8))
    assert found.model.num_layers == 32
    assert any("base_num_decoder_layers 5 does nothing" in note for note in found.notes)
    with pytest.raises(InvalidProblemError, match=r"line 1: 5, but Llama 3\.1 8B has 32"):
        read("base_num_decoder_layers=5")
