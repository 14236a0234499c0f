"""Exporter of trainers over accelerate: what those of Axolotl, TRL and LLaMA-Factory inherit."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar

import yaml

from meshwright.launchers.accelerate.export import (
    AccelerateFiles,
    accelerate_launch,
    accelerate_warnings,
    attention,
    ddp_bucket,
    optimizer,
    recomputes_in_script,
)
from meshwright.launchers.dialect import named, written
from meshwright.launchers.export import compiled_facts, model_is_in_the_script
from meshwright.launchers.table import tables_of
from meshwright.launchers.target import Target
from meshwright.profiles.adapters import class_targets, linear_names
from meshwright.profiles.optimizers import USUAL_INTERVAL, optimizer_named, usual_rank

Values = dict[str, object]
_OPTION = re.compile(r"(?<=--)\w+")
WRITTEN_FACTS = ("attention_kernel", "flash_attention", "adapter_dropout", "dora", "optimizer_kernel")
# ``experts_implementation`` of transformers (5.17 ``integrations/moe.py ExpertsInterface``). Kernels of
# other packages (deepgemm, sonicmoe, Axolotl's scattermoe) are not priced.
EXPERTS = {"eager": "loop", "grouped_mm": "grouped", "batched_mm": "batched"}
# Values for a long run that do not affect the price; the user may change them.
OF_THE_RUN: Values = {"logging_steps": 1, "save_steps": 500, "max_grad_norm": 1.0, "ddp_timeout": 1800}


class TrainerFiles(AccelerateFiles, ABC):
    """Accelerate's file for the mesh, and a YAML of transformers' TrainingArguments."""

    takes = ()
    file: ClassVar[str]  # the YAML; KIND stands for the kind of training
    kinds: ClassVar[Mapping[str, str]] = {"sequence": "sft", "pair": "dpo", "unpaired": "kto"}
    optimizer: ClassVar[str] = "optim"
    rank: ClassVar[str] = "lora_r"
    dora: ClassVar[str] = "use_dora"
    ring_kernel: ClassVar[str] = "sdpa"  # the attention that rings accept: torch's take SDPA alone
    of_the_run: ClassVar[Values] = OF_THE_RUN

    def kind(self, target: Target) -> str:
        """Return the trainer's name for training on the samples of a plan."""
        return self.kinds[target.workload.sample]

    def values(self, target: Target) -> Values:
        """Return the trainer's arguments that the plan sets."""
        precision = target.workload.precision
        return {
            **written(tables_of(self.launcher), target, self.batch),
            **self.own(target),
            "bf16": precision == "bf16",
            "fp16": precision == "fp16",
            **self.replays(target),
            **self.attention(target),
            self.optimizer: optimizer(target),
            **ddp_bucket(target),
            **self.projected(target),
            **(self.adapters(target) if target.workload.lora_rank else {}),
        }

    @abstractmethod
    def own(self, target: Target) -> Values:
        """Return how documents become sequences, the types of weights, and what only this trainer has."""

    def replays(self, target: Target) -> Values:
        """Return whether the trainer recomputes every layer."""
        return {"gradient_checkpointing": recomputes_in_script(target)}

    def attention(self, target: Target) -> Values:
        """Return the attention kernel."""
        rings = target.config.context_parallel_size > 1
        return {"attn_implementation": self.ring_kernel if rings else attention(target)}

    def projected(self, target: Target) -> Values:
        """Return the arguments of GaLore or APOLLO."""
        return trainers_low_rank(target, self.optimizer)

    def adapters(self, target: Target) -> Values:
        """Return adapters next to frozen weights; alpha is twice the rank."""
        rank = target.workload.lora_rank
        kinds = adapter_kinds(target, self.dora)
        return {
            self.rank: rank,
            "lora_alpha": 2 * rank,
            **kinds,
            **self.adapted(target),
            **self.frozen(target),
        }

    def adapted(self, target: Target) -> Values:
        """Return the layers with adapters, and the modules trained in full."""
        whole = class_targets(target.model, target.workload.trained_modules)
        return {"lora_modules_to_save": list(whole)} if whole else {}

    @abstractmethod
    def frozen(self, target: Target) -> Values:
        """Return what turns adapters on, and the type of the frozen weights."""

    def files(self, head: str, target: Target) -> dict[str, str]:
        """Return accelerate's file, and the trainer's own."""
        return {**super().files(head, target), **self.own_file(head, target)}

    def own_file(self, head: str, target: Target) -> dict[str, str]:
        """Return the trainer's file by its name."""
        values = named(self.known, self.values(target) | self.of_the_run)
        return {self.file.replace("KIND", self.kind(target)): head + yaml.safe_dump(values, sort_keys=True)}

    def program(self, target: Target) -> str:
        """Return the trainer, behind ``accelerate launch`` unless torchrun starts it."""
        start = accelerate_launch(target) if self.is_command else []
        command = _OPTION.sub(lambda option: self.known.spelled(option[0]), self.command)
        return "\n".join([*start, command.replace("KIND", self.kind(target))])

    command: ClassVar[str]  # the program and its arguments, in Bash

    def warnings(self, target: Target) -> Iterator[str]:
        """Yield the differences of a trainer on accelerate's mesh from the plan."""
        facts = (*WRITTEN_FACTS, *compiled_facts(target), *self.stated(target))
        yield from accelerate_warnings(target, facts)
        yield model_is_in_the_script(target)

    def stated(self, target: Target) -> tuple[str, ...]:  # noqa: ARG002 - of trainers that state more
        """Return further options that the trainer's file states."""
        return ()


def keeps_fp32(target: Target) -> bool:
    """Return whether the optimizer updates fp32 weights, the default unless none were priced."""
    return optimizer_named(target.workload.optimizer).fp32_copy


def adapter_kinds(target: Target, dora: str) -> Values:
    """Return dropout, at peft's usual share where it was priced, and DoRA under a trainer's name."""
    options = target.workload.framework_options
    share = 0.05 if options.get("adapter_dropout") else 0.0
    return {"lora_dropout": share, **({dora: True} if options.get("dora") else {})}


def experts(target: Target) -> Values:
    """Return how experts multiply, where the prediction states a way that transformers has."""
    asked = target.workload.framework_options.get("grouped_gemm")
    name = next((name for name, way in EXPERTS.items() if way == asked), None)
    return {"experts_implementation": name} if name else {}


def trainers_low_rank(target: Target, key: str) -> Values:
    """Return the Trainer's own GaLore or APOLLO, named by ``key``: every linear layer but the head's."""
    workload = target.workload
    found = optimizer_named(workload.optimizer)
    if not found.low_rank:
        return {}
    rank = workload.optimizer_rank or usual_rank(target.problem.model.hidden_size)
    interval = workload.optimizer_interval or USUAL_INTERVAL
    eighth, by_layer = "_8bit" * ("8bit" in workload.optimizer), "_layerwise" * found.by_layer
    kind = found.family
    scale = "" if found.scales_gradients else ", scale=0.25"
    return {
        key: f"{kind}_adamw{eighth}{by_layer}",
        "optim_target_modules": list(linear_names(target.problem.model)),
        "optim_args": f"rank={rank}, update_proj_gap={interval}{scale}",
    }
