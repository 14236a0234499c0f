"""Commands of a trainer as other people write them: who starts it, how its ranks share, what it trains."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.adapters import SINGLE_TARGETS
from meshwright.profiles.errors import InvalidProblemError
from tests.launchers.read_figures import figures

WORDS = (
    "--model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 2 "
    "--gradient_accumulation_steps 4 --max_length 2048 --bf16 True"
)
PLAIN = f"torchrun --nproc_per_node 8 t.py {WORDS}"
LAUNCH = f"accelerate launch --num_processes 8 t.py {WORDS}"
SWIFT = (
    "swift sft --model meta-llama/Llama-2-7b-hf --tuner_type lora "
    "--per_device_train_batch_size 1 --max_length 2048"
)
SFT = f"accelerate launch --config_file conf/a.yaml -m trl.scripts.sft {WORDS}"
STEP = 8 * 2 * 4  # processes × micro-batch × accumulation
BATCH = {
    "workload.global_batch_size": STEP, "workload.seq_length": 2048, "workload.precision": "bf16",
    "model.name": "llama-2-7b",
}  # fmt: skip
SHARED = "num_machines: 1\nnum_processes: 8\ncompute_environment: LOCAL_MACHINE\n"
MESH = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
PLUGIN = "distributed_type: DEEPSPEED\ndeepspeed_config:\n"
NAMES_JSON = f"{PLUGIN}  deepspeed_config_file: z.json\n"
AUTO = (
    '{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 1}, "train_batch_size": "auto",'
    ' "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}'
)
DS = (
    '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": true},'
    ' "zero_optimization": {"stage": 2}}'
)
MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 "
    "--seq-length 128 --max-position-embeddings 128 --bf16"
)
NATIVE = "model_name_or_path: meta-llama/Llama-2-7b-hf\nper_device_train_batch_size: 2\nbf16: true\n"


def read(
    text: str, overrides: Overrides | None = None, *, name: str = "a.sh", config: str = "", json: str = ""
) -> LaunchFile:
    """What a command starts, with accelerate's file and DeepSpeed's next to it."""
    beside = {"a.yaml": config and SHARED + config, "z.json": json}
    files = {name: text, **{file: content for file, content in beside.items() if content}}
    return read_launch_files(Source(name=name, text=text, files=files), overrides or Overrides())


def launched(options: str) -> str:
    return LAUNCH.replace("t.py", f"{options} t.py", 1)


def shares(launcher: str, stage: int, size: int, **more: object) -> dict[str, object]:
    return {"launcher": launcher, "configuration.zero_stage": stage, "configuration.zero_shard_size": size,
            **{f"configuration.{name}": value for name, value in more.items()}}  # fmt: skip


# The command, accelerate's file and DeepSpeed's.
SHARES: dict[str, tuple[str, str, str, Mapping[str, object]]] = {
    "accelerate's file, FSDP": (SFT, MESH, "", {**BATCH, **shares("accelerate", 3, 8)}),
    "accelerate's file, DeepSpeed's plugin": (
        SFT, f"{PLUGIN}  zero_stage: 2\n", "", {**BATCH, **shares("deepspeed", 2, 8)},
    ),
    "accelerate's file, which names DeepSpeed's": (
        SFT, NAMES_JSON, AUTO, {**BATCH, **shares("deepspeed", 1, 8)},
    ),
    "accelerate's file, replicas": (
        SFT, "distributed_type: MULTI_GPU\n", "", {**BATCH, **shares("accelerate", 0, 1)},
    ),
    "accelerate's file, FSDP's names without their beginning": (
        SFT,
        ("distributed_type: FSDP\nfsdp_config:\n  version: 2\n  reshard_after_forward: false\n"
         "  activation_checkpointing: true\n"),
        "",
        {**shares("accelerate", 2, 8, recompute_granularity="full"), "unread": ()},
    ),
    "accelerate's file recomputes and the trainer does not": (
        f"{SFT} --gradient_checkpointing false", f"{MESH}  activation_checkpointing: true\n", "",
        shares("accelerate", 3, 8, recompute_granularity="full"),
    ),
    "the plugin accumulates as the trainer": (
        SFT, f"{PLUGIN}  gradient_accumulation_steps: 4\n", "", {"workload.global_batch_size": STEP},
    ),
    "the trainer's precision before accelerate's": (
        SFT, f"{PLUGIN}  zero_stage: 2\nmixed_precision: 'no'\n", "",
        {"launcher": "deepspeed", "workload.precision": "bf16"},
    ),
    "accelerate's precision where the trainer says none": (
        SFT.removesuffix(" --bf16 True"), f"{PLUGIN}  zero_stage: 2\nmixed_precision: bf16\n", "",
        {"launcher": "deepspeed", "workload.precision": "bf16"},
    ),
    # the file says 8 processes of one machine; the command starts 4 × 8
    "options before accelerate's file": (
        SFT.replace("a.yaml", "a.yaml --num_machines 4 --num_processes 32 --main_process_ip $HEAD"),
        MESH, "",
        {**shares("accelerate", 3, 32), "num_nodes": 4, "gpus_per_node": 8,
         "workload.global_batch_size": 32 * 2 * 4},
    ),
    "ZeRO-3": (
        launched("--use_deepspeed --zero_stage 3"), "", "",
        shares("deepspeed", 3, 8, offload="none", data_parallel_size=8),
    ),
    "ZeRO-2 with states on the host": (
        launched("--use_deepspeed --zero_stage=2 --offload_optimizer_device cpu"), "", "",
        shares("deepspeed", 2, 8, offload="optimizer", data_parallel_size=8),
    ),
    "FSDP2": (
        launched("--fsdp-version=2 --use_fsdp"), "", "",
        shares("accelerate", 3, 8, offload="none", data_parallel_size=8),
    ),
    "FSDP1 by a number": (
        launched("--use_fsdp --fsdp_sharding_strategy 2"), "", "",
        shares("accelerate", 2, 8, offload="none", data_parallel_size=8),
    ),
    "FSDP1 of replicas": (
        launched("--use_fsdp --fsdp_sharding_strategy NO_SHARD"), "", "",
        shares("accelerate", 0, 1, offload="none", data_parallel_size=8),
    ),
    # 8 processes on 2 machines: 4 shards in each, twice
    "FSDP1 within machines": (
        launched("--use_fsdp --fsdp_sharding_strategy HYBRID_SHARD --num_machines 2 --main_process_ip $H"),
        "", "", shares("accelerate", 3, 4, offload="none", data_parallel_size=8),
    ),
    # launch.py: num_machines is 1 by default
    "FSDP1 within one machine": (
        launched("--use_fsdp --fsdp_sharding_strategy HYBRID_SHARD"), "", "", shares("accelerate", 3, 8),
    ),
    "replicas": (
        launched("--multi_gpu"), "", "",
        shares("accelerate", 0, 1, offload="none", data_parallel_size=8),
    ),
    "FSDP by the environment": (
        f"ACCELERATE_USE_FSDP=1 FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP {PLAIN}", "", "",
        shares("accelerate", 2, 8),
    ),
    "DeepSpeed by the environment": (
        f"ACCELERATE_USE_DEEPSPEED=true ACCELERATE_DEEPSPEED_ZERO_STAGE=3 {PLAIN}", "", "",
        shares("deepspeed", 3, 8),
    ),
    "FSDP that the environment turns off": (
        f"ACCELERATE_USE_FSDP=false FSDP_SHARDING_STRATEGY=FULL_SHARD {PLAIN}", "", "",
        shares("accelerate", 0, 1),
    ),
    "the trainer's own FSDP": (
        f"{PLAIN} --fsdp 'shard_grad_op auto_wrap'", "", "",
        {**shares("accelerate", 2, 8), "workload.framework_options.elementwise_fused": False},
    ),
    "what is compiled is fused": (
        f"{PLAIN} --fsdp 'shard_grad_op auto_wrap' --torch_compile True", "", "",
        {"workload.framework_options.elementwise_fused": None},
    ),
    "the trainer's own FSDP2": (
        f"{PLAIN} --fsdp 'shard_grad_op auto_wrap' --fsdp_config '{{\"version\": 2}}'", "", "",
        shares("accelerate", 2, 8),
    ),
    "DeepSpeed's file": (
        PLAIN.replace("torchrun --nproc_per_node 8 t.py", "deepspeed --num_gpus 8 t.py --deepspeed z.json"),
        "", DS, {**BATCH, **shares("deepspeed", 2, 8)},
    ),
    # DeepSpeed-Chat's switches; its model has another name
    "DeepSpeed-Chat offloads": (
        f"{PLAIN.replace('--model_name_or_path', '--model_name')} --deepspeed --zero_stage 2 --offload",
        "", "",
        {"model.name": "llama-2-7b", "configuration.offload": "optimizer"},
    ),
    "DeepSpeed-Chat does not offload": (
        f"{PLAIN.replace('--model_name_or_path', '--model_name')} --deepspeed --zero_stage 2", "", "",
        {"configuration.offload": "none"},
    ),
    "a launch behind the two dashes of one that submits it": (
        f"python submit.py --gpus 8 -- {launched('--use_deepspeed --zero_stage 2')}", "", "",
        {"configuration.num_gpus": 8, "configuration.zero_stage": 2},
    ),
    "GPUs that are seen": (
        "export CUDA_VISIBLE_DEVICES=0,1\n" + PLAIN.replace("--nproc_per_node 8", "--nproc-per-node gpu"),
        "", "", {"configuration.data_parallel_size": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("command", "config", "json", "expected"), SHARES.values(), ids=SHARES)
def test_ranks_share_as_the_command_its_files_and_the_environment_say(
    command: str, config: str, json: str, expected: Mapping[str, object]
) -> None:
    assert figures(read(command, config=config, json=json), expected) == expected


def on_an_h100(words: str) -> str:
    return f'A="--report_to none"\nif nvidia-smi | grep -q H100; then A="$A {words}"; fi\n{LAUNCH} $A'


TRAINS: dict[str, tuple[str, Mapping[str, object]]] = {
    "a batch of evaluations is none of the steps'": (
        f"{PLAIN.replace('--per_device_train_batch_size 2 ', '')} --eval_batch_size 4",
        {"workload.global_batch_size": 8 * 8 * 4},  # 8 sequences by default
    ),
    "a batch of all ranks beside a rank's": (f"{PLAIN} --global_batch_size 64", BATCH),
    "paged moments": (f"{PLAIN} --optim paged_adamw_8bit", {"workload.optimizer": "adamw-8bit-paged"}),
    "moments of 4 bits": (f"{PLAIN} --optim adamw_torch_4bit", {"workload.optimizer": "adamw-8bit"}),
    "a switch that changes nothing here": (
        f"{PLAIN} --freeze_vision_tower true", {"unread": ("freeze_vision_tower",)},
    ),
    "adapters where peft puts them": (
        f"{PLAIN} --use_lora 1 --lora_r 8",
        {"workload.lora_rank": 8, "workload.lora_targets": ("q_proj", "v_proj")},
    ),
    "all linear layers and one of them, which ms-swift adds up": (
        f"{SWIFT} --target_modules all-linear q_proj",
        {"workload.lora_targets": SINGLE_TARGETS},
    ),
    "adapters of Mixtral's experts": (
        f"{PLAIN} --use_lora 1 --lora_r 8 --lora_target_modules w1,w2,w3",
        {"workload.lora_targets": ("w1", "w2", "w3")},
    ),
    "adapters by GPT-2's names, one of two layers": (
        f"{PLAIN} --use_lora 1 --lora_r 8 --lora_target_modules c_attn,c_proj".replace(
            "meta-llama/Llama-2-7b-hf", "openai-community/gpt2"
        ).replace("2048", "1024"),
        {"workload.lora_targets": ("o_proj", "down_proj", "qkv_proj")},
    ),
    "one list of adapters for several classes, of which two are Llama's": (
        f"{PLAIN} --use_lora 1 --lora_r 8 --lora_target_modules q_proj,v_proj,query_key_value,fc1,dense",
        {"workload.lora_targets": ("q_proj", "v_proj")},
    ),
    "a prefix of adapters that are off": (
        f"{PLAIN} --lora_path_prefix ckpt/ --use_peft False", {"workload.lora_rank": 0},
    ),
    "no adapters": (PLAIN, {"workload.lora_rank": 0}),
    "a tuned model": (
        PLAIN.replace("meta-llama/Llama-2-7b-hf", "lmsys/vicuna-13b-v1.5"), {"model.name": "llama-2-13b"},
    ),
    "a word that an unknown condition adds and that decides nothing": (
        on_an_h100("--logging_steps 1"), {"configuration.zero_stage": 0},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("command", "expected"), TRAINS.values(), ids=TRAINS)
def test_a_trainers_arguments_are_read(command: str, expected: Mapping[str, object]) -> None:
    assert figures(read(command), expected) == expected


# The words behind a plain command, and what is said of them.
UNPRICED = {
    "--fsdp hybrid_shard --fsdp_config '{\"version\": 2}'": "fsdp: line 1: hybrid_shard is FSDP1's alone",
    "--spectrum_config_path a.yaml": r"unknown option that affects .* Allowed: --ignore",
    "--customized_optim lamb": r"unknown option that affects .* Allowed: --ignore",
    "--context_parallel_size 2": r"unknown option that affects .* Allowed: --ignore",
    "--vision_tower openai/clip-vit-large": "vision_tower: line 1: cannot be read: models that see",
    "--visual_inputs true": "visual_inputs: line 1: cannot be read: models that see",
    "--lora_path_prefix ckpt/": "lora_path_prefix: line 1: of adapters",
    "--use_lora True --lora_config conf/lora.json": "lora_config: line 1: adapters in a separate file",
    "--medusa_num_heads 3": "medusa_num_heads",
    "--bits 4": "bits",
    "--low_rank_training True": "low_rank_training",
    "--image_tower clip": "image_tower",
    "--lora_rank 8": "lora_rank",
    "--trainable q_proj,v_proj": "trainable",
    "--modelopt.teacher_model big": "modelopt.teacher_model",
    **{f"--{name} 4": rf"{name}: .*affects how many sequences a step takes"
       for name in ("batch_size", "batch_size_training", "bsz", "micro_bs")},
}  # fmt: skip
OTHERS = ("dpo_tune_cache.py", "src/open_r1/grpo.py", "run_orpo.py", "reward_modeling.py")
ON_DEEPSPEED = f"deepspeed --num_gpus 8 t.py --deepspeed z.json {WORDS}"
SCRIPT_BATCH = ON_DEEPSPEED.replace("--deepspeed z", "--deepspeed --deepspeed_config z")
# The command, accelerate's file, DeepSpeed's, and what is said.
REFUSED: dict[str, tuple[str, str, str, str]] = {
    **{words: (f"{PLAIN} {words}", "", "", says) for words, says in UNPRICED.items()},
    **{program: (LAUNCH.replace("t.py", program), "", "",
                 "trains on preferences or rewards|generates answers") for program in OTHERS},
    "Megatron-LM's engine": (
        launched("--use_megatron_lm"), "", "", r"line 1 of a.sh: --use_megatron_lm cannot be read",
    ),
    "two ways to share": (
        launched("--multi_gpu --use_fsdp"), "", "", "line 1 of a.sh: --use_fsdp contradicts --multi_gpu",
    ),
    "a processor": (launched("--cpu"), "", "", "line 1 of a.sh: --cpu cannot be read: it runs on no GPU"),
    "a processor by its newer name": (
        launched("--use_cpu"), "", "", "line 1 of a.sh: --use_cpu cannot be read: it runs on no GPU",
    ),
    # false is the script then
    "another vendor": (launched("--use_xpu false"), "", "", "line 1 of a.sh: --use_xpu cannot be read"),
    "the plugin accumulates otherwise": (
        SFT, f"{PLUGIN}  gradient_accumulation_steps: 1\n", "", "line 6: 1, but the trainer accumulates 4",
    ),
    "the plugin next to DeepSpeed's file": (
        SFT, f"{NAMES_JSON}  zero_stage: 3\n", DS, r"zero_stage: line 7: contradicts deepspeed_config\.",
    ),
    "recomputed twice": (
        f"{SFT} --gradient_checkpointing true", f"{MESH}  activation_checkpointing: true\n", "",
        "and so is gradient_checkpointing.*Allowed: false, or",
    ),
    "another batch in DeepSpeed's file": (
        ON_DEEPSPEED, "", DS.replace('gpu": 2', 'gpu": 8'),
        "gpu: line 1: 8 in z.json, but 2 by the trainer's arguments",
    ),
    "another batch in the file of a script that calls DeepSpeed": (
        SCRIPT_BATCH, "", DS.replace('gpu": 2', 'gpu": 8'), r"8 in z\.json, but 2 by",
    ),
    "another accumulation in DeepSpeed's file": (
        ON_DEEPSPEED, "", DS.replace('steps": 4', 'steps": 1'),
        "_steps: line 1: 1 in z.json, but 4 by .* Allowed: auto, 4",
    ),
    "another type in DeepSpeed's file": (
        ON_DEEPSPEED, "", DS.replace("bf16", "fp16"), "fp16.enabled: line 1: true in z.json, but false by",
    ),
    # 8 is of a node, and how many start is the submitter's business
    "nodes of a command that submits": (
        f"python submit.py --num_nodes 4 --gpus 8 -- {LAUNCH}", "", "", "num_gpus",
    ),
    "preferences behind the two dashes": (
        f"python submit.py --gpus 8 -- {LAUNCH.replace('t.py', 'tune_dpo.py')}", "", "",
        "tune_dpo.py trains on preferences",
    ),
    "as many processes as there are GPUs": (  # one was taken
        PLAIN.replace("--nproc_per_node 8", "--nproc-per-node gpu"), "", "", "num_gpus",
    ),
    "a batch that another program divides": (
        f"{PLAIN.replace('--per_device_train_batch_size 2 ', '')} --global_batch_size 64", "", "",
        "global_batch_size: .*no per_device_train_batch_size",
    ),
    "a word that an unknown condition adds and that decides the run": (
        on_an_h100("--fsdp full_shard"), "", "", r"fsdp: line 2: \$A depends on a condition on line 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("command", "config", "json", "says"), REFUSED.values(), ids=REFUSED)
def test_a_run_that_stops_or_trains_otherwise_is_refused_with_its_argument(
    command: str, config: str, json: str, says: str
) -> None:
    with pytest.raises(InvalidProblemError, match=says):
        read(command, config=config, json=json)


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("--optim paged_adamw_8bit", "paged_adamw_8bit: its states leave the GPU where it is full"),
        ("--optim adamw_torch_4bit", "states are priced in 8 bits"),
        ("--use_lora 1 --lora_r 8", "q_proj and v_proj, peft's own"),
    ],
)
def test_what_is_assumed_of_an_argument_is_told(words: str, note: str) -> None:
    assert any(note in one for one in read(f"{PLAIN} {words}").notes)


def test_what_is_told_counts_before_the_batch_and_the_ranks_of_the_files() -> None:
    told = Overrides(values={"micro_batch_size": 1})
    found = read(f"{PLAIN} --fsdp 'shard_grad_op auto_wrap'", told)
    assert (found.configuration.micro_batch_size, found.workload.global_batch_size) == (1, 8 * 1 * 4)
    told = Overrides(values={"micro_batch_size": 1, "num_microbatches": 2})
    config = read(ON_DEEPSPEED, told, json=DS).configuration
    assert (config.zero_stage, config.micro_batch_size, config.num_microbatches) == (2, 1, 2)
    submitted = f"python submit.py --num_nodes 4 --gpus 8 -- {launched('--use_deepspeed --zero_stage 2')}"
    found = read(submitted, Overrides(num_gpus=32))
    assert (found.configuration.zero_stage, found.workload.global_batch_size) == (2, 32 * 2 * 4)
    each = read(PLAIN.replace("--nproc_per_node 8", "--nproc-per-node gpu"), Overrides(num_gpus=4))
    assert each.configuration.data_parallel_size == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("torchrun t.py --model_name_or_path meta-llama/Llama-2-7b-hf", "0 is not a"),
        ("swift sft --model meta-llama/Llama-2-7b-hf", "0 is not a"),
        (MEGATRON, "--micro-batch-size: must be 1 or more"),
    ],
    ids=["a trainer", "ms-swift", "Megatron-LM"],
)  # fmt: skip
def test_a_supplied_micro_batch_of_0_is_refused(text: str, says: str) -> None:
    words = "" if "pretrain" in text else "--max_length 64 --bf16 true --per_device_train_batch_size 2"
    with pytest.raises(InvalidProblemError, match=says):
        read(f"{text} {words}", Overrides(num_gpus=8, values={"micro_batch_size": 0}))


def test_a_computation_cannot_be_told_by_a_variable() -> None:
    with pytest.raises(InvalidProblemError) as caught:
        read(SFT.replace("size 2", "size $(nproc)").replace("conf/a.yaml", "conf/b.yaml"))
    assert "--var" not in str(caught.value)
    assert "meshwright capture" in str(caught.value)


def test_experts_of_a_fork_are_refused_listed_where_they_are_off_and_ignored_where_that_is_asked() -> None:
    # MegaBlocks' fork: read as a dense model, and 64 experts were lost
    script = f"{MEGATRON} --vocab-size 512"
    for refused, says in (
        (
            "--moe-num-experts=64 --moe-top-k=1",
            "--moe-num-experts: line 1: unknown option that affects which",
        ),
        ("--my-tensor-parallel-size 2", "--my-tensor-parallel-size: .* how ranks share the model"),
    ):
        with pytest.raises(InvalidProblemError, match=says):
            read(f"{script} {refused}")
    for off in ("--moe-num-experts 0", "--my-tensor-parallel-size 1"):
        assert read(f"{script} {off}").unread == (off.split()[0],)
    passed = read(f"{script} --moe-num-experts 64", Overrides(ignored=("--moe-num-experts",)))
    assert any("--moe-num-experts is ignored" in note for note in passed.notes)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "own.yaml",
            (f"{NATIVE}max_seq_length: 2048\nfsdp: full_shard auto_wrap\nfsdp_config:\n  version: 2\n"
             "  activation_checkpointing: true\n"),
            {**shares("accelerate", 3, 8, recompute_granularity="full"), "unread": ()},
        ),
        (
            "sft.json",
            ('{"model_name_or_path": "mistralai/Mistral-7B-v0.1", "per_device_train_batch_size": 2,'
             ' "gradient_accumulation_steps": 4, "max_seq_length": 1024, "bf16": true}'),
            {"model.name": "mistral-7b", "workload.global_batch_size": STEP},
        ),
    ],
)  # fmt: skip
def test_arguments_of_a_trainer_stand_in_a_file_too(
    name: str, text: str, expected: Mapping[str, object]
) -> None:
    assert figures(read(text, Overrides(num_gpus=8), name=name), expected) == expected


def test_a_file_of_arguments_that_generates_answers_is_refused() -> None:
    grpo = f"{NATIVE}num_generations: 16\nreward_funcs:\n- accuracy\nmax_length: 512\npacking: false\n"
    with pytest.raises(InvalidProblemError, match=r"num_generations: line 4: cannot be read"):
        read(grpo, name="a.yaml")


def test_accelerates_file_may_be_json() -> None:
    words = SFT.replace("a.yaml", "a.json")
    files = {"a.json": '{"distributed_type": "MULTI_GPU", "num_processes": 8}', "run.sh": words}
    found = read_launch_files(Source(name="run.sh", text=words, files=files), Overrides())
    assert found.configuration.data_parallel_size == 8


@pytest.mark.parametrize(
    ("model", "longest", "positions"),
    [("gpt2", 1024, 1024), ("distilgpt2", 1024, 1024), ("facebook/opt-125m", 10**30, 2048)],
)
def test_blocks_of_the_example_are_those_of_its_own_rule(model: str, longest: int, positions: int) -> None:
    """transformers 00d481d1, run_clm.py: where both rules agree, and the tokenizer's length is known."""
    newer = longest if longest <= positions else min(1024, positions)
    older = 1024  # DeepSpeedExamples 45b4b715, run_clm_no_trainer.py:347
    assert newer == older
    words = f"--do_train --model_name_or_path {model} --per_device_train_batch_size 4 --bf16 true"
    source = Source(name="run.sh", text=f"torchrun --nproc_per_node 2 run_clm.py {words}\n")
    if positions == older:
        assert read_launch_files(source, Overrides()).workload.seq_length == newer
        return
    with pytest.raises(InvalidProblemError, match="max_seq_length of the training script"):
        read_launch_files(source, Overrides())  # no fact of a model says its tokenizer's length
