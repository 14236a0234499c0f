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
from accelerate.utils.launch import prepare_multi_gpu_env

sys.path.insert(0, str(Path(__file__).parent))
from protocol import Case, Seen, serve

BEFORE = dict(os.environ)


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
        "compiled": dynamo.backend == "INDUCTOR" and dynamo.use_regional_compilation,
    }
    if args.use_fsdp:
        plugin = FullyShardedDataParallelPlugin()
        sizes = ParallelismConfig()
        if sizes.total_size != args.num_processes:
            seen["mesh_size"] = sizes.total_size
        seen |= {
            "tensor_parallel_size": sizes.tp_size,
            "context_parallel_size": sizes.cp_size,
            "data_parallel_size": sizes.dp_replicate_size * sizes.dp_shard_size,
            "zero_stage": 3 if plugin.reshard_after_forward else 2,
        }
        seen["recompute_granularity"] = "full" if plugin.activation_checkpointing else "none"
    return seen


if __name__ == "__main__":
    serve(judge)
