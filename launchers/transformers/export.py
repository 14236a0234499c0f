"""Exporters of Axolotl, TRL and LLaMA-Factory: trainers over accelerate's mesh, with keys of their own.

Names: Axolotl 0.19.0, utils/schemas (config.py, training.py, fsdp.py) and utils/distributed.py
(build_parallelism_config); TRL 1.16.0, trainer/sft_config.py and trainer/model_config.py, which reads
transformers' TrainingArguments next to accelerate's own file.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import yaml

from meshwright.launchers import images
from meshwright.launchers.accelerate.export import (
    ATTENTION,
    CONFIG_FILE,
    accelerate_file,
    accelerate_launch,
    accelerate_warnings,
    attention,
    ddp_bucket,
    mesh,
    optimizer,
    recomputes_in_script,
    tensor_packages,
    trainer_packages,
)
from meshwright.launchers.export import StartCommand, bundled, model_is_in_the_script
from meshwright.launchers.rules import refuse_first
from meshwright.launchers.target import ExportBundle, Target, pads, pads_to_longest
from meshwright.profiles.adapters import WHOLE_PRECISIONS, linear_names, names_every
from meshwright.profiles.errors import FieldError
from meshwright.profiles.optimizers import USUAL_INTERVAL, optimizer_named, usual_rank
from meshwright.profiles.requirements import (
    CUT_CROSS_ENTROPY,
    FLASH_ATTENTION,
    FLASH_ATTENTION_OR_KERNELS,
    GALORE,
    PEFT,
    RING_ATTENTION,
    Requirement,
)

Values = dict[str, object]
WEIGHTS_SHARDED = 3  # ZeRO-3
WRITTEN_FACTS = ("attention_kernel", "flash_attention")
# Values for a long run that do not affect the price; the user may change them.
OF_THE_RUN = {"logging_steps": 1, "save_steps": 500, "max_grad_norm": 1.0, "ddp_timeout": 1800}

_RESUMES = {"auto_resume_from_checkpoints": True}  # Axolotl's: a restarted run resumes


def keeps_fp32(target: Target) -> bool:
    """Return whether the optimizer updates fp32 weights, the default unless none were priced."""
    return optimizer_named(target.workload.optimizer).fp32_copy


# --------------------------------------------------------------------------------------------------
# Axolotl: one YAML for the whole run; the user adds data and model from a file of their own.


AXOLOTL_FILE = "axolotl.yaml"
AXOLOTL = "Axolotl 0.19.0"
AXOLOTL_NEEDS = (
    ("RUN_CONFIG", "a YAML of your own: base_model, datasets, learning_rate, num_epochs, output_dir, …"),
)
# Other names that would change the plan: aliases, other engines, frozen weights.
AXOLOTL_OTHERS = (
    "adapter", "batch_size", "bfloat16", "deepspeed", "expert_parallel_size", "flash_attention", "float16",
    "fp8", "fsdp", "load_in_4bit", "load_in_8bit", "lora_r", "lora_target_linear", "lora_target_modules",
    "lora_modules_to_save", "sdp_attention", "sequence_parallel_degree",
    "torch_compile", "context_parallel_size", "dp_replicate_size", "dp_shard_size", "fsdp_config",
    "fsdp_version", "tensor_parallel_size",
)  # fmt: skip
# The two files become one; for a key in both the last would silently win.
_JOINED = """\
for key in \\
    @KEYS@; do
    if grep -q "^${key}:" "${RUN_CONFIG}"; then
        echo "error: ${key} in ${RUN_CONFIG} belongs to the plan; change the plan instead" >&2
        exit 2
    fi
done
joined="$(mktemp -d)/run"
cat "${here}/axolotl.yaml" "${RUN_CONFIG}" >"${joined}"
"""


def axolotl_values(target: Target) -> Values:
    """Return every value that the plan sets."""
    config = target.config
    return {
        "micro_batch_size": config.micro_batch_size,
        "gradient_accumulation_steps": config.num_microbatches,
        "sequence_len": target.workload.seq_length,
        "sample_packing": not pads(target),  # every sequence is full, as the prediction assumes
        "pad_to_sequence_len": not pads_to_longest(target),
        "bf16": True,
        "fp16": False,
        # its rings only accept FlashAttention 2
        "attn_implementation": attention(target)
        if config.context_parallel_size == 1
        else "flash_attention_2",
        "gradient_checkpointing": recomputes_in_script(target),
        "optimizer": optimizer(target),
        **_trainers_galore(target, "optimizer"),
        **_axolotl_adapter(target),
        **(_CUT if _cuts_logits(target) else {}),
        **(_axolotl_shards(target) if config.zero_stage else {}),
    }


def _axolotl_shards(target: Target) -> Values:
    """Return the mesh of FSDP2; without one Axolotl replicates every rank."""
    config, sizes = target.config, mesh(target)
    return {
        "tensor_parallel_size": sizes["tp_size"],
        "context_parallel_size": sizes["cp_size"],
        "dp_replicate_size": sizes["dp_replicate_size"],
        "dp_shard_size": sizes["dp_shard_size"],
        "fsdp_version": 2,
        "fsdp_config": {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": config.zero_stage == WEIGHTS_SHARDED,
            "activation_checkpointing": config.recompute_granularity == "full",
            "offload_params": False,
            # 0.21.0 turns it off with tensor ranks, which load their own parts (validation.py:2394)
            "cpu_ram_efficient_loading": sizes["tp_size"] == 1,
            "state_dict_type": "SHARDED_STATE_DICT",
        },
    }


# Cut cross entropy, which keeps no logits (Axolotl's integrations/cut_cross_entropy).
_CUT: Values = {
    "plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"],
    "cut_cross_entropy": True,
}


def _cuts_logits(target: Target) -> bool:
    """Return whether the loss was priced without logits."""
    options = target.workload.framework_options
    return bool(options.get("loss_fused")) and options.get("logit_bytes") == 0


def _axolotl_adapter(target: Target) -> Values:
    """Return adapters of peft next to weights in bf16; alpha is twice the rank."""
    workload = target.workload
    if not workload.lora_rank:
        return {}
    return {
        "adapter": "lora",
        "lora_r": workload.lora_rank,
        "lora_alpha": 2 * workload.lora_rank,
        "lora_dropout": 0.0,
        **(
            {"lora_target_linear": True}
            if linear_names(target.problem.model) == workload.lora_targets
            else {"lora_target_modules": list(workload.lora_targets)}
        ),
        **_trained_whole(target, "lora_modules_to_save"),
    }


def _trained_whole(target: Target, name: str) -> Values:
    """Return the modules trained in full, under a trainer's ``name`` for peft's ``modules_to_save``."""
    return {name: list(target.workload.trained_modules)} if target.workload.trained_modules else {}


def export_axolotl(target: Target) -> ExportBundle:
    """Return Axolotl's YAML without data and model, and the two scripts that start it."""
    refuse_first(target, "axolotl", (replicas_need_flash_attention,))
    values = axolotl_values(target)
    decided = (*sorted(values), *(name for name in AXOLOTL_OTHERS if name not in values))
    return bundled(
        target,
        product=AXOLOTL,
        shape=True,
        start=StartCommand(
            program='-m axolotl.cli.train "${joined}"',
            needs=AXOLOTL_NEEDS,
            packages=_axolotl_packages(target),
            decides=decided,
            before=_JOINED.replace("@KEYS@", " \\\n    ".join(textwrap.wrap(" ".join(decided), 100))),
        ),
        warnings=_axolotl_warnings(target),
        own=lambda head: {
            AXOLOTL_FILE: head + yaml.safe_dump(values | OF_THE_RUN | _RESUMES, sort_keys=True)
        },
    )


def _axolotl_packages(target: Target) -> tuple[Requirement, ...]:
    ring = (RING_ATTENTION,) if target.config.context_parallel_size > 1 else ()
    galore = (GALORE,) if optimizer_named(target.workload.optimizer).low_rank else ()
    return (
        *tensor_packages(target),
        *galore,
        *ring,
        *((CUT_CROSS_ENTROPY,) if _cuts_logits(target) else ()),
    )


def _axolotl_warnings(target: Target) -> Iterator[str]:
    cut = ("loss_fused", "logit_bytes") if _cuts_logits(target) else ()
    yield from accelerate_warnings(target, (*WRITTEN_FACTS, *cut))
    yield model_is_in_the_script(target)
    if target.config.zero_stage:
        yield "Axolotl keeps weights and both moments in bf16 (its FSDP2 casts nothing up), as was priced"


def replicas_need_flash_attention(target: Target) -> Iterator[FieldError]:
    """Require a kernel for which Axolotl casts embeddings and head back to bf16 (loaders/model.py:462)."""
    if target.config.zero_stage == 0 and not attention(target).startswith("flash"):
        yield FieldError(
            pointer="/workload/framework_options/attention_kernel",
            message="without FSDP Axolotl keeps embeddings and head in fp32 under this kernel: not priced",
            allowed="flash2, flash3",
            nearest="flash2",
        )


# --------------------------------------------------------------------------------------------------
# TRL: accelerate's own file for the mesh, and a YAML of SFTConfig's and ModelConfig's fields.


TRL_FILE = "trl_sft.yaml"
TRL = "TRL 1.16.0 on accelerate 1.15.0"
TRL_NEEDS = (
    ("MODEL", "the model that was planned: a folder or a name of the hub"),
    ("DATASET", "the data set: a folder or a name of the hub"),
    ("OUTPUT_DIR", "where checkpoints go"),
    ("LR", "the learning rate"),
)
TRL_OTHERS = (
    "deepspeed", "fsdp", "fsdp_config", "load_in_4bit", "load_in_8bit", "lora_modules_to_save", "lora_r",
    "padding_free", "parallelism_config", "torch_compile", "torch_dtype", "use_liger_kernel", "use_peft",
)  # fmt: skip
_TRL_RESUMES = """\
# A run that is started again goes on from the last checkpoint that is whole.
last="$(find "${OUTPUT_DIR}" -path '*/checkpoint-*/trainer_state.json' 2>/dev/null |
    sort -V | tail -n 1 || true)"
"""
_TRL_COMMAND = """\
    -m trl.scripts.sft --config "${here}/trl_sft.yaml" \\
    --model_name_or_path "${MODEL}" --dataset_name "${DATASET}" \\
    --output_dir "${OUTPUT_DIR}" --learning_rate "${LR}" \\
    ${last:+--resume_from_checkpoint "${last%/*}"} "$@"
"""


def trl_values(target: Target) -> Values:
    """Return fields of SFTConfig and ModelConfig that the plan sets."""
    config, precision = target.config, target.workload.precision
    return {
        "per_device_train_batch_size": config.micro_batch_size,
        "gradient_accumulation_steps": config.num_microbatches,
        "max_length": target.workload.seq_length,
        **_batching(target),
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "gradient_checkpointing": recomputes_in_script(target),  # SFTConfig's own default is true
        # torch's rings only accept SDPA
        "attn_implementation": attention(target) if config.context_parallel_size == 1 else "sdpa",
        # FSDP's shards, or autocast's weights; bf16 if no copy of them was priced
        "dtype": "float32" if keeps_fp32(target) else "bfloat16",
        "optim": optimizer(target),
        **ddp_bucket(target),
        **_trainers_galore(target),
        **_adapter_values(target),
    }


def _trainers_galore(target: Target, key: str = "optim") -> Values:
    """Return the Trainer's own GaLore, named by ``key``: every linear layer but the head is projected."""
    workload = target.workload
    found = optimizer_named(workload.optimizer)
    if not found.low_rank:
        return {}
    rank = workload.optimizer_rank or usual_rank(target.problem.model.hidden_size)
    interval = workload.optimizer_interval or USUAL_INTERVAL
    eighth, by_layer = "_8bit" * ("8bit" in workload.optimizer), "_layerwise" * found.by_layer
    return {
        key: f"galore_adamw{eighth}{by_layer}",
        "optim_target_modules": list(linear_names(target.problem.model)),
        "optim_args": f"rank={rank}, update_proj_gap={interval}, scale=0.25",
    }


def _batching(target: Target) -> Values:
    """Return TRL's packing of documents into sequences; cut at their ends, no batch is flattened."""
    if pads_to_longest(target):
        return {"packing": False}
    if pads(target):
        return {"packing": False, "pad_to_multiple_of": target.workload.seq_length}
    strategy = "wrapped" if target.workload.lengths is None else "bfd"
    return {"packing": True, "packing_strategy": strategy}


def _adapter_values(target: Target) -> Values:
    """Return adapters of peft next to bf16, 8- or 4-bit weights; alpha is twice the rank, as in TRL."""
    workload = target.workload
    if not workload.lora_rank:
        return {}
    values: Values = {
        "use_peft": True,
        "lora_r": workload.lora_rank,
        "lora_alpha": 2 * workload.lora_rank,
        "lora_dropout": 0.0,
        # A list of one becomes a word, which peft treats as a pattern of whole paths (trainer/utils.py).
        "lora_target_modules": "all-linear"
        if names_every(workload.lora_targets)
        else list(workload.lora_targets) * (2 if len(workload.lora_targets) == 1 else 1),
        **_trained_whole(target, "lora_modules_to_save"),
        "dtype": "float32" if workload.base_precision == "fp32" else "bfloat16",
    }
    if workload.base_precision == "int8":
        values["load_in_8bit"] = True
    elif workload.base_precision not in WHOLE_PRECISIONS:
        values |= {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "use_bnb_nested_quant": workload.base_precision == "nf4-double",
        }
    return values


def export_trl(target: Target) -> ExportBundle:
    """Return the mesh in accelerate's file, TRL's own, and the two scripts that start it."""
    refuse_first(target, "trl")
    values = trl_values(target)
    return bundled(
        target,
        product=TRL,
        shape=True,
        start=StartCommand(
            program="\n".join([*accelerate_launch(target), _TRL_COMMAND.rstrip()]),
            needs=TRL_NEEDS,
            packages=_trl_packages(target, values),
            command=True,
            before=_TRL_RESUMES,
            decides=(*values, *(name for name in TRL_OTHERS if name not in values)),
        ),
        warnings=_trainer_warnings(target),
        own=lambda head: {
            CONFIG_FILE: accelerate_file(head, target),
            TRL_FILE: head + yaml.safe_dump(values | OF_THE_RUN, sort_keys=True),
        },
    )


def _trl_packages(target: Target, values: Values) -> tuple[Requirement, ...]:
    flash = str(values["attn_implementation"]).startswith("flash")
    attention = (FLASH_ATTENTION_OR_KERNELS,) if flash else ()
    return (*trainer_packages(target), *tensor_packages(target), *attention)


def _trainer_warnings(target: Target) -> Iterator[str]:
    yield from accelerate_warnings(target, WRITTEN_FACTS)
    yield model_is_in_the_script(target)


# --------------------------------------------------------------------------------------------------
# LLaMA-Factory's own trainer: accelerate's file for the mesh, and a YAML of its arguments. Names:
# LLaMA-Factory 0.9.5, hparams (data_args.py, model_args.py, finetuning_args.py), model/adapter.py.


LLAMA_FACTORY_FILE = "llama_factory_train.yaml"
LLAMA_FACTORY = "LLaMA-Factory 0.9.5 on accelerate 1.11.0"
LLAMA_FACTORY_FOLLOWS = "model_name_or_path=… dataset=… template=… output_dir=…"
LLAMA_FACTORY_NEEDS = (
    ("LLAMA_FACTORY_DIR", f"a checkout of LLaMA-Factory; {LLAMA_FACTORY_FOLLOWS} follow"),
)
LLAMA_FACTORY_OTHERS = (
    "deepspeed", "enable_liger_kernel", "fp8", "fsdp", "fsdp_config", "load_in_4bit", "load_in_8bit",
    "loraplus_lr_ratio", "lora_rank", "lora_target", "neat_packing", "pure_bf16", "quantization_bit",
    "quantization_method", "torch_compile", "upcast_layernorm", "use_badam", "use_dora", "use_galore",
    "use_unsloth", "freeze_trainable_layers", "additional_target",
)  # fmt: skip
_FLASH_ATTN = {"flash_attention_2": "fa2", "sdpa": "sdpa", "eager": "disabled"}


def llama_factory_values(target: Target) -> Values:
    """Return LLaMA-Factory's arguments that the plan sets."""
    config, workload = target.config, target.workload
    return {
        "stage": "sft",
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
        **_llama_factory_adapter(target),
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


def _llama_factory_adapter(target: Target) -> Values:
    """Return adapters of peft next to 16-, 8- or 4-bit weights; alpha is twice the rank, the default."""
    workload = target.workload
    if not workload.lora_rank:
        return {}
    values: Values = {
        "finetuning_type": "lora",
        "lora_rank": workload.lora_rank,
        "lora_alpha": 2 * workload.lora_rank,
        "lora_dropout": 0.0,
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


def _llama_factory_packages(target: Target, values: Values) -> tuple[Requirement, ...]:
    """Return the packages of transformers' trainer but peft, which it installs, and of its attention."""
    flash = (FLASH_ATTENTION,) if values["flash_attn"] == "fa2" else ()
    return (*(one for one in trainer_packages(target) if one != PEFT), *flash)


def export_llama_factory(target: Target) -> ExportBundle:
    """Return the mesh in accelerate's file, LLaMA-Factory's own, and the two scripts that start it."""
    refuse_first(target, "llama-factory-accelerate", (kernel_has_a_name,))
    values = llama_factory_values(target)
    program = f'    "${{LLAMA_FACTORY_DIR}}/src/train.py" "${{here}}/{LLAMA_FACTORY_FILE}" "$@"'
    return bundled(
        target,
        product=LLAMA_FACTORY,
        shape=True,
        start=StartCommand(
            program="\n".join([*accelerate_launch(target), program]),
            needs=LLAMA_FACTORY_NEEDS,
            packages=_llama_factory_packages(target, values),
            follows=LLAMA_FACTORY_FOLLOWS,
            command=True,
            decides=(*values, *(name for name in LLAMA_FACTORY_OTHERS if name not in values)),
            assignments=True,
        ),
        warnings=_trainer_warnings(target),
        own=lambda head: {
            CONFIG_FILE: accelerate_file(head, target),
            LLAMA_FACTORY_FILE: head + yaml.safe_dump(values | OF_THE_RUN, sort_keys=True),
        },
    )
