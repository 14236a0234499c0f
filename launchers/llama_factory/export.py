"""Exporter of LLaMA-Factory over Megatron-Core (``USE_MCA=1``): a plan becomes its YAML.

Names: alibaba/ROLL mcore_adapter, training_args.py (DistributingParallelArguments, MegatronArguments), and
transformers' TrainingArguments.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from meshwright.launchers import export as common
from meshwright.launchers.images import image_warnings, llama_factory_values
from meshwright.launchers.llama_factory.export_trainer import FOLLOWS, NEEDS
from meshwright.launchers.megatron_core.names import (
    SWITCHES_OF_ALL,
    Values,
    balance_values,
    decided_flags,
    distributed_optimizer,
    dropout_values,
    environment,
    exchange_values,
    kernel_values,
    megatron_packages,
    parallel_values,
    recompute_values,
    split_values,
)
from meshwright.launchers.megatron_lm.flags import facts as megatron_facts
from meshwright.launchers.rules import refuse_first
from meshwright.launchers.target import ExportBundle, Target, pads, pads_to_longest
from meshwright.launchers.transformers.export import OF_THE_RUN

PRODUCT = "LLaMA-Factory 0.9.5 with mcore_adapter"
CONFIG_FILE = "llama_factory.yaml"
# The adapter's own arguments besides all parallel sizes; their defaults override additional_configs
# (models/model_config.py, update_with_args). The rest goes to Megatron-Core's configuration unchanged.
ARGUMENTS = frozenset((
    "cross_entropy_loss_fusion", "bias_activation_fusion", "apply_rope_fusion", "moe_token_dispatcher_type",
    "moe_grouped_gemm", "moe_router_dtype", "moe_aux_loss_coeff", "moe_expert_capacity_factor",
    "moe_pad_expert_input_to_capacity", "moe_shared_expert_overlap", "mtp_num_layers",
    "variable_seq_lengths",
))  # fmt: skip


USE_MCA = common.EnvironmentVariable(
    name="USE_MCA", value="1", reason="LLaMA-Factory trains through Megatron-Core's adapter."
)


def export(target: Target) -> ExportBundle:
    """Return the YAML and the two scripts that start it."""
    refuse_first(target, "llama-factory")
    return common.bundled(
        target,
        product=PRODUCT,
        shape=True,
        start=common.StartCommand(
            program=f'"${{LLAMA_FACTORY_DIR}}/src/train.py" "${{here}}/{CONFIG_FILE}"',
            needs=NEEDS,
            packages=megatron_packages(target, megatron_facts(target)),
            follows=FOLLOWS,
            environment=(USE_MCA, *environment(target, megatron_facts(target))),
            decides=(*values_of(target), *decided_flags(), "additional_configs"),
            assignments=True,
        ),
        warnings=found_warnings(target),
        own=lambda head: {
            CONFIG_FILE: head + yaml.safe_dump(values_of(target) | OF_THE_RUN, sort_keys=True)
        },
    )


def values_of(target: Target) -> Values:
    """Return every value that the plan sets; unset ones are not written."""
    config, precision = target.config, target.workload.precision
    known = megatron_facts(target)
    sizes, moe = parallel_values(target), target.model.moe
    values: Values = {"stage": "sft", "do_train": True}  # without it no checkpoint is resumed
    values |= sizes | split_values(target) | recompute_values(target, known)
    values |= distributed_optimizer(target, known)
    if known.recomputed and "recompute_modules" in values:
        values["recompute_modules"] = ",".join(known.recomputed)
    values |= {
        "per_device_train_batch_size": config.micro_batch_size,
        "gradient_accumulation_steps": config.num_microbatches,
        "cutoff_len": target.workload.seq_length,
        "packing": not pads(target),
        # documents attend only to themselves
        "neat_packing": True if target.workload.lengths and not pads(target) else None,
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "accumulate_allreduce_grads_in_fp32": known.gradient_dtype == "fp32",
        "optimizer": "adam",
        "overlap_p2p_comm": known.overlap_transfer if config.virtual_pipeline_size > 1 else None,
        **llama_factory_values(target),
    }
    core: Values = {
        "cross_entropy_loss_fusion": known.loss_fused,
        "tp_comm_overlap": bool(known.overlap_tensor and sizes["sequence_parallel"]),
        # by default the adapter fuses neither, and predicts one token (0, whatever the model states)
        "bias_activation_fusion": known.elementwise_fused,
        "apply_rope_fusion": target.model.has_rotary_positions and target.model.mla is None,
        "mtp_num_layers": target.model.num_mtp_layers or None,
    }
    if target.model.mla is None:  # otherwise its own configuration reads the scaling from the model's
        # Otherwise the adapter scales by 8, whatever the model states (model_config.py).
        scaling = target.model.rotary_scaling
        core["rotary_scaling_factor"] = float(scaling.factor) if scaling else 1.0
    core |= kernel_values(target, known) | exchange_values(target, known) | dropout_values(known)
    core |= (balance_values(moe) if moe else {}) | _lengths(target)
    values |= {name: value for name, value in core.items() if name in ARGUMENTS}
    values["additional_configs"] = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in core.items()
        if name not in ARGUMENTS
    }
    return {name: value for name, value in values.items() if value is not None}


def _lengths(target: Target) -> Values:
    """Return micro-batches of different lengths; a pipeline pads those of a step alike by default.

    Even for dense models the default token dispatcher excludes them (``training_args.py``,
    ``trainer/trainer.py _get_step_iterator_and_seq_length``).
    """
    if not pads_to_longest(target) or target.config.pipeline_parallel_size == 1:
        return {}
    return {"variable_seq_lengths": True, "moe_token_dispatcher_type": "alltoall"}


def found_warnings(target: Target) -> Iterator[str]:
    """Yield the parts that the checkpoint sets."""
    yield from common.common_warnings(target, written=SWITCHES_OF_ALL)
    yield common.model_is_in_the_script(target)
    yield from image_warnings(target)
