"""accelerate's DeepSpeed plugin without a file of DeepSpeed's, and machines that must find one another."""

from __future__ import annotations

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model

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


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("zero_stage: 2", "zero_stage: 5", "zero_stage: line 6: 5 is not a whole .*Allowed: 0 to 3"),
        ("main_process_ip: node0\n", "", "num_machines: line 8: 2, but no main_process_ip"),
        ("bf16", "no", "mixed_precision: line 8: no is not priced"),
        ("zero_stage", "zero_stgae", "zero_stgae: line 6: is unknown. Nearest: .*zero_stage"),
        ("num_machines: 2", "num_machines: 3", "num_processes: line 10: num_machines: 3 does not divide"),
        ("device: cpu", "device: disk", 'line 5: "disk" is not priced. Allowed: none, cpu, nvme'),
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
    assert read(f"{fsdp}INDUCTOR\n", script).workload.framework_options == {}
    for off in ("no", "'NO'"):
        assert read(f"{fsdp}{off}\n", script).workload.framework_options["elementwise_fused"] is False
    with pytest.raises(InvalidProblemError, match=r'line 9: "inductr" is unknown\. .*Nearest: inductor'):
        read(f"{fsdp}inductr\n", script)
