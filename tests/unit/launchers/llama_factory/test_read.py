"""LLaMA-Factory, mostly over Megatron-Core's adapter: what counts where its file is silent, or twofold."""

from __future__ import annotations

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_cluster, find_model
from meshwright.solver.problem import Problem, SearchOptions
from tests.launchers.cases import plan


def read(text: str, overrides: Overrides | None = None, name: str = "a.sh") -> LaunchFile:
    return read_launch_files(Source(name=name, text=text), overrides or Overrides())


CORE = (
    "model_name_or_path: Qwen/Qwen3-30B-A3B\nstage: sft\ndo_train: true\n"
    "finetuning_type: full\ncutoff_len: 4096\n"
    "bf16: true\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\n"
    "expert_model_parallel_size: 4\noverlap_grad_reduce: true\n"
)


def core(text: str = "") -> LaunchFile:
    return read(CORE + text, Overrides(num_gpus=8), "a.yaml")


def test_llama_factorys_adapter_has_its_own_defaults() -> None:
    # mcore_adapter, training_args.py: no fused activation, tokens gathered
    assert core().workload.framework_options == {"elementwise_fused": False, "moe_dispatcher": "allgather"}
    said = "bias_activation_fusion: true\nmoe_token_dispatcher_type: alltoall\n"
    assert core(said).workload.framework_options == {}
    mesh = core("tensor_model_parallel_size: 2\n").configuration
    assert mesh.sequence_parallel  # model_config.py: with experts on tensor ranks it is put on


def test_every_layer_recomputes_by_default_only_where_recomputation_is_full_and_states_no_method() -> None:
    assumed = "recompute_granularity full without a method: every layer is taken to recompute"
    full = "recompute_granularity: full\n"
    stated = f"{full}recompute_method: block\nrecompute_num_layers: 4\n"
    for text, granularity, is_assumed in (
        ("", "none", False),
        (full, "full", True),
        (stated, "full", False),
    ):
        found = core(text)
        assert found.configuration.recompute_granularity == granularity
        assert (assumed in found.notes) == is_assumed


def test_additional_configs_count_behind_the_adapters_own_arguments() -> None:
    more = "additional_configs:\n  bias_activation_fusion: true\n  moe_token_dispatcher_type: alltoall\n"
    found = core(f"{more}  attention_dropout: 0.1\n")
    assert found.workload.framework_options == {
        "dropout": True, "elementwise_fused": False, "moe_dispatcher": "allgather",
    }  # fmt: skip
    assert any(
        "line 12: additional_configs.bias_activation_fusion does nothing" in one for one in found.notes
    )
    with pytest.raises(InvalidProblemError, match="line 12: unknown option that affects which layers"):
        core("additional_configs:\n  indexer_top: 3\n")
    passed = read(
        f"{CORE}additional_configs:\n  indexer_top: 3\n",
        Overrides(num_gpus=8, ignored=("additional_configs.indexer_top",)), "a.yaml",
    )  # fmt: skip
    assert passed.model.num_layers == 48
    with pytest.raises(InvalidProblemError, match="a file of further values is not read"):
        core("additional_configs: more.json\n")


def test_prediction_layers_that_no_argument_asks_for_are_not_trained() -> None:
    overrides = Overrides(num_gpus=8, model=find_model("deepseek-v3"))
    assert overrides.model is not None
    assert overrides.model.num_mtp_layers == 1
    swift = (
        "NPROC_PER_NODE=8 megatron sft --model deepseek-ai/DeepSeek-V3 --micro_batch_size 1 "
        "--torch_dtype bfloat16 --global_batch_size 8 --max_length 4096 --expert_model_parallel_size 8"
    )
    for text, name in ((swift, "a.sh"), (CORE, "a.yaml")):
        found = read(f"{text}\n", overrides, name)
        assert found.model.num_mtp_layers == 0
        assert any("0 prediction layers are trained" in note for note in found.notes)
    assert read(f"{swift} --mtp_num_layers 1\n", overrides, "a.sh").model == overrides.model
    assert read(f"{CORE}mtp_num_layers: 1\n", overrides, "a.yaml").model == overrides.model


def test_a_file_that_pads_to_the_longest_names_the_batching_that_prices_it() -> None:
    dense = CORE.replace("expert_model_parallel_size: 4", "tensor_model_parallel_size: 1")
    trainers = dense.replace("tensor_model_parallel_size: 1\noverlap_grad_reduce: true\n", "")
    for text in (dense, trainers):
        found = read(text, Overrides(num_gpus=8), "a.yaml")
        assert any("(batching padding_to_longest)" in note for note in found.notes)
        for full in ("packing: true\n", "neat_packing: true\n"):
            found = read(f"{text}{full}", Overrides(num_gpus=8), "a.yaml")
            assert not any("packing is off" in note for note in found.notes)
        pretrained = read(text.replace("stage: sft", "stage: pt"), Overrides(num_gpus=8), "a.yaml")
        assert not any("packing is off" in note for note in pretrained.notes)
    assert not any("packing is off" in note for note in core().notes)  # experts pad to cutoff_len


def test_llama_factory_trains_nothing_unless_it_is_told_to() -> None:
    text = CORE.replace("expert_model_parallel_size: 4\n", "")
    with pytest.raises(InvalidProblemError, match=r"do_train: .*trains nothing"):
        read(text.replace("do_train", "do_predict"), Overrides(num_gpus=8), "a.yaml")


@pytest.mark.parametrize(
    "name", ["cutoff_len", "per_device_train_batch_size", "gradient_accumulation_steps"]
)
def test_what_the_run_decides_is_not_read_among_the_model_s_own(name: str) -> None:
    """mcore_adapter's update_with_args passes by what the model's configuration lacks."""
    kept = "".join(line for line in CORE.splitlines(keepends=True) if not line.startswith(name))
    with pytest.raises(InvalidProblemError, match=rf"\.{name}: .*not read there\. Nearest: {name}$"):
        read(f"{kept}additional_configs:\n  {name}: 512\n", Overrides(num_gpus=8), "a.yaml")


def test_a_key_that_omegaconf_meets_twice_is_refused_with_both_lines() -> None:
    # the last line of CORE's ten, and one more; omegaconf/_utils.py: "found duplicate key"
    trainers = CORE.replace("expert_model_parallel_size: 4\n", "").replace(
        "overlap_grad_reduce: true\n", ""
    )
    for text, lines in ((CORE, (7, 11)), (trainers, (7, 9))):
        said = f"line {lines[1]}: per_device_train_batch_size is given again, after line {lines[0]}, which"
        with pytest.raises(InvalidProblemError, match=said):
            read(f"{text}per_device_train_batch_size: 2\n", Overrides(num_gpus=8), "a.yaml")


def test_a_word_that_is_off_is_not_given_and_one_that_is_not_known_is_refused() -> None:
    """``if config.fp8`` of Megatron-Core: false is off, and any other word would be a format."""
    assert core("fp8: hybrid\n").workload.precision == "fp8"
    assert core("fp8: false\n").workload.precision == "bf16"
    for text, allowed in (
        ("fp8: bf16\n", "e4m3, hybrid"),
        ("exp_avg_sq_dtype: xxx\n", "fp32, fp16, bf16, fp8"),
    ):
        with pytest.raises(
            InvalidProblemError, match=rf"line 11: .*is not supported, or not known\. Allowed: {allowed}"
        ):
            core(text)


@pytest.mark.parametrize("name", ["fp32_residual_connection", "use_torch_fsdp2", "fp4_param_gather"])
def test_refused_arguments_of_megatron_are_refused_under_launchers_over_it(name: str) -> None:
    swift = (
        "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-8B --micro_batch_size 1 --torch_dtype bfloat16 "
        "--global_batch_size 8 --max_length 4096 --megatron_extra_kwargs "
    )
    with pytest.raises(InvalidProblemError, match=f"{name}: line 1: cannot be read: "):
        read(f"{swift} '{{\"{name}\": true}}'\n")
    assert read(f"{swift} '{{\"{name}\": false}}'\n").configuration.num_gpus == 8
    with pytest.raises(InvalidProblemError, match=rf"{name}: line \d+: cannot be read: "):
        core(f"additional_configs:\n  {name}: true\n")


def test_a_substitution_in_a_command_is_named_and_not_quoted_as_a_value() -> None:
    script = (
        "torchrun --nproc_per_node=8 run_train.py --use_mca --model_name_or_path Qwen/Qwen3-30B-A3B"
        " --stage sft --do_train --finetuning_type full --cutoff_len=$(cat length.txt) --bf16"
        " --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --expert_model_parallel_size 4\n"
    )
    with pytest.raises(InvalidProblemError) as fault:
        read(script, Overrides(), "run.sh")
    assert [one.sentence() for one in fault.value.errors if "cutoff_len" in one.pointer] == [
        (
            "cutoff_len: line 1: it is the output of $(cat length.txt), which Meshwright doesn't "
            "run. Allowed: run it with stand-ins: meshwright capture -- bash …"
        )
    ]


# LLaMA-Factory's own trainer, without Megatron-Core.
TRAINER = (
    "model_name_or_path: meta-llama/Llama-2-7b-hf\nstage: sft\ndo_train: true\n"
    "finetuning_type: full\ncutoff_len: 2048\n"
    "per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nbf16: true\n"
)
LAUNCH = "accelerate launch --config_file conf/a.yaml src/train.py conf/own.yaml\n"
MESH = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
JSON = (
    '{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 1}, "train_batch_size": "auto",'
    ' "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}'
)
PLUGIN = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: z.json\n"


@pytest.mark.parametrize(
    ("more", "config", "expected"),
    [
        ("", MESH, ("llama-factory-accelerate", 3, "adamw")),
        # FSDP2 casts up what is trained, and DeepSpeed keeps a copy in fp32; plain replicas do neither
        ("pure_bf16: true\n", MESH, ("llama-factory-accelerate", 3, "adamw")),
        ("pure_bf16: true\n", PLUGIN, ("deepspeed", 1, "adamw")),
        ("pure_bf16: true\n", "distributed_type: MULTI_GPU\n",
         ("llama-factory-accelerate", 0, "adamw-pure-bf16")),
    ],
)  # fmt: skip
def test_llama_factory_reads_accelerates_file_as_every_trainer_does(
    more: str, config: str, expected: tuple[str, int, str]
) -> None:
    shared = f"num_machines: 1\nnum_processes: 8\ncompute_environment: LOCAL_MACHINE\n{config}"
    files = {"a.yaml": shared, "own.yaml": TRAINER + more, "run.sh": LAUNCH, "z.json": JSON}
    found = read_launch_files(Source(name="run.sh", text=LAUNCH, files=files))
    assert (found.launcher, found.configuration.zero_stage, found.workload.optimizer) == expected
    # 8 processes × 2 × 4
    assert (found.workload.global_batch_size, found.num_nodes, found.gpus_per_node) == (64, 1, 8)
    del files["a.yaml"]
    with pytest.raises(InvalidProblemError, match=r"line 1 of run.sh: conf/a.yaml is not next to it"):
        read_launch_files(Source(name="run.sh", text=LAUNCH, files=files))


@pytest.mark.parametrize(
    ("more", "optimizer"),
    [("", "adamw-pure-bf16"), ("deepspeed: ds_z0_config.json\n", "adamw")],  # whose copy is in fp32
)
def test_pure_bf16_keeps_no_copy_on_plain_replicas_alone(more: str, optimizer: str) -> None:
    found = read(f"{TRAINER}pure_bf16: true\n{more}", Overrides(num_gpus=8), "full.yaml")
    assert (found.configuration.zero_stage, found.workload.optimizer) == (0, optimizer)


def test_what_follows_llama_factorys_file_counts_before_it() -> None:
    run = "llamafactory-cli train conf/own.yaml per_device_train_batch_size=1 deepspeed=ds_z3_config.json\n"
    source = Source(name="run.sh", text=run, files={"own.yaml": TRAINER, "run.sh": run})
    found = read_launch_files(source, Overrides(num_gpus=8))
    assert (found.launcher, found.configuration.zero_stage) == ("deepspeed", 3)
    assert found.workload.global_batch_size == 8 * 1 * 4
    assert "line 1 of the command: per_device_train_batch_size is 1, not the file's" in found.notes


def test_a_command_in_llama_factorys_names_has_its_defaults() -> None:
    lines = [line for line in TRAINER.splitlines() if "cutoff" not in line]
    words = " ".join(f"--{line.replace(': ', ' ')}" for line in lines)
    run = f"torchrun --nproc_per_node 8 src/train.py {words}"
    found = read(f"{run}\n")
    assert (found.workload.seq_length, found.configuration.recompute_granularity) == (2048, "full")
    adapted = read(f"{run.replace('full', 'lora')} --lora_r 8\n")
    assert "down_proj" in adapted.workload.lora_targets  # its default is all of them


def test_a_command_that_hands_llama_factory_to_megatron_core_is_its_meshs() -> None:
    # read as 8 replicas of LLaMA-Factory's own trainer, and the mesh was lost
    command = (
        "torchrun --nproc_per_node=8 run_train.py --stage=sft --do_train "
        "--finetuning_type=full --cutoff_len=8192 "
        "--model_name_or_path=Qwen/Qwen3-8B --per_device_train_batch_size=1 --bf16 "
        "--gradient_accumulation_steps=4 --tensor_model_parallel_size 2 --sequence_parallel"
    )
    found = read(f"{command} --use_mca")
    mesh = found.configuration
    assert (found.launcher, found.model.name) == ("llama-factory", "qwen3-8b")
    assert (mesh.tensor_parallel_size, mesh.sequence_parallel, mesh.data_parallel_size) == (2, True, 4)
    assert found.workload.global_batch_size == 1 * 4 * 4  # of 4 replicas
    with pytest.raises(InvalidProblemError, match="tensor_model_parallel_size: line 1: unknown option"):
        read(f"{command} --use_mca=False")


def test_rays_workers_are_the_ranks_of_llama_factory() -> None:
    text = (
        "model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct\nstage: sft\ndo_train: true\n"
        "finetuning_type: lora\n"
        "cutoff_len: 2048\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\nbf16: true\n"
    )
    with pytest.raises(InvalidProblemError, match="num_gpus"):
        read(text, Overrides(), "a.yaml")
    found = read(f"{text}ray_num_workers: 4\n", Overrides(), "a.yaml")
    assert (found.configuration.data_parallel_size, found.workload.global_batch_size) == (4, 4 * 1 * 8)


def test_deepspeeds_file_may_stand_inside_the_trainers() -> None:
    text = (
        "model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\ndo_train: true\nfinetuning_type: full\n"
        "cutoff_len: 2048\nper_device_train_batch_size: 1\nbf16: true\n"
        "deepspeed:\n  train_micro_batch_size_per_gpu: 1\n  zero_optimization:\n    stage: 3\n"
        "  bf16:\n    enabled: auto\n"
    )
    found = read(text, Overrides(num_gpus=8), "a.yaml")
    assert (found.launcher, found.configuration.zero_stage) == ("deepspeed", 3)
    with pytest.raises(InvalidProblemError, match="1 by the trainer's arguments"):
        read(text.replace("per_gpu: 1", "per_gpu: 2"), Overrides(num_gpus=8), "a.yaml")


def test_defaults_of_llama_factory_are_not_taken_for_a_script_in_its_names() -> None:
    names = (
        "--stage sft --do_train --finetuning_type lora --lora_rank 8 --model_name_or_path Qwen/Qwen2.5-7B"
    )
    words = f"{names} --per_device_train_batch_size 1 --bf16"
    assert read(f"CUDA_VISIBLE_DEVICES=0 python src/train_bash.py {words}\n").workload.seq_length == 2048
    run = "CUDA_VISIBLE_DEVICES=0 python sft_train.py"
    with pytest.raises(InvalidProblemError, match="seq_length: the files don't have it"):
        read(f"{run} {words}\n")
    found = read(f"{run} {words} --cutoff_len 512 --gradient_checkpointing False\n")
    assert found.configuration.recompute_granularity == "none"


def test_whole_weights_of_llama_factory_without_a_precision_are_trained_in_fp32() -> None:
    words = "--stage sft --do_train --finetuning_type full --model_name_or_path Qwen/Qwen2.5-7B"
    run = f"CUDA_VISIBLE_DEVICES=0 llamafactory-cli train {words} --per_device_train_batch_size 1"
    assert read(f"{run}\n").workload.precision == "fp32"
    assert read(f"{run} --pure_bf16\n").workload.precision == "bf16"


FREEZES = (
    "CUDA_VISIBLE_DEVICES=0 llamafactory-cli train --stage sft --do_train --finetuning_type freeze --bf16 "
    "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1"  # 28 layers
)


@pytest.mark.parametrize(
    ("more", "layers", "modules"),
    [
        ("", "26-27", ()),  # its default is two
        ("--freeze_trainable_layers 4", "24-27", ()),
        ("--freeze_trainable_layers 40", "0-27", ()),
        ("--freeze_trainable_layers -3", "0-2", ()),
        ("--freeze_trainable_layers 4 --use_llama_pro", "6,13,20,27", ()),
        ("--freeze_extra_modules embed_tokens,lm_head", "26-27", ("embed_tokens", "lm_head")),
    ],
)
def test_freeze_tuning_trains_the_layers_that_llama_factory_picks(
    more: str, layers: str, modules: tuple[str, ...]
) -> None:
    work = read(f"{FREEZES} {more}\n").workload  # model/adapter.py:59
    assert (work.trained_layers, work.trained_modules, work.lora_rank) == (layers, modules, 0)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (
            f"{FREEZES} --freeze_trainable_layers 5 --use_llama_pro",
            "5 does not divide 28 layers.* Nearest: 4 or 7",
        ),
        (f"{FREEZES} --freeze_trainable_modules mlp", "a part of layers is not supported"),
        (f"{FREEZES} --freeze_extra_modules norm", "norm is not supported"),
        (f"{FREEZES} --freeze_trainable_layers 0", "trains nothing"),
        (f"{FREEZES.replace('freeze', 'lora')} --use_llama_pro", "adapters of some layers alone"),
    ],
)
def test_freeze_tuning_of_other_weights_is_refused(command: str, why: str) -> None:
    with pytest.raises(InvalidProblemError, match=why):
        read(f"{command}\n")


GALORE = (
    "llamafactory-cli train --stage sft --do_train --finetuning_type full --model_name_or_path "
    "Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --use_galore --galore_rank 64"
)


def test_galore_of_llama_factory_is_read_with_its_rank_and_interval() -> None:
    run = f"CUDA_VISIBLE_DEVICES=0 {GALORE} --galore_update_interval 500 --optim adamw_bnb_8bit"
    work = read(f"{run} --bf16\n").workload
    assert (work.optimizer, work.optimizer_rank, work.optimizer_interval) == ("galore-8bit", 64, 500)
    layerwise = read(f"{run} --pure_bf16 --galore_layerwise\n").workload
    assert layerwise.optimizer == "galore-8bit-bf16-layerwise"


def test_apollo_of_llama_factory_is_read_with_its_rank_and_interval() -> None:
    run = f"CUDA_VISIBLE_DEVICES=0 {GALORE.replace('galore', 'apollo')} --apollo_update_interval 500"
    found = read(f"{run} --bf16\n")
    work = found.workload
    assert (work.optimizer, work.optimizer_rank, work.optimizer_interval) == ("apollo", 64, 500)
    assert any("add optim: adamw_torch" in one for one in found.notes)  # trainer_utils.py:330
    layerwise = read(f"{run} --optim adamw_torch --pure_bf16 --apollo_layerwise\n")
    assert layerwise.workload.optimizer == "apollo-pure-bf16-layerwise"
    assert not any("adamw_torch" in one for one in layerwise.notes)


MINI = GALORE.replace("--use_galore --galore_rank 64", "--use_adam_mini")


def test_adam_mini_of_llama_factory_is_read_on_replicas() -> None:
    run = f"CUDA_VISIBLE_DEVICES=0,1 FORCE_TORCHRUN=1 {MINI}"
    assert read(f"{run} --bf16\n").workload.optimizer == "adam-mini"
    assert read(f"{run} --pure_bf16\n").workload.optimizer == "adam-mini-pure-bf16"
    first = read(f"CUDA_VISIBLE_DEVICES=0 {MINI} --use_muon --bf16\n")  # trainer_utils.py:544
    assert first.workload.optimizer == "adam-mini"
    with pytest.raises(InvalidProblemError, match=r"use_adam_mini: .*replicas alone"):
        read(f"{run} --bf16 --fsdp full_shard\n")


BLOCKS = GALORE.replace("--use_galore --galore_rank 64", "--use_badam")


def test_badam_of_llama_factory_is_read_as_training_the_first_layer() -> None:
    # model/adapter.py:319: weights stay in bf16, whatever the arguments say
    for words in ("", "--bf16", "--pure_bf16", "--optim adamw_torch_fused --badam_switch_mode random"):
        found = read(f"CUDA_VISIBLE_DEVICES=0 {BLOCKS} {words}\n")
        work = found.workload
        assert (work.optimizer, work.trained_layers, work.precision) == ("badam", "0", "bf16")
        assert any("time and memory are those of the first" in one for one in found.notes)


def test_badam_under_zero_3_is_adam_of_the_first_layers_shards() -> None:
    run = f"CUDA_VISIBLE_DEVICES=0,1 FORCE_TORCHRUN=1 {BLOCKS} --bf16 --deepspeed ds.json\n"

    def read_at(stage: int) -> LaunchFile:
        engine = f'{{"bf16": {{"enabled": true}}, "zero_optimization": {{"stage": {stage}}}}}'
        return read_launch_files(Source(name="a.sh", text=run, files={"a.sh": run, "ds.json": engine}))

    found = read_at(3)
    assert (found.launcher, found.workload.optimizer) == ("deepspeed", "adamw")
    assert found.workload.trained_layers == "0"
    with pytest.raises(InvalidProblemError, match=r"use_badam: .*refuses several ranks"):
        read_at(2)


@pytest.mark.parametrize(
    ("start", "words", "name", "why"),
    [
        ("0", "--badam_mode ratio", "badam_mode", "ratio is not supported with use_badam.*: layer"),
        ("0", "--badam_switch_mode fixed", "badam_switch_mode", "fixed is not supported.*: ascending"),
        ("0", "--optim adamw_bnb_8bit", "optim", "adamw_bnb_8bit is not supported.*: adamw_torch"),
        ("0", "--use_apollo", "use_badam", "next to use_apollo"),
        ("0,1", "", "use_badam", "several ranks without ZeRO-3"),
    ],
)
def test_badam_that_is_not_priced_or_not_run_is_refused(
    start: str, words: str, name: str, why: str
) -> None:
    with pytest.raises(InvalidProblemError, match=f"{name}: line 1: .*{why}"):
        read(f"CUDA_VISIBLE_DEVICES={start} FORCE_TORCHRUN=1 {BLOCKS} --bf16 {words}\n")


MUON = GALORE.replace("--use_galore --galore_rank 64", "--use_muon")


def test_muon_of_llama_factory_is_read_on_replicas_in_fp32() -> None:
    assert read(f"CUDA_VISIBLE_DEVICES=0 {MUON} --bf16\n").workload.optimizer == "muon"
    first = read(f"CUDA_VISIBLE_DEVICES=0 {MUON} --use_galore --bf16\n").workload  # trainer_utils.py:529
    assert first.optimizer == "galore"
    with pytest.raises(InvalidProblemError, match="replicas with weights in fp32 alone"):
        read(f"CUDA_VISIBLE_DEVICES=0 {MUON} --pure_bf16\n")


@pytest.mark.parametrize(("run", "optimizer"), [(MINI, "adam-mini"), (MUON, "muon")])
def test_an_optimizer_that_replaces_every_other_is_read_next_to_optim(run: str, optimizer: str) -> None:
    """LLaMA-Factory 0.9.5, train/trainer_utils.py:473 and :498, look at no ``optim``."""
    found = read(f"CUDA_VISIBLE_DEVICES=0 {run} --bf16 --optim adamw_torch\n")
    assert found.workload.optimizer == optimizer
    assert any("optim: adamw_torch is not used" in note for note in found.notes)


@pytest.mark.parametrize("targets", ["all", "mlp,self_attn", "self_attn, mlp"])
def test_galore_of_both_parts_of_a_layer_is_that_of_all_linear_layers(targets: str) -> None:
    words = f"CUDA_VISIBLE_DEVICES=0 {GALORE} --bf16 --galore_target '{targets}'\n"
    assert read(words).workload.optimizer == "galore"


@pytest.mark.parametrize(
    ("start", "words", "name", "why"),
    [
        (
            "CUDA_VISIBLE_DEVICES=0",
            "--bf16 --galore_layerwise",
            "galore_layerwise",
            "fp32.* Nearest: false",
        ),
        (
            "CUDA_VISIBLE_DEVICES=0,1",
            "--pure_bf16 --galore_layerwise",
            "galore_layerwise",
            "several GPUs.*: false",
        ),
        (
            "CUDA_VISIBLE_DEVICES=0",
            "--bf16 --galore_target q_proj",
            "galore_target",
            "q_proj is not supported",
        ),
        ("CUDA_VISIBLE_DEVICES=0", "--bf16 --optim adafactor", "optim", "not supported with use_galore"),
        ("CUDA_VISIBLE_DEVICES=0", "--bf16 --use_apollo", "use_apollo", "next to use_galore.*: false"),
    ],
)
def test_galore_that_is_not_priced_or_not_run_is_refused(
    start: str, words: str, name: str, why: str
) -> None:
    with pytest.raises(InvalidProblemError, match=f"{name}: line 1: .*{why}"):
        read(f"{start} {GALORE} {words}\n")


@pytest.mark.parametrize(
    ("words", "name", "why"),
    [
        ("--optim adamw_bnb_8bit", "optim", "not supported with use_apollo"),
        ("--apollo_proj svd", "apollo_proj", "svd is not supported.*: random"),
        ("--apollo_proj_type left", "apollo_proj_type", "left is not supported.*: std"),
        ("--apollo_layerwise", "apollo_layerwise", "weights in fp32"),
        ("--mixture_of_depths convert", "mixture_of_depths", "it stops"),
    ],
)
def test_apollo_that_is_not_priced_or_not_run_is_refused(words: str, name: str, why: str) -> None:
    with pytest.raises(InvalidProblemError, match=f"{name}: line 1: .*{why}"):
        read(f"CUDA_VISIBLE_DEVICES=0 {GALORE.replace('galore', 'apollo')} --bf16 {words}\n")


def test_python_starts_one_process_of_llama_factory() -> None:
    yaml = (
        "model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\ndo_train: true\nfinetuning_type: lora\n"
        "cutoff_len: 2048\nper_device_train_batch_size: 3\nbf16: true\n"
    )

    def started(start: str) -> LaunchFile:
        run = f"{start} src/train.py x.yaml\n"
        return read_launch_files(Source(name="a.sh", text=run, files={"a.sh": run, "x.yaml": yaml}))

    assert started("CUDA_VISIBLE_DEVICES=0 python").workload.global_batch_size == 3
    assert started("torchrun --nproc_per_node 4").workload.global_batch_size == 4 * 3
    with pytest.raises(InvalidProblemError, match="python starts one process on 2 visible GPUs"):
        started("CUDA_VISIBLE_DEVICES=0,1 python")


def test_a_resized_vocabulary_is_trained_whole_beside_adapters() -> None:
    words = (
        "--stage sft --do_train --finetuning_type lora --resize_vocab --model_name_or_path Qwen/Qwen2.5-7B"
    )
    found = read(f"llamafactory-cli train {words} --per_device_train_batch_size 1\n", Overrides(num_gpus=8))
    assert found.workload.trained_modules == ("embed_tokens", "lm_head")  # model/adapter.py


FILE = "llama_factory_train.yaml"
OFT = (
    "model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct\nstage: sft\ndo_train: true\n"
    "finetuning_type: oft\noft_block_size: 64\ncutoff_len: 2048\nbf16: true\n"
    "per_device_train_batch_size: 1\ngradient_accumulation_steps: 8\n"
)


@pytest.mark.parametrize(
    ("more", "base"),
    [
        ("", "bf16"),
        ("quantization_bit: 4\n", "nf4-double"),
        ("model_name_or_path: TechxGenus/Meta-Llama-3-8B-Instruct-AWQ\n", "awq"),
        ("model_name_or_path: TechxGenus/Meta-Llama-3-8B-Instruct-GPTQ\n", "gptq"),
    ],
)
def test_oft_rotates_blocks_of_inputs_of_frozen_layers_in_any_bits(more: str, base: str) -> None:
    # examples/extras/oft and qoft
    name = "model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct\n"
    text = OFT.replace(name, "") + more if more.startswith("model") else OFT + more
    found = read(text, Overrides(num_gpus=1), "a.yaml")
    workload = found.workload
    assert (workload.framework_options["oft"], workload.lora_rank, workload.base_precision) == (
        True,
        64,
        base,
    )
    problem = Problem(
        model=found.model, cluster=find_cluster("dgx-h100", num_nodes=1), workload=workload,
        launcher=found.launcher, options=SearchOptions(num_gpus=(1,)),
    )  # fmt: skip
    assert problem.model_figures["num_trainable_parameters"] == 32 * (6 * 4096 + 14336) * 63 // 2
    written = export(plan(found.configuration), problem, "llama-factory-accelerate").files[FILE]
    assert {"finetuning_type: oft", "oft_block_size: 64"} <= {*written.splitlines()}
    assert "\nlora_rank:" not in written
    again = read(written, Overrides(num_gpus=1, model=found.model), "a.yaml")
    assert again.workload.framework_options["oft"]
    assert (again.workload.lora_rank, again.workload.lora_targets) == (64, workload.lora_targets)


@pytest.mark.parametrize(
    ("block", "more", "why"),
    [
        (64, "oft_rank: 8\n", "oft_rank: line 10: so many blocks of each layer"),
        (0, "oft_rank: 8\n", "oft_rank: line 10: so many blocks of each layer"),  # as peft has it
        (1, "", "oft_block_size: .* Allowed: 2 to"),
        (0, "", "oft_block_size: .* Allowed: 2 to"),
    ],
)
def test_oft_blocks_by_number_or_of_one_input_are_refused(block: int, more: str, why: str) -> None:
    text = OFT.replace("block_size: 64", f"block_size: {block}")
    with pytest.raises(InvalidProblemError, match=why) as caught:
        read(text + more, Overrides(num_gpus=1), "a.yaml")
    assert len(caught.value.errors) == 1


def test_no_note_says_that_what_freeze_tuning_reads_does_nothing() -> None:
    found = read(f"{FREEZES} --freeze_extra_modules lm_head --freeze_trainable_layers 4 --lora_rank 4\n")
    assert [note for note in found.notes if "freeze_" in note] == []
    assert any("lora_rank does nothing" in note for note in found.notes)


def test_a_name_that_llama_factory_lacks_is_refused_over_megatron_core_too() -> None:
    # hparams/parser.py:111 stops at it, unless ALLOW_EXTRA_ARGS is on
    with pytest.raises(
        InvalidProblemError, match="nodes_of_it: line 11: is unknown, and LLaMA-Factory stops"
    ):
        core("nodes_of_it: 3\n")
    ignored = Overrides(num_gpus=8, ignored=("nodes_of_it",))
    assert read(f"{CORE}nodes_of_it: 3\n", ignored, "a.yaml").launcher == "llama-factory"


def test_linear_layers_in_8_bits_are_priced_of_whole_weights_under_fsdp() -> None:
    # 0.9.5 train/fp8_utils.py: torchao's recipe rowwise; ZeRO-3 leaves no weight of two dimensions
    text = (
        "model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\ndo_train: true\nfinetuning_type: full\n"
        "bf16: true\ncutoff_len: 1024\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\n"
        "fp8: true\n"
    )
    on_8 = Overrides(num_gpus=8)
    cut = read(f"{text}fsdp: full_shard auto_wrap\n", on_8, "a.yaml").workload
    assert (cut.precision, cut.framework_options["precision_recipe"]) == ("fp8", "fp8-rowwise")
    by_zero = read(f"{text}deepspeed: ds_z3_config.json\n", on_8, "a.yaml")
    assert by_zero.workload.precision == "bf16"
    assert any(note.startswith("fp8 does nothing") for note in by_zero.notes)
    for more in ("", "fsdp: full_shard\nfp8_backend: te\n", "fsdp: full_shard\nlora_target: all\n"):
        with pytest.raises(InvalidProblemError, match="fp8"):
            read(text.replace("full\n", "lora\n") if "lora" in more else text + more, on_8, "a.yaml")
