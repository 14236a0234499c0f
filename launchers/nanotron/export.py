"""Exporter of nanotron: a plan becomes its YAML and the scripts that start ``run_train.py``.

Its own parser cannot be run here (the published 0.4 does not import); the file follows its sources.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from meshwright.launchers.export import (
    MIB,
    TORCH_BUCKET_MIB,
    EnvironmentVariable,
    StartCommand,
    applying,
    bucket_units,
    bundled,
    common_warnings,
    printable,
    rotary_base_warning,
    written_bucket,
)
from meshwright.launchers.rules import refuse_first
from meshwright.launchers.target import ExportBundle, Target
from meshwright.profiles.requirements import packages

# --------------------------------------------------------------------------------------------------
# nanotron's YAML. Keys: huggingface/nanotron, April 2026, src/nanotron/config/*.py.


_DTYPES = {"bf16": "bfloat16"}
_DRY_STEPS = 10  # synthetic data, until the user sets data_stages


# Buckets are counted in 2-byte gradients and reduced in fp32 (optim/gradient_accumulator.py).
BUCKET_UNIT_BYTES = 2.0 * MIB


def nanotron_file(head: str, target: Target) -> str:
    """Return the whole file; data, tokenizer and learning rate are a dry start's, with synthetic tokens."""
    values = {
        # A restarted run resumes from the last checkpoint there, if any (serialize/main.py).
        "checkpoints": {
            "checkpoint_interval": 1000,
            "checkpoints_path": "checkpoints",
            "resume_checkpoint_path": "checkpoints",
        },
        "data_stages": [
            {
                "name": "Dry start",
                "start_training_step": 1,
                "data": {"dataset": None, "num_loading_workers": 1, "seed": 42},
            }
        ],
        "general": {"project": "meshwright", "run": printable(target.plan.plan_id), "seed": 42},
        "logging": {"iteration_step_info_interval": 1, "log_level": "info", "log_level_replica": "info"},
        "model": {
            "ddp_bucket_cap_mb": bucket_units(target, BUCKET_UNIT_BYTES) or TORCH_BUCKET_MIB,
            "dtype": _DTYPES[target.workload.precision],
            "init_method": {"std": 0.02},
            "make_vocab_size_divisible_by": 1,
            "model_config": _model(target),
        },
        "optimizer": _optimizer(target),
        "parallelism": _parallelism(target),
        "tokenizer": {"tokenizer_name_or_path": None},
        "tokens": {
            "batch_accumulation_per_replica": target.config.num_microbatches,
            "micro_batch_size": target.config.micro_batch_size,
            "sequence_length": target.workload.seq_length,
            "train_steps": _DRY_STEPS,
            "val_check_interval": -1,
        },
    }
    return head + yaml.safe_dump(values, sort_keys=True)


def _parallelism(target: Target) -> dict[str, object]:
    config = target.config
    return {
        "dp": config.data_parallel_size,
        "pp": config.pipeline_parallel_size,
        "tp": config.tensor_parallel_size,
        "pp_engine": "afab" if config.pipeline_schedule == "gpipe" else "1f1b",  # afab: all forward first
        # REDUCE_SCATTER is sequence parallelism.
        "tp_mode": "REDUCE_SCATTER" if config.sequence_parallel else "ALL_REDUCE",
        "tp_linear_async_communication": False,
        "expert_parallel_size": 1,
        "context_parallel_size": config.context_parallel_size,
        "recompute_layer": config.recompute_granularity == "full",
    }


def _optimizer(target: Target) -> dict[str, object]:
    return {
        "accumulate_grad_in_fp32": True,
        "clip_grad": 1.0,
        "learning_rate_scheduler": {
            "learning_rate": 0.0003,
            "lr_decay_style": "cosine",
            "lr_warmup_steps": 1,
            "lr_warmup_style": "linear",
            "min_decay_lr": 0.00003,
        },
        "optimizer_factory": {
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "adam_eps": 1.0e-08,
            "name": "adamW",
            "torch_adam_is_fused": True,
        },
        "weight_decay": 0.1,
        "zero_stage": target.config.zero_stage,
    }


def _model(target: Target) -> dict[str, object]:
    """Return its Qwen2, which without biases is a Llama, and the model with context parallelism."""
    model, ring = target.model, target.config.context_parallel_size > 1
    return {
        "is_qwen2_config": True,
        "attention_bias": model.qkv_bias,
        "hidden_act": "silu",
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "max_position_embeddings": max(target.workload.seq_length, model.max_position_embeddings or 0),
        "num_attention_heads": model.num_attention_heads,
        "num_hidden_layers": model.num_layers,
        "num_key_value_heads": model.num_kv_heads,
        "rms_norm_eps": 1e-5 if model.norm_epsilon is None else model.norm_epsilon,
        "rope_theta": float(model.rotary_base or 10_000),
        "tie_word_embeddings": model.tied_embeddings,
        "vocab_size": model.vocab_size,
        "_attn_implementation": "ring_flash_triton" if ring else "flash_attention_2",
    }


PRODUCT = "nanotron (repository, April 2026)"
CONFIG_FILE = "nanotron.yaml"
ONE_QUEUE = EnvironmentVariable(
    name="CUDA_DEVICE_MAX_CONNECTIONS",
    value="1",
    reason="nanotron's trainer asks for one hardware queue, so that communication keeps its order.",
)
START = StartCommand(
    program=f'"${{NANOTRON_DIR}}/run_train.py" --config-file "${{here}}/{CONFIG_FILE}"',
    needs=(("NANOTRON_DIR", "a checkout of huggingface/nanotron"),),
    packages=(packages()["nanotron's FlashAttention"],),
    environment=(ONE_QUEUE,),
)


def export(target: Target) -> ExportBundle:
    """Return the YAML and the two scripts that start it."""
    refuse_first(target, "nanotron")
    return bundled(
        target,
        product=PRODUCT,
        start=START,
        warnings=found_warnings(target),
        own=lambda head: {CONFIG_FILE: nanotron_file(head, target)},
    )


def found_warnings(target: Target) -> Iterator[str]:
    """Yield the differences of nanotron from the plan, and the parts that are left to the user."""
    model, tp = target.model, target.config.tensor_parallel_size
    yield from common_warnings(target, ("launch_blocking", *written_bucket(target, BUCKET_UNIT_BYTES)))
    yield "tested with nanotron's model builder, but not with its parser"
    yield "data, tokenizer, number of steps and learning rate are placeholders: set your own"
    yield from applying(
        (
            model.vocab_size % tp,
            f"the vocabulary of {model.vocab_size} is padded to a multiple of tp = {tp}",
        ),
        rotary_base_warning(target),
    )
