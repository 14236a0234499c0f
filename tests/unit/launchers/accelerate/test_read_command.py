"""accelerate's DeepSpeed plugin without a file of DeepSpeed's, and machines that must find one another."""

from __future__ import annotations

import pytest

from meshwright.launchers.accelerate.read_command import shares_of
from meshwright.launchers.flags import flags_of
from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model
from meshwright.shell.values import Word, split_words

PLUGIN = """compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  gradient_accumulation_steps: 4
  offload_optimizer_device: cpu
  zero_stage: 2
main_process_ip: node0
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""
SCRIPT = "accelerate launch --config_file a.yaml train.py --per_device_train_batch_size 2\n"
TOLD = Overrides(model=find_model("llama-3.1-8b"), values={"seq_length": 4096})


def read(text: str = PLUGIN, script: str = SCRIPT) -> LaunchFile:
    return read_launch_files(
        Source(name="a.yaml", text=text, files={"a.yaml": text, "run.sh": script}), TOLD
    )


def test_the_plugins_own_values_are_read() -> None:
    found = read()
    config = found.configuration
    # 16 processes are replicas; 16 * 2 * 4 = 128 sequences
    assert (found.launcher, config.data_parallel_size, config.global_batch_size) == ("deepspeed", 16, 128)
    assert (config.zero_stage, config.zero_shard_size, config.offload) == (2, 16, "optimizer")
    assert (found.num_nodes, found.gpus_per_node, found.unread) == (2, 8, ())


def test_deepspeeds_own_file_is_read_where_the_plugin_names_it() -> None:
    text = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: z.json}\n"
    text += "num_processes: 16\n"
    engine = (
        '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, '
        '"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}'
    )
    source = Source(name="a.yaml", text=text, files={"a.yaml": text, "run.sh": SCRIPT, "z.json": engine})
    config = read_launch_files(source, TOLD).configuration
    assert (config.zero_stage, config.zero_shard_size, config.global_batch_size) == (2, 16, 128)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("zero_stage: 2", "zero_stage: 5", "zero_stage: line 6: 5 is not a whole .*Allowed: 0 to 3"),
        ("main_process_ip: node0\n", "", "num_machines: line 8: 2, but no main_process_ip"),
        ("bf16", "no", "mixed_precision: line 8: no is not supported"),
        ("zero_stage", "zero_stgae", "zero_stgae: line 6: is unknown. Nearest: .*zero_stage"),
        ("num_machines: 2", "num_machines: 3", "num_processes: line 10: num_machines: 3 does not divide"),
        ("device: cpu", "device: disk", 'line 5: "disk" is not supported. Allowed: none, cpu, nvme'),
        ("deepspeed_config:\n", "deepspeed_config:\n  deepspeed_config_file: ds.json\n",
         "zero_stage: line 7: contradicts"),
    ],
)  # fmt: skip
def test_what_it_would_not_run_is_refused_with_its_line(old: str, new: str, says: str) -> None:
    with pytest.raises(InvalidProblemError, match=says):
        read(PLUGIN.replace(old, new))


def test_the_address_may_stand_in_the_command_and_its_numbers_are_numbers() -> None:
    text = PLUGIN.replace("main_process_ip: node0\n", "")
    assert read(text, SCRIPT.replace("--config", "--main-process-ip node0 --config")) == read()
    with pytest.raises(InvalidProblemError, match='_train_batch_size: line 1: "two" is not a whole'):
        read(script=SCRIPT.replace("size 2", "size two"))


def test_a_compiler_that_torch_does_not_have_is_refused_with_the_nearest() -> None:
    fsdp = (
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n"
        "mixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\ndynamo_config:\n  dynamo_backend: "
    )
    script = SCRIPT.replace("size 2", "size 2 --gradient_accumulation_steps 4")
    assert read(f"{fsdp}INDUCTOR\n", script).workload.framework_options == {"attention_kernel": "auto"}
    for off in ("no", "'NO'"):
        assert read(f"{fsdp}{off}\n", script).workload.framework_options["elementwise_fused"] is False
    with pytest.raises(InvalidProblemError, match=r'line 9: "inductr" is unknown\. .*Nearest: inductor'):
        read(f"{fsdp}inductr\n", script)


FSDP = """distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
BATCH = "--per_device_train_batch_size 1 --gradient_accumulation_steps 4"


def started(options: str, text: str = FSDP, program: str = "train.py") -> LaunchFile:
    return read(text, f"accelerate launch --config_file a.yaml {options} {program} {BATCH}\n")


def test_options_of_the_command_override_the_file() -> None:
    assert started("").workload.precision == "bf16"
    for program in ("train.py", '"$TRAIN"'):  # a program that only the running shell knows
        found = started("--mixed-precision fp16 --num_processes=16", program=program)
        assert (found.workload.precision, found.configuration.data_parallel_size) == ("fp16", 16)
        assert "line 1 of the command: mixed_precision is fp16, not the file's" in found.notes
    assert started("--multi_gpu").configuration.zero_stage == 0  # FSDP of the file is off
    for start in (
        "accelerate-launch",
        "python -m accelerate.commands.launch",
        "/env/bin/accelerate launch",
    ):
        script = f"{start} --config_file a.yaml --mixed_precision fp16 train.py {BATCH}\n"
        assert read(FSDP, script).workload.precision == "fp16"
    compiled = FSDP + "dynamo_config:\n  backend: INDUCTOR\n"
    assert started("", compiled).workload.framework_options == {"attention_kernel": "auto"}
    assert started("--dynamo_backend no", compiled).workload.framework_options["norm_fused"] is False
    mesh = "--use_fsdp --use_parallelism_config --parallelism_config_tp_size 2"
    assert started(mesh).configuration.tensor_parallel_size == 2
    own = started("--gradient_accumulation_steps 9")  # passed on to DeepSpeed alone
    assert own.configuration.num_microbatches == 4
    assert any("steps is 9, which does nothing without DeepSpeed" in note for note in own.notes)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--fsdp_min_num_params 5", "line 1 of run.sh: --fsdp_min_num_params cannot be read"),
        ("--mixed_precisoin fp16", "--mixed_precisoin is not an option of accelerate launch.*--mixed_pre"),
        ("--use_megatron_lm", "Megatron-LM under accelerate is not read"),
        ("--parallelism_config_tp_size 2", "tp_size does nothing without --use_parallelism_config"),
        ("--use_deepspeed --gradient_accumulation_steps 8", "8, but the trainer accumulates 4"),
        ("--mixed_precision bf17", '"bf17" is unknown'),
        ('--config_file "$ACC"', "accelerate's YAML.*ACC"),
        ("--num_machines 2", "num_machines: line 1: 2, but no main_process_ip"),
        (f"train.py {BATCH} --bf16\naccelerate launch --config_file a.yaml --num_processes 4",
         "run.sh starts 2 runs that differ: 1 .line 1.: --bf16 ; 2 .line 2.: --num-processes 4"),
    ],
)  # fmt: skip
def test_options_that_are_not_priced_are_refused(options: str, says: str) -> None:
    with pytest.raises(InvalidProblemError, match=says):
        started(options)


def test_each_option_that_sets_a_field_has_a_place_in_the_file() -> None:
    rows = {name: row for name, row in flags_of("accelerate").items() if "." not in name and row.sets}
    engines = {"use_deepspeed", "use_fsdp", "multi_gpu", "use_parallelism_config", "distributed_type"}
    for name in rows.keys() - engines:
        said = "3" if rows[name].type in ("int", "float") else "no"
        words = split_words(
            f"accelerate launch --use_fsdp --use_parallelism_config --{name} {said} train.py"
        )
        script = Source(name="run.sh", text="")
        shares = shares_of([Word(word, 1) for word in words], script)
        assert shares is not None
        assert any(key.endswith(name) for key in shares.values) or name == "gradient_accumulation_steps"
