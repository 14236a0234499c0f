"""TRL's commands and files of arguments: what its own program does, and what tells preferences."""

from __future__ import annotations

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model

OWN = (
    "model_name_or_path: meta-llama/Llama-2-7b-hf\nmax_length: 2048\npacking: true\ndtype: bfloat16\n"
    "per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\n"
)
SHARED = (
    "num_machines: 1\nnum_processes: 8\ncompute_environment: LOCAL_MACHINE\n"
    "distributed_type: DEEPSPEED\ndeepspeed_config:\n"
)
BY_JSON = "deepspeed_config_file: z.json"
DS = '{"bf16": {"enabled": true}, "zero_optimization": {"stage": %d}}'


def on_deepspeed(own: str, plugin: str, stage: int) -> LaunchFile:
    """TRL's file under accelerate's plugin, which may name DeepSpeed's file of a stage."""
    run = "accelerate launch --config_file a.yaml -m trl.scripts.sft --config own.yaml\n"
    files = {"a.yaml": f"{SHARED}  {plugin}\n", "own.yaml": own, "z.json": DS % stage, "run.sh": run}
    return read_launch_files(Source(name="run.sh", text=run, files=files))


@pytest.mark.parametrize("plugin", ["zero_stage: 2", BY_JSON])
def test_trl_runs_on_accelerates_plugin_of_deepspeed(plugin: str) -> None:
    found = on_deepspeed(OWN, plugin, 2)
    # DeepSpeed keeps weights in fp32 next to those that are loaded in bf16
    assert (found.launcher, found.workload.optimizer) == ("deepspeed", "adamw")
    assert (found.configuration.zero_stage, found.configuration.zero_shard_size) == (2, 8)
    # 8 processes × 2 × 4
    assert (found.workload.global_batch_size, found.configuration.recompute_granularity) == (64, "full")
    assert (found.num_nodes, found.gpus_per_node, found.unread) == (1, 8, ())


@pytest.mark.parametrize("plugin", ["zero_stage: 3", BY_JSON])
def test_weights_of_4_bits_are_not_cut_over_ranks(plugin: str) -> None:
    with pytest.raises(InvalidProblemError, match="load_in_4bit: line 8: weights of 4 bits cut over ranks"):
        on_deepspeed(f"{OWN}use_peft: true\nload_in_4bit: true\n", plugin, 3)


def test_a_file_that_names_its_model_says_so_once() -> None:
    text = OWN.replace("meta-llama/Llama-2-7b-hf", "Qwen/Qwen2.5-1.5B")
    notes = read_launch_files(Source(name="a.yaml", text=text), Overrides(num_gpus=8)).notes
    assert [one for one in notes if one.startswith("the model is ")] == [
        "the model is qwen2.5-1.5b: Qwen/Qwen2.5-1.5B of the files"
    ]


@pytest.mark.parametrize("line", ["beta: 0.05", "loss_type: apo_zero", "precompute_ref_log_probs: true"])
def test_preferences_are_told_by_their_own_words(line: str) -> None:
    text = (
        "model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 1\nmax_length: 2048\nbf16: true\n"
    )
    plain, found = (
        read_launch_files(Source(name="a.yaml", text=one), Overrides(num_gpus=8))
        for one in (text, f"{text}{line}\n")
    )
    assert plain.workload.sample == "sequence"
    assert (found.launcher, found.workload.sample) == ("trl", "pair")


SFT = (
    "torchrun --nproc_per_node 4 -m trl.scripts.sft --model_name_or_path meta-llama/Llama-2-7b-hf "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_length 2048 --bf16 True\n"
)


def test_trls_own_program_recomputes_unless_it_is_an_older_one() -> None:
    today, older, alone = (
        read_launch_files(Source(name="a.sh", text=text))
        for text in (
            SFT,
            SFT.replace("max_length", "max_seq_length"),
            SFT.replace("--max_length 2048 ", ""),
        )
    )
    assert today.configuration.recompute_granularity == "full"
    assert older.configuration.recompute_granularity == "none"
    assert alone.workload.seq_length == 1024
    assert "max_length is not given: 1024 is TRL's default" in alone.notes


WORDS = "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --max_length 2048 --bf16 true"
SFT_YAML = "max_length: 8192\npacking: true\ngradient_checkpointing: true\nuse_liger_kernel: true\n"


def read(text: str, overrides: Overrides | None = None, name: str = "a.sh") -> LaunchFile:
    return read_launch_files(Source(name=name, text=text, files={name: text}), overrides)


def test_trls_command_counts_before_its_file_and_no_other_file_counts() -> None:
    run = "python check.py old.yaml\ntrl sft --config sft.yaml --per_device_train_batch_size 5\n"
    text = (
        f"{SFT_YAML}model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 1\ndtype: bfloat16\n"
    )
    files = {"a.sh": run, "sft.yaml": text, "old.yaml": text.replace("bfloat16", "float32")}
    found = read_launch_files(Source(name="a.sh", text=run, files=files), Overrides(num_gpus=2))
    assert (found.workload.global_batch_size, found.workload.optimizer) == (2 * 5, "adamw-pure-bf16")


def test_a_rank_beside_peft_that_is_off_trains_no_adapters() -> None:
    rank = f"{SFT_YAML}model_name_or_path: Qwen/Qwen2.5-7B\nlora_r: 64\nlora_target_modules: all-linear\n"
    found = read(f"{rank}use_peft: false\n", Overrides(num_gpus=2), "sft.yaml")
    assert (found.launcher, found.workload.lora_rank) == ("trl", 0)
    with pytest.raises(InvalidProblemError, match="lora_r"):
        read(rank, Overrides(num_gpus=2), "sft.yaml")


@pytest.mark.parametrize(
    ("model", "targets", "why"),
    [
        ("Qwen3-8B", "[q_proj, linear_qkv]", "linear_qkv matches no module .*q_proj, k_proj, v_proj"),
        ("Qwen3-8B", "[linear_fc2]", "linear_fc2 matches no module .*down_proj: .* Megatron-Core's name"),
        ("gpt2", "[linear_qkv]", "linear_qkv matches no module"),
        ("Qwen3-8B", "[all-linear, q_proj]", "all-linear next to q_proj selects no further layers"),
        ("gpt-oss-20b", "[all-linear, experts.gate_up_proj]", "all-linear next to experts.gate_up_proj"),
        ("gpt-oss-20b", "[q_proj, experts.gate_up_proj]", "experts.gate_up_proj in target_parameters"),
        ("gpt-oss-20b", "[q_proj, experts.down_proj]", "experts.down_proj in target_parameters"),
        ("Qwen3-30B-A3B", "[q_proj, experts.gate_up_proj]", "experts.gate_up_proj in target_parameters"),
    ],
)
def test_names_that_match_no_module_of_the_class_are_refused(model: str, targets: str, why: str) -> None:
    """peft passes over them without a word where another name matches (check_target_module_exists)."""
    text = f"{SFT_YAML}model_name_or_path: {model}\nuse_peft: true\nlora_target_modules: {targets}\n"
    with pytest.raises(InvalidProblemError, match=f"lora_target_modules.*{why}"):
        read(text, Overrides(num_gpus=2), "sft.yaml")


def test_experts_names_of_transformers_4_are_the_tensors_of_today() -> None:
    text = f"{SFT_YAML}model_name_or_path: Qwen3-30B-A3B\nuse_peft: true\n"
    found = read(
        f"{text}lora_target_modules: [q_proj, experts.down_proj]\n", Overrides(num_gpus=2), "sft.yaml"
    )
    assert found.workload.lora_targets == ("q_proj", "experts.down_proj")


def test_trl_without_a_file_has_its_own_defaults_and_accelerates_built_in_shares() -> None:
    adapters = "--use_peft --lora_r 8 --lora_target_modules all-linear --load_in_8bit"
    found = read(f"trl sft {WORDS} {adapters} --accelerate_config zero2 --num_processes 4\n")
    assert (found.configuration.zero_stage, found.workload.base_precision) == (2, "int8")
    assert (found.workload.global_batch_size, found.configuration.recompute_granularity) == (4, "full")
    with pytest.raises(InvalidProblemError, match="generates answers"):
        read(f"trl grpo {WORDS}\n", Overrides(num_gpus=4))


TRLS = (
    "model_name_or_path: Qwen/Qwen2.5-7B\nmax_length: 2048\npacking: true\nbf16: true\n"
    "per_device_train_batch_size: 1\n"
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (TRLS.replace("Qwen2.5-7B", "Qwen3-8B-FP8"), "model_name_or_path: .* is stored quantised"),
        (TRLS.replace("Qwen/Qwen2.5-7B", "unsloth/Meta-Llama-3.1-8B-bnb-4bit"), "frozen: nothing would be"),
        (TRLS.replace("2048", "null"), "max_length: .*nothing states the sequence length"),
        (TRLS + "dtype: bf16\n", "dtype: .*Allowed: auto, bfloat16"),
        (TRLS.replace("bf16", "fp16") + "dtype: float16\n", "dtype: .*gradients cannot be unscaled"),
    ],
)
def test_what_trl_would_train_otherwise_than_its_file_reads_is_refused(text: str, why: str) -> None:
    # copies' names were taken for whole weights, null for TRL's default of 1024
    with pytest.raises(InvalidProblemError, match=why):
        read(text, Overrides(num_gpus=2), "sft.yaml")


def test_frozen_weights_that_trl_loads_in_fp32_are_told() -> None:
    lora = f"{TRLS}use_peft: true\nlora_target_modules: all-linear\n"
    assert any("take 4 bytes each" in note for note in read(lora, Overrides(num_gpus=2), "sft.yaml").notes)
    found = read(f"{lora}dtype: bfloat16\n", Overrides(num_gpus=2), "sft.yaml")
    assert not any("take 4 bytes each" in note for note in found.notes)


def test_what_models_are_loaded_by_counts_before_the_files_own_type_and_kernel() -> None:
    lora = f"{TRLS}use_peft: true\nlora_target_modules: all-linear\ndtype: float32\n"
    loaded = f"{lora}model_init_kwargs:\n  dtype: bfloat16\n  attn_implementation: sdpa\n"
    found = read(loaded, Overrides(num_gpus=2), "sft.yaml")
    named = lora.replace("float32", "bfloat16") + "attn_implementation: sdpa\n"
    assert found.workload == read(named, Overrides(num_gpus=2), "sft.yaml").workload
    assert found.unread == ()


def test_a_trls_file_without_a_model_takes_the_told_one() -> None:
    text = "use_peft: true\nlora_r: 16\nlora_target_modules: ALL\nmax_seq_length: 4096\nbf16: true\n"
    text += "per_device_train_batch_size: 2\ntorch_dtype: bfloat16\n"
    with pytest.raises(InvalidProblemError, match="the files name no model"):
        read(text, Overrides(num_gpus=2), "sft.yaml")
    found = read(text, Overrides(num_gpus=2, model=find_model("qwen2.5-7b")), "sft.yaml").workload
    assert (found.seq_length, found.lora_rank, len(found.lora_targets)) == (4096, 16, 12)


def test_a_file_that_names_its_model_otherwise_than_trl_is_another_programs() -> None:
    text = "model_name: Qwen/Qwen3-VL-8B-Instruct\nmax_length: 16384\nper_device_train_batch_size: 1\n"
    with pytest.raises(
        InvalidProblemError, match="not one of TRL's names"
    ):  # read as the supplied model's run
        read(text, Overrides(num_gpus=8, model=find_model("qwen3-8b")), "full.yaml")


def test_accelerates_options_in_trls_command_are_read_next_to_trls_file() -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-7B\nmax_length: 2048\npacking: true\ndataset_name: x\n"
    script = "trl sft --config a.yaml --num_processes 4 --use_fsdp --gradient_accumulation_steps 2\n"
    source = Source(name="a.yaml", text=text, files={"a.yaml": text, "run.sh": script})
    config = read_launch_files(source).configuration
    # they were refused as names that TRL's parser lacks; the accumulation is the trainer's
    assert (config.zero_shard_size, config.num_microbatches) == (4, 2)


SHARDS = "--use_fsdp --fsdp_version 2 --num_processes 8"


@pytest.mark.parametrize(
    "command",
    [
        f"accelerate launch {SHARDS} -m trl.scripts.sft --config own.yaml",
        f"accelerate launch {SHARDS} trl/scripts/sft.py --config own.yaml",
        f"accelerate launch {SHARDS} /opt/trl/scripts/sft.py --config own.yaml",
        f"trl sft --config own.yaml {SHARDS}",
    ],
)
def test_options_of_accelerate_launch_shard_however_trl_is_named(command: str) -> None:
    files = {"own.yaml": OWN, "run.sh": f"{command}\n"}
    found = read_launch_files(Source(name="own.yaml", text=OWN, files=files))
    assert (found.launcher, found.configuration.zero_stage, found.configuration.num_gpus) == ("trl", 3, 8)


def test_a_model_that_bitsandbytes_stored_is_the_base_of_qlora() -> None:
    named = OWN.replace("meta-llama/Llama-2-7b-hf", "unsloth/Qwen3-8B-unsloth-bnb-4bit")
    found = read_launch_files(Source(name="a.yaml", text=f"{named}use_peft: true\n"), Overrides(num_gpus=1))
    assert (found.model.name, found.workload.base_precision) == ("qwen3-8b", "nf4-double")
    assert "stored in 4 bits by bitsandbytes" in " ".join(found.notes)


def test_defaults_of_peft_are_those_of_the_class() -> None:
    text = (
        "#!/bin/bash\npython examples/scripts/cpo.py --model_name_or_path gpt2 --use_peft --optim rmsprop "
    )
    text += "--per_device_train_batch_size 4 --max_length 512\n"
    found = read_launch_files(Source(name="a.sh", text=text), Overrides(num_gpus=1)).workload
    assert (found.lora_targets, found.optimizer) == (("qkv_proj",), "sgd-momentum")
