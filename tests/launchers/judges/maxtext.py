"""MaxText on a CPU: its parser over base.yml, and the mesh that JAX makes of its axes.

GPUs are stand-ins that know their node. ``create_hybrid_device_mesh`` is what MaxText's
``create_device_mesh`` calls with the axes that its parser derives.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

sys.path.remove(str(Path(__file__).parent))  # this file has the name of the package
os.environ |= {"DECOUPLE_GCLOUD": "TRUE", "JAX_PLATFORMS": "cpu"}

import jax
from jax.experimental import mesh_utils
from maxtext.configs import pyconfig, types
from maxtext.utils import max_utils

sys.path.insert(0, str(Path(__file__).parent))
from protocol import Case, Seen, serve

CONFIG = "maxtext.yml"
# Products that each module of a layer leaves; what is not kept is replayed.
MODULES = {"core_attn": "context", "attn_proj": "out_proj", "mlp_up": "mlpwi_0"}
DTYPES = {"bfloat16": "bf16", "float32": "fp32"}
KERNELS = {"cudnn_flash_te": "cudnn", "flash": "triton", "dot_product": "torch"}


def judge(case: Case) -> Seen:
    """What MaxText makes of the plan's file."""
    types.jax = SimpleNamespace(devices=lambda: [None] * case["world_size"], local_device_count=lambda: 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / CONFIG
        path.write_text(case["files"][CONFIG])
        config = pyconfig._initialize_pydantic(["train.py", str(path)])
    axes = dict(zip(config.mesh_axes, shape_of(config, case["world_size"]), strict=True))
    return {**ranks(axes), **batch(config, axes), **training(config), "model": model(config)}


def shape_of(config: types.MaxTextConfig, gpus: int) -> tuple[int, ...]:
    """The shape of the mesh over so many stand-ins, an equal number in each slice."""
    each = gpus // config.num_slices
    devices = [
        SimpleNamespace(id=rank, platform="gpu", device_kind="gpu", process_index=rank // each,
                        slice_index=rank // each)
        for rank in range(gpus)
    ]  # fmt: skip
    inside = max_utils.fill_unspecified_mesh_axes([*config.ici_parallelism], each, "ICI")
    if config.num_slices == 1:
        return tuple(mesh_utils.create_device_mesh(inside, devices).shape)
    across = max_utils.fill_unspecified_mesh_axes([*config.dcn_parallelism], config.num_slices, "DCN")
    return tuple(mesh_utils.create_hybrid_device_mesh(inside, across, devices).shape)


def ranks(axes: dict[str, int]) -> Seen:
    """Ranks by what the rules of base.yml split over each axis."""
    weights = axes["fsdp"] * axes["context"] * axes["expert"]
    used = ("data", "stage", "fsdp", "context", "tensor_sequence", "expert")
    assert all(size == 1 for name, size in axes.items() if name not in used), axes
    return {
        "tensor_parallel_size": axes["tensor_sequence"],
        "sequence_parallel": axes["tensor_sequence"] > 1,
        "context_parallel_size": axes["context"],
        "pipeline_parallel_size": axes["stage"],
        "expert_parallel_size": axes["expert"],
        "data_parallel_size": axes["data"] * axes["fsdp"] * axes["expert"],
        "zero_stage": 3 if weights > 1 else 0,
        "zero_shard_size": weights,
    }


def batch(config: types.MaxTextConfig, axes: dict[str, int]) -> Seen:
    """The batch and its passes."""
    stages = axes["stage"]
    passes = config.num_pipeline_microbatches if stages > 1 else 1
    replicas = axes["data"] * axes["fsdp"] * axes["expert"]
    micro, rest = divmod(config.micro_batch_size_to_train_on, replicas * passes)
    assert not rest, config.micro_batch_size_to_train_on
    repeats = config.num_pipeline_repeats if stages > 1 else 1
    layers = config.num_layers_per_pipeline_stage if stages > 1 else config.num_decoder_layers
    return {
        "global_batch_size": config.global_batch_size_to_train_on,
        "micro_batch_size": micro,
        "num_microbatches": passes * config.gradient_accumulation_steps,
        "virtual_pipeline_size": repeats,
        "stage_layers": [layers] * stages * repeats,
        "seq_length": config.max_target_length,
    }


def training(config: types.MaxTextConfig) -> Seen:
    """Types, optimizer, kernels, and what is recomputed."""
    if (config.weight_dtype, config.opt_type) != ("float32", "adamw"):
        raise ValueError("not what was priced")
    strategy, split = config.context_parallel_strategy, config.ici_context_parallelism
    if strategy != "ring" and split * config.dcn_context_parallelism > 1:
        raise ValueError(f"{strategy} of context ranks")
    seen: Seen = {
        "precision": DTYPES[config.dtype.value],
        "facts.gradient_dtype": DTYPES[config.grad_dtype.value],
        "facts.attention_kernel": KERNELS[config.attention],
        "recompute_granularity": "full" if config.remat_policy == "full" else "selective",
    }
    if config.remat_policy != "full":
        kept = set(config.tensors_on_device)
        if not {"query_proj", "key_proj", "value_proj"} <= kept or config.tensors_to_offload:
            raise ValueError(f"{sorted(kept)} are kept")
        replayed = [module for module, name in MODULES.items() if name not in kept]
        seen["facts.recompute_modules"] = sorted([*replayed, "layernorm"])
    return seen


def model(config: types.MaxTextConfig) -> Seen:
    """The sizes and parts of the model."""
    block, experts = config.decoder_block.value, config.num_experts > 1
    assert experts == (block in ("mixtral", "qwen3_moe")), block
    assert config.use_qk_norm == (block in ("qwen3", "qwen3_moe")), block
    assert config.attention_bias == (block == "qwen2"), block
    assert config.mlp_activations == ["silu", "linear"]
    assert config.rope_type.value in ("default", "llama3.1")
    found: Seen = {
        "num_layers": config.num_decoder_layers, "hidden_size": config.emb_dim,
        "num_attention_heads": config.num_query_heads, "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim, "vocab_size": config.vocab_size,
        "norm_epsilon": config.normalization_layer_epsilon, "rotary_base": config.rope_max_timescale,
        "tied_embeddings": config.logits_via_embedding, "qkv_bias": config.attention_bias,
        "query_key_norm": "per_head" if config.use_qk_norm else "none",
        "rotary_scaling.factor": 8.0 if config.rope_type.value == "llama3.1" else None,
    }  # fmt: skip
    if experts:
        sizes = {"num_experts": config.num_experts, "top_k": config.num_experts_per_tok}
        sizes["ffn_hidden_size"] = config.moe_mlp_dim
        return found | {f"moe.{name}": size for name, size in sizes.items()}
    return found | {"ffn_hidden_size": config.mlp_dim}


if __name__ == "__main__":
    del jax
    serve(judge)
