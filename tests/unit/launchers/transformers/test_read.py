"""What trainers' launch files of other people hold, each reduced to the lines that were read wrong."""

from __future__ import annotations

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError

SIZES = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 128 "
    "--max-position-embeddings 128 --bf16 "
)


def read(text: str, overrides: Overrides | None = None, name: str = "a.sh") -> LaunchFile:
    return read_launch_files(Source(name=name, text=text), overrides or Overrides())


SFT = (
    "accelerate launch --config_file conf/a.yaml -m trl.scripts.sft "
    "--model_name_or_path meta-llama/Llama-2-7b-hf "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_length 2048 --bf16 True\n"
)
SHARED = "num_machines: 1\nnum_processes: 8\ncompute_environment: LOCAL_MACHINE\n"


@pytest.mark.parametrize(
    ("config", "json", "expected"),
    [
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n", "", ("accelerate", 3)),
        ("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n", "", ("deepspeed", 2)),
        ("distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: z.json\n",
         ('{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 1}, "train_batch_size": "auto",'
         ' "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}'),
         ("deepspeed", 1)),
        ("distributed_type: MULTI_GPU\n", "", ("accelerate", 0)),
    ],
)  # fmt: skip
def test_accelerates_file_says_how_the_trainers_ranks_share(
    config: str, json: str, expected: tuple[str, int]
) -> None:
    files = {"a.yaml": SHARED + config, "z.json": json, "run.sh": SFT}
    found = read_launch_files(Source(name="run.sh", text=SFT, files=files), Overrides())
    assert (found.launcher, found.configuration.zero_stage) == expected
    # 8 processes × 2 × 4
    assert (found.workload.global_batch_size, found.workload.seq_length) == (64, 2048)
    assert (found.model.name, found.workload.precision) == ("llama-2-7b", "bf16")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--use_deepspeed --zero_stage 3", ("deepspeed", 3, 8, "none")),
        ("--use_deepspeed --zero_stage=2 --offload_optimizer_device cpu", ("deepspeed", 2, 8, "optimizer")),
        ("--fsdp-version=2 --use_fsdp", ("accelerate", 3, 8, "none")),
        ("--use_fsdp --fsdp_sharding_strategy 2", ("accelerate", 2, 8, "none")),
        ("--use_fsdp --fsdp_sharding_strategy NO_SHARD", ("accelerate", 0, 1, "none")),
        # 8 processes on 2 machines: 4 shards in each, twice
        ("--use_fsdp --fsdp_sharding_strategy HYBRID_SHARD --num_machines 2 --main_process_ip $HEAD",
         ("accelerate", 3, 4, "none")),
        ("--multi_gpu", ("accelerate", 0, 1, "none")),
    ],
)  # fmt: skip
def test_options_of_accelerate_launch_say_how_ranks_share(
    options: str, expected: tuple[str, int, int, str]
) -> None:
    script = SFT.replace(
        "--config_file conf/a.yaml -m trl.scripts.sft", f"--num_processes 8 {options} t.py"
    )
    found = read(script)
    config = found.configuration
    said = found.launcher, config.zero_stage, config.zero_shard_size, config.offload
    assert (said, config.data_parallel_size) == (expected, 8)


def test_hybrid_shards_span_the_one_machine_of_accelerate_and_its_megatron_engine_is_refused() -> None:
    start = "--config_file conf/a.yaml -m trl.scripts.sft"
    hybrid = SFT.replace(start, "--num_processes 8 --use_fsdp --fsdp_sharding_strategy HYBRID_SHARD t.py")
    assert read(hybrid).configuration.zero_shard_size == 8  # launch.py: num_machines is 1 by default
    with pytest.raises(InvalidProblemError, match=r"line 1 of a.sh: --use_megatron_lm cannot be read"):
        read(SFT.replace(start, "--num_processes 8 --use_megatron_lm t.py"))


def test_options_of_the_command_count_before_accelerates_file() -> None:
    # the file says 8 processes of one machine; the command starts 4 × 8
    more = "--num_machines 4 --num_processes 32 --main_process_ip $HEAD"
    words = SFT.replace("a.yaml", f"a.yaml {more}")
    files = {
        "a.yaml": SHARED + "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n",
        "run.sh": words,
    }
    found = read_launch_files(Source(name="run.sh", text=words, files=files), Overrides())
    assert (found.num_nodes, found.gpus_per_node) == (4, 8)
    assert (found.configuration.zero_shard_size, found.workload.global_batch_size) == (32, 32 * 2 * 4)


def test_the_trainers_own_fsdp_is_that_of_accelerate_and_what_is_told_counts_before_its_batch() -> None:
    start = "accelerate launch --config_file conf/a.yaml -m trl.scripts.sft"
    own = "torchrun --nnodes 1 --nproc_per_node 8 t.py --fsdp 'shard_grad_op auto_wrap'"
    words = SFT.replace(start, own)
    found = read(words, Overrides(values={"micro_batch_size": 1}))
    assert (found.configuration.zero_stage, found.configuration.zero_shard_size) == (2, 8)
    assert (found.configuration.micro_batch_size, found.workload.global_batch_size) == (1, 8 * 1 * 4)
    assert not found.workload.framework_options["elementwise_fused"]  # nothing is compiled
    compiled = read(words.replace("--bf16", "--torch_compile True --bf16"))
    assert "elementwise_fused" not in compiled.workload.framework_options


DS = (
    '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": true},'
    ' "zero_optimization": {"stage": 2}}'
)


@pytest.mark.parametrize(
    ("json", "says"),
    [
        (DS.replace('gpu": 2', 'gpu": 8'), "gpu: line 1: 8 in z.json, but 2 by the trainer's arguments"),
        (DS.replace('steps": 4', 'steps": 1'), "_steps: line 1: 1 in z.json, but 4 by .* Allowed: auto, 4"),
        (DS.replace("bf16", "fp16"), "fp16.enabled: line 1: true in z.json, but false by"),
    ],
)
def test_a_trainer_stops_where_deepspeeds_file_says_another_batch_or_type(json: str, says: str) -> None:
    start = "accelerate launch --config_file conf/a.yaml -m trl.scripts.sft"
    words = SFT.replace(start, "deepspeed --num_gpus 8 t.py --deepspeed z.json")

    def run(text: str, json: str, overrides: Overrides | None = None) -> LaunchFile:
        source = Source(name="run.sh", text=text, files={"z.json": json, "run.sh": text})
        return read_launch_files(source, overrides or Overrides())

    assert run(words, DS).workload.global_batch_size == 64  # 8 ranks × 2 × 4
    with pytest.raises(InvalidProblemError, match=says):
        run(words, json)
    own = words.replace("--deepspeed z", "--deepspeed --deepspeed_config z")
    with pytest.raises(InvalidProblemError, match=r"8 in z\.json, but 2 by"):  # batches are the script's
        run(own, DS.replace('gpu": 2', 'gpu": 8'))
    overrides = Overrides(values={"micro_batch_size": 1, "num_microbatches": 2})
    found = run(words, DS, overrides).configuration  # what is overrides counts before the files
    assert (found.zero_stage, found.micro_batch_size, found.num_microbatches) == (2, 1, 2)


TRAINED = "{} meta-llama/Llama-2-7b-hf --max_length 64 --bf16 true --per_device_train_batch_size 2"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TRAINED.format("torchrun t.py --model_name_or_path"), "0 is not a"),
        (TRAINED.format("swift sft --model"), "0 is not a"),
        (f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES}", "--micro-batch-size: must be 1 or more"),
    ],
)
def test_a_supplied_micro_batch_of_0_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidProblemError, match=says):
        read(text, Overrides(num_gpus=8, values={"micro_batch_size": 0}))


def shared(config: str, words: str = SFT, **files: str) -> LaunchFile:
    """The run of ``words`` with accelerate's file."""
    beside = {name.replace("__", "."): text for name, text in files.items()}
    files = {"a.yaml": SHARED + config, "run.sh": words, **beside}
    return read_launch_files(Source(name="run.sh", text=words, files=files), Overrides())


def test_accelerates_plugin_accumulates_as_the_trainer_and_says_nothing_beside_deepspeeds_file() -> None:
    plugin = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  gradient_accumulation_steps: 4\n"
    assert shared(plugin).workload.global_batch_size == 64  # 8 × 2 × 4
    with pytest.raises(InvalidProblemError, match="line 6: 1, but the trainer accumulates 4"):
        shared(plugin.replace("steps: 4", "steps: 1"))
    named = plugin.replace(
        "gradient_accumulation_steps: 4", "deepspeed_config_file: z.json\n  zero_stage: 3"
    )
    with pytest.raises(InvalidProblemError, match=r"zero_stage: line 7: contradicts deepspeed_config\."):
        shared(named, z__json=DS)


def test_accelerates_file_may_leave_out_the_beginning_of_fsdps_names() -> None:
    mesh = "distributed_type: FSDP\nfsdp_config:\n  version: 2\n  reshard_after_forward: false\n"
    found = shared(mesh + "  activation_checkpointing: true\n")
    assert (found.configuration.zero_stage, found.configuration.recompute_granularity) == (2, "full")
    assert not found.unread


def test_a_trainer_does_not_recompute_twice() -> None:
    mesh = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  activation_checkpointing: true\n"
    with pytest.raises(InvalidProblemError, match=r"and so is gradient_checkpointing.*Allowed: false, or"):
        shared(mesh, SFT.replace("--bf16", "--gradient_checkpointing true --bf16"))
    found = shared(mesh, SFT.replace("--bf16", "--gradient_checkpointing false --bf16"))
    assert found.configuration.recompute_granularity == "full"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--multi_gpu --use_fsdp", "line 1 of a.sh: --use_fsdp contradicts --multi_gpu"),
        ("--cpu", "line 1 of a.sh: --cpu cannot be read: it runs on no GPU"),
        ("--use_cpu", "line 1 of a.sh: --use_cpu cannot be read: it runs on no GPU"),
        ("--use_xpu false", "line 1 of a.sh: --use_xpu cannot be read"),  # false is the script then
    ],
)
def test_what_accelerate_launch_refuses_is_refused(options: str, says: str) -> None:
    with pytest.raises(InvalidProblemError, match=says):
        read(
            SFT.replace("--config_file conf/a.yaml -m trl.scripts.sft", f"--num_processes 8 {options} t.py")
        )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ("ACCELERATE_USE_FSDP=1 FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP", ("accelerate", 2)),
        ("ACCELERATE_USE_DEEPSPEED=true ACCELERATE_DEEPSPEED_ZERO_STAGE=3", ("deepspeed", 3)),
        ("ACCELERATE_USE_FSDP=false FSDP_SHARDING_STRATEGY=FULL_SHARD", ("accelerate", 0)),
    ],
)
def test_under_torchrun_the_environment_says_how_ranks_share(
    environment: str, expected: tuple[str, int]
) -> None:
    start = "accelerate launch --config_file conf/a.yaml -m trl.scripts.sft"
    found = read(SFT.replace(start, f"{environment} torchrun --nproc_per_node 8 t.py"))
    assert (found.launcher, found.configuration.zero_stage) == expected


def test_the_trainers_fsdp_is_configured_by_a_section_or_by_json_on_the_command() -> None:
    start = "accelerate launch --config_file conf/a.yaml -m trl.scripts.sft"
    own = SFT.replace(start, "torchrun --nproc_per_node 8 t.py --fsdp 'shard_grad_op auto_wrap'")
    assert (
        read(own.replace("--bf16", "--fsdp_config '{\"version\": 2}' --bf16")).configuration.zero_stage == 2
    )
    second = own.replace("shard_grad_op", "hybrid_shard")
    with pytest.raises(InvalidProblemError, match="fsdp: line 1: hybrid_shard is FSDP1's alone"):
        read(second.replace("--bf16", "--fsdp_config '{\"version\": 2}' --bf16"))
    text = FULL.replace("stage: sft\ndo_train: true\nfinetuning_type: full\ncutoff_len", "max_seq_length")
    text += "fsdp: full_shard auto_wrap\nfsdp_config:\n  version: 2\n  activation_checkpointing: true\n"
    found = read(text, Overrides(num_gpus=8), "own.yaml")
    assert (found.configuration.zero_stage, found.configuration.recompute_granularity) == (3, "full")
    assert not found.unread


@pytest.mark.parametrize("json", ["", DS])
def test_trl_runs_on_accelerates_plugin_of_deepspeed(json: str) -> None:
    own = (
        "model_name_or_path: meta-llama/Llama-2-7b-hf\nmax_length: 2048\npacking: true\ndtype: bfloat16\n"
        "per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\n"
    )
    words = "accelerate launch --config_file a.yaml -m trl.scripts.sft --config own.yaml\n"
    plugin = "deepspeed_config_file: z.json" if json else "zero_stage: 2"
    config = f"distributed_type: DEEPSPEED\ndeepspeed_config:\n  {plugin}\n"
    found = shared(config, words, own__yaml=own, z__json=json)
    # DeepSpeed keeps weights in fp32 next to those that are loaded in bf16
    assert (found.launcher, found.workload.optimizer) == ("deepspeed", "adamw")
    assert (found.configuration.zero_stage, found.configuration.zero_shard_size) == (2, 8)
    assert (found.workload.global_batch_size, found.configuration.recompute_granularity) == (64, "full")
    assert (found.num_nodes, found.gpus_per_node, found.unread) == (1, 8, ())
    four, config = (f"{own}use_peft: true\nload_in_4bit: true\n", config.replace("stage: 2", "stage: 3"))
    with pytest.raises(InvalidProblemError, match="load_in_4bit: line 8: weights of 4 bits cut over ranks"):
        shared(config, words, own__yaml=four, z__json=json.replace('stage": 2', 'stage": 3'))


PLUGIN = "deepspeed_config:\n  deepspeed_config_file: z.json\n"
MESH = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
FULL = (
    "model_name_or_path: meta-llama/Llama-2-7b-hf\nstage: sft\ndo_train: true\n"
    "finetuning_type: full\ncutoff_len: 2048\n"
    "per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nbf16: true\n"
)


@pytest.mark.parametrize(
    ("more", "config", "expected"),
    [
        ("", MESH, ("llama-factory-accelerate", 3, "adamw")),
        ("pure_bf16: true\n", MESH,
         ("llama-factory-accelerate", 3, "adamw")),  # FSDP2 casts up what is trained
        ("pure_bf16: true\n", "distributed_type: MULTI_GPU\n",
         ("llama-factory-accelerate", 0, "adamw-pure-bf16")),
        ("pure_bf16: true\n", f"distributed_type: DEEPSPEED\n{PLUGIN}", ("deepspeed", 1, "adamw")),
    ],
)  # fmt: skip
def test_llama_factory_reads_accelerates_file_as_every_trainer_does(
    more: str, config: str, expected: tuple[str, int, str]
) -> None:
    json = (
        '{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 1}, "train_batch_size": "auto",'
        ' "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}'
    )
    script = "accelerate launch --config_file conf/a.yaml src/train.py conf/own.yaml\n"
    files = {"a.yaml": SHARED + config, "own.yaml": FULL + more, "run.sh": script, "z.json": json}
    found = read_launch_files(Source(name="run.sh", text=script, files=files), Overrides())
    assert (found.launcher, found.configuration.zero_stage, found.workload.optimizer) == expected
    assert (found.workload.global_batch_size, found.num_nodes, found.gpus_per_node) == (64, 1, 8)
    del files["a.yaml"]
    with pytest.raises(InvalidProblemError, match=r"line 1 of run.sh: conf/a.yaml is not next to it"):
        read_launch_files(Source(name="run.sh", text=script, files=files), Overrides())


@pytest.mark.parametrize(
    "program", ["dpo_tune_cache.py", "src/open_r1/grpo.py", "run_orpo.py", "reward_modeling.py"]
)
def test_programs_that_train_on_preferences_are_no_training_on_sequences(program: str) -> None:
    with pytest.raises(InvalidProblemError, match=r"trains on preferences or rewards|generates answers"):
        read(SFT.replace("--config_file conf/a.yaml -m trl.scripts.sft", f"--num_processes 8 {program}"))
    grpo = "num_generations: 16\nreward_funcs:\n- accuracy\nmax_length: 512\npacking: false\n"
    with pytest.raises(InvalidProblemError, match=r"num_generations: line 6: cannot be read"):
        read(FULL.replace("stage: sft\ndo_train: true\nfinetuning_type: full\n", "") + grpo, name="a.yaml")


DEEP = (
    "sed 's/CONFIG_MBSIZE/4/' ds_TEMPLATE.json | sed 's/ZERO_STAGE/1/' > ds_config_7B.json\n"
    f"deepspeed pretrain_gpt.py {SIZES} --vocab-size 512 --tensor-model-parallel-size 1 "
    "--micro-batch-size 4 --global-batch-size 32 --deepspeed --deepspeed_config ds_config_7B.json\n"
)


def test_the_stage_that_a_script_fills_into_deepspeeds_template_is_read() -> None:
    overrides = Overrides(num_gpus=8)
    assert (
        read(DEEP, overrides).configuration.zero_stage == 1
    )  # the template is not there, its place is filled
    away = '{"zero_optimization": {"stage": ZERO_STAGE, "offload_optimizer": {"device": "cpu"}}}'
    files = {"ds_TEMPLATE.json": away, "a.sh": DEEP}
    found = read_launch_files(Source(name="a.sh", text=DEEP, files=files), overrides)
    assert (found.configuration.zero_stage, found.configuration.offload) == (1, "optimizer")
    files["ds_TEMPLATE.json"] = '{"fp16": {"enabled": true}, "zero_optimization": {"stage": ZERO_STAGE}}'
    with pytest.raises(InvalidProblemError, match="but --bf16 on line 2 of the script"):
        read_launch_files(Source(name="a.sh", text=DEEP, files=files), overrides)
    with pytest.raises(InvalidProblemError, match=r"ds_config_7B.json is not next to the file, and --z"):
        read(DEEP.partition("\n")[2], overrides)


def test_the_trainers_precision_counts_before_accelerates_and_after_it_the_files() -> None:
    file = f"{SHARED}distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n"
    for words, said in ((SFT, "'no'"), (SFT.replace(" --bf16 True", ""), "bf16")):
        files = {"a.yaml": f"{file}mixed_precision: {said}\n", "run.sh": words}
        found = read_launch_files(Source(name="run.sh", text=words, files=files), Overrides())
        assert (found.launcher, found.workload.precision) == ("deepspeed", "bf16")


def test_accelerates_file_may_be_json() -> None:
    words = SFT.replace("a.yaml", "a.json")
    files = {"a.json": '{"distributed_type": "MULTI_GPU", "num_processes": 8}', "run.sh": words}
    found = read_launch_files(Source(name="run.sh", text=words, files=files), Overrides())
    assert found.configuration.data_parallel_size == 8


MESH = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
FACTORY = (
    "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\ndo_train: true\n"
    "finetuning_type: full\ncutoff_len: 2048\n"
    "per_device_train_batch_size: 1\ngradient_accumulation_steps: 2\nbf16: true\npure_bf16: true\n"
)


def test_what_follows_llama_factorys_file_counts_before_it() -> None:
    run = (
        "llamafactory-cli train conf/full.yaml per_device_train_batch_size=4 deepspeed=ds_z3_config.json\n"
    )
    source = Source(name="run.sh", text=run, files={"full.yaml": FACTORY, "run.sh": run})
    found = read_launch_files(source, Overrides(num_gpus=8))
    assert (found.launcher, found.configuration.zero_stage) == ("deepspeed", 3)
    assert found.workload.global_batch_size == 64  # 8 × 4 × 2
    assert "line 1 of the command: per_device_train_batch_size is 4, not the file's" in found.notes


@pytest.mark.parametrize(
    ("more", "optimizer"),
    [("", "adamw-pure-bf16"), ("deepspeed: ds_z0_config.json\n", "adamw")],  # whose copy is in fp32
)
def test_pure_bf16_keeps_no_copy_on_plain_replicas_alone(more: str, optimizer: str) -> None:
    found = read(FACTORY + more, Overrides(num_gpus=8), "full.yaml")
    assert (found.configuration.zero_stage, found.workload.optimizer) == (0, optimizer)


def test_fsdp2_casts_llama_factorys_pure_bf16_up() -> None:
    run = "accelerate launch --config_file a.yaml src/train.py full.yaml\n"
    mesh = f"{SHARED}distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
    files = {"a.yaml": mesh, "full.yaml": FACTORY, "run.sh": run}
    found = read_launch_files(Source(name="run.sh", text=run, files=files), Overrides())
    assert (found.configuration.zero_stage, found.workload.optimizer) == (3, "adamw")


def test_a_command_in_llama_factorys_names_has_its_defaults() -> None:
    words = " ".join(
        f"--{line.replace(': ', ' ')}" for line in FACTORY.splitlines() if "cutoff" not in line
    )
    found = read(f"torchrun --nproc_per_node 8 src/train.py {words}\n")
    assert (found.workload.seq_length, found.configuration.recompute_granularity) == (2048, "full")


def test_a_command_behind_the_two_dashes_of_one_that_submits_it_is_what_runs() -> None:
    start = "accelerate launch --config_file conf/a.yaml -m trl.scripts.sft"
    inner = "accelerate launch --num_processes 8 --use_deepspeed --zero_stage 2 t.py"
    submitted = SFT.replace(start, f"python submit.py --num_nodes 4 --gpus 8 -- {inner}")
    with pytest.raises(InvalidProblemError, match="num_gpus"):
        read(submitted)  # 8 is of a node, and how many start is the submitter's business
    found = read(submitted, Overrides(num_gpus=32))
    assert (found.configuration.zero_stage, found.workload.global_batch_size) == (2, 32 * 2 * 4)
    assert read(submitted.replace("--num_nodes 4 ", "")).configuration.num_gpus == 8
    with pytest.raises(InvalidProblemError, match=r"tune_dpo.py trains on preferences"):
        read(submitted.replace("t.py", "tune_dpo.py"))


def test_paged_optimizers_are_priced_on_the_gpu_and_a_computation_cannot_be_told() -> None:
    paged = read(SFT.replace("accelerate launch --config_file conf/a.yaml -m trl.scripts.sft",
                             "torchrun --nproc_per_node 8 t.py --optim paged_adamw_8bit"))  # fmt: skip
    assert paged.workload.optimizer == "adamw-8bit"
    assert any("paged_adamw_8bit: its states are priced on the GPU" in note for note in paged.notes)
    short = read(SFT.replace("accelerate launch --config_file conf/a.yaml -m trl.scripts.sft",
                             "torchrun --nproc_per_node 8 t.py --optim adamw_torch_4bit"))  # fmt: skip
    assert short.workload.optimizer == "adamw-8bit"
    assert any("states are priced in 8 bits" in note for note in short.notes)
    unknown = SFT.replace("size 2", "size $(nproc)").replace("conf/a.yaml", "conf/b.yaml")
    with pytest.raises(InvalidProblemError) as caught:
        read(unknown)
    assert "--var" not in str(caught.value)
    assert "meshwright capture" in str(caught.value)


def test_what_decides_a_run_is_not_passed_over() -> None:
    # MegaBlocks' fork: read as a dense model, and 64 experts were lost
    script = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} --vocab-size 512 --micro-batch-size 1 "
    assert read(script + "--moe-num-experts 0").unread == ("--moe-num-experts",)
    with pytest.raises(
        InvalidProblemError, match=r"--moe-num-experts: line 1: unknown option that affects which"
    ):
        read(script + "--moe-num-experts=64 --moe-top-k=1")
    with pytest.raises(
        InvalidProblemError, match=r"--my-tensor-parallel-size: .* how ranks share the model"
    ):
        read(script + "--my-tensor-parallel-size 2")
    assert read(script + "--my-tensor-parallel-size 1").unread == ("--my-tensor-parallel-size",)
    passed = read(script + "--moe-num-experts 64", Overrides(ignored=("--moe-num-experts",)))
    assert any("--moe-num-experts is ignored" in note for note in passed.notes)
    trained = SFT.replace("accelerate launch --config_file conf/a.yaml -m trl.scripts.sft",
                          "torchrun --nproc_per_node 8 t.py")  # fmt: skip
    for argument in (
        "--spectrum_config_path a.yaml",
        "--customized_optim lamb",
        "--context_parallel_size 2",
    ):
        with pytest.raises(InvalidProblemError, match=r"unknown option that affects .* Allowed: --ignore"):
            read(f"{trained.strip()} {argument}")
    assert read(f"{trained.strip()} --freeze_vision_tower true").unread == ("freeze_vision_tower",)


def test_lora_without_targets_adapts_what_peft_does() -> None:
    trained = SFT.replace("accelerate launch --config_file conf/a.yaml -m trl.scripts.sft",
                          "torchrun --nproc_per_node 8 t.py --use_lora 1 --lora_r 8")  # fmt: skip
    found = read(trained)
    assert (found.workload.lora_rank, found.workload.lora_targets) == (8, ("q_proj", "v_proj"))
    assert any("q_proj and v_proj, peft's own" in note for note in found.notes)
    factory = read(trained.replace("t.py", "t.py --stage sft --do_train --finetuning_type lora"))
    assert "down_proj" in factory.workload.lora_targets  # LLaMA-Factory's default is all of them
    # the names of Mixtral's experts, and GPT-2's, of which one is that of two layers
    named = {"w1,w2,w3": ("w1", "w2", "w3"), "c_attn,c_proj": ("linear_qkv", "linear_proj", "linear_fc2")}
    for words, own in named.items():
        assert read(f"{trained.strip()} --lora_target_modules {words}").workload.lora_targets == own


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


def test_what_decides_a_trainers_run_may_not_hang_on_an_unknown_condition() -> None:
    words = SFT.replace("--config_file conf/a.yaml -m trl.scripts.sft", "--num_processes 8 t.py")
    script = f'A="--report_to none"\nif nvidia-smi | grep -q H100; then A="$A {{}}"; fi\n{words[:-1]} $A\n'
    assert read(script.format("--logging_steps 1")).configuration.zero_stage == 0
    with pytest.raises(InvalidProblemError, match=r"fsdp: line 2: \$A depends on a condition on line 2"):
        read(script.format("--fsdp full_shard"))


def test_a_language_models_trainer_with_a_tower_for_images_is_refused() -> None:
    trained = SFT.replace("accelerate launch --config_file conf/a.yaml -m trl.scripts.sft",
                          "torchrun --nproc_per_node 8 t.py").strip()  # fmt: skip
    tuned = trained.replace("meta-llama/Llama-2-7b-hf", "lmsys/vicuna-13b-v1.5")
    assert read(tuned).model.name == "llama-2-13b"
    with pytest.raises(InvalidProblemError, match=r"vision_tower: line 1: cannot be read: models that see"):
        read(f"{tuned} --vision_tower openai/clip-vit-large-patch14-336")
    with pytest.raises(InvalidProblemError, match="visual_inputs: line 1: cannot be read: models that see"):
        read(f"{tuned} --visual_inputs true")


def test_arguments_of_a_trainer_stand_in_json_too() -> None:
    text = (
        '{"model_name_or_path": "mistralai/Mistral-7B-v0.1", "per_device_train_batch_size": 2,'
        ' "gradient_accumulation_steps": 4, "max_seq_length": 1024, "bf16": true}'
    )
    found = read(text, Overrides(num_gpus=8), "sft.json")
    assert (found.model.name, found.workload.global_batch_size) == ("mistral-7b", 8 * 2 * 4)


def test_older_names_of_torchtitan_are_read() -> None:
    text = (
        '[model]\nname = "llama2"\nflavor = "13B"\n[optimizer]\nname = "AdamW"\n[training]\n'
        "batch_size = 2\nseq_len = 2048\ndata_parallel_degree = -1\ntensor_parallel_degree = 2\n"
        '[experimental]\npipeline_parallel_degree = 1\n[activation_checkpoint]\nmode = "full"\n'
    )
    found = read(text, Overrides(num_gpus=16), "a.toml")
    mesh = found.configuration
    assert (mesh.tensor_parallel_size, mesh.data_parallel_size, mesh.zero_stage) == (2, 8, 3)
    assert found.workload.global_batch_size == 2 * 8
    assert found.model.num_parameters() == 13_015_864_320  # Llama 2 13B's


def test_rays_workers_are_the_ranks_of_llama_factory() -> None:
    text = (
        "model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct\nstage: sft\ndo_train: true\n"
        "finetuning_type: lora\n"
        "cutoff_len: 2048\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\nbf16: true\n"
    )
    with pytest.raises(InvalidProblemError, match="num_gpus"):
        read(text, name="a.yaml")
    found = read(f"{text}ray_num_workers: 4\n", name="a.yaml")
    assert (found.configuration.data_parallel_size, found.workload.global_batch_size) == (4, 4 * 1 * 8)


@pytest.mark.parametrize(
    "word",
    ["--medusa_num_heads 3", "--bits 4", "--low_rank_training True", "--image_tower clip", "--lora_rank 8",
     "--trainable q_proj,v_proj", "--modelopt.teacher_model big"],
)  # fmt: skip
def test_a_script_that_trains_something_else_is_refused_by_its_argument(word: str) -> None:
    script = (
        "torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-2-7b-hf --bf16 True "
        f"--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --model_max_length 2048 {word}\n"
    )
    with pytest.raises(InvalidProblemError, match=word.split(maxsplit=1)[0].removeprefix("--")):
        read(script)
    assert read(script.replace(word, "")).workload.lora_rank == 0


PLAIN = "torchrun --nproc_per_node 8 t.py " + SFT.split("sft ", 1)[1].rstrip()


@pytest.mark.parametrize("line", ["beta: 0.05", "loss_type: apo_zero", "precompute_ref_log_probs: true"])
def test_preferences_are_told_by_their_own_words(line: str) -> None:
    text = (
        "model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 1\nmax_length: 2048\nbf16: true\n"
    )
    assert read(text, Overrides(num_gpus=8), "a.yaml").workload.sample == "sequence"
    found = read(f"{text}{line}\n", Overrides(num_gpus=8), "a.yaml")
    assert (found.launcher, found.workload.sample) == ("trl", "pair")


def test_words_of_adapters_without_a_switch_are_asked_about() -> None:
    with pytest.raises(InvalidProblemError, match="lora_path_prefix: line 1: of adapters"):
        read(f"{PLAIN} --lora_path_prefix ckpt/\n")
    assert read(f"{PLAIN} --lora_path_prefix ckpt/ --use_peft False\n").workload.lora_rank == 0
    with pytest.raises(InvalidProblemError, match="lora_config: line 1: adapters in a separate file"):
        read(f"{PLAIN} --use_lora True --lora_config conf/lora.json\n")


def test_a_process_for_every_gpu_is_as_many_as_are_told_or_seen() -> None:
    text = PLAIN.replace("--nproc_per_node 8", "--nproc-per-node gpu")
    with pytest.raises(InvalidProblemError, match="num_gpus"):  # one was taken
        read(text + "\n")
    assert read(text + "\n", Overrides(num_gpus=4)).configuration.data_parallel_size == 4
    seen = read(f"export CUDA_VISIBLE_DEVICES=0,1\n{text}\n")
    assert seen.configuration.data_parallel_size == 2


@pytest.mark.parametrize(("count", "processes"), [("", 1), ("NPROC_PER_NODE=2 ", 2)])
def test_processes_of_ms_swift_on_several_gpus_each_are_refused(count: str, processes: int) -> None:
    text = f"CUDA_VISIBLE_DEVICES=0,1,2,3 {count}swift sft --model Qwen/Qwen3-8B --max_length 2048 "
    text += "--torch_dtype bfloat16 --per_device_train_batch_size 1"
    with pytest.raises(InvalidProblemError, match=r"NPROC_PER_NODE: \d on 4 visible GPUs"):
        read(f"{text}\n")
    assert read(f"{text} --deepspeed zero3\n").configuration.data_parallel_size == processes


def test_names_of_ms_swift_2_are_read() -> None:
    text = (
        "NPROC_PER_NODE=4 swift sft --model_id_or_path Qwen/Qwen2-7B-Instruct --sft_type full --dtype AUTO "
    )
    found = read(f"{text}--batch_size 4 --gradient_accumulation_steps 8 --deepspeed default-zero3\n")
    assert (found.configuration.zero_stage, found.configuration.micro_batch_size) == (3, 4)
    assert (found.workload.global_batch_size, found.workload.seq_length) == (4 * 4 * 8, 2048)
    assert found.workload.lora_rank == 0


def test_deepspeed_chats_switches_offload_and_a_model_may_be_called_model_name() -> None:
    text = PLAIN.replace("--model_name_or_path", "--model_name") + " --deepspeed --zero_stage 2"
    found = read(f"{text} --offload\n")
    assert (found.model.name, found.configuration.offload) == ("llama-2-7b", "optimizer")
    assert read(f"{text}\n").configuration.offload == "none"


def test_trls_own_program_recomputes_unless_it_is_an_older_one() -> None:
    text = SFT.replace("accelerate launch --config_file conf/a.yaml", "torchrun --nproc_per_node 4")
    assert read(text).configuration.recompute_granularity == "full"
    assert read(text.replace("max_length", "max_seq_length")).configuration.recompute_granularity == "none"
    found = read(text.replace("--max_length 2048 ", ""))
    assert found.workload.seq_length == 1024
    assert "max_length is not given: 1024 is TRL's default" in found.notes


FLAGSCALE = (
    "system: {tensor_model_parallel_size: 1, pipeline_model_parallel_size: 1, precision: {bf16: true}}\n"
    "model: {num_layers: 4, hidden_size: 4096, num_attention_heads: 32, seq_length: 512, "
    "max_position_embeddings: 512, micro_batch_size: 1, global_batch_size: 8, vocab_size: 1024, "
    "swiglu: true, %s}\n"
)


@pytest.mark.parametrize(
    ("own", "width"),
    [
        # 4 × 4096 × 2 / 3 = 10,922: the next multiple of 256 is 43 × 256
        ("multiple_of: 256", 11008),
        # 10,922 × 1.3 = 14,198: the next multiple of 4096 is 4 × 4096
        ("multiple_of: 4096, hidden_dim_multiplier: 1.3", 16384),
        ("multiple_of: 4096, ffn_hidden_size: 8192", 8192),
        ("hidden_dim_multiplier: 1.3", 10880),  # does nothing alone: Megatron-LM's 170 × 64
    ],
)
def test_flagscale_rounds_the_width_of_gated_layers_up_to_its_own_multiples(own: str, width: int) -> None:
    found = read(FLAGSCALE % own, Overrides(num_gpus=8), "7b.yaml")
    assert (found.model.ffn_hidden_size, found.unread) == (width, ())


def test_a_missing_hidden_size_is_named_and_not_the_width_that_follows_from_it() -> None:
    with pytest.raises(InvalidProblemError) as fault:
        read(
            (FLAGSCALE % "multiple_of: 256").replace("hidden_size: 4096, ", ""),
            Overrides(num_gpus=8),
            "7b.yaml",
        )
    assert ["hidden-size" in one.pointer for one in fault.value.errors] == [True]


@pytest.mark.parametrize("own", ["use_dualpipev: true", "num_mtp_predictor: 2", "multiple_of: 0"])
def test_an_argument_that_flagscale_has_and_no_price_counts_is_refused_in_any_section(own: str) -> None:
    with pytest.raises(InvalidProblemError, match=r"line 2: .*(is not a width|cannot be read)"):
        read(FLAGSCALE % own, Overrides(num_gpus=8), "7b.yaml")


SCRIPT = (
    "torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-2-7b-hf --bf16 True "
    "--gradient_checkpointing True --model_max_length 2048"
)


@pytest.mark.parametrize("name", ["batch_size", "batch_size_training", "bsz", "micro_bs"])
def test_a_batch_in_a_name_that_is_not_known_is_no_default(name: str) -> None:
    with pytest.raises(InvalidProblemError, match=rf"{name}: .*affects how many sequences a step takes"):
        read(f"{SCRIPT} --gradient_accumulation_steps 2 --{name} 4")


def test_a_batch_that_another_program_divides_is_refused_not_the_trainers_default() -> None:
    with pytest.raises(InvalidProblemError, match=r"global_batch_size: .*no per_device_train_batch_size"):
        read(f"{SCRIPT} --global_batch_size 64")


@pytest.mark.parametrize(
    ("words", "batch"),
    [
        ("--gradient_accumulation_steps 2 --eval_batch_size 4", 8 * 8 * 2),  # ranks × 8 by default × 2
        ("--global_batch_size 64 --per_device_train_batch_size 2", 8 * 2),
    ],
)
def test_the_trainers_batch_is_its_own_arguments(words: str, batch: int) -> None:
    assert read(f"{SCRIPT} {words}").workload.global_batch_size == batch
