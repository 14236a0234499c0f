"""Reader of LLaMA-Factory's new configuration (``USE_V1=1 llamafactory-cli sft FILE``), with its plugins.

Its trainer runs on FSDP2, on DeepSpeed through accelerate, or on replicas. Its values become those of the
older trainer and of accelerate's file, which one reader prices. Names, defaults and what it refuses:
LLaMA-Factory 0.9.5, v1/config, v1/core/base_trainer.py and v1/core/model_engine.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshwright.launchers.accelerate.read_command import ENGINE, FSDP, Shares
from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.documents import LocatedValue, document_of, looks_like_document
from meshwright.launchers.reading.fields import Fields
from meshwright.launchers.reading.known import Known
from meshwright.launchers.transformers import read as trainer
from meshwright.launchers.transformers.tools import LLAMA_FACTORY

_OWN = ("model_class", "train_dataset", "batching_strategy", "enable_activation_checkpointing",
        "dist_config.name", "peft_config.name", "kernel_config.name", "quant_config.name")  # fmt: skip
_LEAST, _ALONE = 2, 4  # of its names: next to a model, and without one
# The older trainer's name of each value that it has too.
_NAMES = {
    "model": "model_name_or_path", "micro_batch_size": "per_device_train_batch_size",
    "train_dataset": "dataset", "peft_config.r": "lora_rank", "peft_config.lora_dropout": "lora_dropout",
    "peft_config.use_rslora": "use_rslora", "peft_config.use_dora": "use_dora",
    "peft_config.modules_to_save": "additional_target", "dist_config.config_file": "deepspeed",
    "quant_config.quantization_bit": "quantization_bit",
    "quant_config.double_quantization": "double_quantization",
    "quant_config.quantization_type": "quantization_type",
    **{name: name for name in ("cutoff_len", "bf16", "template", "trust_remote_code", "output_dir",
                               "learning_rate", "num_train_epochs", "max_steps", "max_grad_norm", "seed",
                               "full_determinism", "save_steps", "save_total_limit", "logging_steps")},
}  # fmt: skip
_OF_MESH = {"reshard_after_forward": "fsdp_reshard_after_forward", "offload_params": "fsdp_offload_params"}
# They change no time and no memory of a step: data, saving, sampling, and how weights are loaded.
_FREE = ("batching_workers", "eval_dataset", "resume_from_checkpoint", "save_epochs", "save_ckpt_as_hf",
         "sample_backend", "max_new_tokens", "init_config.name", "kernel_config.name",
         "kernel_config.include_kernels", "peft_config.lora_alpha", "quant_config.compute_dtype",
         "dist_config.pin_memory", "dist_config.dcp_path", "dist_config.timeout", "dist_config.cp_mode",
         "dist_config.save_param_only")  # fmt: skip
_FREE_PLUGINS = ("lr_scheduler_config", "peft_config.export", "peft_config.infer", "peft_config.freeze_")
_READ = ("global_batch_size", "model_class", "flash_attn", "batching_strategy", "quant_config.name",
         "enable_activation_checkpointing", "peft_config.name", "peft_config.target_modules",
         "dist_config.name", "dist_config.cp_size", "dist_config.mp_replicate_size",
         "dist_config.mp_shard_size", "dist_config.dp_size")  # fmt: skip
KERNELS = {"eager": "disabled", "sdpa": "sdpa", "flash_attention_2": "fa2"}
_PACKED = ("padding_free", "dynamic_padding_free")
_BATCHINGS = ("normal", "padding_free", "dynamic_batching", "dynamic_padding_free")


def is_v1(source: Source) -> bool:
    """Return whether a file is of the new configuration, by names that no other has."""
    names = looks_like_document(source) if source.suffix in (".yaml", ".yml") else {}
    own = sum(name in names for name in _OWN)
    return own >= (_LEAST if "model" in names else _ALONE)


_TRAINER = replace(LLAMA_FACTORY, freezes_stored=False)


def read_v1(source: Source, overrides: Overrides, known: Known) -> LaunchFile:
    """Return the run of a file of the new configuration.

    Raises:
        InvalidProblemError: a value cannot be read, is not priced, or its trainer stops at it.
    """
    document = document_of(source, by_omegaconf=True)
    fields = Fields(source.name, document, overrides)
    _refuse(fields, document)
    values = {_NAMES[name]: found for name, found in document.items() if name in _NAMES}
    values |= _trained(fields) | _batch(fields, known) | _kernels(fields)
    engine = fields.word("dist_config.name", "")
    shares = _mesh(source, fields, document) if engine == "fsdp2" else None
    if not engine:
        fields.note("dist_config is not set: plain replicas, and weights and products of 32 bits")
        values["bf16"] = _said(False)
    fields.stop()
    liger = fields.word("kernel_config.name", "") == "liger_kernel"
    values["enable_liger_kernel"] = _said(liger and fields.word("kernel_config.include_kernels", "") != "")
    values_of_run = Fields(source.name, values, overrides, LLAMA_FACTORY.programs)
    found = trainer.trainer_run(values_of_run, known, _TRAINER, shares=shares, packed="")
    options = dict(found.workload.framework_options)
    if options.get("loss_kernel") == "liger":  # "SFT stage needs logits for loss_weights" (model_engine.py)
        del options["loss_kernel"]
    workload = replace(found.workload, framework_options=options)
    return replace(found, workload=workload, notes=(*fields.notes, *found.notes))


def _said(value: object) -> LocatedValue:
    return LocatedValue(value, 0)


def _refuse(fields: Fields, document: Mapping[str, LocatedValue]) -> None:
    """Refuse names that its parser stops at, and what no plan describes."""
    known = (*_NAMES, *_READ, *_FREE, *(f"dist_config.{name}" for name in _OF_MESH))
    for name in document:
        free = name in known or name.startswith(_FREE_PLUGINS) or fields.is_null(name)
        if not free and not name.startswith("optim_config"):
            fields.fault(name, "is unknown: LLaMA-Factory stops at it", allowed="a name of its v1/config")
    if any(name.startswith("optim_config") for name in document):
        fields.fault(
            "optim_config.name", "its trainer refuses every name: no plugin is registered", allowed="none"
        )
    if fields.word("model_class", "llm") != "llm":
        fields.fault("model_class", "a classifier is not supported here", allowed="llm")
    fields.word("dist_config.name", "fsdp2", allowed=("fsdp2", "deepspeed"))
    cp, kernel = fields.integer("dist_config.cp_size", 1), fields.word("flash_attn", "sdpa")
    if cp > 1:
        why = ("Ulysses is not supported under this trainer" if kernel == "flash_attention_2"
               else "its trainer refuses sequence parallelism without flash_attention_2")  # fmt: skip
        fields.fault("dist_config.cp_size", why, allowed="1", nearest="1")
    if kernel not in KERNELS:
        fields.fault("flash_attn", "its trainer refuses this name", allowed=", ".join(KERNELS))
    if fields.word("batching_strategy", "normal") == "padding_free" and kernel != "flash_attention_2":
        fields.fault(
            "batching_strategy", "its trainer refuses padding_free without flash_attention_2",
            allowed="flash_attn: flash_attention_2",
        )  # fmt: skip
    fields.stop()


def _trained(fields: Fields) -> dict[str, LocatedValue]:
    """Return what is trained, in the older trainer's names: all weights in 32 bits, or adapters."""
    kind = fields.word("peft_config.name", "full")
    if kind not in ("full", "lora"):
        why = f"{kind[:40]} trains some layers of the model, which is not supported"
        fields.fault("peft_config.name", why, allowed="lora, or no peft_config")
    found: dict[str, object] = {"do_train": True, "finetuning_type": kind, "optim": "adamw_torch"}
    if kind == "lora":
        targets = fields.raw("peft_config.target_modules")
        found |= {
            "lora_target": ",".join(map(str, targets)) if isinstance(targets, list) else targets or "all"
        }
        found |= {} if fields.has("peft_config.r") else {"lora_rank": 8}
        found |= {} if fields.has("peft_config.lora_dropout") else {"lora_dropout": 0.05}
    bits = fields.word("quant_config.name", "none", allowed=("none", "auto", "bnb"))
    if bits == "bnb" and not fields.has("quant_config.quantization_bit"):
        found["quantization_bit"] = 4
    if not fields.flag("enable_activation_checkpointing", default=True):
        found["disable_gradient_checkpointing"] = True
    return {name: _said(value) for name, value in found.items()}


def _batch(fields: Fields, known: Known) -> dict[str, LocatedValue]:
    """Return the micro-batches of a step; without a global batch it is one of each replica."""
    how = fields.word("batching_strategy", "normal", allowed=_BATCHINGS)
    if how == "normal":
        fields.note(trainer.PADDED.format("cutoff_len"))
    elif how not in _PACKED or how == "dynamic_padding_free":
        fields.note(f"batching_strategy {how}: micro-batches of micro_batch_size × cutoff_len tokens")
    batch, micro = fields.optional("global_batch_size"), fields.integer("micro_batch_size", 1)
    count = 1
    if batch:
        world = known.num_gpus() or known.required("num_gpus", None, "NPROC_PER_NODE")
        if batch % (world * micro):
            fields.fault(
                "global_batch_size", f"its trainer refuses {batch}: {world} replicas × {micro}",
                allowed=f"multiples of {world * micro}",
            )  # fmt: skip
        count = max(batch // (world * micro), 1)
    found = {"gradient_accumulation_steps": count, "per_device_train_batch_size": micro, "bf16": True}
    return {name: _said(value) for name, value in found.items() if name != "bf16" or not fields.has("bf16")}


def _kernels(fields: Fields) -> dict[str, LocatedValue]:
    return {"flash_attn": _said(KERNELS[fields.word("flash_attn", "sdpa")])}


def _mesh(source: Source, fields: Fields, document: Mapping[str, LocatedValue]) -> Shares:
    """Return FSDP2's switches as accelerate's file would have them; gradients travel in 32 bits."""
    copies = fields.integer("dist_config.mp_replicate_size", 1)
    if copies > 1:
        fields.fault(
            "dist_config.mp_replicate_size", "replicas of shards are not supported here", allowed="1"
        )
    own = {f"{FSDP}{ours}": document[f"dist_config.{name}"] for name, ours in _OF_MESH.items()
           if f"dist_config.{name}" in document}  # fmt: skip
    return Shares.of(source, {ENGINE: _said("FSDP"), f"{FSDP}fsdp_version": _said(2), **own})
