"""Exporter of LLaMA-Factory's own trainer: accelerate's file for the mesh, and a YAML of its arguments.

Names: LLaMA-Factory 0.9.5, hparams (data_args.py, model_args.py, finetuning_args.py), model/adapter.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.launchers import images
from meshwright.launchers.accelerate.export import (
    ATTENTION,
    accelerate_launch,
    attention,
    ddp_bucket,
    optimizer,
    recomputes_in_script,
    trainer_packages,
)
from meshwright.launchers.export import StartCommand, bundled
from meshwright.launchers.rules import refuse_first
from meshwright.launchers.target import ExportBundle, Target, pads
from meshwright.launchers.transformers.export import (
    Values,
    adapter_kinds,
    decided,
    keeps_fp32,
    trainer_warnings,
    with_mesh,
)
from meshwright.profiles.adapters import linear_names
from meshwright.profiles.errors import FieldError
from meshwright.profiles.optimizers import USUAL_INTERVAL, optimizer_named, usual_rank
from meshwright.profiles.requirements import packages

CONFIG_FILE = "llama_factory_train.yaml"
PRODUCT = "LLaMA-Factory 0.9.5 on accelerate 1.11.0"
FOLLOWS = "model_name_or_path=… dataset=… template=… output_dir=…"
NEEDS = (("LLAMA_FACTORY_DIR", f"a checkout of LLaMA-Factory; {FOLLOWS} follow"),)
_OTHERS = (
    "deepspeed", "enable_liger_kernel", "fp8", "fsdp", "fsdp_config", "load_in_4bit", "load_in_8bit",
    "loraplus_lr_ratio", "lora_rank", "lora_target", "neat_packing", "pure_bf16", "quantization_bit",
    "quantization_method", "torch_compile", "upcast_layernorm", "use_badam", "use_dora", "use_galore",
    "use_unsloth", "freeze_trainable_layers", "additional_target", "pref_loss", "ref_model",
)  # fmt: skip
_FLASH_ATTN = {"flash_attention_2": "fa2", "sdpa": "sdpa", "eager": "disabled"}


_STAGES = {"sequence": "sft", "pair": "dpo", "unpaired": "kto"}


def values_of(target: Target) -> Values:
    """Return LLaMA-Factory's arguments that the plan sets."""
    config, workload = target.config, target.workload
    return {
        "stage": _STAGES[workload.sample],
        **({"pref_loss": "simpo"} if workload.sample_word == "pair" else {}),  # others have a reference
        "do_train": True,
        "finetuning_type": "full",
        "per_device_train_batch_size": config.micro_batch_size,
        "gradient_accumulation_steps": config.num_microbatches,
        "cutoff_len": workload.seq_length,
        "packing": not pads(target),
        # documents attend only to themselves
        "neat_packing": workload.lengths is not None and not pads(target),
        "bf16": workload.precision == "bf16",
        "fp16": workload.precision == "fp16",
        "flash_attn": _FLASH_ATTN[attention(target)],
        "disable_gradient_checkpointing": not recomputes_in_script(target),  # its own default recomputes
        # trained weights are cast up to fp32, except with this (model/adapter.py, init_adapter)
        "pure_bf16": not keeps_fp32(target),
        "optim": optimizer(target),
        **ddp_bucket(target),
        **_projected(target),
        **_adapter(target),
        **images.llama_factory_values(target),
    }


def _projected(target: Target) -> Values:
    """Return GaLore's arguments: every linear layer but the head is projected."""
    workload = target.workload
    found = optimizer_named(workload.optimizer)
    if not found.low_rank:
        return {}
    return {
        "use_galore": True,
        "galore_target": "all",
        "galore_rank": workload.optimizer_rank or usual_rank(target.problem.model.hidden_size),
        "galore_update_interval": workload.optimizer_interval or USUAL_INTERVAL,
        "galore_layerwise": found.by_layer,
    }


def _adapter(target: Target) -> Values:
    """Return adapters of peft next to 16-, 8- or 4-bit weights; alpha is twice the rank, the default."""
    workload = target.workload
    if not workload.lora_rank:
        return {}
    values: Values = {
        "finetuning_type": "lora",
        "lora_rank": workload.lora_rank,
        "lora_alpha": 2 * workload.lora_rank,
        **adapter_kinds(target),
        "lora_target": "all"
        if linear_names(target.problem.model) == workload.lora_targets
        else ",".join(workload.lora_targets),
        **({"additional_target": ",".join(workload.trained_modules)} if workload.trained_modules else {}),
    }
    if workload.base_precision == "int8":
        values |= {"quantization_bit": 8, "quantization_method": "bnb"}
    elif workload.base_precision != "bf16":
        values |= {
            "quantization_bit": 4,
            "quantization_method": "bnb",
            "quantization_type": "nf4",
            "double_quantization": workload.base_precision == "nf4-double",
        }
    return values


def kernel_has_a_name(target: Target) -> Iterator[FieldError]:
    """Require an attention kernel that ``flash_attn`` names (model/model_utils/attention.py)."""
    kernel = attention(target)
    if kernel not in _FLASH_ATTN:
        named = [name for name, theirs in ATTENTION.items() if theirs in _FLASH_ATTN]
        yield FieldError(
            pointer="/workload/framework_options/attention_kernel",
            message=f"LLaMA-Factory's flash_attn has no name for {kernel}",
            allowed=", ".join(named),
            nearest="flash2",
        )


def export(target: Target) -> ExportBundle:
    """Return the mesh in accelerate's file, LLaMA-Factory's own, and the two scripts that start it."""
    refuse_first(target, "llama-factory-accelerate", (kernel_has_a_name,))
    values = values_of(target)
    # those of transformers' trainer but peft, which LLaMA-Factory installs, and of its attention
    trainers = (one for one in trainer_packages(target) if one != packages()["adapters"])
    flash = (packages()["FlashAttention"],) if values["flash_attn"] == "fa2" else ()
    program = f'    "${{LLAMA_FACTORY_DIR}}/src/train.py" "${{here}}/{CONFIG_FILE}" "$@"'
    return bundled(
        target,
        product=PRODUCT,
        shape=True,
        start=StartCommand(
            program="\n".join([*accelerate_launch(target), program]),
            needs=NEEDS,
            packages=(*trainers, *flash),
            follows=FOLLOWS,
            command=True,
            decides=decided(values, _OTHERS),
            assignments=True,
        ),
        warnings=trainer_warnings(target),
        own=with_mesh(target, CONFIG_FILE, values),
    )
