"""The configuration files of ``accelerate launch``: FSDP2 with a mesh, plain replicas, or DeepSpeed.

Keys: accelerate 1.15.0, commands/config/config_args.py, utils/dataclasses.py, parallelism_config.py.
"""

from __future__ import annotations

import yaml

from service.launchers.target import Target

CONFIG_FILE = "accelerate.yaml"
_PREFIX = "parallelism_config_"


def mesh(target: Target) -> dict[str, int]:
    """Sizes of the mesh, outer to inner: replicas, shards, rings, tensor ranks."""
    config = target.config
    shards = config.zero_shard_size // config.context_parallel_size
    return {
        "dp_replicate_size": config.data_parallel_size // shards,
        "dp_shard_size": shards,
        "cp_size": config.context_parallel_size,
        "tp_size": config.tensor_parallel_size,
    }


def accelerate_file(head: str, target: Target) -> str:
    """FSDP2 for ZeRO 2 and 3, plain data parallelism for 0; header as comments."""
    config = target.config
    values = _machines(target)
    if config.zero_stage == 0:
        values["distributed_type"] = "MULTI_GPU" if config.num_gpus > 1 else "NO"
    else:
        values["distributed_type"] = "FSDP"
        values["fsdp_config"] = {
            "fsdp_version": 2,  # absent means 1
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": config.zero_stage == 3,  # noqa: PLR2004 - ZeRO-3
            "fsdp_activation_checkpointing": config.recompute_granularity == "full",
            "fsdp_offload_params": False,
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        sizes: dict[str, object] = {_PREFIX + name: size for name, size in mesh(target).items()}
        if config.context_parallel_size > 1:
            sizes[_PREFIX + "cp_comm_strategy"] = "alltoall"  # slices go round, as was priced
        values["parallelism_config"] = sizes
    return head + yaml.safe_dump(values, sort_keys=True)


def deepspeed_plugin_file(head: str, target: Target, json_file: str) -> str:
    """The same launcher with its DeepSpeed plugin: everything stands in DeepSpeed's own file."""
    values = _machines(target)
    del values["mixed_precision"]  # DeepSpeed's file says it; accelerate refuses both
    values["distributed_type"] = "DEEPSPEED"
    values["deepspeed_config"] = {
        "deepspeed_config_file": json_file,
        "zero3_init_flag": target.config.zero_stage == 3,  # noqa: PLR2004 - ZeRO-3
    }
    return head + yaml.safe_dump(values, sort_keys=True)


def _machines(target: Target) -> dict[str, object]:
    """What all of them share; rank and address come from the command line."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": target.workload.precision,
        "num_machines": target.num_nodes,
        "num_processes": target.config.num_gpus,
        "rdzv_backend": "static",
        "use_cpu": False,
    }
