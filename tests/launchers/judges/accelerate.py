"""accelerate on a CPU: its file, its launch parser and validation, the mesh and plugins they lead to."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.remove(str(Path(__file__).parent))  # this file has the name of the package

from accelerate.commands.launch import (
    _validate_launch_command,
    launch_command_parser,
)
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import FullyShardedDataParallelPlugin, TorchDynamoPlugin
from accelerate.utils import launch as starting
from accelerate.utils.launch import prepare_multi_gpu_env

sys.path.insert(0, str(Path(__file__).parent))
from protocol import Case, Seen, serve

BEFORE = dict(os.environ)
starting.is_port_in_use = lambda _port: False  # nothing is started here, whoever listens on this machine


def judge(case: Case) -> Seen:
    """What accelerate makes of its YAML."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "accelerate.yaml"
        path.write_text(case["files"]["accelerate.yaml"])
        place = ["--machine_rank", "0", "--main_process_port", "29500"]
        if "--main_process_ip" in case["files"]["launch.sh"]:
            place += ["--main_process_ip", "node0"]
        words = ["--config_file", str(path), *place, "train.py"]
        args, _defaults, _precision = _validate_launch_command(launch_command_parser().parse_args(words))
    os.environ.clear()
    os.environ.update(BEFORE)
    os.environ.update({k: v for k, v in prepare_multi_gpu_env(args).items() if v is not None})
    dynamo = TorchDynamoPlugin()  # of the environment
    seen: Seen = {
        "num_gpus": args.num_processes,
        "num_nodes": args.num_machines,
        "precision": args.mixed_precision,
        "zero_stage": 0,
        "compiled": dynamo.backend == "INDUCTOR" and dynamo.use_regional_compilation,
    }
    if args.use_cpu:
        raise ValueError("on CPUs")
    if args.use_fsdp:
        plugin = FullyShardedDataParallelPlugin()
        sizes = ParallelismConfig()
        if sizes.total_size != args.num_processes:
            seen["mesh_size"] = sizes.total_size
        if not plugin.auto_wrap_policy or not plugin.cpu_ram_efficient_loading:
            raise ValueError("one unit for all layers, or weights loaded on every rank")
        if str(plugin.state_dict_type).rpartition(".")[2] != "SHARDED_STATE_DICT":
            raise ValueError(f"every rank gathers all for a checkpoint: {plugin.state_dict_type}")
        if sizes.cp_size > 1 and sizes.cp_handler.cp_comm_strategy != "alltoall":
            raise ValueError(f"slices of a sequence do not go round: {sizes.cp_handler}")
        seen |= {
            "offload": "optimizer+parameters"
            if type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy"
            else "none",
            "tensor_parallel_size": sizes.tp_size,
            "context_parallel_size": sizes.cp_size,
            "data_parallel_size": sizes.dp_replicate_size * sizes.dp_shard_size,
            "zero_stage": 3 if plugin.reshard_after_forward else 2,
        }
        seen["recompute_granularity"] = "full" if plugin.activation_checkpointing else "none"
    return seen


if __name__ == "__main__":
    serve(judge)
