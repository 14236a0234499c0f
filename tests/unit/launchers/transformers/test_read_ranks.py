"""What a trainer's command says next to its files: who is started, on which GPUs, by which engine."""

from __future__ import annotations

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model


def read(text: str, overrides: Overrides | None = None, name: str = "a.sh") -> LaunchFile:
    return read_launch_files(Source(name=name, text=text, files={name: text}), overrides)


SFT_YAML = "max_length: 8192\npacking: true\ngradient_checkpointing: true\nuse_liger_kernel: true\n"
ON_TWO = "accelerate launch --num_processes 2 sft.py --config sft.yaml --model_name_or_path Qwen/Qwen2.5-7B"


def test_a_file_that_config_names_stands_behind_what_the_command_says() -> None:
    # its recomputation and length were lost where the command said two more names
    words = f"{ON_TWO} --per_device_train_batch_size 3 --bf16 true --max_length 4096\n"
    with pytest.raises(InvalidProblemError, match="sft\\.yaml is not next to it"):
        read(words)
    found = read_launch_files(Source(name="a.sh", text=words, files={"a.sh": words, "sft.yaml": SFT_YAML}))
    assert (found.configuration.recompute_granularity, found.workload.seq_length) == ("full", 4096)
    assert found.workload.global_batch_size == 2 * 3
    # packing is an argument of SFTConfig: TRL's trainer makes logits in chunks, and has no Liger loss then
    options = {"elementwise_fused": True, "norm_fused": True, "loss_kernel": "chunked"}
    assert found.workload.framework_options.items() >= options.items()


def test_trls_command_counts_before_its_file_and_no_other_file_counts() -> None:
    run = "python check.py old.yaml\ntrl sft --config sft.yaml --per_device_train_batch_size 5\n"
    text = (
        f"{SFT_YAML}model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 1\ndtype: bfloat16\n"
    )
    files = {"a.sh": run, "sft.yaml": text, "old.yaml": text.replace("bfloat16", "float32")}
    found = read_launch_files(Source(name="a.sh", text=run, files=files), Overrides(num_gpus=2))
    assert (found.workload.global_batch_size, found.workload.optimizer) == (2 * 5, "adamw-pure-bf16")


WORDS = "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --max_length 2048 --bf16 true"


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("--model_name_or_path /path/to/model", "line 1: /path/to/model names your own model"),
        ("--model_name_or_path your_model_path", "names your own model"),
        ("--model_name_or_path our/Qwen2.5-7B-own", "is not in the catalog.*Did you mean qwen2.5-7b"),
        ("--llm_path Qwen/Qwen2.5-7B", "llm_path: line 1: Qwen/Qwen2.5-7B may be the model.*--model"),
        ("--output_dir out/Qwen2.5-7B", "the files name no model"),
    ],
)
def test_a_model_that_is_not_said_is_asked_for_in_the_files_own_words(named: str, why: str) -> None:
    batch = "--per_device_train_batch_size 1 --gradient_accumulation_steps 2 --max_length 512"
    text = f"torchrun --nproc_per_node 4 sft.py {batch} --bf16 true --fsdp full_shard {named}\n"
    with pytest.raises(InvalidProblemError, match=why):
        read(text)
    assert read(text, Overrides(model=find_model("qwen2.5-7b"))).model.name == "qwen2.5-7b"


def test_a_rank_beside_peft_that_is_off_trains_no_adapters() -> None:
    rank = f"{SFT_YAML}model_name_or_path: Qwen/Qwen2.5-7B\nlora_r: 64\nlora_target_modules: all-linear\n"
    found = read(f"{rank}use_peft: false\n", Overrides(num_gpus=2), "sft.yaml")
    assert (found.launcher, found.workload.lora_rank) == ("trl", 0)
    with pytest.raises(InvalidProblemError, match="lora_r"):
        read(rank, Overrides(num_gpus=2), "sft.yaml")


def test_trl_without_a_file_has_its_own_defaults_and_accelerates_built_in_shares() -> None:
    adapters = "--use_peft --lora_r 8 --lora_target_modules all-linear --load_in_8bit"
    found = read(f"trl sft {WORDS} {adapters} --accelerate_config zero2 --num_processes 4\n")
    assert (found.configuration.zero_stage, found.workload.base_precision) == (2, "int8")
    assert (found.workload.global_batch_size, found.configuration.recompute_granularity) == (4, "full")
    with pytest.raises(InvalidProblemError, match="generates answers"):
        read(f"trl grpo {WORDS}\n", Overrides(num_gpus=4))


def test_a_module_that_a_launcher_starts_is_the_program() -> None:
    # Megatron-SWIFT's batch of 16 was taken for that of any module
    words = f"--module safe_rlhf.finetune {WORDS} --gradient_accumulation_steps 8"
    found = read(f"deepspeed --num_gpus 2 {words} --zero_stage 2 --offload optimizer\n")
    assert (found.launcher, found.workload.global_batch_size) == ("deepspeed", 2 * 8)
    assert (found.configuration.zero_stage, found.configuration.offload) == (2, "optimizer")
    with pytest.raises(InvalidProblemError, match="no argument names its file"):
        read(f"deepspeed --num_gpus 2 {words}\n")
    found = read(f"torchrun --nproc_per_node 4 -m my.sft {WORDS}\n")
    assert found.workload.global_batch_size == 4


@pytest.mark.parametrize(
    ("more", "optimizer"), [("", "adamw"), ("--torch_dtype bfloat16", "adamw-pure-bf16")]
)
def test_weights_that_are_loaded_in_bf16_have_no_copy_on_plain_replicas(more: str, optimizer: str) -> None:
    assert read(f"torchrun --nproc_per_node 4 sft.py {WORDS} {more}\n").workload.optimizer == optimizer


def test_what_is_no_language_model_is_refused_by_its_task() -> None:
    with pytest.raises(InvalidProblemError, match="task_type: line 1: cannot be read"):
        read(f"swift sft {WORDS} --task_type reranker\n")


def test_deepspeeds_included_gpus_are_those_that_start() -> None:
    words = f"deepspeed --include=localhost:2,3,4 train.py {WORDS} --deepspeed z2.json\n"
    files = {"a.sh": words, "z2.json": '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}'}
    found = read_launch_files(Source(name="a.sh", text=words, files=files))
    assert (found.configuration.data_parallel_size, found.configuration.zero_stage) == (3, 2)
    words = words.replace("localhost:2,3,4", "h0:0,1@h1:0,1")
    found = read_launch_files(Source(name="a.sh", text=words, files=files))
    assert (found.num_nodes, found.gpus_per_node) == (2, 2)


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


def test_a_file_in_ms_swifts_names_has_its_defaults() -> None:
    text = "model: Qwen/Qwen2.5-7B\ntuner_type: lora\nmax_length: 2048\nper_device_train_batch_size: 1\n"
    text += "lora_rank: 8\ntarget_modules: all-linear\ntorch_dtype: bfloat16\n"
    found = read(text, Overrides(num_gpus=2), "a.yaml")
    # a batch of 16 is filled: 8 micro-batches of 2 ranks; layers recompute
    assert (found.workload.global_batch_size, found.workload.lora_rank) == (16, 8)
    assert found.configuration.recompute_granularity == "full"


def test_an_argument_may_be_cut_short_as_argparse_has_it() -> None:
    # per_device_train_batch was passed over, and 8 taken
    words = WORDS.replace("train_batch_size 1", "train_batch 4")
    assert read(f"torchrun --nproc_per_node 2 t.py {words}\n").workload.global_batch_size == 2 * 4


@pytest.mark.parametrize(
    ("words", "name", "hangs"),
    [
        ("--train_bsz_per_gpu 4", "train_bsz_per_gpu", "affects how many sequences a step takes"),
        ("--use_deepspeed", "use_deepspeed", "affects how ranks share the model"),
        ("--kge_model_path a/b", "kge_model_path", "affects which model it learns from"),
        ("--model_parallel_size 4", "model_parallel_size", "affects how ranks share the model"),
        ("--data_parallel_replicate_size 2", "data_parallel_replicate_size", "how ranks share"),
        ("--lr_shards 8", "lr_shards", "affects how ranks share the model"),
    ],
)
def test_a_scripts_own_names_of_what_decides_are_not_passed_over(words: str, name: str, hangs: str) -> None:
    with pytest.raises(InvalidProblemError, match=f"{name}: line 1: .*{hangs}"):
        read(f"torchrun --nproc_per_node 2 t.py {WORDS} {words}\n")


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
    ],
)
def test_galore_that_is_not_priced_or_not_run_is_refused(
    start: str, words: str, name: str, why: str
) -> None:
    with pytest.raises(InvalidProblemError, match=f"{name}: line 1: .*{why}"):
        read(f"{start} {GALORE} {words}\n")


TRAINERS = (
    "python train.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --bf16 "
    "--torch_dtype bfloat16 --max_seq_length 256 --optim_target_modules all-linear"
)


@pytest.mark.parametrize(
    ("words", "optimizer"),
    [
        ("--optim galore_adamw", "galore-pure-bf16"),
        ("--optim galore_adamw_8bit", "galore-8bit-bf16"),
        ("--optim galore_adamw_8bit_layerwise", "galore-8bit-bf16-layerwise"),
    ],
)
def test_galore_of_the_trainer_is_read_with_its_arguments(words: str, optimizer: str) -> None:
    run = f"CUDA_VISIBLE_DEVICES=0 {TRAINERS} {words}"
    found = read(f"{run} --optim_args rank=64,update_proj_gap=500,scale=0.25\n")
    work = found.workload
    assert (work.optimizer, work.optimizer_rank, work.optimizer_interval) == (optimizer, 64, 500)
    assert any("also projects the head" in note for note in found.notes)
    assert read(f"{run}\n").workload.optimizer_rank == 128, "transformers' default"


@pytest.mark.parametrize(
    ("start", "words", "name", "why"),
    [
        ("0", "--optim galore_adamw --optim_args rank=0", "optim_args", "rank = 0 is not a whole number"),
        ("0", f"--optim galore_adamw --optim_args rank={'9' * 5000}", "optim_args", "not a whole number"),
        ("0", "--optim galore_adamw --optim_args proj_type=left", "optim_args", "left is not supported"),
        ("0", "--optim galore_adafactor", "optim", '"galore_adafactor" is not supported'),
    ],
)
def test_galore_of_the_trainer_that_is_not_priced_is_refused(
    start: str, words: str, name: str, why: str
) -> None:
    with pytest.raises(InvalidProblemError, match=f"{name}: line 1: .*{why}"):
        read(f"CUDA_VISIBLE_DEVICES={start} {TRAINERS} {words}\n")


def test_layer_by_layer_the_trainer_takes_one_gpu_and_weights_in_bf16() -> None:
    several = f"torchrun --nproc_per_node 2 {TRAINERS.removeprefix('python ')}"
    with pytest.raises(InvalidProblemError, match=r"optim: line 1: .*refuses several GPUs"):
        read(f"{several} --optim galore_adamw_layerwise\n")
    in_fp32 = TRAINERS.replace("--torch_dtype bfloat16", "--torch_dtype float32")
    with pytest.raises(InvalidProblemError, match=r"optim: line 1: .*not supported with weights in fp32"):
        read(f"CUDA_VISIBLE_DEVICES=0 {in_fp32} --optim galore_adamw_layerwise\n")


def test_modules_that_galore_leaves_out_are_not_priced() -> None:
    run = f"CUDA_VISIBLE_DEVICES=0 {TRAINERS} --optim galore_adamw".replace("all-linear", "q_proj")
    with pytest.raises(InvalidProblemError, match=r"optim_target_modules: .*leaves out some linear layers"):
        read(f"{run}\n")


def test_a_package_that_is_installed_is_no_program() -> None:
    # "trl" among what pip installs made TRL's defaults those of a script of its own
    run = "pip install trl\naccelerate launch --config_file z3.yaml trainer/sft.py --bs_per_device 8\n"
    mesh = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\n"
    mesh += "num_machines: 1\nnum_processes: 4\ndeepspeed_config:\n  zero_stage: 3\n"
    source = Source(name="a.sh", text=run, files={"a.sh": run, "z3.yaml": mesh})
    with pytest.raises(InvalidProblemError, match="micro_batch_size: the files don't have it"):
        read_launch_files(source, Overrides(values={"seq_length": 2048}, model=find_model("qwen2.5-7b")))


def test_what_sees_beside_its_language_model_is_refused_by_its_models_name() -> None:
    words = WORDS.replace("Qwen2.5-7B", "Qwen2.5-VL-7B-Instruct")
    overrides = Overrides(model=find_model("qwen2.5-7b"))
    with pytest.raises(InvalidProblemError, match=r"model_name_or_path: .*sees or hears"):
        read(f"torchrun --nproc_per_node 2 t.py {words}\n", overrides)
    alone = Overrides(model=find_model("qwen2.5-7b"), ignored=("model_name_or_path",))
    assert read(f"torchrun --nproc_per_node 2 t.py {words}\n", alone).workload.global_batch_size == 2


TRLS = (
    "model_name_or_path: Qwen/Qwen2.5-7B\nmax_length: 2048\npacking: true\nbf16: true\n"
    "per_device_train_batch_size: 1\n"
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (TRLS.replace("Qwen2.5-7B", "Qwen3-8B-FP8"), "model_name_or_path: .* is stored quantised"),
        (TRLS.replace("Qwen/Qwen2.5-7B", "unsloth/Meta-Llama-3.1-8B-bnb-4bit"), "is stored quantised"),
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


ARGUMENTS = (
    "--model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 2 "
    "--gradient_accumulation_steps 4 --model_max_length 2048 --bf16 True "
)


@pytest.mark.parametrize(
    ("start", "more", "says"),
    [
        ("train_lora.py", "", "lora_r: train_lora.py trains adapters by its name"),
        ("train.py", "--train_mode qlora", "train_mode: line 1: of adapters, and nothing states whether"),
        ("train.py", "--ssm_layers [0,1,2]", "affects which layers the model has"),
        ("train.py", "--bits 4 --lora_r 8", "lora_target_modules: is not given, and scripts on weights of"),
        ("train.py", "--rrhf_weight 1", "training on preferences or rewards is not supported"),
        ("split_get_grads.py", "", "collects gradients and trains nothing"),
        ("train.py", "--pre_seq_len 128", "prefixes and soft prompts are not supported"),
        ("run_glue.py", "--do_train", "another head than a language model's"),
        ("train-reward.py", "", "trains on preferences or rewards"),
        ("distill.py", "", "learns from another model"),
        ("llava/train/train_mem.py", "", r"trains what sees or hears \(llava\)"),
        ("run_clm.py", "--do_eval", "do_train: is not given: it trains nothing"),
        ("train.py", "--do_train False", "do_train: line 1: is off: it trains nothing"),
        ("train.py", "--do_predict", "do_train: is not given next to do_predict"),
        ("train.py", "--no_cuda", "no_cuda: line 1: cannot be read: it runs on no GPU"),
        ("train.py", "--max_length 512", "model_max_length: line 1: 2048, but max_length is 512"),
        ("train.py", "--optimizer galore", 'optimizer: line 1: "galore" is not supported'),
        ("train.py", "--trainable_parameters lm_head", "affects which weights are trained"),
    ],
)
def test_what_a_program_or_an_argument_makes_another_training_is_refused(
    start: str, more: str, says: str
) -> None:
    with pytest.raises(InvalidProblemError, match=says):
        read(f"torchrun --nproc_per_node 8 {start} {ARGUMENTS}{more}")


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1 python", "python starts one process on 2 visible GPUs"),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 4", "2 GPUs are visible to 4 processes"),
        ("CUDA_VISIBLE_DEVICES=0,1 accelerate launch --num_processes 4", "2 GPUs are visible to 4"),
    ],
)
def test_processes_without_a_gpu_each_are_refused(start: str, says: str) -> None:
    with pytest.raises(InvalidProblemError, match=says):
        read(f"{start} train.py {ARGUMENTS}")


@pytest.mark.parametrize(
    ("more", "size"),
    [
        ("--eval_strategy steps ", 8),  # TrainingArguments
        ("--eval_strategy epoch --per_device_eval_batch_size 2 ", 2),
        ("--evaluation_strategy steps --per_device_eval_batch_size $EVAL ", None),
        ("--eval_strategy no --per_device_eval_batch_size 2 ", None),
        ("--per_device_eval_batch_size 2 ", None),
    ],
)
def test_samples_are_evaluated_together_where_a_strategy_asks_for_it(more: str, size: int | None) -> None:
    found = read(f"torchrun --nproc_per_node 8 train.py {ARGUMENTS}{more}")
    assert found.workload.framework_options.get("evaluation_batch_size") == size
    said = [one for one in found.notes if "no evaluation is priced" in one]
    assert bool(said) == ("$EVAL" in more)


@pytest.mark.parametrize(
    ("more", "evaluates"),
    [
        ("--val_dataset ours", True),
        ("--split_dataset_ratio 0.01", True),
        ("--split_dataset_ratio 0", False),
        ("", False),
        ("--val_dataset ours --eval_strategy no", False),
        ("--val_dataset ours --save_strategy no", False),
        ("--val_dataset ours --save_strategy no --eval_strategy steps", True),
        ("--eval_strategy steps", False),
    ],
)
def test_ms_swift_evaluates_data_that_it_has_as_often_as_it_saves(more: str, evaluates: bool) -> None:
    options = read(f"swift sft {WORDS} {more}\n").workload.framework_options
    assert ("evaluation_batch_size" in options) == evaluates


def test_a_command_sees_the_variables_that_it_starts_with() -> None:
    # what is evaluated afterwards on one GPU was trained on four
    script = (
        f"export CUDA_VISIBLE_DEVICES=0,1,2,3\ndeepspeed train.py {ARGUMENTS}--deepspeed z2.json\n"
        "export CUDA_VISIBLE_DEVICES=0\nCUDA_VISIBLE_DEVICES=1 python evaluate.py\n"
    )
    json = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}'
    source = Source(name="a.sh", text=script, files={"a.sh": script, "z2.json": json})
    assert read_launch_files(source).configuration.data_parallel_size == 4


def test_what_is_taken_where_no_argument_says_it_is_said() -> None:
    notes = " ".join(read(f"python train.py {ARGUMENTS}").notes)
    for assumed in ("loaded in: float32", "gradient_checkpointing is off", "python starts one process"):
        assert assumed in notes
    auto = read(f"torchrun --nproc_per_node 8 train.py {ARGUMENTS}--torch_dtype auto")
    assert auto.workload.optimizer == "adamw-pure-bf16"
    assert any("torch_dtype auto: the weights' own type" in note for note in auto.notes)
    eager = read(f"torchrun --nproc_per_node 8 train.py {ARGUMENTS}--attn_implementation eager")
    assert eager.workload.framework_options["attention_kernel"] == "torch"
    flex = read(f"torchrun --nproc_per_node 8 train.py {ARGUMENTS}--attn_implementation flex_attention")
    assert flex.workload.framework_options["attention_kernel"] == "flex"


def test_deepspeeds_file_says_the_optimizer_before_the_arguments() -> None:
    script = f"deepspeed --num_gpus 8 train.py {ARGUMENTS}--optim adamw_bnb_8bit --deepspeed z.json"
    json = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}, "optimizer": {"type": "SGD"}}'
    files = {"a.sh": script, "z.json": json}
    found = read_launch_files(Source(name="a.sh", text=script, files=files))
    assert found.workload.optimizer == "sgd-momentum"
    files["z.json"] = json.replace(', "optimizer": {"type": "SGD"}', "")
    found = read_launch_files(Source(name="a.sh", text=script, files=files))
    assert found.workload.optimizer == "adamw-8bit"


def test_what_is_trained_whole_beside_adapters_is_read() -> None:
    lora = f"torchrun --nproc_per_node 8 train.py {ARGUMENTS}--use_lora True --lora_r 8 --dtype auto "
    found = read(f"{lora}--modules_to_save embed_tokens,lm_head").workload
    assert (found.trained_modules, found.base_precision) == (("embed_tokens", "lm_head"), "bf16")
    assert read(lora.replace("--dtype auto", "")).workload.base_precision == "fp32"
    tuned = "--stage sft --do_train --finetuning_type lora --cutoff_len 2048 --resize_vocab "
    wider = read(f"llamafactory-cli train {ARGUMENTS}{tuned}", Overrides(num_gpus=8)).workload
    assert wider.trained_modules == ("embed_tokens", "lm_head")  # model/adapter.py
    with pytest.raises(InvalidProblemError, match="modules_to_save: line 1: wpe trained whole"):
        read(f"{lora}--modules_to_save wpe")
    with pytest.raises(InvalidProblemError, match="lora_r: is not given, and the script's default"):
        read(lora.replace("--lora_r 8", ""))


def test_what_peft_trains_beside_a_rank_of_named_layers_is_refused_by_name() -> None:
    lora = f"torchrun --nproc_per_node 8 train.py {ARGUMENTS}--use_lora True --lora_r 8 --dtype auto "
    tuned = f"llamafactory-cli train {ARGUMENTS}--stage sft --do_train --finetuning_type lora "
    assert read(f"{lora}--lora_bias none").workload.lora_rank == 8
    for command in (lora, tuned, f"{ON_TWO} --use_peft --max_length 4096 "):
        for name, value in (
            ("lora_bias", "all"), ("bias", "lora_only"), ("rank_pattern", '\'{"q_proj": 64}\''),
            ("layers_to_transform", "0,1"), ("peft_layer_replication", "[[0,4]]"), ("target_regex", "q.*"),
        ):  # fmt: skip
            files = {"sft.yaml": SFT_YAML, "a.sh": f"{command}--{name} {value}\n"}
            with pytest.raises(InvalidProblemError, match=f"{name}: .*changes which weights are trained"):
                read_launch_files(
                    Source(name="a.sh", text=files["a.sh"], files=files), Overrides(num_gpus=8)
                )


def test_accelerate_adds_the_type_that_deepspeeds_file_does_not_say() -> None:
    script = f"deepspeed --num_gpus 8 train.py {ARGUMENTS}--deepspeed z.json"
    files = {"a.sh": script, "z.json": '{"zero_optimization": {"stage": 2}, "fp16": {"enabled": "auto"}}'}
    assert read_launch_files(Source(name="a.sh", text=script, files=files)).workload.precision == "bf16"


def test_a_supplied_micro_batch_replaces_the_scripts_and_is_noted_where_it_differs() -> None:
    script = f"torchrun --nproc_per_node 8 sft.py {ARGUMENTS}\n"  # 2 sequences a rank, 4 times a step
    for supplied, notes in ((4, ["micro_batch_size 2 of the file is replaced by 4"]), (2, [])):
        found = read(script, Overrides(values={"micro_batch_size": supplied}))
        assert found.workload.global_batch_size == 8 * 4 * supplied
        assert [note for note in found.notes if "is replaced by" in note] == notes
    unstated = script.replace("--per_device_train_batch_size 2 ", "")
    found = read(unstated, Overrides(values={"micro_batch_size": 4}))
    assert not any("is replaced by" in note for note in found.notes)


def test_a_script_that_trains_by_files_too_is_no_single_run() -> None:
    script = (
        f"torchrun --nproc_per_node 8 sft.py {ARGUMENTS}\naccelerate launch sft.py --config \\\n b.yaml\n"
    )
    files = {"a.sh": script, "b.yaml": SFT_YAML}
    with pytest.raises(InvalidProblemError, match=r"a.sh starts 2 trainings \(lines 1, 2\)"):
        read_launch_files(Source(name="a.sh", text=script, files=files))


def test_open_instructs_weights_are_in_bf16() -> None:
    text = (
        "model_name_or_path: meta-llama/Meta-Llama-3-8B\nper_device_train_batch_size: 1\n"
        "gradient_accumulation_steps: 4\nmax_seq_length: 4096\ndataset_mix_dir: out\n"
    )
    found = read(text, Overrides(num_gpus=8), "a.yaml")
    assert (found.workload.precision, found.workload.optimizer) == ("bf16", "adamw-pure-bf16")
    assert any("plain replicas" in note for note in found.notes)


@pytest.mark.parametrize(
    "start",
    ["torchrun --nproc_per_node $(nvidia-smi -L | wc -l)", "torchrun --nnodes $N --nproc_per_node 8",
     "python -m torch.distributed.run --nproc_per_node $GPUS"],
)  # fmt: skip
def test_ranks_that_hang_on_what_nobody_says_are_asked_for(start: str) -> None:
    with pytest.raises(InvalidProblemError, match="num_gpus: the files don't have it"):
        read(f"{start} train.py {ARGUMENTS}")
    assert read(f"{start} train.py {ARGUMENTS}", Overrides(num_gpus=16)).configuration.num_gpus == 16


def test_one_process_beside_more_told_gpus_is_noted_whatever_shares_them() -> None:
    files = {"z2.json": '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}'}
    for start in (
        "python train.py",
        "CUDA_VISIBLE_DEVICES=0 python train.py",
        "python train.py --deepspeed z2.json",
    ):
        text = f"{start} {ARGUMENTS}"
        found = read_launch_files(Source(name="a.sh", text=text, files=files), Overrides(num_gpus=8))
        assert (
            "the script starts one process; 8 GPUs are given and counted, with a process each"
            in found.notes
        )
    with pytest.raises(InvalidProblemError, match="num_gpus: the files don't have it"):
        read(f"srun python train.py {ARGUMENTS}")  # was one GPU


def test_a_base_of_few_bits_says_that_the_script_trains_adapters() -> None:
    words = "--bits 4 --lora_r 64 --lora_modules all --source_max_len 16 --target_max_len 512 "
    text = f"python qlora.py {ARGUMENTS.replace('--model_max_length 2048 ', '')}{words}"
    found = read(text)
    # source and target are cut each, and joined: 16 + 512
    assert (found.workload.seq_length, found.workload.lora_rank) == (528, 64)
    assert found.workload.base_precision == "nf4-double"  # double_quant is on in qlora.py
    with pytest.raises(InvalidProblemError, match="lays weights of few bits over 8 GPUs"):
        read(text, Overrides(num_gpus=8))


def test_a_sequences_two_parts_are_added_under_each_of_their_names() -> None:
    start = f"torchrun --nproc_per_node 8 finetune.py {ARGUMENTS.replace('--model_max_length 2048 ', '')}"
    for parts in (
        "--max_source_length 1536 --max_target_length 512",
        "--max_prompt_len 1536 --max_ans_len 512",
    ):
        assert read(f"{start} {parts}").workload.seq_length == 2048  # 1536 + 512


def test_a_script_that_writes_a_configuration_alone_starts_no_training() -> None:
    run = "python3 configure.py --template axolotl.yaml --output config.yaml\nsleep infinity\n"
    text = (
        "base_model: Qwen/Qwen2.5-7B\nsequence_len: 2048\nmicro_batch_size: 2\nbf16: true\nadapter: lora\n"
    )
    source = Source(name="a.sh", text=run, files={"a.sh": run, "axolotl.yaml": text})
    with pytest.raises(InvalidProblemError, match=r"configure\.py writes a configuration"):
        read_launch_files(source, Overrides(num_gpus=8))  # was read as what it may start


def test_accelerates_file_of_a_script_that_is_given_trls_is_asked_for() -> None:
    # open-r1's: the ranks were read as plain replicas where the command's file was not given
    run = "accelerate launch --config_file zero3.yaml src/open_r1/sft.py --config sft.yaml\n"
    text = f"{SFT_YAML}model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 2\nbf16: true\n"
    files = {"a.sh": run, "sft.yaml": text}
    with pytest.raises(InvalidProblemError, match=r"zero3\.yaml is not next to it"):
        read_launch_files(Source(name="a.sh", text=run, files=files), Overrides())
    mesh = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\nnum_processes: 4\n"
    found = read_launch_files(
        Source(name="a.sh", text=run, files={**files, "zero3.yaml": mesh}), Overrides()
    )
    assert (found.configuration.zero_stage, found.configuration.num_gpus) == (3, 4)


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


def test_a_switch_of_qlora_says_4_bits_and_adapters() -> None:
    words = f"{ARGUMENTS}--lora_r 8 --q_lora True"
    found = read(f"torchrun --nproc_per_node 8 fastchat/train/train_lora.py {words}")
    assert (found.workload.base_precision, found.workload.lora_rank) == ("nf4-double", 8)
    assert found.workload.lora_targets == ("q_proj", "v_proj")  # FastChat's own
    with pytest.raises(InvalidProblemError, match="lora_target_modules: is not given"):
        read(f"torchrun --nproc_per_node 8 finetune.py {words}")  # whose own targets are not known


def test_weights_of_4_bits_under_fsdp_are_refused_with_what_it_does_with_them() -> None:
    words = f"{ARGUMENTS}--use_peft True --lora_r 8 --lora_target_modules all-linear --load_in_4bit True"
    run = f"accelerate launch --num_processes 8 --use_fsdp --fsdp_version 2 train.py {words}"
    with pytest.raises(InvalidProblemError, match="whole on every rank, FSDP1 stops"):
        read(run)
    found = read(f"{run} --bnb_4bit_quant_storage bfloat16")
    assert (found.configuration.zero_stage, found.workload.base_precision) == (3, "nf4")


def test_the_engines_own_file_says_the_type_of_products() -> None:
    arguments = ARGUMENTS.replace("--bf16 True ", "")
    text = f"deepspeed --num_gpus 8 finetune.py {arguments}--deepspeed_config ds.json"

    file = '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}'
    found = read_launch_files(Source(name="a.sh", text=text, files={"ds.json": file}), Overrides())
    assert found.workload.precision == "bf16"


def test_chinese_alpacas_scripts_train_adapters_unless_they_say_all_weights() -> None:
    start = f"torchrun --nproc_per_node 2 run_clm_sft_with_peft.py {ARGUMENTS}--lora_rank 64 "
    more = "--trainable q_proj,v_proj --modules_to_save embed_tokens,lm_head --load_in_kbits 16"
    found = read(f"{start}{more}").workload
    assert (found.lora_rank, found.lora_targets) == (64, ("q_proj", "v_proj"))
    assert (len(found.trained_modules), found.base_precision) == (2, "fp32")  # as loaded: no torch_dtype
    with pytest.raises(InvalidProblemError, match=r"not supported|which weights are trained"):
        read(f"{start}{more} --full_finetuning True")


def test_a_told_rank_stands_for_one_that_the_script_keeps_to_itself() -> None:
    text = f"torchrun --nproc_per_node 2 finetune.py {ARGUMENTS}--use_lora True"
    with pytest.raises(InvalidProblemError, match="--set lora_rank="):
        read(text)
    assert read(text, Overrides(values={"lora_rank": 64})).workload.lora_rank == 64


def test_fastchats_program_trains_rank_8_where_none_is_given() -> None:
    files = {"z2.json": '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}'}
    text = f"deepspeed --num_gpus 2 fastchat/train/train_lora.py {WORDS} --deepspeed z2.json\n"
    found = read_launch_files(Source(name="a.sh", text=text, files={"a.sh": text, **files}))
    assert (found.workload.lora_rank, found.workload.lora_targets) == (8, ("q_proj", "v_proj"))


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


def test_torchrun_starts_on_one_node_of_a_job_of_two_unless_it_says_nnodes() -> None:
    header = "#!/bin/bash\n#SBATCH -N 2 --gres=gpu:4\n"
    start = f"torchrun --nproc_per_node 4 train.py {WORDS}\n"
    assert read(header + start).configuration.num_gpus == 4
    both = start.replace("--nproc", "--nnodes $SLURM_NNODES --nproc")
    assert read(f"{header}srun {both}").configuration.num_gpus == 2 * 4


def test_a_scripts_own_arguments_are_listed_whatever_they_begin_with() -> None:
    # names that began like data_, model_, log_ or system were passed over, whoever had them
    words = "--data_flavor a --model_prompt b --log_fancy c --systemic d --lr_magic 3"
    found = read(f"torchrun --nproc_per_node 2 t.py {WORDS} --logging_steps 3 {words}\n")
    assert found.unread == ("data_flavor", "model_prompt", "log_fancy", "systemic", "lr_magic")
    alone = read(f"torchrun --nproc_per_node 2 t.py {WORDS} --model_parallel_size 1\n")
    assert alone.unread == ("model_parallel_size",)


def test_an_argument_without_a_price_is_not_listed_and_one_that_splits_batches_is_refused() -> None:
    start = f"torchrun --nproc_per_node 2 t.py {WORDS}"
    assert read(f"{start} --average_tokens_across_devices True\n").unread == ()
    assert read(f"{start} --average_tokens_across_devices False\n").unread == ()
    with pytest.raises(InvalidProblemError, match=r"accelerator_config: .*split_batches changes how many"):
        read(f"{start} --accelerator_config '{{\"split_batches\": true}}'\n")


@pytest.mark.parametrize(
    ("said", "held"),
    [
        ("--ddp_bucket_cap_mb 100", {"bucket_bytes": 100 * 2.0**20}),
        ("--ddp_bucket_cap_mb 25", {}),  # torch's own
        ("--ddp_bucket_cap_mb 100 --fsdp full_shard", {}),  # FSDP reduces wrapped blocks
    ],
)
def test_buckets_of_replicas_are_read(said: str, held: dict[str, float]) -> None:
    found = read(f"torchrun --nproc_per_node 2 t.py {WORDS} {said}\n")
    options = found.workload.framework_options
    assert {name: value for name, value in options.items() if name == "bucket_bytes"} == held
    assert found.unread == ()


def test_a_bucket_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match=r"ddp_bucket_cap_mb: .*-5.* is not a whole number"):
        read(f"torchrun --nproc_per_node 2 t.py {WORDS} --ddp_bucket_cap_mb -5\n")


def test_what_is_not_an_option_of_accelerate_launch_is_refused() -> None:
    start = "accelerate launch --num_processes 2 --use_fsdp"
    assert read(f"{start} --fsdp_offload_params true t.py {WORDS}\n").configuration.zero_stage == 3
    with pytest.raises(
        InvalidProblemError, match=r"fsdp_offload_parms is not an option .*fsdp_offload_params"
    ):
        read(f"{start} --fsdp_offload_parms true t.py {WORDS}\n")


def test_accelerates_options_in_trls_command_are_read_next_to_trls_file() -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-7B\nmax_length: 2048\npacking: true\ndataset_name: x\n"
    script = "trl sft --config a.yaml --num_processes 4 --use_fsdp --gradient_accumulation_steps 2\n"
    source = Source(name="a.yaml", text=text, files={"a.yaml": text, "run.sh": script})
    config = read_launch_files(source).configuration
    # they were refused as names that TRL's parser lacks; the accumulation is the trainer's
    assert (config.zero_shard_size, config.num_microbatches) == (4, 2)


PACKED = "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --bf16 true"
OF_FACTORY = (
    f"llamafactory-cli train --stage sft --do_train --finetuning_type full {PACKED} --cutoff_len 2048"
)
OF_SWIFT = f"swift sft --tuner_type full {PACKED.replace('_name_or_path', '')} --max_length 2048"


@pytest.mark.parametrize(
    ("command", "packed"),
    [
        (f"trl sft {PACKED} --packing --num_processes 4 --accelerate_config zero2", "packing"),
        (f"trl sft {PACKED} --packing true --packing_strategy wrapped --num_processes 4 --multi_gpu", ""),
        (f"accelerate launch --num_processes 4 trl/scripts/sft.py {PACKED} --packing", "packing"),
        (f"trl dpo {PACKED} --num_processes=4 --accelerate_config=fsdp2", ""),
        (f"FORCE_TORCHRUN=1 NPROC_PER_NODE=4 {OF_FACTORY} --neat_packing true", "neat_packing"),
        (f"FORCE_TORCHRUN=1 NPROC_PER_NODE=4 {OF_FACTORY} --packing true", ""),
        (f"NPROC_PER_NODE=4 {OF_SWIFT} --packing true", "packing"),
    ],
)
def test_commands_are_read_as_files_are(command: str, packed: str) -> None:
    found = read(f"{command}\n")
    assert (found.packed, found.unread, found.configuration.num_gpus) == (packed, (), 4)
    assert not any("packing is off" in note for note in found.notes)


@pytest.mark.parametrize("command", [f"trl sft {PACKED} --num_processes 4", OF_FACTORY, OF_SWIFT])
def test_commands_that_pad_say_so(command: str) -> None:
    assert any("packing is off" in note for note in read(f"NPROC_PER_NODE=4 {command}\n").notes)


def test_a_trainers_file_counts_before_the_engines() -> None:
    run = "accelerate launch --config_file acc.yaml --num_processes 4 sft.py --config a.yaml\n"
    own = "model_name_or_path: Qwen/Qwen2.5-7B\nmax_seq_length: 2048\nper_device_train_batch_size: 2\n"
    engine = "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\nnum_processes: 8\n"
    files = {"a.sh": run, "acc.yaml": engine, "a.yaml": f"{own}bf16: true\n"}
    found = read_launch_files(Source(name="a.sh", text=run, files=files))
    assert (found.configuration.zero_stage, found.workload.global_batch_size) == (3, 2 * 4)
