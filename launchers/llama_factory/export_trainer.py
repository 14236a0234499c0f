"""Exporter of LLaMA-Factory's own trainer: accelerate's file for the mesh, and a YAML of its arguments.

Names: LLaMA-Factory 0.9.5, hparams (data_args.py, model_args.py, finetuning_args.py), model/adapter.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.launchers import images
from meshwright.launchers.accelerate.export import (
    attention,
    recomputes_in_script,
    trainer_packages,
)
from meshwright.launchers.llama_factory import export_v1 as v1
from meshwright.launchers.target import ExportBundle, Target, pads
from meshwright.launchers.transformers.export import TrainerFiles, Values, keeps_fp32
from meshwright.profiles.adapters import adapts_every, class_targets
from meshwright.profiles.optimizers import USUAL_INTERVAL, optimizer_named, usual_rank
from meshwright.profiles.requirements import Requirement, packages
from meshwright.profiles.storage import is_checkpoints
from meshwright.profiles.tower_modules import TOWER_TARGETS
from meshwright.profiles.trained_layers import count_of
from meshwright.solver.problem import Workload

FOLLOWS = "model_name_or_path=… dataset=… template=… output_dir=…"
NEEDS = (("LLAMA_FACTORY_DIR", f"a checkout of LLaMA-Factory; {FOLLOWS} follow"),)
_FLASH_ATTN = {"flash_attention_2": "fa2", "sdpa": "sdpa", "eager": "disabled"}


def _is_ligers(target: Target) -> bool:
    """Return whether Liger's loss was priced, which comes with its norms and activations."""
    return target.workload.framework_options.get("loss_kernel") == "liger"


def _compares_logits(workload: Workload) -> bool:
    """Return whether ASFT's loss was priced, of whole logits next to those of a second model."""
    return workload.framework_options.get("loss_kernel") == "compared"


def _kind(workload: Workload) -> str:
    """Return what is trained, by LLaMA-Factory's word."""
    if not workload.lora_rank:
        return "freeze" if _freezes(workload) else "full"
    return "oft" if workload.framework_options.get("oft") else "lora"


def _freezes(workload: Workload) -> bool:
    """Return whether layers stay frozen: an optimizer that trains each in turn takes all."""
    return bool(workload.trained_layers) and not optimizer_named(workload.optimizer).by_block


def _layers(target: Target) -> Values:
    """Return which layers and ends are trained, where the others are frozen (model/adapter.py:59)."""
    workload = target.workload
    counted = count_of(workload.trained_layers, target.model.num_layers)
    if not _freezes(workload) or counted is None:
        return {}
    ends = class_targets(target.model, workload.trained_modules)
    return {
        "freeze_trainable_layers": counted[0],
        **({"use_llama_pro": True} if counted[1] else {}),
        **({"freeze_extra_modules": ",".join(ends)} if ends else {}),
    }


_OWN_OPTIMIZERS = ("galore", "apollo", "adam-mini", "badam", "muon")  # train/trainer_utils.py:527


class LlamaFactoryFiles(TrainerFiles):
    """LLaMA-Factory's trainer, whose arguments are transformers' with its own."""

    launcher = "llama-factory-accelerate"
    product = "LLaMA-Factory 0.9.5 on accelerate 1.11.0"
    file = "llama_factory_train.yaml"
    command = f'    "${{LLAMA_FACTORY_DIR}}/src/train.py" "${{here}}/{file}" "$@"'
    needs, follows, assignments = NEEDS, FOLLOWS, True
    batch = (*TrainerFiles.batch, "cutoff_len")
    rank = "lora_rank"
    others = (
        "deepspeed", "enable_liger_kernel", "fp8", "fsdp", "fsdp_config", "load_in_4bit", "load_in_8bit",
        "loraplus_lr_ratio", "lora_rank", "lora_target", "neat_packing", "oft_block_size",
        "pure_bf16", "quantization_bit",
        "quantization_method", "torch_compile", "upcast_layernorm",
        "use_adam_mini", "use_apollo", "use_badam", "use_dora", "use_galore", "use_muon",
        "use_unsloth", "freeze_extra_modules", "freeze_trainable_layers", "use_llama_pro",
        "additional_target", "pref_loss", "ref_model", "use_asft_loss",
    )  # fmt: skip

    def own(self, target: Target) -> Values:
        """Return the stage, packing, the switch without which trained weights are cast up, and images."""
        workload, packs = target.workload, not pads(target)
        return {
            "stage": self.kind(target),
            **({"pref_loss": "simpo"} if workload.sample_word == "pair" else {}),  # others have a reference
            "do_train": True,
            "finetuning_type": _kind(workload),
            **_layers(target),
            "packing": packs,
            "neat_packing": workload.lengths is not None and packs,  # documents attend only to themselves
            "pure_bf16": not keeps_fp32(target),  # model/adapter.py, init_adapter
            **({"enable_liger_kernel": True} if _is_ligers(target) else {}),
            **({"use_asft_loss": True} if _compares_logits(workload) else {}),
            **images.llama_factory_values(target),
        }

    def replays(self, target: Target) -> Values:
        """Return the switch that turns recomputation off: LLaMA-Factory's default recomputes."""
        return {"disable_gradient_checkpointing": not recomputes_in_script(target)}

    def attention(self, target: Target) -> Values:
        """Return the kernel by LLaMA-Factory's name."""
        return {"flash_attn": _FLASH_ATTN[attention(target)]}

    def projected(self, target: Target) -> Values:
        """Return the switches of its own optimizers; they project every linear layer but the head."""
        workload = target.workload
        found = optimizer_named(workload.optimizer)
        own = found.family
        if own not in _OWN_OPTIMIZERS:
            return {}
        switch: Values = {f"use_{own.replace('-', '_')}": True}
        if not found.low_rank:
            return switch
        return {
            **switch,
            f"{own}_target": "all",
            f"{own}_rank": workload.optimizer_rank or usual_rank(target.problem.model.hidden_size),
            f"{own}_update_interval": workload.optimizer_interval or USUAL_INTERVAL,
            f"{own}_layerwise": found.by_layer,
        }

    def adapters(self, target: Target) -> Values:
        """Return LoRA's arguments, or the size of OFT's blocks of the same layers."""
        if not target.workload.framework_options.get("oft"):
            return super().adapters(target)
        size = {"oft_block_size": target.workload.lora_rank}
        return {**size, **self.adapted(target), **self.frozen(target)}

    def adapted(self, target: Target) -> Values:
        """Return the layers with adapters; all of them have a word."""
        workload = target.workload
        language = tuple(name for name in workload.lora_targets if name not in TOWER_TARGETS)
        every = adapts_every(target.model, language)
        words = class_targets(target.model, language)
        values: Values = {"lora_target": "all" if every else ",".join(words)}
        whole = class_targets(target.model, workload.trained_modules)
        return values | ({"additional_target": ",".join(whole)} if whole else {})

    def frozen(self, target: Target) -> Values:
        """Return weights of 8 or 4 bits."""
        base = target.workload.base_precision
        if base == "int8":
            return {"quantization_bit": 8, "quantization_method": "bnb"}
        if base == "bf16" or is_checkpoints(base):  # whose own configuration counts
            return {}
        return {
            "quantization_bit": 4,
            "quantization_method": "bnb",
            "quantization_type": "nf4",
            "double_quantization": base == "nf4-double",
        }

    def compiles(self, target: Target) -> bool:
        """Return whether torch's compiler fuses operators, and not Liger's kernels."""
        return super().compiles(target) and not _is_ligers(target)

    def stated(self, target: Target) -> tuple[str, ...]:
        """Return OFT, and ASFT's loss or Liger's."""
        has_loss = _compares_logits(target.workload) or _is_ligers(target)
        return ("oft", *(("loss_kernel",) if has_loss else ()))

    def packages(self, target: Target) -> Iterator[Requirement]:
        """Yield the packages but peft, which LLaMA-Factory installs, and that of its attention."""
        yield from (one for one in trainer_packages(target) if one != packages()["adapters"])
        if self.attention(target)["flash_attn"] == "fa2":
            yield packages()["FlashAttention"]
        if _is_ligers(target):
            yield packages()["Liger"]


VERSIONS = ("0.9", "v1")  # of one release: its trainer, and the new one


def export(target: Target) -> ExportBundle:
    """Return the files of the trainer, or of the new one (``--launcher-version v1``)."""
    return (v1.export if target.version == "v1" else LlamaFactoryFiles().export)(target)
