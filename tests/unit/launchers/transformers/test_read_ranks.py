"""What a trainer's command says next to its files: who is started, on which GPUs, by which engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model
from tests.launchers.read_figures import figures

SFT_YAML = "max_length: 8192\npacking: true\ngradient_checkpointing: true\nuse_liger_kernel: true\n"
ON_TWO = "accelerate launch --num_processes 2 sft.py --config sft.yaml --model_name_or_path Qwen/Qwen2.5-7B"
WORDS = "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --max_length 2048 --bf16 true"
ON_RANKS = f"torchrun --nproc_per_node 2 t.py {WORDS}"
ARGUMENTS = (
    "--model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 2 "
    "--gradient_accumulation_steps 4 --model_max_length 2048 --bf16 True "
)
UNCOUNTED = ARGUMENTS.replace("--gradient_accumulation_steps 4 ", "")
UNSIZED = ARGUMENTS.replace("--model_max_length 2048 ", "")
EIGHT = f"torchrun --nproc_per_node 8 train.py {ARGUMENTS}"
LORA = f"{EIGHT}--use_lora True --lora_r 8 --dtype auto "
MODULE = f"--module safe_rlhf.finetune {WORDS} --gradient_accumulation_steps 8"
CLM = (
    f"torchrun --nproc_per_node 2 run_clm_sft_with_peft.py {ARGUMENTS}--lora_rank 64 "
    "--trainable q_proj,v_proj --modules_to_save embed_tokens,lm_head --load_in_kbits 16"
)
FOUR_BITS = (
    f"accelerate launch --num_processes 8 --use_fsdp --fsdp_version 2 train.py {ARGUMENTS}--use_peft True "
    "--lora_r 8 --lora_target_modules all-linear --load_in_4bit True"
)
Z2 = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}'
Z3 = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\nnum_processes: 4\n"
# open-r1's
OPEN_R1 = "accelerate launch --config_file zero3.yaml src/open_r1/sft.py --config sft.yaml"
OPEN_YAML = f"{SFT_YAML}model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 2\nbf16: true\n"


def read(
    text: str,
    overrides: Overrides | None = None,
    name: str = "a.sh",
    files: Mapping[str, str] | None = None,
) -> LaunchFile:
    return read_launch_files(Source(name=name, text=text, files={name: text, **(files or {})}), overrides)


# The command, the files next to it, and what they are read as.
READ: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    # its recomputation and length were lost where the command said two more names; packing is an argument
    # of SFTConfig: TRL's trainer makes logits in chunks, and has no Liger loss then
    "a file that --config names behind the command": (
        f"{ON_TWO} --per_device_train_batch_size 3 --bf16 true --max_length 4096",
        {"sft.yaml": SFT_YAML},
        {
            "configuration.recompute_granularity": "full", "workload.seq_length": 4096,
            "workload.global_batch_size": 2 * 3, "workload.framework_options.elementwise_fused": True,
            "workload.framework_options.norm_fused": True,
            "workload.framework_options.loss_kernel": "chunked",
        },
    ),
    # the ranks were read as plain replicas where the command's file was not given
    "accelerate's file of a script that is given TRL's": (
        OPEN_R1, {"sft.yaml": OPEN_YAML, "zero3.yaml": Z3},
        {"configuration.zero_stage": 3, "configuration.num_gpus": 4},
    ),
    # Megatron-SWIFT's batch of 16 was taken for that of any module
    "a module that deepspeed starts": (
        f"deepspeed --num_gpus 2 {MODULE} --zero_stage 2 --offload optimizer", {},
        {
            "launcher": "deepspeed", "workload.global_batch_size": 2 * 8, "configuration.zero_stage": 2,
            "configuration.offload": "optimizer",
        },
    ),
    "a module that torchrun starts": (
        f"torchrun --nproc_per_node 4 -m my.sft {WORDS}", {}, {"workload.global_batch_size": 4},
    ),
    "included GPUs": (
        f"deepspeed --include=localhost:2,3,4 train.py {WORDS} --deepspeed z2.json", {"z2.json": Z2},
        {"configuration.data_parallel_size": 3, "configuration.zero_stage": 2},
    ),
    "included GPUs of two hosts": (
        f"deepspeed --include=h0:0,1@h1:0,1 train.py {WORDS} --deepspeed z2.json", {"z2.json": Z2},
        {"num_nodes": 2, "gpus_per_node": 2},
    ),
    # what is evaluated afterwards on one GPU was trained on four
    "the variables that a command starts with": (
        (f"export CUDA_VISIBLE_DEVICES=0,1,2,3\ndeepspeed train.py {ARGUMENTS}--deepspeed z2.json\n"
         "export CUDA_VISIBLE_DEVICES=0\nCUDA_VISIBLE_DEVICES=1 python evaluate.py"),
        {"z2.json": Z2}, {"configuration.data_parallel_size": 4},
    ),
    "one node of a job of two": (
        f"#!/bin/bash\n#SBATCH -N 2 --gres=gpu:4\ntorchrun --nproc_per_node 4 train.py {WORDS}", {},
        {"configuration.num_gpus": 4},
    ),
    "both nodes of a job of two": (
        ("#!/bin/bash\n#SBATCH -N 2 --gres=gpu:4\n"
         f"srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 4 train.py {WORDS}"),
        {}, {"configuration.num_gpus": 2 * 4},
    ),
    # per_device_train_batch was passed over, and 8 taken
    "an argument cut short, as argparse has it": (
        ON_RANKS.replace("train_batch_size 1", "train_batch 4"), {}, {"workload.global_batch_size": 2 * 4},
    ),
    "weights that are loaded in fp32": (ON_RANKS, {}, {"workload.optimizer": "adamw"}),
    "weights that are loaded in bf16 have no copy on plain replicas": (
        f"{ON_RANKS} --torch_dtype bfloat16", {}, {"workload.optimizer": "adamw-pure-bf16"},
    ),
    "weights of their own type": (
        f"{EIGHT}--torch_dtype auto", {}, {"workload.optimizer": "adamw-pure-bf16"},
    ),
    "eager attention": (
        f"{EIGHT}--attn_implementation eager", {},
        {"workload.framework_options.attention_kernel": "torch"},
    ),
    "flex_attention": (
        f"{EIGHT}--attn_implementation flex_attention", {},
        {"workload.framework_options.attention_kernel": "flex"},
    ),
    "DeepSpeed's optimizer before the argument's": (
        f"deepspeed --num_gpus 8 train.py {ARGUMENTS}--optim adamw_bnb_8bit --deepspeed z.json",
        {"z.json": Z2.replace('"auto"}', '"auto"}, "optimizer": {"type": "SGD"}')},
        {"workload.optimizer": "sgd-momentum"},
    ),
    "the argument's optimizer where DeepSpeed's file has none": (
        f"deepspeed --num_gpus 8 train.py {ARGUMENTS}--optim adamw_bnb_8bit --deepspeed z.json",
        {"z.json": Z2}, {"workload.optimizer": "adamw-8bit"},
    ),
    "accelerate adds the type that DeepSpeed's file does not say": (
        f"deepspeed --num_gpus 8 train.py {ARGUMENTS}--deepspeed z.json",
        {"z.json": '{"zero_optimization": {"stage": 2}, "fp16": {"enabled": "auto"}}'},
        {"workload.precision": "bf16"},
    ),
    "the engine's own file says the type of products": (
        (f"deepspeed --num_gpus 8 finetune.py {ARGUMENTS.replace('--bf16 True ', '')}"
         "--deepspeed_config ds.json"),
        {"ds.json": '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}'},
        {"workload.precision": "bf16"},
    ),
    "the engine's own file states both batches: 64 of 8 ranks by 2 are 4 micro-batches": (
        f"deepspeed --num_gpus 8 finetune.py {UNCOUNTED}--deepspeed_config ds.json",
        {"ds.json": '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "bf16.enabled": true}'},
        {"workload.global_batch_size": 64, "configuration.num_microbatches": 4},
    ),
    "layers that are trained whole beside adapters": (
        f"{LORA}--modules_to_save embed_tokens,lm_head", {},
        {"workload.trained_modules": ("embed_tokens", "lm_head"), "workload.base_precision": "bf16"},
    ),
    "a base that is loaded in fp32": (
        LORA.replace("--dtype auto", ""), {}, {"workload.base_precision": "fp32"},
    ),
    "adapters without biases": (f"{LORA}--lora_bias none", {}, {"workload.lora_rank": 8}),
    # source and target are cut each, and joined; double_quant is on in qlora.py
    "a base of few bits says that the script trains adapters": (
        (f"python qlora.py {UNSIZED}--bits 4 --lora_r 64 --lora_modules all "
         "--source_max_len 16 --target_max_len 512"),
        {},
        {
            "workload.seq_length": 16 + 512, "workload.lora_rank": 64,
            "workload.base_precision": "nf4-double",
        },
    ),
    "source and target": (
        f"torchrun --nproc_per_node 8 t.py {UNSIZED}--max_source_length 1536 --max_target_length 512", {},
        {"workload.seq_length": 1536 + 512},
    ),
    "prompt and answer": (
        f"torchrun --nproc_per_node 8 t.py {UNSIZED}--max_prompt_len 1536 --max_ans_len 512", {},
        {"workload.seq_length": 1536 + 512},
    ),
    # FastChat's own targets
    "a switch of QLoRA": (
        f"torchrun --nproc_per_node 8 fastchat/train/train_lora.py {ARGUMENTS}--lora_r 8 --q_lora True", {},
        {
            "workload.base_precision": "nf4-double", "workload.lora_rank": 8,
            "workload.lora_targets": ("q_proj", "v_proj"),
        },
    ),
    "FastChat's rank": (
        f"deepspeed --num_gpus 2 fastchat/train/train_lora.py {WORDS} --deepspeed z2.json", {"z2.json": Z2},
        {"workload.lora_rank": 8, "workload.lora_targets": ("q_proj", "v_proj")},
    ),
    "weights of 4 bits that FSDP2 cuts": (
        f"{FOUR_BITS} --bnb_4bit_quant_storage bfloat16", {},
        {"configuration.zero_stage": 3, "workload.base_precision": "nf4"},
    ),
    # as loaded: no torch_dtype
    "Chinese-Alpaca's adapters": (
        CLM, {},
        {
            "workload.lora_rank": 64, "workload.lora_targets": ("q_proj", "v_proj"),
            "workload.trained_modules": ("embed_tokens", "lm_head"), "workload.base_precision": "fp32",
        },
    ),
    # names that began like data_, model_, log_ or system were passed over, whoever had them
    "a script's own arguments": (
        (f"{ON_RANKS} --logging_steps 3 --data_flavor a --model_prompt b --log_fancy c --systemic d "
         "--lr_magic 3"),
        {}, {"unread": ("data_flavor", "model_prompt", "log_fancy", "systemic", "lr_magic")},
    ),
    "a split of one rank": (
        f"{ON_RANKS} --model_parallel_size 1", {}, {"unread": ("model_parallel_size",)},
    ),
    "an argument without a price, on": (
        f"{ON_RANKS} --average_tokens_across_devices True", {}, {"unread": ()},
    ),
    "an argument without a price, off": (
        f"{ON_RANKS} --average_tokens_across_devices False", {}, {"unread": ()},
    ),
    "buckets": (
        f"{ON_RANKS} --ddp_bucket_cap_mb 100", {},
        {"workload.framework_options.bucket_bytes": 100 * 2.0**20, "unread": ()},
    ),
    "torch's own buckets": (
        f"{ON_RANKS} --ddp_bucket_cap_mb 25", {},
        {"workload.framework_options.bucket_bytes": None, "unread": ()},
    ),
    "buckets beside FSDP, which reduces wrapped blocks": (
        f"{ON_RANKS} --ddp_bucket_cap_mb 100 --fsdp full_shard", {},
        {"workload.framework_options.bucket_bytes": None, "unread": ()},
    ),
    "an option of accelerate launch": (
        f"accelerate launch --num_processes 2 --use_fsdp --fsdp_offload_params true t.py {WORDS}", {},
        {"configuration.zero_stage": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("command", "files", "expected"), READ.values(), ids=READ)
def test_a_command_is_read_with_the_files_next_to_it(
    command: str, files: dict[str, str], expected: dict[str, Any]
) -> None:
    assert figures(read(f"{command}\n", files=files), expected) == expected


# The program, words behind it, and what is said.
ANOTHER_TRAINING = [
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
    # a script's own names of what decides
    ("train.py", "--train_bsz_per_gpu 4", "train_bsz_per_gpu: line 1: .*how many sequences a step takes"),
    ("train.py", "--use_deepspeed", "use_deepspeed: line 1: .*affects how ranks share the model"),
    ("train.py", "--kge_model_path a/b", "kge_model_path: line 1: .*affects which model it learns from"),
    ("train.py", "--model_parallel_size 4", "model_parallel_size: line 1: .*how ranks share the model"),
    ("train.py", "--data_parallel_replicate_size 2", "data_parallel_replicate_size: line 1: .*how ranks"),
    ("train.py", "--lr_shards 8", "lr_shards: line 1: .*affects how ranks share the model"),
    ("train.py", "--use_lora True --lora_r 8 --modules_to_save wpe", "modules_to_save: line 1: wpe"),
    ("train.py", "--use_lora True", "lora_r: is not given, and the script's default"),
    ("finetune.py", "--lora_r 8 --q_lora True", "lora_target_modules: is not given"),  # not known of it
    ("train.py", "--ddp_bucket_cap_mb -5", r"ddp_bucket_cap_mb: .*-5.* is not a whole number"),
    ("train.py", "--accelerator_config '{\"split_batches\": true}'",
     r"accelerator_config: .*split_batches changes how many"),
]  # fmt: skip
CONFIGURE = "python3 configure.py --template axolotl.yaml --output config.yaml\nsleep infinity"
AXOLOTL = (
    "base_model: Qwen/Qwen2.5-7B\nsequence_len: 2048\nmicro_batch_size: 2\nbf16: true\nadapter: lora\n"
)
# The command, the files next to it, and what is said.
REFUSED: dict[str, tuple[str, dict[str, str], str]] = {
    **{f"{program} {words}": (f"torchrun --nproc_per_node 8 {program} {ARGUMENTS}{words}", {}, says)
       for program, words, says in ANOTHER_TRAINING},
    "a file that --config names and that is not there": (
        f"{ON_TWO} --per_device_train_batch_size 3 --bf16 true --max_length 4096", {},
        r"sft\.yaml is not next to it",
    ),
    "accelerate's file that is not there": (
        OPEN_R1, {"sft.yaml": OPEN_YAML}, r"zero3\.yaml is not next to it",
    ),
    "a module of which no argument names DeepSpeed's file": (
        f"deepspeed --num_gpus 2 {MODULE}", {}, "no argument names its file",
    ),
    "one process on two GPUs": (
        f"CUDA_VISIBLE_DEVICES=0,1 python train.py {ARGUMENTS}", {},
        "python starts one process on 2 visible GPUs",
    ),
    "more processes of torchrun than GPUs": (
        f"CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 4 train.py {ARGUMENTS}", {},
        "2 GPUs are visible to 4 processes",
    ),
    "more processes of accelerate than GPUs": (
        f"CUDA_VISIBLE_DEVICES=0,1 accelerate launch --num_processes 4 train.py {ARGUMENTS}", {},
        "2 GPUs are visible to 4",
    ),
    "a second training by files": (
        f"{EIGHT}\naccelerate launch sft.py --config \\\n b.yaml", {"b.yaml": SFT_YAML},
        r"a.sh starts 2 trainings \(lines 1, 2\)",
    ),
    # was read as what it may start
    "a script that writes a configuration alone": (
        CONFIGURE, {"axolotl.yaml": AXOLOTL}, r"configure\.py writes a configuration",
    ),
    "one process of a job": (  # was one GPU
        f"srun python train.py {ARGUMENTS}", {}, "num_gpus: the files don't have it",
    ),
    "weights of 4 bits that FSDP does not cut": (FOUR_BITS, {}, "whole on every rank, FSDP1 stops"),
    "Chinese-Alpaca's whole weights": (
        f"{CLM} --full_finetuning True", {}, "not supported|which weights are trained",
    ),
    "an option with a slip": (
        f"accelerate launch --num_processes 2 --use_fsdp --fsdp_offload_parms true t.py {WORDS}", {},
        "fsdp_offload_parms is not an option .*fsdp_offload_params",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("command", "files", "says"), REFUSED.values(), ids=REFUSED)
def test_what_makes_another_training_is_refused_by_its_word(
    command: str, files: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidProblemError, match=says):
        read(f"{command}\n", files=files)


TUNED = f"llamafactory-cli train {ARGUMENTS}--stage sft --do_train --finetuning_type lora "


@pytest.mark.parametrize("command", [LORA, TUNED, f"{ON_TWO} --use_peft --max_length 4096 "],
                         ids=["a script", "LLaMA-Factory", "TRL"])  # fmt: skip
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lora_bias", "all"), ("bias", "lora_only"), ("rank_pattern", '\'{"q_proj": 64}\''),
        ("layers_to_transform", "0,1"), ("peft_layer_replication", "[[0,4]]"), ("target_regex", "q.*"),
    ],
)  # fmt: skip
def test_what_peft_trains_beside_a_rank_of_named_layers_is_refused_by_name(
    command: str, name: str, value: str
) -> None:
    with pytest.raises(InvalidProblemError, match=f"{name}: .*changes which weights are trained"):
        read(f"{command}--{name} {value}\n", Overrides(num_gpus=8), files={"sft.yaml": SFT_YAML})


@pytest.mark.parametrize(
    "start",
    ["torchrun --nproc_per_node $(nvidia-smi -L | wc -l)", "torchrun --nnodes $N --nproc_per_node 8",
     "python -m torch.distributed.run --nproc_per_node $GPUS"],
)  # fmt: skip
def test_ranks_that_hang_on_what_nobody_says_are_asked_for(start: str) -> None:
    with pytest.raises(InvalidProblemError, match="num_gpus: the files don't have it"):
        read(f"{start} train.py {ARGUMENTS}")
    assert read(f"{start} train.py {ARGUMENTS}", Overrides(num_gpus=16)).configuration.num_gpus == 16


def test_a_told_rank_stands_for_one_that_the_script_keeps_to_itself() -> None:
    text = f"torchrun --nproc_per_node 2 finetune.py {ARGUMENTS}--use_lora True"
    with pytest.raises(InvalidProblemError, match="--set lora_rank="):
        read(text)
    assert read(text, Overrides(values={"lora_rank": 64})).workload.lora_rank == 64


def test_weights_of_few_bits_are_not_laid_over_told_gpus() -> None:
    command = READ["a base of few bits says that the script trains adapters"][0]
    with pytest.raises(InvalidProblemError, match="lays weights of few bits over 8 GPUs"):
        read(command, Overrides(num_gpus=8))


def test_open_instructs_weights_are_in_bf16() -> None:
    text = (
        "model_name_or_path: meta-llama/Meta-Llama-3-8B\nper_device_train_batch_size: 1\n"
        "gradient_accumulation_steps: 4\nmax_seq_length: 4096\ndataset_mix_dir: out\n"
    )
    found = read(text, Overrides(num_gpus=8), "a.yaml")
    assert (found.workload.precision, found.workload.optimizer) == ("bf16", "adamw-pure-bf16")
    assert any("plain replicas" in note for note in found.notes)


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
        ("--optim apollo_adamw", "apollo-pure-bf16"),
        ("--optim apollo_adamw_layerwise", "apollo-pure-bf16-layerwise"),
    ],
)
def test_a_projection_of_the_trainer_is_read_with_its_arguments(words: str, optimizer: str) -> None:
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
        ("0", "--optim apollo_adamw --optim_args proj=svd", "optim_args", "svd is not supported"),
        ("0", "--optim galore_adafactor", "optim", '"galore_adafactor" is not supported'),
    ],
)
def test_a_projection_of_the_trainer_that_is_not_priced_is_refused(
    start: str, words: str, name: str, why: str
) -> None:
    with pytest.raises(InvalidProblemError, match=f"{name}: line 1: .*{why}"):
        read(f"CUDA_VISIBLE_DEVICES={start} {TRAINERS} {words}\n")


ON_ONE = f"CUDA_VISIBLE_DEVICES=0 {TRAINERS}"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (f"torchrun --nproc_per_node 2 {TRAINERS.removeprefix('python ')}", "refuses several GPUs"),
        (f"{ON_ONE} --gradient_accumulation_steps 2", "refuses several GPUs and gradient accumulation"),
        (ON_ONE.replace("dtype bfloat16", "dtype float32"), "not supported with weights in fp32"),
    ],
    ids=["several GPUs", "accumulation", "fp32"],
)
def test_layer_by_layer_the_trainer_takes_one_gpu_one_micro_batch_and_weights_in_bf16(
    command: str, says: str
) -> None:
    with pytest.raises(InvalidProblemError, match=rf"optim: line 1: .*{says}"):
        read(f"{command} --optim galore_adamw_layerwise\n")


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


def test_what_is_taken_where_no_argument_says_it_is_said() -> None:
    notes = " ".join(read(f"python train.py {ARGUMENTS}").notes)
    for assumed in ("loaded in: float32", "gradient_checkpointing is off", "python starts one process"):
        assert assumed in notes
    told = "torch_dtype auto: the weights' own type"
    assert any(told in note for note in read(f"{EIGHT}--torch_dtype auto").notes)


def test_a_supplied_micro_batch_replaces_the_scripts_and_is_noted_where_it_differs() -> None:
    script = f"torchrun --nproc_per_node 8 sft.py {ARGUMENTS}\n"  # 2 sequences a rank, 4 times a step
    for supplied, notes in ((4, ["micro_batch_size 2 of the file is replaced by 4"]), (2, [])):
        found = read(script, Overrides(values={"micro_batch_size": supplied}))
        assert found.workload.global_batch_size == 8 * 4 * supplied
        assert [note for note in found.notes if "is replaced by" in note] == notes
    unstated = script.replace("--per_device_train_batch_size 2 ", "")
    found = read(unstated, Overrides(values={"micro_batch_size": 4}))
    assert not any("is replaced by" in note for note in found.notes)


@pytest.mark.parametrize(
    "start",
    ["python train.py", "CUDA_VISIBLE_DEVICES=0 python train.py", "python train.py --deepspeed z2.json"],
)
def test_one_process_beside_more_told_gpus_is_noted_whatever_shares_them(start: str) -> None:
    told = "the script starts one process; 8 GPUs are given and counted, with a process each"
    assert told in read(f"{start} {ARGUMENTS}", Overrides(num_gpus=8), files={"z2.json": Z2}).notes


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
        (f"NPROC_PER_NODE=4 {OF_SWIFT} --packing true --attn_impl flash_attn", "packing"),
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


@pytest.mark.parametrize("joined", ["packing", "padding_free"])
def test_swift_joins_rows_under_flash_attention_alone(joined: str) -> None:
    # ms-swift 4.6 arguments/sft_args.py:186: another attention stops the run; 2 had no such rule
    with pytest.raises(
        InvalidProblemError, match=rf"{joined}: line 1: its trainer refuses it .*flash_attention_2"
    ):
        read(f"NPROC_PER_NODE=4 {OF_SWIFT} --{joined} true\n")
    assert read(f"NPROC_PER_NODE=4 {OF_SWIFT} --{joined} true --attn_impl flash_attention_3\n").packed == (
        "packing" if joined == "packing" else ""
    )


def test_a_command_of_swift_is_known_by_its_own_name_whatever_its_arguments_or_folder_are() -> None:
    # Liger's fused loss counts under rlhf; under sft a loss that weighs tokens takes whole logits
    weighed = "--use_liger_kernel true --loss_scale hermes --ignore_args_error true"

    def loss(command: str) -> object:
        text = OF_SWIFT.replace("swift sft", command)
        found = read(f"NPROC_PER_NODE=4 {text} {weighed}\n")
        return found.workload.framework_options.get("loss_kernel", "whole")

    assert loss("swift sft") == loss("torchrun --nproc_per_node 4 rlhf/swift/cli/sft.py") == "whole"
    assert loss("swift rlhf --rlhf_type dpo") == "liger"
