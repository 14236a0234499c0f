"""Exporter of nanotron: a plan becomes its YAML and the scripts that start ``run_train.py``.

Its own parser cannot be run here (the published 0.4 does not import); ``plan.yaml`` follows its sources.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from meshwright.launchers.dialect import filled
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

KERNELS = ("flash_attention_2", "ring_flash_triton")  # the latter for context parallelism
# Buckets are counted in 2-byte gradients and reduced in fp32 (optim/gradient_accumulator.py).
BUCKET_UNIT_BYTES = 2.0 * MIB
SHAPE = "model.model_config."  # the section of the model's sizes


def nanotron_file(head: str, target: Target) -> str:
    """Return the whole file: ``plan.yaml`` with the plan's values."""
    model, config = target.model, target.config
    values = {
        "general.run": printable(target.plan.plan_id),
        "model.ddp_bucket_cap_mb": bucket_units(target, BUCKET_UNIT_BYTES) or TORCH_BUCKET_MIB,
        f"{SHAPE}max_position_embeddings": max(
            target.workload.seq_length, model.max_position_embeddings or 0
        ),
        f"{SHAPE}rms_norm_eps": 1e-5 if model.norm_epsilon is None else model.norm_epsilon,
        f"{SHAPE}rope_theta": float(model.rotary_base or 10_000),
        f"{SHAPE}_attn_implementation": KERNELS[config.context_parallel_size > 1],
        # one stage takes either word
        "parallelism.pp_engine": "afab" if config.pipeline_schedule == "gpipe" else "1f1b",
    }
    return head + yaml.safe_dump(filled("nanotron/plan.yaml", "nanotron", target, values), sort_keys=True)


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
