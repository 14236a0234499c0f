"""Exporter of LLaMA-Factory's new trainer (``--launcher-version v1``): one YAML, over FSDP2 alone.

Names: LLaMA-Factory 0.9.5, v1/config (model_args.py, data_args.py, training_args.py) and v1/plugins; what
its trainer lacks: v1/core/base_trainer.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from meshwright.launchers.accelerate.export import accelerate_warnings, attention
from meshwright.launchers.export import model_is_in_the_script
from meshwright.launchers.llama_factory.read_v1 import KERNELS
from meshwright.launchers.target import Target, pads_to_longest
from meshwright.launchers.transformers.export import (
    OF_THE_RUN,
    WRITTEN_FACTS,
    TrainerFiles,
    Values,
    adapter_kinds,
    keeps_fp32,
)
from meshwright.profiles.adapters import class_targets, linear_names
from meshwright.profiles.errors import FieldError
from meshwright.profiles.frameworks import FOREACH
from meshwright.profiles.requirements import Requirement, packages
from meshwright.profiles.storage import WHOLE_PRECISIONS, is_checkpoints

_SHARDED = (2, 3)  # ZeRO stages of FSDP2


def runs_on_shards(target: Target) -> Iterator[FieldError]:
    """Require FSDP2 over all ranks: without dist_config weights and products are in 32 bits."""
    config = target.config
    if config.zero_stage not in _SHARDED:
        yield FieldError(
            pointer="/config/zero_stage",
            message="LLaMA-Factory v1 trains in 32 bits without FSDP2",
            allowed="2, 3",
            nearest="3",
        )
    elif config.zero_shard_size != config.data_parallel_size:
        yield FieldError(
            pointer="/config/zero_shard_size",
            message="LLaMA-Factory v1 has no replicas of shards here",
            allowed=str(config.data_parallel_size),
            nearest=str(config.data_parallel_size),
        )


def trains_as_v1_does(target: Target) -> Iterator[FieldError]:
    """Require what its SFT trainer has: sequences of text, AdamW with a copy of 32 bits, a whole loss."""
    workload, kernel = target.workload, attention(target)
    whole = keeps_fp32(target) and workload.optimizer == "adamw"
    stated = {
        ("/workload/base_precision", "bf16, int8, nf4", not is_checkpoints(workload.base_precision)),
        ("/workload/sample", "sequence", workload.sample_word == "sequence"),
        ("/workload/optimizer", "adamw", whole or workload.lora_rank > 0),
        ("/model", "a model without a tower", target.model.tower is None),
        ("/workload/precision", "bf16", workload.precision == "bf16"),
        ("/workload/batching", "padding_to_longest", workload.lengths is None or pads_to_longest(target)),
        ("/workload/framework_options/attention_kernel", "flash2, sdpa, torch", kernel in KERNELS),
        ("/workload/trained_layers", "all layers", not workload.trained_layers),
        ("/workload/framework_options/oft", "false", not workload.framework_options.get("oft")),
        (
            "/workload/framework_options/loss_kernel", "none",
            workload.framework_options.get("loss_kernel", "none") == "none",
        ),
    }  # fmt: skip
    for pointer, allowed, holds in sorted(stated):
        if not holds:
            message = "LLaMA-Factory v1 trains otherwise here"
            yield FieldError(pointer=pointer, message=message, allowed=allowed)


class LlamaFactoryV1Files(TrainerFiles):
    """LLaMA-Factory's new trainer, which torchrun starts."""

    launcher = "llama-factory-accelerate"
    product = "LLaMA-Factory 0.9.5, v1"
    file = "llama_factory_v1.yaml"
    command = '-m llamafactory.v1.launcher sft "${here}/llama_factory_v1.yaml"'
    follows, needs = "model=… train_dataset=… template=… output_dir=…", ()
    is_command, assignments = False, True
    rules = (runs_on_shards, trains_as_v1_does)
    others = ("optim_config", "quant_config", "peft_config", "kernel_config", "model_class")
    of_the_run: ClassVar[Values] = {
        name: value for name, value in OF_THE_RUN.items() if name != "ddp_timeout"
    }

    def values(self, target: Target) -> Values:
        """Return the arguments that the plan sets."""
        config, workload = target.config, target.workload
        return {
            "model_class": "llm",
            "micro_batch_size": config.micro_batch_size,
            "global_batch_size": workload.global_batch_size,
            "cutoff_len": workload.seq_length,
            "batching_strategy": "normal",
            "bf16": True,
            "enable_activation_checkpointing": config.recompute_granularity == "full",
            "flash_attn": attention(target),
            "dist_config": {
                "name": "fsdp2",
                "reshard_after_forward": config.zero_stage == _SHARDED[-1],
                "offload_params": "parameters" in config.offload,
            },
            **(self.adapters(target) if workload.lora_rank else {}),
        }

    def own(self, target: Target) -> Values:  # noqa: ARG002 - all is in ``values``
        """Return nothing more."""
        return {}

    def adapters(self, target: Target) -> Values:
        """Return adapters, and the type of the frozen weights, as plugins."""
        workload = target.workload
        every = linear_names(target.problem.model) == workload.lora_targets
        modules = class_targets(target.model, workload.trained_modules)
        whole = {"modules_to_save": list(modules)} if modules else {}
        adapted: Values = {
            "name": "lora",
            "r": workload.lora_rank,
            "lora_alpha": 2 * workload.lora_rank,
            "target_modules": "all" if every else list(class_targets(target.model, workload.lora_targets)),
            **adapter_kinds(target, "use_dora"),
            **whole,
        }
        return {"peft_config": adapted, **self.frozen(target)}

    def frozen(self, target: Target) -> Values:
        """Return weights of 8 or 4 bits."""
        base = target.workload.base_precision
        if base in WHOLE_PRECISIONS:
            return {}
        bits: Values = {"name": "bnb", "quantization_bit": 8 if base == "int8" else 4}
        if base != "int8":
            bits |= {"quantization_type": "nf4", "double_quantization": base == "nf4-double"}
        return {"quant_config": bits}

    def files(self, head: str, target: Target) -> dict[str, str]:
        """Return the YAML alone."""
        return self.own_file(head, target)

    def packages(self, target: Target) -> Iterator[Requirement]:
        """Yield the package of the attention kernel."""
        if attention(target) == "flash_attention_2":
            yield packages()["FlashAttention"]

    def warnings(self, target: Target) -> Iterator[str]:
        """Yield the differences of the trainer from the plan."""
        yield from accelerate_warnings(target, WRITTEN_FACTS)
        yield model_is_in_the_script(target)
        if target.facts.optimizer_kernel != FOREACH:  # v1/core/base_trainer.py: torch.optim.AdamW
            yield "its AdamW updates by torch's foreach kernels, slower than the fused one that was priced"


export = LlamaFactoryV1Files().export
