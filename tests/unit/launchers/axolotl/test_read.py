"""Axolotl's YAML and the command that starts it, as people write them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.profiles.adapters import SINGLE_TARGETS, adapter_parameters, tower_targets
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.errors import InvalidProblemError, RefusedExportError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import default_profile
from meshwright.solver.planner.plan import ask
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, SearchOptions, Workload
from meshwright.solver.space.launcher_rules import option_faults, workload_faults

AXOLOTL = (
    "base_model: mistralai/Mistral-7B-v0.1\nsequence_len: 4096\nmicro_batch_size: 2\n"
    "gradient_accumulation_steps: 3\nbf16: auto\ngradient_checkpointing: true\noptimizer: adamw_bnb_8bit\n"
)


def read(text: str, overrides: Overrides, name: str) -> LaunchFile:
    return read_launch_files(Source(name=name, text=text), overrides)


def test_a_section_that_only_holds_values_to_repeat_is_no_option() -> None:
    """Axolotl ignores it; programs that stop at unknown names stop at it, too."""
    held = "x-batch: &batch\n  micro_batch_size: 2\n  gradient_accumulation_steps: 4\nx-rank: &rank 16\n"
    text = (
        f"{held}base_model: NousResearch/Llama-3.2-1B\nadapter: lora\nlora_r: *rank\n"
        "lora_target_linear: true\nsequence_len: 2048\n<<: *batch\nbf16: auto\nflash_attention: true\n"
    )
    found = read(text, Overrides(num_gpus=4), "lora.yml")
    assert (found.workload.global_batch_size, found.workload.lora_rank) == (4 * 2 * 4, 16)
    assert found.unread == ()
    text = "x-size: &size\n  per_device_train_batch_size: 2\nmodel_name_or_path: Qwen/Qwen3-8B\n<<: *size\n"
    with pytest.raises(InvalidProblemError, match="x-size: line 2: unknown, and trl stops there"):
        read(f"{text}dataset_name: our/data\npacking: true\n", Overrides(num_gpus=4), "sft.yaml")
    used = text.replace("<<: *size\n", "per_device_train_batch_size: 2\n")
    with pytest.raises(
        InvalidProblemError, match=r"x-size\.per_device_train_batch_size: .* unknown option"
    ):
        read(f"{used}dataset_name: our/data\npacking: true\n", Overrides(num_gpus=4), "sft.yaml")


MUON = (
    "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 2048\nsample_packing: true\nmicro_batch_size: 4\n"
    "bf16: auto\noptimizer: muon\nfsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\n"
)


def test_muon_of_whole_weights_that_fsdp2_cuts_is_read_and_written() -> None:
    found = read(MUON, Overrides(num_gpus=8), "muon.yaml")
    assert (found.launcher, found.workload.optimizer) == ("axolotl", "muon-pure-bf16")
    cluster = find_cluster("dgx-h100", num_nodes=1)
    problem = Problem(model=found.model, cluster=cluster, workload=found.workload, launcher="axolotl")
    problem = replace(problem, options=SearchOptions(certify="none", top_k=1))
    (plan, *_) = ask(problem, default_profile(cluster, "axolotl")).plans
    assert 0 < plan.config.zero_shard_size == plan.config.data_parallel_size
    assert "optimizer: muon\n" in export(plan, problem, "axolotl").files["axolotl.yaml"]


@pytest.mark.parametrize(
    ("changed", "gpus", "why"),
    [
        (("fsdp_version: 2", "fsdp_version: 1"), 8, "whole weights that FSDP2 cuts"),
        (
            ("optimizer: muon", "optimizer: muon\nadapter: lora\nlora_target_linear: true"),
            8,
            "whole weights",
        ),
        (("bf16: auto", "bf16: auto\ndp_replicate_size: 2\ndp_shard_size: 4"), 8, "one mesh of shards"),
        (("bf16: auto", "bf16: auto\ncontext_parallel_size: 2"), 8, "one mesh of shards"),
        (("bf16: auto", "bf16: auto"), 24, "24 ranks don't divide"),  # 128 rows of keys
    ],
)
def test_muon_is_refused_where_axolotl_stops(changed: tuple[str, str], gpus: int, why: str) -> None:
    with pytest.raises(InvalidProblemError, match=why):
        read(MUON.replace(*changed), Overrides(num_gpus=gpus), "muon.yaml")


def test_axolotl_without_its_second_fsdp_is_replicas_or_accelerates_first() -> None:
    text = (
        "base_model: NousResearch/Llama-3.2-1B\nadapter: lora\nlora_r: 16\nlora_target_linear: true\n"
        "sequence_len: 2048\nsample_packing: true\nmicro_batch_size: 2\ngradient_accumulation_steps: 2\n"
        "bf16: auto\noptimizer: adamw_8bit\ngradient_checkpointing: true\n"
    )
    found = read(text, Overrides(num_gpus=4), "lora.yml")
    assert (found.launcher, found.workload.lora_rank) == ("axolotl", 16)
    assert (found.configuration.zero_stage, found.configuration.zero_shard_size) == (0, 1)
    assert found.workload.global_batch_size == 16  # 4 replicas × 2 × 2
    whole, cut = text.replace("adapter: lora", "adapter:"), "fsdp: [full_shard, auto_wrap]\n"
    assert read(whole, Overrides(num_gpus=4), "full.yml").workload.framework_options["fp32_ends"] is True
    first = read(f"{text}{cut}", Overrides(num_gpus=4), "sharded.yml")
    assert (first.launcher, first.configuration.zero_stage) == ("accelerate", 3)
    assert any(note.startswith("FSDP1 wraps adapters apart") for note in first.notes)
    # flash attention takes embeddings and norms back to bf16; FSDP1 casts all weights up
    for more, *expected in (
        ("flash_attention: true\n", "trl", 0, "adamw-8bit-bf16"),
        (cut, "accelerate", 3, "adamw-8bit"),
    ):
        found = read(whole + more, Overrides(num_gpus=4), "full.yml")
        assert [found.launcher, found.configuration.zero_stage, found.workload.optimizer] == expected
        assert found.workload.global_batch_size == 16
    for option, why in (
        ("fsdp_sharding_strategy: SHARD_GRAD_OP", "SHARD_GRAD_OP reaches no FSDP"),  # full_shard runs
        ("reshard_after_forward: false", "is FSDP2's alone"),
    ):
        with pytest.raises(InvalidProblemError, match=why):
            read(f"{whole}{cut}fsdp_config:\n  {option}\n", Overrides(num_gpus=4), "full.yml")
    found = read(
        f"{whole}{cut}fsdp_config:\n  fsdp_offload_params: true\n", Overrides(num_gpus=4), "full.yml"
    )
    assert (found.launcher, found.configuration.offload) == ("accelerate", "optimizer+parameters")
    # the schema of fsdp_config has no strategy for FSDP2, and drops it: all 4 GPUs share
    text = f"{whole}fsdp_version: 2\nfsdp_config:\n  sharding_strategy: HYBRID_SHARD\n"
    second = read(text, Overrides(num_gpus=4), "full.yml")
    assert (second.configuration.zero_stage, second.configuration.zero_shard_size) == (3, 4)


LISA = (
    "base_model: meta-llama/Llama-2-7b-hf\nsequence_len: 1024\nsample_packing: true\nbf16: true\n"
    "micro_batch_size: 2\nflash_attention: true\nlisa_n_layers: 4\noptimizer: adamw_bnb_8bit\n"
)


def test_lisa_is_read_as_so_many_trained_layers_next_to_both_ends() -> None:
    found = read(f"{LISA}lisa_step_interval: 20\n", Overrides(num_gpus=1), "l.yml")
    work = found.workload
    assert (work.trained_layers, work.trained_modules) == ("0-3", ("embed_tokens", "lm_head"))
    assert work.framework_options["redraws_layers"] is True
    assert any("moments of all layers" in one for one in found.notes)
    # without the steps no layer is frozen (core/builders/causal.py:133)
    never = read(LISA, Overrides(num_gpus=1), "l.yml").workload
    assert (never.trained_layers, "redraws_layers" in never.framework_options) == ("", False)


@pytest.mark.parametrize(
    ("gpus", "more", "why"),
    [
        (2, "", "several GPUs"),
        (1, "lisa_layers_attribute: model.decoder.layers\n", "model.decoder.layers is not supported"),
        (1, "adapter: lora\nlora_r: 8\nlora_target_linear: true\n", "next to adapters"),
        (1, "unfrozen_parameters: [lm_head.*]\n", "next to adapters, unfrozen_parameters"),
        (1, "lisa_n_layers: 33\n", "33 of 32 layers is not supported.*Allowed: 1 to 32"),
    ],
)
def test_lisa_that_is_not_priced_is_refused(gpus: int, more: str, why: str) -> None:
    text = LISA.replace("lisa_n_layers: 4\n", "") if "lisa_n" in more else LISA
    with pytest.raises(InvalidProblemError, match=f"lisa_n_layers: .*{why}"):
        read(f"{text}lisa_step_interval: 20\n{more}", Overrides(num_gpus=gpus), "l.yml")


PROJECTED = (
    "base_model: meta-llama/Llama-2-7b-hf\nsequence_len: 1024\nsample_packing: true\nbf16: true\n"
    "micro_batch_size: 2\nflash_attention: true\noptim_target_modules: all_linear\n"
)


def test_galore_under_axolotl_is_read_on_replicas_with_its_arguments() -> None:
    args = "optim_args: rank=64, update_proj_gap=500\n"
    found = read(f"{PROJECTED}optimizer: galore_adamw_8bit\n{args}", Overrides(num_gpus=4), "g.yml")
    work = found.workload
    assert (found.launcher, found.configuration.zero_stage) == ("axolotl", 0)
    assert (work.optimizer, work.optimizer_rank, work.optimizer_interval) == ("galore-8bit-bf16", 64, 500)
    alone = read(f"{PROJECTED}optimizer: galore_adamw_layerwise\n", Overrides(num_gpus=1), "g.yml")
    assert alone.workload.optimizer == "galore-pure-bf16-layerwise"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            "optimizer: galore_adamw\nfsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n",
            "whole gradients",
        ),
        ("optimizer: galore_adamw\ndeepspeed: zero3_bf16.json\n", "whole gradients"),
        ("optimizer: galore_adamw_layerwise\n", "refuses several GPUs"),
        ("optimizer: galore_adafactor\n", "is not supported"),
        (
            "optimizer: galore_adamw\noptim_args: rank=0\n",
            "rank = '?0'? is not a whole number above 0. Allowed: 1 to 999999999$",
        ),
    ],
)
def test_galore_that_axolotl_does_not_run_as_priced_is_refused(more: str, why: str) -> None:
    with pytest.raises(InvalidProblemError, match=f"optim(izer|_args): .*{why}"):
        read(f"{PROJECTED}{more}", Overrides(num_gpus=4), "g.yml")


@pytest.mark.parametrize("optimizer", ["galore-pure-bf16", "galore-8bit-bf16"])
def test_galore_planned_for_axolotl_is_written_and_read_back_at_its_price(optimizer: str) -> None:
    model, cluster = find_model("llama-2-7b"), find_cluster("dgx-a100")
    cluster = replace(cluster, groups=(replace(cluster.groups[0], num_nodes=1),))
    workload = Workload(global_batch_size=16, seq_length=1024, precision="bf16", optimizer=optimizer)
    problem = Problem(model=model, cluster=cluster, workload=workload, launcher="axolotl")
    problem = replace(problem, options=SearchOptions(certify="none", top_k=1))
    profile = default_profile(cluster, "axolotl")
    (plan, *_) = ask(problem, profile).plans
    assert plan.config.zero_stage == 0
    files = export(plan, problem, "axolotl").files
    found = read_launch_files(Source(name="axolotl.yaml", text=files["axolotl.yaml"], files=files))
    assert (found.configuration, found.workload.optimizer) == (plan.config, optimizer)
    again = predict(replace(problem, workload=found.workload), profile, found.configuration)
    assert again.step_time_s == pytest.approx(plan.prediction.step_time_s)
    torch = replace(workload, framework_options={"attention_kernel": "torch"})
    with pytest.raises(RefusedExportError, match="without FlashAttention or a cut loss"):
        export(plan, replace(problem, workload=torch), "axolotl")


def test_options_of_axolotls_command_count_before_its_file() -> None:
    # the file's 2 sequences a micro-batch were read, whatever the command says
    text = "base_model: NousResearch/Llama-3.2-1B\nsequence_len: 2048\nsample_packing: true\nbf16: true\n"
    text += "micro_batch_size: 2\nflash_attention: true\n"

    def started(run: str) -> LaunchFile:
        source = Source(name="a.sh", text=run, files={"a.sh": run, "a.yml": text})
        return read_launch_files(source, Overrides(num_gpus=4))

    for start in ("axolotl train a.yml", "accelerate launch -m axolotl.cli.train a.yml"):
        found = started(f"axolotl preprocess a.yml\n{start} --micro-batch-size 8 --no-sample-packing\n")
        assert found.workload.global_batch_size == 32  # 4 replicas × 8
        assert any("micro_batch_size is 8, not the file's" in note for note in found.notes)
        assert any("packing is off" in note for note in found.notes)
    shards = "--use_deepspeed --zero_stage 2 --num_processes 4"
    for start in (
        f"accelerate launch {shards} -m axolotl.cli.train a.yml",
        f"axolotl train a.yml -- {shards}",
    ):
        with pytest.raises(
            InvalidProblemError, match=r"distributed_type of accelerate launch .* is not read"
        ):
            started(start)
    for other in ("inference", "merge-lora", "preprocess"):
        with pytest.raises(InvalidProblemError, match=f"line 1 of a.sh: axolotl {other}"):
            started(f"axolotl {other} a.yml --micro-batch-size 8\n")
    with pytest.raises(InvalidProblemError, match=r"overrides_of_model_config\.num_hidden_layers"):
        read(f"{text}overrides_of_model_config:\n  num_hidden_layers: 2\n", Overrides(num_gpus=4), "a.yml")


def test_axolotl_on_deepspeed_is_read_with_its_file() -> None:
    text = f"{AXOLOTL}deepspeed: deepspeed_configs/zero3_bf16.json\n"
    found = read(text, Overrides(num_gpus=8), "a.yml")
    assert (found.launcher, found.model.name, found.configuration.zero_stage) == (
        "deepspeed",
        "mistral-7b",
        3,
    )
    # 8 replicas × 2 × 3
    assert (found.workload.global_batch_size, found.workload.optimizer) == (48, "adamw-8bit")
    assert any("zero3_bf16.json is taken as ZeRO-3" in note for note in found.notes)
    for name, offload in (("zero3_bf16_cpuoffload_all", "optimizer+parameters"), ("zero2", "none")):
        found = read(text.replace("zero3_bf16", name), Overrides(num_gpus=8), "a.yml")
        assert found.configuration.offload == offload
    files = {
        "a.yml": text,
        "zero3_bf16.json": '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}',
    }
    found = read_launch_files(Source(name="a.yml", text=text, files=files), Overrides(num_gpus=8))
    assert (found.configuration.zero_stage, found.configuration.recompute_granularity) == (1, "full")
    with pytest.raises(InvalidProblemError, match="tensor_parallel_size: line 9: next to"):
        read(f"{text}tensor_parallel_size: 2\n", Overrides(num_gpus=8), "a.yml")
    with pytest.raises(InvalidProblemError, match=r"deepspeed: line 8: mine.json is not next to the file"):
        read(text.replace("zero3_bf16", "mine"), Overrides(num_gpus=8), "a.yml")


def test_axolotls_weights_of_4_bits_are_replicas_of_accelerate() -> None:
    text = f"{AXOLOTL}adapter: qlora\nload_in_4bit: true\nlora_r: 32\nlora_target_linear: true\n"
    found = read(text, Overrides(num_gpus=8), "a.yml")
    assert (found.launcher, found.configuration.zero_stage) == ("accelerate", 0)
    workload = found.workload
    assert (workload.base_precision, workload.lora_rank) == ("nf4-double", 32)
    assert (workload.optimizer, workload.global_batch_size) == ("adamw-8bit", 8 * 2 * 3)
    for line, cause in (
        ("load_in_8bit: true", "load_in_8bit: line 12: next to adapter qlora Axolotl 0.19 does not look"),
        ("lora_modules_to_save: [q_norm]", "lora_modules_to_save: line 12: q_norm trained whole is not"),
        ("rl: grpo", "rl: line 12: grpo generates answers"),
        ("processor_type: AutoProcessor", "processor_type: line 12: the files limit images, but"),
        ("load_in_4bit: false", "adapter: line 8: qlora needs load_in_4bit"),
    ):
        with pytest.raises(InvalidProblemError, match=cause):
            read(f"{text}{line}\n", Overrides(num_gpus=8), "a.yml")
    with pytest.raises(InvalidProblemError, match="adapter: line 8: qlora needs load_in_4bit"):
        read(text.replace("load_in_4bit: true\n", ""), Overrides(num_gpus=8), "a.yml")
    experts = text.replace("Mistral-7B-v0.1", "Mixtral-8x7B-v0.1")
    plain, narrow = (
        read(f"{experts}{line}\n", Overrides(num_gpus=8), "a.yml").workload.framework_options
        for line in ("", "quantize_moe_experts: true\npeft_use_dora: true\nlora_dropout: 0.1")
    )
    assert "quantizes_experts" not in plain
    assert {**narrow, "quantizes_experts": True, "dora": True, "adapter_dropout": True} == narrow


def test_the_last_of_a_repeated_key_counts_and_both_lines_are_named() -> None:
    # PyYAML, Axolotl's loader, takes the last; 8 ranks × micro-batch 2 × 5 instead of 3
    text = f"{AXOLOTL}flash_attention: true\ngradient_accumulation_steps: 5\n"
    first = text.splitlines().index("gradient_accumulation_steps: 3") + 1
    found = read(text, Overrides(num_gpus=8), "a.yml")
    assert found.workload.global_batch_size == 8 * 2 * 5
    assert any(
        f"gradient_accumulation_steps is given again, after line {first}: the last one counts" in note
        for note in found.notes
    )


def test_axolotls_weights_of_8_bits_and_its_batch_are_read() -> None:
    # 8 ranks × micro-batch 2 × 12 // 2 accumulated ones
    text = AXOLOTL.replace("gradient_accumulation_steps: 3", "batch_size: 12").replace(
        "bf16: auto", "fp16: true"
    )
    text += "adapter: lora\nload_in_8bit: true\nlora_target_modules: [q_proj]\ndeepspeed: zero2.json\n"
    found = read(text, Overrides(num_gpus=8), "a.yml")
    assert (found.workload.base_precision, found.workload.lora_targets) == ("int8", ("q_proj",))
    assert (found.configuration.zero_stage, found.workload.global_batch_size) == (2, 8 * 2 * 6)
    assert found.workload.precision == "fp16"
    for line, cause in (
        ("gradient_accumulation_steps: 6", "batch_size: line 4: Axolotl takes it or"),
        ("load_in_4bit: true", "load_in_4bit: line 12: next to adapter lora"),
        ("activation_offloading: disk", "disk is not supported"),
    ):
        with pytest.raises(InvalidProblemError, match=cause):
            read(f"{text}{line}\n", Overrides(num_gpus=8), "a.yml")
    with pytest.raises(InvalidProblemError, match="fp16: line 5: weights in fp16 alone"):
        read(text.replace("adapter: lora\nload_in_8bit: true\n", ""), Overrides(num_gpus=8), "a.yml")


def test_axolotls_losses_keep_no_logits_where_a_plugin_fuses_them() -> None:
    text = f"{AXOLOTL}adapter: lora\nlora_target_linear: true\n"

    def options(more: str) -> dict[str, object]:
        return dict(read(text + more, Overrides(num_gpus=8), "a.yml").workload.framework_options)

    fused = "liger_rms_norm: true\nliger_fused_linear_cross_entropy: true\n"
    expected = {"attention_kernel": "auto", "loss_kernel": "liger", "norm_fused": True}
    assert options(f"plugins: [axolotl.integrations.liger.LigerPlugin]\n{fused}") == expected
    assert options(fused) == {"attention_kernel": "auto"}  # nothing without the plugin
    patched = "flash_attn_cross_entropy: true\nflash_attn_rms_norm: true\nlora_mlp_kernel: true\n"
    fusions = {"elementwise_fused": True, "loss_fused": True, "norm_fused": True}
    assert options(patched) == fusions | {"attention_kernel": "auto"}
    layers = "plugins: [axolotl.integrations.liger.LigerPlugin]\nliger_layer_norm: true\n"
    own = options(f"{layers}liger_cross_entropy: true\n")
    assert own == {"attention_kernel": "auto", "loss_fused": True}  # its norms are RMSNorm
    cut = "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n"
    assert options(cut) == {"attention_kernel": "auto", "loss_kernel": "cut"}


MASKED = "plugins: [axolotl.integrations.llm_compressor.LLMCompressorPlugin]\nllmcompressor:\n"
STAGES = (
    "  recipe:\n    finetuning_stage:\n      finetuning_modifiers:\n        ConstantPruningModifier:\n"
    "          targets: ['re:.*q_proj.weight']\n          start: 0\n  save_compressed: true\n"
)


def test_stages_of_a_recipe_mask_no_weight_so_that_the_plugin_costs_nothing() -> None:
    plain, masked = (
        read(f"{AXOLOTL}flash_attention: true\n{more}", Overrides(num_gpus=4), "a.yml")
        for more in ("", MASKED + STAGES)
    )
    assert (masked.workload, masked.configuration) == (plain.workload, plain.configuration)
    assert any("llmcompressor.recipe: " in note and "no weight is masked" in note for note in masked.notes)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_modes_of_torchs_compiler_are_priced_as_its_default_with_a_note(mode: str) -> None:
    text = f"{AXOLOTL}flash_attention: true\ntorch_compile: true\ntorch_compile_mode: {mode}\n"
    found = read(text, Overrides(num_gpus=4), "a.yml")
    assert found.workload.framework_options["elementwise_fused"]
    noted = any(note.startswith(f"torch_compile_mode {mode}: ") for note in found.notes)
    assert (noted, found.unread) == (mode != "default", ())


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            "plugins: [axolotl.integrations.spectrum.SpectrumPlugin]\n",
            "plugins: .*may change training",
        ),
        ("layer_offloading: true\n", "layer_offloading: .*weights on the host"),
        ("torch_compile: true\ntorch_compile_mode: fast\n", "torch_compile_mode: .* default, reduce-ov"),
        (f"{MASKED}  recipe: recipe.yaml\n", "llmcompressor.recipe: .*its trainer refuses it"),
        (f"{MASKED}  save_compressed: true\n", "llmcompressor.recipe: .*its trainer refuses it"),
        (f"{MASKED}  recipe: {{modifiers: [a]}}\n", "llmcompressor.recipe: .*its trainer refuses it"),
        (
            "logging_steps: '{{ n }}'\nwarmup_steps: few\n",
            "n }} is a placeholder.*few. is not a whole number",
        ),
    ],
)
def test_what_trains_other_weights_or_holds_them_elsewhere_is_refused(more: str, why: str) -> None:
    cut = "fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\n"
    with pytest.raises(InvalidProblemError, match=why):
        read(AXOLOTL + cut + more, Overrides(num_gpus=4), "axolotl.yml")
    with pytest.raises(InvalidProblemError, match=r"base_model: .* weights in awq are frozen"):
        read(AXOLOTL.replace("v0.1", "v0.1-AWQ") + cut, Overrides(num_gpus=4), "axolotl.yml")


@pytest.mark.parametrize(
    "own",
    ["selective_checkpointing: {save: [a]}", "diffusion_lm: {alpha: 0.25}", "diffusion_lm: {}"],
)
def test_a_refused_section_is_refused_by_the_names_in_it(own: str) -> None:
    text = (
        "base_model: NousResearch/Llama-3.2-1B\nsequence_len: 2048\nsample_packing: true\n"
        "micro_batch_size: 2\nbf16: auto\nflash_attention: true\n"
    )
    assert read(text, Overrides(num_gpus=4), "a.yml").launcher == "trl"
    with pytest.raises(InvalidProblemError, match=r"line 7: cannot be read: .* not supported"):
        read(f"{text}{own}\n", Overrides(num_gpus=4), "a.yml")


ROUNDED = (
    AXOLOTL.replace("adamw_bnb_8bit", "adamw_torch_fused") + "sample_packing: true\nflash_attention: true\n"
    "plugins: [axolotl.integrations.liger.LigerPlugin]\nliger_fused_linear_cross_entropy: true\n"
)
SHARDED = "fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\n"


@pytest.mark.parametrize(
    ("qat", "word", "group"),
    [
        ("{activation_dtype: int8, weight_dtype: int4, group_size: 256}", "int8-int4", 256),
        ("{weight_dtype: int4}", "bf16-int4", 32),
        ("{activation_dtype: float8, weight_dtype: int4}", "fp8-int4", 32),
        (
            "{activation_dtype: fp8, weight_dtype: fp8, fake_quant_after_n_steps: 9}",
            "fp8-fp8",
            32,
        ),
        ("{activation_dtype: mxfp4, weight_dtype: mxfp4}", "mxfp4", 32),
    ],
)
def test_quantisation_aware_training_is_read_with_what_it_rounds_to(
    qat: str, word: str, group: int
) -> None:
    for cut in (SHARDED, ""):
        found = read(f"{ROUNDED}{cut}qat: {qat}\n", Overrides(num_gpus=8), "qat.yml")
        options = found.workload.framework_options
        stated = (options["fake_quantization"], options.get("fake_quantized_group", 32))
        assert (found.launcher, found.unread, stated) == ("axolotl", (), (word, group))
    whole = "qat: {activation_dtype: int8, weight_dtype: int4, quantize_embedding: true}\n"
    with pytest.raises(InvalidProblemError, match=r"qat\.quantize_embedding: .* is not priced"):
        read(f"{ROUNDED}{SHARDED}{whole}", Overrides(num_gpus=8), "qat.yml")


def test_weights_of_three_values_are_those_that_onebitllms_rounds_to() -> None:
    # examples/falcon-e: the loss may be of whole logits, as the head is not rounded
    text = ROUNDED.replace("cut_cross_entropy: true\n", "")
    for cut in (SHARDED, ""):
        found = read(f"{text}{cut}use_onebitllms: true\n", Overrides(num_gpus=8), "a.yml")
        assert (found.launcher, found.unread) == ("axolotl", ())
        assert found.workload.framework_options["fake_quantization"] == "int8-ternary"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (SHARDED + "use_onebitllms: true\nadapter: lora\nlora_r: 8\n", "refuses it next to adapters"),
        (SHARDED + "use_onebitllms: true\nqat: {weight_dtype: int4}\n", "next to use_onebitllms"),
        (SHARDED + "qat: {weight_dtype: nvfp4, group_size: 16}\n", "refuses nvfp4 of 16"),
        (SHARDED + "qat: {}\n", "refuses int8 of 32 with inputs in bf16"),
        (SHARDED + "qat: {activation_dtype: int8}\n", "refuses int8 of 32 with inputs in int8"),
        (SHARDED + "qat: {weight_dtype: mxfp4, group_size: 16}\n", "refuses mxfp4 of 16"),
        (SHARDED + "qat: {weight_dtype: ternary}\n", "weights of three values"),
        ("fsdp: [full_shard]\nqat: {weight_dtype: int4}\n", "of whole weights, replicated or under FSDP2"),
        (SHARDED + "adapter: lora\nlora_r: 8\nqat: {weight_dtype: int4}\n", "of whole weights"),
    ],
)  # fmt: skip
def test_rounding_that_its_trainer_refuses_or_that_is_not_priced_is_refused(lines: str, why: str) -> None:
    with pytest.raises(InvalidProblemError, match=why):
        read(ROUNDED + lines, Overrides(num_gpus=8), "qat.yml")


def test_what_a_refused_section_holds_is_refused_at_any_depth_if_the_section_does_something() -> None:
    nested = "diffusion_lm:\n  unroll:\n    k_max: 2\n"
    with pytest.raises(InvalidProblemError, match=r"diffusion_lm\.unroll\.k_max: line 10: cannot be read"):
        read(AXOLOTL + nested, Overrides(num_gpus=4), "diffusion.yml")
    whole = AXOLOTL + "flash_attention: true\n"
    section = "peft_trainable_token_indices:\n  embed_tokens: [1]\n"  # Axolotl reads it for adapters alone
    adapters = "adapter: lora\nlora_r: 16\nlora_alpha: 32\nlora_target_linear: true\n"
    with pytest.raises(InvalidProblemError, match="weights next to the adapters are not counted"):
        read(AXOLOTL + adapters + section, Overrides(num_gpus=4), "lora.yml")
    found = read(whole + section, Overrides(num_gpus=4), "full.yml")
    assert found.workload == read(whole, Overrides(num_gpus=4), "full.yml").workload


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_change_to_the_named_model_is_refused_once(value: str) -> None:
    text = f"{AXOLOTL}model_config:\n  tie_word_embeddings: {value}\n"
    with pytest.raises(InvalidProblemError) as caught:
        read(text, Overrides(num_gpus=4), "changed.yml")
    assert [one.pointer for one in caught.value.errors] == ["model_config.tie_word_embeddings"]


@pytest.mark.parametrize(("rings", "noted"), [(1, False), (2, True)])
def test_rings_are_priced_as_those_of_0_19_and_a_note_says_what_0_21_runs(rings: int, noted: bool) -> None:
    """Axolotl 0.21.0, integrations/context_parallel/README.md: all-to-all where the heads allow it."""
    text = RINGS.format(rings=rings, shards=8 // rings)
    found = read(text, Overrides(num_gpus=8), "a.yaml")
    assert found.configuration.context_parallel_size == rings
    assert any("0.21 chooses" in note for note in found.notes) is noted


def test_what_0_21s_built_in_plugins_spread_is_refused_by_name_and_read_where_it_is_off() -> None:
    text, more = RINGS.format(rings=1, shards=8), "context_parallel:\n  size: 4\n  backend: ring\n"
    with pytest.raises(InvalidProblemError, match=r"context_parallel\.size: line 16: cannot be read"):
        read(text + more, Overrides(num_gpus=8), "a.yaml")
    off = more.replace("4", "1")
    usual = read(text, Overrides(num_gpus=8), "a.yaml")
    assert read(text + off, Overrides(num_gpus=8), "a.yaml").configuration == usual.configuration


RINGS = """\
base_model: Qwen/Qwen3-8B
context_parallel_size: {rings}
dp_shard_size: {shards}
fsdp_version: 2
fsdp_config:
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  reshard_after_forward: true
sequence_len: 8192
sample_packing: true
attn_implementation: flash_attention_2
micro_batch_size: 1
gradient_accumulation_steps: 1
optimizer: adamw_torch_fused
bf16: true
"""


def test_axolotls_offloading_replaces_recomputation_next_to_adapters() -> None:
    adapted = (
        f"{AXOLOTL}adapter: lora\nlora_r: 32\nlora_target_linear: true\ngradient_checkpointing: true\n"
    )
    cases = {
        f"{adapted}activation_offloading: true\n": ("none", "activations"),
        f"{adapted}activation_offloading: hidden_states\n": ("full", "activations"),
        f"{adapted}activation_offloading: false\n": ("full", "none"),
    }
    for text, expected in cases.items():
        found = read(text, Overrides(num_gpus=8), "a.yml").configuration
        assert (found.recompute_granularity, found.offload) == expected


def test_axolotls_mesh_states_its_ranks() -> None:
    found = read(
        f"{AXOLOTL}fsdp_version: 2\nfsdp_config: {{offload_params: false}}\ndp_shard_size: 16\n",
        Overrides(),
        "a.yml",
    )
    assert (found.configuration.num_gpus, found.configuration.zero_shard_size) == (16, 16)


CUT = "fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\n"


@pytest.mark.parametrize(
    ("model", "patterns", "frozen"),
    [
        ("Qwen/Qwen3.5-27B", "[model.language_model.*, lm_head.*]", ("vision", "projector")),
        ("Qwen/Qwen3.5-4B", "^model.language_model.*", ("vision", "projector")),  # its head is tied
        ("Qwen/Qwen3.5-27B", "[model, lm_head]", ()),
        ("mistralai/Mistral-7B-v0.1", "['^model.', '^lm_head.weight$']", ()),
    ],
)
def test_patterns_that_train_the_whole_language_model_freeze_the_tower(
    model: str, patterns: str, frozen: tuple[str, ...]
) -> None:
    text = f"{AXOLOTL}{CUT}base_model: {model}\nunfrozen_parameters: {patterns}\n"
    assert read(text, Overrides(num_gpus=8), "full.yml").workload.frozen == frozen


@pytest.mark.parametrize(
    ("model", "patterns", "layers", "modules"),
    [
        ("mistralai/Mistral-7B-v0.1", "['model.layers.2[4-9]+.', model.layers.3]", "3,24-31", ()),
        ("mistralai/Mistral-7B-v0.1", "['^model.layers.(8|9).']", "8-9", ()),
        ("mistralai/Mistral-7B-v0.1", "['^lm_head.weight$']", "none", ("lm_head",)),
        ("mistralai/Mistral-7B-v0.1", "[model]", "0-31", ("embed_tokens",)),
        (
            "mistralai/Mistral-7B-v0.1",  # hooks make gradients of other rows 0
            "['^lm_head.weight$', '^model.embed_tokens.weight$[:32000]']",
            "none",
            ("embed_tokens", "lm_head"),
        ),
        (
            "mistralai/Mixtral-8x7B-v0.1",  # a name of transformers 4 alone
            "[lm_head, model.embed_tokens, 'model.layers.3[01].block_sparse_moe.gate']",
            "none",
            ("embed_tokens", "lm_head"),
        ),
        ("databricks/dbrx-base", "['transformer.blocks.[0-7].']", "0-7", ()),
    ],
)
def test_patterns_of_whole_layers_and_ends_are_read(
    model: str, patterns: str, layers: str, modules: tuple[str, ...]
) -> None:
    text = f"{AXOLOTL}{CUT}base_model: {model}\nunfrozen_parameters: {patterns}\n"
    work = read(text, Overrides(num_gpus=8), "some.yml").workload
    assert (work.trained_layers, work.trained_modules) == (layers, modules)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("adapter: lora\nunfrozen_parameters: [^model.language_model.*]\n", "trains nothing: peft's names"),
        ("adapter: lora\nunfrozen_parameters: [base_model.*]\n", "a part of the language model's weights"),
        ("unfrozen_parameters: ['model.layers.4[4-9]+.mlp']\n", "other weights than whole layers"),
        ("unfrozen_parameters: ['^model.norm.weight$']\n", "model.norm.weight. trains other weights than"),
        ("unfrozen_parameters: ['(model|lm_head)+']\n", "operators that can't be read"),
        ("unfrozen_parameters: ['model.layers.(.*a)+']\n", "operators that can't be read"),
    ],
)
def test_patterns_that_train_other_weights_are_refused(more: str, why: str) -> None:
    with pytest.raises(InvalidProblemError, match=why):
        read(AXOLOTL + CUT + more, Overrides(num_gpus=8), "some.yml")


@pytest.mark.parametrize(
    ("more", "size"),
    [
        ("val_set_size: 0.05\nevals_per_epoch: 4\n", 2),  # the micro-batch
        ("test_datasets: [{path: ours}]\neval_strategy: epoch\neval_batch_size: 8\n", 8),
        ("val_set_size: 0.05\neval_steps: 20\neval_batch_size:\n", 2),
        ("val_set_size: 0\nevals_per_epoch: 4\neval_batch_size: 8\n", None),
        ("val_set_size: 0.05\nevals_per_epoch: 0\neval_steps:\n", None),
        ("val_set_size: 0.05\n", None),
    ],
)
def test_axolotl_evaluates_where_it_has_data_and_a_rhythm(more: str, size: int | None) -> None:
    options = read(AXOLOTL + CUT + more, Overrides(num_gpus=8), "e.yml").workload.framework_options
    assert options.get("evaluation_batch_size") == size


def test_cut_cross_entropy_casts_the_head_so_that_replicas_need_no_flash_attention() -> None:
    plain = AXOLOTL.replace("adamw_bnb_8bit", "adamw_torch") + "attn_implementation: sdpa\n"
    assert "fp32_ends" in read(plain, Overrides(num_gpus=1), "full.yml").workload.framework_options
    cut = "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n"
    found = read(plain + cut, Overrides(num_gpus=1), "full.yml")
    assert (found.launcher, found.workload.framework_options["loss_kernel"]) == ("trl", "cut")
    assert "fp32_ends" not in found.workload.framework_options


@pytest.mark.parametrize(
    ("more", "cast"),
    [
        ("attn_implementation: xformers\n", True),
        ("xformers_attention: true\n", True),
        ("attn_implementation: flash_attention_2\n", True),
        ("attn_implementation: sdpa\n", False),
        ("sdp_attention: true\n", False),
        ("", False),
    ],
)
def test_attention_other_than_torchs_takes_replicas_back_to_bf16(more: str, cast: bool) -> None:
    """Axolotl 067b021c: loaders/model.py:460 should_convert, schemas/config.py:1500, enums.py:159."""
    plain = AXOLOTL.replace("adamw_bnb_8bit", "adamw_torch") + more
    found = read(plain, Overrides(num_gpus=1), "full.yml")
    assert (found.launcher, found.workload.optimizer) == ("trl", "adamw-pure-bf16")
    assert ("fp32_ends" in found.workload.framework_options) is not cast


@pytest.mark.parametrize(
    ("model", "more", "wide"),
    [
        ("mosaicml/mpt-7b", "", True),  # transformers' class has lm_head, which is tied to transformer.wte
        ("mosaicml/mpt-7b", "trust_remote_code: true\n", False),  # its own has no layer of a tied head
        ("openai-community/gpt2", "trust_remote_code: true\n", True),
        ("mistralai/Mistral-7B-v0.1", "", True),  # embed_tokens and lm_head, each cast by its name
        ("internlm/internlm2-7b", "", False),  # tok_embeddings and output
    ],
)
def test_without_fsdp_ends_that_axolotl_knows_by_name_are_fp32(model: str, more: str, wide: bool) -> None:
    """Axolotl 067b021c: loaders/utils.py:231 names them, loaders/model.py:1046 casts what has a name."""
    plain = AXOLOTL.replace("adamw_bnb_8bit", "adamw_torch") + more
    found = read(plain.replace("mistralai/Mistral-7B-v0.1", model), Overrides(num_gpus=1), "m.yml")
    assert found.workload.framework_options.get("fp32_ends", False) is wide
    assert any(note.startswith("Axolotl finds embedding and head of") for note in found.notes) is not wide


def test_a_head_in_fp32_next_to_an_embedding_in_bf16_is_refused() -> None:
    text = AXOLOTL.replace("adamw_bnb_8bit", "adamw_torch").replace("mistralai/Mistral-7B-v0.1", "DBRX")
    with pytest.raises(InvalidProblemError, match="keeps norms and head of DBRX in fp32"):  # lm_head, wte
        read(text, Overrides(num_gpus=1), "m.yml")


@pytest.mark.parametrize("more", ["attn_implementation: flash_attention_2\n", "flash_attention: true\n"])
def test_no_class_with_alibi_runs_flash_attention(more: str) -> None:
    text = f"{AXOLOTL}adapter: lora\nlora_r: 8\nlora_target_linear: true\n{more}".replace(
        "bnb_8bit", "torch"
    )
    for model in ("mosaicml/mpt-7b", "cerebras/btlm-3b-8k-base", "bigscience/bloom-560m"):
        with pytest.raises(InvalidProblemError, match=r"positions are ALiBi's: transformers stops at it"):
            read(text.replace("mistralai/Mistral-7B-v0.1", model), Overrides(num_gpus=1), "a.yml")


def test_a_word_of_an_older_class_is_passed_over() -> None:
    """peft finds Wqkv in MPT, and no mlp_up, which Replit's first class had (replit/ReplitLM 918e5ecf)."""
    targets = "lora_target_modules: [Wqkv, mlp_up, mlp_down]\n"
    text = f"{AXOLOTL}adapter: lora\nlora_r: 8\n{targets}".replace("bnb_8bit", "torch")
    text = text.replace("mistralai/Mistral-7B-v0.1", "replit/replit-code-v1-3b")
    found = read(text, Overrides(num_gpus=1), "a.yml")
    assert found.workload.lora_targets == ("qkv_proj",)
    assert "no layer of Replit Code v1 3B is called mlp_up, mlp_down: peft passes over it" in found.notes


def test_activations_leave_by_the_older_word_as_by_their_own() -> None:
    plain = AXOLOTL + CUT
    older = plain.replace("gradient_checkpointing: true", "gradient_checkpointing: offload")
    own, found = (
        read(text, Overrides(num_gpus=8), "e.yml").configuration
        for text in (f"{plain}activation_offloading: true\n", older)
    )
    assert found == own
    assert found.offload == "activations"


def test_workers_of_ray_are_the_processes() -> None:
    run = (
        f"{AXOLOTL}adapter: lora\nlora_r: 8\nlora_target_linear: true\nuse_ray: true\nray_num_workers: 4\n"
    )
    found = read(run, Overrides(), "lora.yml")
    assert found.configuration.num_gpus == 4
    assert found.workload.global_batch_size == 4 * 2 * 3


@pytest.mark.parametrize(
    ("more", "optimizer"),
    [
        ("", "adamw-8bit-paged"),  # adapters of a packed base are fp32
        ("fsdp_version: 2\nfsdp_config:\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n", "adamw-8bit-bf16"),
    ],
)
def test_moments_of_replicas_are_paged_and_those_of_shards_stay(more: str, optimizer: str) -> None:
    text = AXOLOTL.replace("adamw_bnb_8bit", "paged_adamw_8bit")
    adapters = "adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_target_linear: true\n"
    found = read(f"{text}{adapters}{more}", Overrides(num_gpus=2), "qlora.yml")
    assert found.workload.optimizer == optimizer


# Axolotl's examples/llama-4/scout-qlora-single-h100-flex.yaml, what is priced of it.
SCOUT = (
    "base_model: axolotl-quants/Llama-4-Scout-17B-16E-Linearized-bnb-nf4-bf16\n"
    "plugins: [axolotl.integrations.liger.LigerPlugin, "
    "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n"
    "liger_glu_activation: true\nliger_rms_norm: true\nllama4_linearized_experts: true\n"
    "load_in_4bit: true\nadapter: qlora\nlora_r: 32\nlora_target_modules: [self_attn.q_proj, "
    "self_attn.k_proj, self_attn.v_proj, self_attn.o_proj, shared_expert.gate_proj, "
    "shared_expert.up_proj, shared_expert.down_proj]\n"
    "sequence_len: 4096\nsample_packing: true\nmicro_batch_size: 1\ngradient_accumulation_steps: 1\n"
    "optimizer: adamw_torch_4bit\nbf16: true\ntorch_compile: true\nattn_implementation: flex_attention\n"
    "gradient_checkpointing: offload\n"
)


def test_llama_4_with_linear_experts_takes_what_axolotl_publishes_of_it() -> None:
    found = read(SCOUT, Overrides(num_gpus=1), "a.yml")
    model, workload = found.model, found.workload
    assert model.moe is not None
    assert model.moe.expert_adapters == "listed"
    # of 48 layers of h = 5120, 40 heads of 128 and 8 of keys and values, and shared experts of 8192
    attention = (5120 + 5120) + 2 * (5120 + 1024) + (5120 + 5120)
    trained = 48 * 32 * (attention + 3 * (5120 + 8192))
    assert adapter_parameters(model, workload.lora_rank, workload.lora_targets) == trained == 111_673_344
    problem = Problem(
        model=model, cluster=find_cluster("dgx-h100", num_nodes=1), workload=workload,
        launcher=found.launcher,
    )  # fmt: skip
    problem = replace(problem, options=SearchOptions(num_gpus=(1,)))
    profile = default_profile(problem.cluster, found.launcher)
    priced = predict(problem, profile, found.configuration)
    # examples/llama-4/README.md: 519 tokens a second and 64.5 GB; routed to one expert of 16, it took 1.8 s
    assert priced.step_time_s == pytest.approx(4096 / 519, rel=0.2)
    assert priced.peak_memory_bytes == pytest.approx(64.5 * 2**30, rel=0.1)


def test_the_experts_switch_is_llama_4s() -> None:
    other = f"{AXOLOTL}llama4_linearized_experts: true\nadapter: lora\nlora_target_modules: [mlp.up_proj]\n"
    assert read(other, Overrides(num_gpus=8), "a.yml").workload.lora_targets == ("up_proj",)


@pytest.mark.parametrize("module", ["shared_expert", "feed_forward.shared_expert"])
@pytest.mark.parametrize("switch", ["llama4_linearized_experts: true\n", ""])
def test_shared_experts_are_read_apart_from_the_mlps_of_other_layers(switch: str, module: str) -> None:
    maverick = SCOUT.replace("Scout-17B-16E", "Maverick-17B-128E")  # every other layer has another MLP
    text = maverick.replace("llama4_linearized_experts: true\n", switch).replace("shared_expert", module)
    found = read(text, Overrides(num_gpus=1), "a.yml")
    attention = (5120 + 5120) + 2 * (5120 + 1024) + (5120 + 5120)
    trained = 32 * (48 * attention + 24 * 3 * (5120 + 8192))
    assert adapter_parameters(found.model, 32, found.workload.lora_targets) == trained


def test_shared_experts_have_the_name_of_their_class() -> None:
    with pytest.raises(InvalidProblemError, match=r'"shared_experts\.gate_proj" is not a layer'):
        read(SCOUT.replace("shared_expert", "shared_experts"), Overrides(num_gpus=1), "a.yml")


def test_a_checkpoints_own_code_has_the_layers_that_a_file_names() -> None:
    text = AXOLOTL.replace("mistralai/Mistral-7B-v0.1", "LnL-AI/dbrx-base-converted-v2")
    text += "adapter: lora\nlora_r: 8\nlora_target_modules: [q_proj, k_proj, v_proj, out_proj, layer]\n"
    own = read(f"{text}trust_remote_code: true\n", Overrides(num_gpus=8), "a.yml")
    layers, heads = 8 * (6144 + 6144) * 2 + 2 * 8 * (6144 + 8 * 128), 8 * (6144 + 16)
    assert adapter_parameters(own.model, 8, own.workload.lora_targets) == 40 * (layers + heads)
    assert any("own code has q_proj, k_proj and v_proj apart" in note for note in own.notes)
    theirs = read(
        text, Overrides(num_gpus=8), "a.yml"
    )  # one layer of all three: peft passes over the names
    assert adapter_parameters(theirs.model, 8, theirs.workload.lora_targets) == 40 * (8 * 2 * 6144 + heads)


def test_layers_are_named_by_the_modules_of_their_class() -> None:
    # Axolotl's examples/qwen3-next/qwen3-next-80b-a3b-qlora.yaml: peft looks at the ends of names
    text = (
        "base_model: Qwen/Qwen3-Next-80B-A3B-Instruct\nload_in_4bit: true\nadapter: qlora\nlora_r: 16\n"
        "lora_target_modules: [linear_attn.in_proj_ba, linear_attn.in_proj_qkvz, linear_attn.out_proj, "
        "shared_expert.up_proj, shared_expert.down_proj, shared_expert.gate_proj, shared_expert_gate, "
        "q_proj, v_proj, k_proj, o_proj]\nsequence_len: 2048\nmicro_batch_size: 1\n"
        "gradient_accumulation_steps: 2\noptimizer: adamw_8bit\nbf16: true\n"
    )
    found = read(text, Overrides(num_gpus=1), "a.yml")
    assert {*found.workload.lora_targets} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "in_proj_qkvz",
        "in_proj_ba", "out_proj", "shared_expert_gate",
    }  # fmt: skip
    plain = text.replace("linear_attn.", "").replace("shared_expert.", "")
    assert read(plain, Overrides(num_gpus=1), "a.yml").workload == found.workload
    with pytest.raises(InvalidProblemError, match=r'"shared_expert\.out_proj" is not a layer'):
        read(text.replace("linear_attn.out", "shared_expert.out"), Overrides(num_gpus=1), "a.yml")


def test_linear_layers_in_8_bits_are_priced_of_whole_weights_under_fsdp2() -> None:
    text = f"{AXOLOTL}fp8: true\nfsdp_version: 2\nfsdp_config: {{reshard_after_forward: true}}\n"
    found = read(text, Overrides(num_gpus=8), "a.yml").workload
    assert (found.precision, found.framework_options["precision_recipe"]) == ("fp8", "fp8-current")
    assert found.framework_options["low_precision_gathers"] is False
    small = read(f"{text}fp8_enable_fsdp_float8_all_gather: true\n", Overrides(num_gpus=8), "a.yml")
    assert "low_precision_gathers" not in small.workload.framework_options
    refused = {
        text.replace("fsdp_version: 2", "fsdp_version: 1"): "under FSDP2 alone",
        f"{text}adapter: lora\nlora_target_linear: true\n": "under FSDP2 alone",
        text.replace("{reshard", "{cpu_ram_efficient_loading: true, reshard"): "refuses it next to fp8",
    }
    for other, why in refused.items():
        with pytest.raises(InvalidProblemError, match=why):
            read(other, Overrides(num_gpus=8), "a.yml")


def test_the_output_of_attention_is_out_proj_in_classes_without_mixers() -> None:
    text = f"{AXOLOTL}adapter: lora\nlora_target_modules: [q_proj, v_proj, out_proj]\n"
    found = read(
        text.replace("mistralai/Mistral-7B-v0.1", "facebook/opt-6.7b"), Overrides(num_gpus=8), "a.yml"
    )
    assert found.workload.lora_targets == ("q_proj", "v_proj", "o_proj")
    mistral = read(
        text, Overrides(num_gpus=8), "a.yml"
    )  # whose classes call it o_proj: peft passes it over
    by_name = {
        names: adapter_parameters(mistral.model, 8, names)
        for names in (mistral.workload.lora_targets, ("q_proj", "v_proj"))
    }
    assert len(set(by_name.values())) == 1


def test_weights_of_8_bits_are_cut_over_ranks_by_fsdp2_alone() -> None:
    text = AXOLOTL + "adapter: lora\nload_in_8bit: true\nlora_target_modules: [q_proj]\n"
    cut = "fsdp_version: {}\nfsdp_config: {{reshard_after_forward: true}}\n"
    found = read(text + cut.format(2), Overrides(num_gpus=8), "a.yml")
    assert (found.launcher, found.configuration.zero_stage) == ("axolotl", 3)
    assert found.workload.base_precision == "int8"
    with pytest.raises(InvalidProblemError, match="its trainer refuses weights of 8 bits under FSDP1"):
        read(text + cut.format(1), Overrides(num_gpus=8), "a.yml")


@pytest.mark.parametrize(("kind", "bits"), [("qlora", 4), ("lora", 8)])
def test_experts_in_one_tensor_are_of_as_few_bits_as_the_layers(kind: str, bits: int) -> None:
    text = AXOLOTL.replace("mistralai/Mistral-7B-v0.1", "Qwen/Qwen3-30B-A3B")
    text += f"adapter: {kind}\nlora_target_modules: [q_proj]\nquantize_moe_experts: true\n"
    found = read(f"{text}load_in_{bits}bit: true\n", Overrides(num_gpus=8), "a.yml")
    assert found.workload.framework_options["quantizes_experts"]
    with pytest.raises(InvalidProblemError, match="without load_in_4bit or load_in_8bit"):
        read(text.replace("qlora", "lora"), Overrides(num_gpus=8), "a.yml")


@pytest.mark.parametrize(
    ("name", "base"),
    [("TheBloke/Llama-2-7B-GPTQ", "gptq"), ("TechxGenus/Meta-Llama-3-8B-Instruct-AWQ", "awq")],
)
def test_a_checkpoint_of_few_bits_is_frozen_as_it_is_stored(name: str, base: str) -> None:
    text = AXOLOTL.replace("mistralai/Mistral-7B-v0.1", name)
    adapted = f"{text}adapter: lora\nlora_target_modules: [q_proj]\n"
    found = read(f"{adapted}gptq: {str(base == 'gptq').lower()}\n", Overrides(num_gpus=2), "a.yml")
    assert (found.launcher, found.workload.base_precision) == ("accelerate", base)
    for lines, why in (
        (text, f"weights in {base} are frozen"),
        (f"{adapted}fsdp_version: 2\nfsdp_config: {{reshard_after_forward: true}}\n", "FSDP and DeepSpeed"),
        (f"{AXOLOTL}adapter: lora\nlora_target_modules: [q_proj]\ngptq: true\n", "is not stored in GPTQ"),
    ):
        with pytest.raises(InvalidProblemError, match=why):
            read(lines, Overrides(num_gpus=2), "a.yml")


def test_linear_experts_planned_for_axolotl_are_written_and_read_back() -> None:
    model = find_model("llama-4-scout")
    assert model.moe is not None
    model = replace(model, moe=replace(model.moe, expert_adapters="listed"))
    workload = Workload(
        global_batch_size=8, seq_length=2048, lora_rank=16, lora_targets=("q_proj", "v_proj"),
        base_precision="nf4",
    )  # fmt: skip
    cluster = find_cluster("dgx-h100", num_nodes=1)
    problem = Problem(model=model, cluster=cluster, workload=workload, launcher="axolotl")
    problem = replace(problem, options=SearchOptions(certify="none", top_k=1))
    (plan, *_) = ask(problem, default_profile(cluster, "axolotl")).plans
    files = export(plan, problem, "axolotl").files
    assert "llama4_linearized_experts: true\n" in files["axolotl.yaml"]
    found = read_launch_files(Source(name="axolotl.yaml", text=files["axolotl.yaml"], files=files))
    assert (found.model.moe, found.configuration) == (model.moe, plan.config)


MIXED = (
    "base_model: google/gemma-4-31B\nsequence_len: 2048\nsample_packing: true\nmicro_batch_size: 1\n"
    "gradient_accumulation_steps: 4\nbf16: auto\noptimizer: adamw_torch_8bit\nadapter: qlora\nlora_r: 16\n"
    "load_in_4bit: true\nlora_target_linear: true\ngradient_checkpointing: true\n"
    "gemma4_hybrid_attn_impl: true\n"
)


@pytest.mark.parametrize("more", ["", "attn_implementation: flash_attention_2\n"])
def test_layers_with_wider_heads_have_torchs_attention_where_axolotl_mixes_kernels(more: str) -> None:
    found = read(f"{MIXED}{more}", Overrides(num_gpus=8), "gemma.yaml")
    assert found.workload.framework_options["attention_kernel"] == "flash2+sdpa"
    cluster = find_cluster("dgx-h100")
    cluster = replace(cluster, groups=(replace(cluster.groups[0], num_nodes=1),))
    problem = Problem(model=found.model, cluster=cluster, workload=found.workload, launcher="axolotl")
    profile = default_profile(cluster, "axolotl")
    options = {**found.workload.framework_options, "attention_kernel": "sdpa"}
    whole = replace(problem, workload=replace(found.workload, framework_options=options))
    seconds, slower = (predict(one, profile, found.configuration).step_time_s for one in (problem, whole))
    assert seconds < slower


def test_mixed_attention_is_written_by_axolotl_alone_and_for_layers_of_unlike_heads_alone() -> None:
    cluster = find_cluster("dgx-h100")
    cluster = replace(cluster, groups=(replace(cluster.groups[0], num_nodes=1),))
    options = {"attention_kernel": "flash2+sdpa"}
    workload = Workload(
        global_batch_size=16,
        seq_length=1024,
        lora_rank=16,
        lora_targets=("q_proj",),
        framework_options=options,
    )
    problem = Problem(
        model=find_model("gemma-4-26b-a4b"), cluster=cluster, workload=workload, launcher="axolotl",
        options=SearchOptions(certify="none", top_k=1),
    )  # fmt: skip
    (plan, *_) = ask(problem, default_profile(cluster, "axolotl")).plans
    files = export(plan, problem, "axolotl").files
    assert "gemma4_hybrid_attn_impl: true\n" in files["axolotl.yaml"]
    assert "attn_implementation: flash_attention_2\n" in files["axolotl.yaml"]
    again = read_launch_files(Source(name="axolotl.yaml", text=files["axolotl.yaml"], files=files))
    assert again.workload.framework_options["attention_kernel"] == "flash2+sdpa"
    for launcher, name in (("trl", "gemma-4-26b-a4b"), ("axolotl", "gemma-2-9b")):
        other = replace(problem, launcher=launcher, model=find_model(name))
        (fault,) = option_faults(other, launcher_capabilities(launcher))
        assert "doesn't support flash2+sdpa" in fault.message


def test_axolotls_weights_and_activations_leave_together() -> None:
    text = (
        "base_model: openai/gpt-oss-20b\nsequence_len: 4096\nmicro_batch_size: 1\nbf16: true\n"
        "gradient_accumulation_steps: 2\noptimizer: adamw_torch_fused\ngradient_checkpointing: true\n"
        "sample_packing: true\nfsdp_version: 2\nfsdp_config:\n  offload_params: true\n"
        "  reshard_after_forward: true\n"
    )
    for more, offload in (
        ("", "optimizer+parameters"),
        ("activation_offloading: true\n", "optimizer+parameters+activations"),
    ):
        found = read(f"{text}{more}", Overrides(num_gpus=8), "fft.yaml")
        assert found.configuration.offload == offload
        assert found.configuration.recompute_granularity == "full"


PARAMETERS = (
    "base_model: MiniMaxAI/MiniMax-M2\nsequence_len: 2048\nmicro_batch_size: 1\nbf16: true\nadapter: lora\n"
    "gradient_accumulation_steps: 2\noptimizer: adamw_torch\ngradient_checkpointing: true\nlora_r: 16\n"
    "sample_packing: true\nattn_implementation: flash_attention_2\nfsdp_version: 2\nfsdp_config:\n"
    "  reshard_after_forward: true\nlora_target_parameters:\n  - mlp.experts.gate_up_proj\n"
    "  - mlp.experts.down_proj\n"
)


def test_adapters_of_experts_in_one_tensor_are_added_to_weights_or_to_outputs() -> None:
    """By peft to the weights, which takes a pass over all of them; by ScatterMoE to the outputs."""
    seconds, cluster = dict[str, float](), find_cluster("dgx-h100")
    cluster = replace(cluster, groups=(replace(cluster.groups[0], num_nodes=4),))
    scatters = "plugins: [axolotl.integrations.kernels.KernelsPlugin]\nuse_scattermoe: true\n"
    for more, options in (("", {}), (scatters, {"wraps_experts": False})):
        found = read(f"{PARAMETERS}{more}", Overrides(num_gpus=32), "m2.yaml")
        assert found.workload.lora_targets == ("experts.gate_up_proj", "experts.down_proj")
        assert {
            "wraps_experts": False
        }.items() & found.workload.framework_options.items() == options.items()
        problem = Problem(model=found.model, cluster=cluster, workload=found.workload, launcher="axolotl")
        outcome = predict(problem, default_profile(cluster, "axolotl"), found.configuration)
        seconds[more] = outcome.step_time_s
    assert seconds[""] > 1.2 * seconds[scatters]
    with pytest.raises(InvalidProblemError, match="q_proj is not a weight that is priced"):
        read(PARAMETERS.replace("mlp.experts.down_proj", "q_proj"), Overrides(num_gpus=32), "m2.yaml")


@pytest.mark.parametrize("launcher", ["axolotl", "trl"])
def test_adapters_of_experts_in_one_tensor_are_written_next_to_those_of_layers(launcher: str) -> None:
    cluster = find_cluster("dgx-h100")
    cluster = replace(cluster, groups=(replace(cluster.groups[0], num_nodes=1),))
    targets = ("q_proj", "experts.gate_up_proj", "experts.down_proj")
    workload = Workload(global_batch_size=16, seq_length=1024, lora_rank=8, lora_targets=targets)
    problem = Problem(
        model=find_model("qwen3-30b-a3b"), cluster=cluster, workload=workload, launcher=launcher,
        options=SearchOptions(certify="none", top_k=1),
    )  # fmt: skip
    (plan, *_) = ask(problem, default_profile(cluster, launcher)).plans
    files = export(plan, problem, launcher).files
    (name,) = (one for one in files if one in ("axolotl.yaml", "trl_sft.yaml"))
    found = read_launch_files(Source(name=name, text=files[name], files=files))
    assert found.workload.lora_targets == targets
    dropped = replace(workload, framework_options={"adapter_dropout": True})
    faults = workload_faults(replace(problem, workload=dropped), launcher_capabilities(launcher))
    assert [one.pointer for one in faults] == ["/workload/framework_options/adapter_dropout"]
    other = replace(problem, launcher="llama-factory-accelerate")
    (fault,) = workload_faults(other, launcher_capabilities(other.launcher))
    assert "has no modules called experts.gate_up_proj or experts.down_proj" in fault.message


RESTARTS = f"{AXOLOTL}adapter: lora\nlora_r: 8\nlora_target_linear: true\njagged_restart_steps: 150\n"


def test_relora_is_lora_between_two_merges() -> None:
    found, usual = (
        read(RESTARTS + more, Overrides(num_gpus=8), "a.yml") for more in ("relora: true\n", "")
    )
    assert (found.workload, found.configuration) == (usual.workload, usual.configuration)
    assert any("merges adapters and saves the model: not priced" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (AXOLOTL, "without an adapter"),
        (RESTARTS.replace("jagged_restart_steps: 150\n", ""), "without jagged_restart_steps"),
        (f"{RESTARTS}fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n", "next to FSDP"),
        (f"{RESTARTS}flash_attn_fuse_mlp: true\n", "next to flash_attn_fuse_mlp"),
        (RESTARTS.replace("adamw_bnb_8bit", "sgd"), "with another optimizer than Adam"),
    ],
)
def test_relora_where_its_trainer_stops(text: str, why: str) -> None:
    """Axolotl 0.19, utils/schemas/validation.py:1732."""
    with pytest.raises(InvalidProblemError, match=f"its trainer refuses it {why}"):
        read(f"{text}relora: true\n", Overrides(num_gpus=8), "a.yml")


def test_a_tower_of_sound_is_idle_without_a_processor_and_has_clips_with_one() -> None:
    """Axolotl 067b021c, examples/voxtral: lora_target_modules names the language model's layers alone."""
    layers = r"language_model.model.layers.[\d]+.(mlp|self_attn).(up|down|gate|q|k|v|o)_proj"
    text = f"{AXOLOTL}adapter: qlora\nload_in_4bit: true\nlora_r: 32\nlora_target_modules: '{layers}'\n"
    text = text.replace("mistralai/Mistral-7B-v0.1", "mistralai/Voxtral-Mini-3B-2507")
    found = read(text, Overrides(num_gpus=1), "v.yml").workload
    assert (found.images_per_sample, found.lora_rank, len(found.lora_targets)) == (0.0, 32, 7)
    hears = f"{text}processor_type: VoxtralProcessor\n"
    assert not read(hears, Overrides(num_gpus=1), "v.yml").images_stated


def test_a_model_with_a_tower_reads_text_alone_without_a_processor() -> None:
    """Axolotl 0.19, common/datasets.py:59: no processor where processor_type names none."""
    model = model_from_config(
        {"model_type": "gemma4_unified", "text_config": {"model_type": "gemma4_unified_text"},
         "vision_config": {}},
        name="gemma-4-12b",
    )  # fmt: skip
    text = f"{AXOLOTL}adapter: lora\nlora_r: 8\nlora_target_linear: true\n"
    found = read(text, Overrides(num_gpus=8, model=model), "a.yml")
    assert (found.workload.images_per_sample, found.images_stated) == (0.0, True)
    sees = f"{text}processor_type: AutoProcessor\nfreeze_mm_modules: true\n"
    assert not read(sees, Overrides(num_gpus=8, model=model), "a.yml").images_stated
    layers = f"{AXOLOTL}adapter: lora\nlora_r: 8\nlora_target_modules: [vision_adapter.mlp.fc1]\n"
    with pytest.raises(InvalidProblemError, match="Mistral 7B has no vision tower"):  # before the layers
        read(f"{layers}processor_type: AutoProcessor\n", Overrides(num_gpus=8), "a.yml")


OCR = model_from_config(
    {"model_type": "paddleocr_vl", "text_config": {}, "vision_config": {}}, name="paddleocr-vl"
)
QWEN = find_model("qwen3.5-4b")
LANGUAGE_ALONE = r"model\.language_model\.layers\.\d+\.self_attn\.(q|v)_proj"
OF_OCR = r"model\.visual\.vision_model\.encoder\.layers\.\d+\.(self_attn\.(q|out)_proj|mlp\.fc1)"


def _seeing(model: ModelSpec, more: str) -> LaunchFile:
    text = f"{AXOLOTL}adapter: lora\nlora_r: 8\nprocessor_type: AutoProcessor\n{more}\n"
    return read(text, Overrides(num_gpus=8, model=model), "a.yml")


@pytest.mark.parametrize(
    ("model", "more", "targets"),
    [
        (OCR, f"lora_target_modules: '{LANGUAGE_ALONE}'", ("q_proj", "v_proj")),
        (
            OCR,
            f"lora_target_modules: '({LANGUAGE_ALONE}|{OF_OCR})'",
            ("q_proj", "v_proj", "vision.q_proj", "vision.o_proj", "vision.up_proj"),
        ),
        (
            OCR,
            rf"lora_target_modules: '({LANGUAGE_ALONE}|model\.projector\.linear_[12])'",
            ("q_proj", "v_proj", "projector"),
        ),
        # peft compares the ends of paths: names of the language model's layers are the tower's, too
        (
            OCR,
            "lora_target_modules: [q_proj, o_proj]",
            ("q_proj", "o_proj", "vision.q_proj"),
        ),
        (
            OCR,
            "lora_target_linear: true",
            (*SINGLE_TARGETS, *tower_targets(OCR)),
        ),
        (QWEN, "lora_target_modules: [q_proj, up_proj, qkv]", ("q_proj", "up_proj", "vision.qkv_proj")),
        # whose names mean weights that are frozen again (0.18 utils/freeze.py:29), but no "projector"
        (OCR, "lora_target_linear: true\nfreeze_mm_modules: true", (*SINGLE_TARGETS, "projector")),
    ],
)
def test_names_and_patterns_adapt_a_tower_where_they_match_its_layers(
    model: ModelSpec, more: str, targets: tuple[str, ...]
) -> None:
    found = _seeing(model, more).workload
    assert (found.lora_targets, found.frozen) == (targets, ())


@pytest.mark.parametrize(
    ("model", "more", "why"),
    [
        (
            OCR,
            rf"lora_target_modules: '({LANGUAGE_ALONE}|model\.projector\.linear_1)'",
            (
                "only a part of the projector. "
                "Allowed: model.projector.linear_1 and model.projector.linear_2 together"
            ),
        ),
        (
            OCR,
            r"lora_target_modules: 'model\.visual\.blocks\.\d+\.attn\.qkv'",
            "model.visual.blocks.0.attn.qkv is no linear layer of the tower",
        ),
        (
            find_model("qwen2-vl-2b"),
            "lora_target_linear: true",
            "and peft stops at those that aren't linear layers",
        ),
    ],
)
def test_adapters_on_part_of_a_projector_or_on_no_linear_layer_are_refused(
    model: ModelSpec, more: str, why: str
) -> None:
    with pytest.raises(InvalidProblemError, match=re.escape(why)):
        _seeing(model, more)


DENOISES = (
    "base_model: NousResearch/Llama-3.2-1B\nsequence_len: 512\nsample_packing: true\nmicro_batch_size: 4\n"
    "bf16: auto\noptimizer: adamw_torch_fused\ngradient_accumulation_steps: 8\n"
    "plugins: [axolotl.integrations.diffusion.DiffusionPlugin]\nattn_implementation: sdpa\n"
    "diffusion: {noise_schedule: cosine, eps: 5e-4, mask_token_id: 128002}\n"
)


def test_masked_tokens_attend_to_all_others_and_only_they_have_a_loss() -> None:
    """Axolotl 0.18, integrations/diffusion/trainer.py:205: a mask of pairs is given, and no labels."""
    found = read(DENOISES, Overrides(num_gpus=8), "diffusion.yaml")
    usual = read(
        "\n".join(DENOISES.splitlines()[:-3]) + "\nattn_implementation: sdpa\n",
        Overrides(num_gpus=8),
        "a.yaml",
    )
    assert found.model == replace(usual.model, causal=False)
    assert found.workload.framework_options["loss_kernel"] == "masked"
    assert (found.unread, found.workload.seq_length) == ((), 512)
    unnamed = read(DENOISES.replace(", mask_token_id: 128002", ""), Overrides(num_gpus=8), "diffusion.yaml")
    assert "a token may be added" in " ".join(unnamed.notes)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("flash_attention: true\n", "flash_attention: .* masks pairs of tokens"),
        ("rl: dpo\n", "rl: .* next to diffusionplugin is not read"),
        ("flash_attn_cross_entropy: true\n", "flash_attn_cross_entropy: .* of a loss of masked tokens"),
        ("context_parallel_size: 2\n", "context_parallel_size: .* its rings are causal"),
    ],
)
def test_what_masked_tokens_do_not_go_with_is_refused(more: str, why: str) -> None:
    with pytest.raises(InvalidProblemError, match=why):
        read(DENOISES + more, Overrides(num_gpus=8), "diffusion.yaml")
    with pytest.raises(InvalidProblemError, match=r"attn_implementation: .* masks pairs of tokens"):
        read(DENOISES.replace("sdpa", "flash_attention_2"), Overrides(num_gpus=8), "diffusion.yaml")
    with pytest.raises(InvalidProblemError, match=r"layers all attend to whole texts"):
        read(
            DENOISES.replace("NousResearch/Llama-3.2-1B", "google/gemma-3-1b-it"),
            Overrides(num_gpus=8),
            "d.yml",
        )


@pytest.mark.parametrize("kernel", [{}, {"attention_kernel": "sdpa"}, {"attention_kernel": "torch"}])
def test_a_plan_of_masked_tokens_is_written_and_read_again(kernel: dict[str, str]) -> None:
    """Without a kernel it is torch's, as FlashAttention takes no mask of pairs of tokens."""
    problem = Problem(
        model=replace(find_model("llama-3.2-1b"), causal=False),
        cluster=find_cluster("dgx-h100", num_nodes=1),
        workload=Workload(
            global_batch_size=256, seq_length=512,
            framework_options={"loss_kernel": "masked", **kernel},
        ),
        options=SearchOptions(top_k=1),
        launcher="axolotl",
    )  # fmt: skip
    (plan,) = ask(problem, default_profile(problem.cluster, "axolotl")).plans
    text = export(plan, problem, "axolotl").files["axolotl.yaml"]
    assert "axolotl.integrations.diffusion.DiffusionPlugin" in text
    own = f"{text}base_model: NousResearch/Llama-3.2-1B\n"
    found = read(own, Overrides(num_gpus=8), "axolotl.yaml")
    assert (found.configuration, found.model.causal) == (plan.config, False)
    assert found.workload.framework_options["loss_kernel"] == "masked"
    assert found.workload.framework_options["attention_kernel"] == kernel.get("attention_kernel", "sdpa")


TILED = (
    "base_model: NousResearch/Meta-Llama-3.1-8B\nsequence_len: 500_000\nsample_packing: true\n"
    "micro_batch_size: 1\nbf16: auto\noptimizer: adamw_torch_fused\n"
    "attn_implementation: flash_attention_2\ntiled_mlp: true\nfsdp_version: 2\n"
    "fsdp_config: {reshard_after_forward: true}\n"
)


@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        # 62,500 tokens of a rank in tiles of at most 32,768: two (patch.py:67)
        ("context_parallel_size: 8\n", 31_250),
        # 500,000 in sixteen
        ("", 31_250),
        ("tiled_mlp_num_shards: 3\n", 166_667),
    ],
)
def test_tiles_of_an_mlp_are_read(more: str, tokens: int) -> None:
    found = read(TILED + more, Overrides(num_gpus=8), "alst.yaml")
    assert found.workload.framework_options["mlp_tile_tokens"] == tokens
    assert found.unread == ()
    off = read(
        TILED.replace("tiled_mlp: true", "tiled_mlp: false") + more, Overrides(num_gpus=8), "alst.yaml"
    )
    assert "mlp_tile_tokens" not in off.workload.framework_options


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("adapter: lora\nlora_r: 8\nlora_target_linear: true\n", "tiled_mlp: .* whole weights of dense"),
        ("tiled_mlp_use_original_mlp: false\n", "tiled_mlp_use_original_mlp: .* compiled MLP"),
        ("tiled_mlp_num_shards: 500001\n", "tiled_mlp_num_shards: .* 500001 is out of range"),
    ],
)
def test_tiles_that_are_not_priced_are_refused(more: str, why: str) -> None:
    with pytest.raises(InvalidProblemError, match=why):
        read(TILED + more, Overrides(num_gpus=8), "alst.yaml")


def test_a_plan_with_tiles_is_written_and_read_again() -> None:
    problem = Problem(
        model=find_model("llama-3.2-1b"),
        cluster=find_cluster("dgx-h100", num_nodes=1),
        workload=Workload(
            global_batch_size=64, seq_length=65_536,
            framework_options={"mlp_tile_tokens": 16_384.0, "attention_kernel": "flash2"},
        ),
        options=SearchOptions(top_k=1),
        launcher="axolotl",
    )  # fmt: skip
    (plan,) = ask(problem, default_profile(problem.cluster, "axolotl")).plans
    bundle = export(plan, problem, "axolotl")
    count = 4 // plan.config.context_parallel_size
    assert f"tiled_mlp_num_shards: {count}" in bundle.files["axolotl.yaml"]
    assert not any("mlp_tile_tokens" in warning for warning in bundle.warnings)
    own = f"{bundle.files['axolotl.yaml']}base_model: NousResearch/Llama-3.2-1B\n"
    found = read(own, Overrides(num_gpus=8), "axolotl.yaml")
    assert found.configuration == plan.config
    assert found.workload.framework_options["mlp_tile_tokens"] == 16_384
