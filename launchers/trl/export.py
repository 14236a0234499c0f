"""Exporter of TRL: accelerate's own file for the mesh, and a YAML of SFTConfig's and ModelConfig's fields.

Names: TRL 1.16.0, trainer/sft_config.py and trainer/model_config.py, which reads transformers'
TrainingArguments next to accelerate's own file.
"""

from __future__ import annotations

from meshwright.launchers.accelerate.export import (
    accelerate_launch,
    attention,
    ddp_bucket,
    optimizer,
    recomputes_in_script,
    tensor_packages,
    trainer_packages,
)
from meshwright.launchers.export import StartCommand, bundled
from meshwright.launchers.rules import refuse_first
from meshwright.launchers.target import ExportBundle, Target, pads, pads_to_longest
from meshwright.launchers.transformers.export import (
    Values,
    adapter_kinds,
    decided,
    keeps_fp32,
    trained_whole,
    trainer_warnings,
    trainers_galore,
    with_mesh,
)
from meshwright.profiles.adapters import WHOLE_PRECISIONS, names_every
from meshwright.profiles.requirements import packages

PRODUCT = "TRL 1.16.0 on accelerate 1.15.0"
_NEEDS = (
    ("MODEL", "the model that was planned: a folder or a name of the hub"),
    ("DATASET", "the data set: a folder or a name of the hub"),
    ("OUTPUT_DIR", "where checkpoints go"),
    ("LR", "the learning rate"),
)
_OTHERS = (
    "deepspeed", "fsdp", "fsdp_config", "load_in_4bit", "load_in_8bit", "lora_modules_to_save", "lora_r",
    "padding_free", "parallelism_config", "torch_compile", "torch_dtype", "use_liger_kernel", "use_peft",
)  # fmt: skip
_RESUMES = """\
# A run that is started again goes on from the last checkpoint that is whole.
last="$(find "${OUTPUT_DIR}" -path '*/checkpoint-*/trainer_state.json' 2>/dev/null |
    sort -V | tail -n 1 || true)"
"""
_COMMAND = """\
    -m trl.scripts.@KIND@ --config "${here}/trl_@KIND@.yaml" \\
    --model_name_or_path "${MODEL}" --dataset_name "${DATASET}" \\
    --output_dir "${OUTPUT_DIR}" --learning_rate "${LR}" \\
    ${last:+--resume_from_checkpoint "${last%/*}"} "$@"
"""


def values_of(target: Target) -> Values:
    """Return fields of SFTConfig and ModelConfig that the plan sets."""
    config, precision = target.config, target.workload.precision
    return {
        "per_device_train_batch_size": config.micro_batch_size,
        "gradient_accumulation_steps": config.num_microbatches,
        "max_length": target.workload.seq_length,
        **(_batching(target) if kind_of(target) == "sft" else _preferences(target)),
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "gradient_checkpointing": recomputes_in_script(target),  # SFTConfig's own default is true
        # torch's rings only accept SDPA
        "attn_implementation": attention(target) if config.context_parallel_size == 1 else "sdpa",
        # FSDP's shards, or autocast's weights; bf16 if no copy of them was priced
        "dtype": "float32" if keeps_fp32(target) else "bfloat16",
        "optim": optimizer(target),
        **ddp_bucket(target),
        **trainers_galore(target),
        **_adapter_values(target),
    }


_KINDS = {"sequence": "sft", "pair": "dpo", "unpaired": "kto"}


def kind_of(target: Target) -> str:
    """Return TRL's script that trains on the samples of a plan: sft, dpo or kto."""
    return _KINDS[target.workload.sample]


def _preferences(target: Target) -> Values:
    """Return the fields of DPOConfig and KTOConfig; adapters are their own reference, turned off."""
    own: Values = {"precompute_ref_log_probs": target.workload.reference == "none"}
    if target.workload.sample == "unpaired":  # answers of one batch estimate the divergence of the next
        own["train_sampling_strategy"] = "sequential"
    return own


def _batching(target: Target) -> Values:
    """Return TRL's packing of documents into sequences; cut at their ends, no batch is flattened."""
    if pads_to_longest(target):
        return {"packing": False}
    if pads(target):
        return {"packing": False, "pad_to_multiple_of": target.workload.seq_length}
    return {"packing": True, "packing_strategy": "wrapped" if target.workload.lengths is None else "bfd"}


def _adapter_values(target: Target) -> Values:
    """Return adapters of peft next to bf16, 8- or 4-bit weights; alpha is twice the rank, as in TRL."""
    workload = target.workload
    if not workload.lora_rank:
        return {}
    values: Values = {
        "use_peft": True,
        "lora_r": workload.lora_rank,
        "lora_alpha": 2 * workload.lora_rank,
        **adapter_kinds(target),
        # A list of one becomes a word, which peft treats as a pattern of whole paths (trainer/utils.py).
        "lora_target_modules": "all-linear"
        if names_every(workload.lora_targets)
        else list(workload.lora_targets) * (2 if len(workload.lora_targets) == 1 else 1),
        **trained_whole(target, "lora_modules_to_save"),
        "dtype": "float32" if workload.base_precision == "fp32" else "bfloat16",
    }
    if workload.base_precision == "int8":
        values["load_in_8bit"] = True
    elif workload.base_precision not in WHOLE_PRECISIONS:
        values |= {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "use_bnb_nested_quant": workload.base_precision == "nf4-double",
            "bnb_4bit_quant_storage": "bfloat16",  # FSDP cuts floats alone
        }
    return values


def export(target: Target) -> ExportBundle:
    """Return the mesh in accelerate's file, TRL's own, and the two scripts that start it."""
    refuse_first(target, "trl")
    values, kind = values_of(target), kind_of(target)
    kernel = str(values["attn_implementation"])
    flash = (packages()["FlashAttention or kernels"],) if kernel.startswith("flash") else ()
    return bundled(
        target,
        product=PRODUCT,
        shape=True,
        start=StartCommand(
            program="\n".join([*accelerate_launch(target), _COMMAND.rstrip().replace("@KIND@", kind)]),
            needs=_NEEDS,
            packages=(*trainer_packages(target), *tensor_packages(target), *flash),
            command=True,
            before=_RESUMES,
            decides=decided(values, _OTHERS),
        ),
        warnings=trainer_warnings(target),
        own=with_mesh(target, f"trl_{kind}.yaml", values),
    )
