"""Axolotl on a CPU: its schema and checks, the environment that it sets, the mesh and plugin of both."""

from __future__ import annotations

import os
import sys
import tempfile
import types
from pathlib import Path

from protocol import Case, Seen, serve
from stand_ins import StandIns

HERE = str(Path(__file__).parent)
sys.path.remove(HERE)  # its files have the names of packages
sys.path.append(HERE)
StandIns(entered=(), silent=("evaluate", "wandb"))  # of its callbacks, which its plugins import
os.environ |= {"AXOLOTL_DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "1"}
sys.modules["ring_flash_attn"] = types.ModuleType("ring_flash_attn")  # its presence counts

import transformers  # noqa: E402
import yaml  # noqa: E402
from accelerate.utils import FullyShardedDataParallelPlugin  # noqa: E402
from axolotl.integrations.base import PluginManager  # noqa: E402
from axolotl.utils import trainer  # noqa: E402
from axolotl.utils.config import prepare_plugins, validate_config  # noqa: E402
from axolotl.utils.dict import DictDefault  # noqa: E402
from axolotl.utils.distributed import _get_parallel_config_kwargs  # noqa: E402
from axolotl.utils.freeze import freeze_mm_modules  # noqa: E402
from towers import shape_in, small_model, trained  # noqa: E402
from transformers import AutoProcessor, TrainingArguments  # noqa: E402

BEFORE = dict(os.environ)
trainer.check_cuda_p2p_ib_support = lambda: True  # asks a GPU
CLUSTER = {"bf16": True, "fp8": False, "tf32": True, "compute_capability": "sm_90", "n_node": 1}
OWN = {
    "base_model": "x",
    "datasets": [{"path": "d", "type": "completion"}],
    "learning_rate": 1e-4,
    "num_epochs": 1,
    "output_dir": "out",
}


def judge(case: Case) -> Seen:
    """What Axolotl makes of its YAML."""
    world = case["world_size"]
    given = DictDefault(yaml.safe_load(case["files"]["axolotl.yaml"]) | OWN)
    PluginManager._instance = None  # which would keep the plugins of the case before
    prepare_plugins(given)
    if failed := set(given.plugins or []) - set(PluginManager.get_instance().plugins):
        raise ValueError(f"plugins that cannot be imported: {sorted(failed)}")  # it says so and goes on
    read = validate_config(given, {**CLUSTER, "n_gpu": world}, {"torch_version": "2.13.0"})
    if unknown := set(given) - set(read):
        raise ValueError(f"unknown keys: {sorted(unknown)}")  # its schema drops them without a word
    os.environ.clear()
    os.environ.update(BEFORE)
    trainer.prepare_optim_env(read)
    packs = not read.processor_type  # it packs no sequences with images
    if not read.bf16 or read.fp16 or not read.pad_to_sequence_len or bool(read.sample_packing) is not packs:
        raise ValueError("not full sequences in bf16")
    return {
        **(_shards(read, world) if read.fsdp_config else _replicas(read, world)),
        **_images(read, shape_in(case["files"]["axolotl.yaml"])),
        "seq_length": read.sequence_len,
        "lora_rank": read.lora_r if read.adapter == "lora" else 0,
        "lora_targets": sorted(read.lora_target_modules or []),
        "dora": bool(read.peft_use_dora),
        "rounded": _rounded(read),
        "facts.loss_kernel": "cut" if read.cut_cross_entropy else "whole",
        "trained_modules": sorted(read.lora_modules_to_save or []),
        "orthogonalised": str(getattr(read.optimizer, "value", read.optimizer)) == "muon",
        "optimizer_bits": 8 if "8bit" in str(read.optimizer) else 32,
        "micro_batch_size": read.micro_batch_size,
        "num_microbatches": read.gradient_accumulation_steps,
    }


def _images(read: DictDefault, shape: dict[str, object] | None) -> Seen:
    """What of a tower is trained; without adapters alone, which freeze the rest."""
    if shape is None:
        return {}
    # its loader takes the class by name; images are prepared batch by batch (docs/multimodal.qmd)
    if getattr(transformers, str(read.processor_type), None) is not AutoProcessor:
        raise ValueError(f"images are read by {read.processor_type}")
    if not read.skip_prepare_dataset or read.remove_unused_columns is not False:
        raise ValueError("images are prepared before, or left out")
    small = small_model(shape)
    if read.freeze_mm_modules:
        freeze_mm_modules(small)
    return {"trained_tower": trained(small.model.visual)} if not read.adapter else {}


def _rounded(read: DictDefault) -> list[str | int]:
    """What its quantisation-aware training rounds inputs and weights to; both alike in blocks of MXFP4."""
    if not read.qat:
        return []
    names = {"float8_e4m3fn": "fp8", "None": "bf16"}
    weights, inputs = (
        getattr(one, "name", str(one)) for one in (read.qat.weight_dtype, read.qat.activation_dtype)
    )
    inputs = weights if weights == "mxfp4" else inputs
    return [names.get(inputs, inputs), names.get(weights, weights), read.qat.group_size]


def _replicas(read: DictDefault, world: int) -> Seen:
    """What every rank holds without FSDP: all."""
    if (
        read.deepspeed
        or read.fsdp
        or (read.tensor_parallel_size or 1) * (read.context_parallel_size or 1) > 1
    ):
        raise ValueError("not replicas alone")
    return {
        "num_gpus": world,
        "data_parallel_size": world,
        "zero_stage": 0,
        "zero_shard_size": 1,
        "offload": "none",
        "recompute_granularity": "full" if read.gradient_checkpointing else "none",
    }


def _shards(read: DictDefault, world: int) -> Seen:
    """What FSDP2 makes of the mesh and of its section."""
    mesh = _get_parallel_config_kwargs(
        world, read.tensor_parallel_size, read.context_parallel_size, read.dp_shard_size,
        read.dp_replicate_size, is_fsdp=True,
    )  # fmt: skip
    sizes = {name: mesh.get(f"{name}_size", 1) for name in ("tp", "cp", "dp_shard", "dp_replicate")}
    ranks = sizes["tp"] * sizes["cp"] * sizes["dp_shard"] * sizes["dp_replicate"]
    if ranks != world:
        raise ValueError(f"the mesh has {ranks} of {world} ranks")
    with tempfile.TemporaryDirectory() as folder:
        plugin = FullyShardedDataParallelPlugin(
            **TrainingArguments(
                output_dir=folder, fsdp=True, fsdp_config=dict(read.fsdp_config), use_cpu=True
            ).fsdp_plugin_args
        )
    if plugin.cpu_ram_efficient_loading is not (sizes["tp"] == 1):  # tensor ranks load their own parts
        raise ValueError("weights are loaded on every rank, or by one rank for all tensor ranks")
    if str(plugin.state_dict_type).rpartition(".")[2] != "SHARDED_STATE_DICT":
        raise ValueError(f"every rank gathers all for a checkpoint: {plugin.state_dict_type}")
    return {
        "num_gpus": ranks,
        "offload": "optimizer+parameters"
        if type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy"
        else "none",
        "tensor_parallel_size": sizes["tp"],
        "context_parallel_size": sizes["cp"],
        "data_parallel_size": sizes["dp_shard"] * sizes["dp_replicate"],
        "zero_shard_size": sizes["dp_shard"] * sizes["cp"],
        "zero_stage": 3 if plugin.reshard_after_forward else 2,
        "recompute_granularity": "full"
        if plugin.activation_checkpointing or read.gradient_checkpointing
        else "none",
    }


if __name__ == "__main__":
    serve(judge)
