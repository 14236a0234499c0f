"""Shared parts of the exporters for trainers over accelerate: Axolotl, TRL and LLaMA-Factory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import yaml

from meshwright.launchers.accelerate.export import CONFIG_FILE, accelerate_file, accelerate_warnings
from meshwright.launchers.export import model_is_in_the_script
from meshwright.launchers.target import Target
from meshwright.profiles.adapters import linear_names
from meshwright.profiles.optimizers import USUAL_INTERVAL, optimizer_named, usual_rank

Values = dict[str, object]
WRITTEN_FACTS = ("attention_kernel", "flash_attention", "adapter_dropout", "dora", "optimizer_kernel")
# ``experts_implementation`` of transformers (5.17 ``integrations/moe.py ExpertsInterface``). Kernels of
# other packages (deepgemm, sonicmoe, Axolotl's scattermoe) are not priced.
EXPERTS = {"eager": "loop", "grouped_mm": "grouped", "batched_mm": "batched"}
# Values for a long run that do not affect the price; the user may change them.
OF_THE_RUN = {"logging_steps": 1, "save_steps": 500, "max_grad_norm": 1.0, "ddp_timeout": 1800}


def decided(values: Values, others: Sequence[str]) -> tuple[str, ...]:
    """Return the names that the user may not set: those of the plan, and others that would change it."""
    return (*values, *(name for name in others if name not in values))


def with_mesh(target: Target, name: str, values: Values) -> Callable[[str], dict[str, str]]:
    """Return the files of a plan by their header: accelerate's, and the trainer's own."""
    return lambda head: {
        CONFIG_FILE: accelerate_file(head, target),
        name: head + yaml.safe_dump(values | OF_THE_RUN, sort_keys=True),
    }


def keeps_fp32(target: Target) -> bool:
    """Return whether the optimizer updates fp32 weights, the default unless none were priced."""
    return optimizer_named(target.workload.optimizer).fp32_copy


def trained_whole(target: Target, name: str) -> Values:
    """Return the modules trained in full, under a trainer's ``name`` for peft's ``modules_to_save``."""
    return {name: list(target.workload.trained_modules)} if target.workload.trained_modules else {}


def adapter_kinds(target: Target, dora: str = "use_dora") -> Values:
    """Return dropout, at peft's usual share where it was priced, and DoRA under a trainer's name."""
    options = target.workload.framework_options
    share = 0.05 if options.get("adapter_dropout") else 0.0
    return {"lora_dropout": share, **({dora: True} if options.get("dora") else {})}


def experts(target: Target) -> Values:
    """Return how experts multiply, where the prediction states a way that transformers has."""
    asked = target.workload.framework_options.get("grouped_gemm")
    name = next((name for name, way in EXPERTS.items() if way == asked), None)
    return {"experts_implementation": name} if name else {}


def trainers_galore(target: Target, key: str = "optim") -> Values:
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


def trainer_warnings(target: Target) -> Iterator[str]:
    """Yield the differences of a trainer on accelerate's mesh from the plan."""
    yield from accelerate_warnings(target, WRITTEN_FACTS)
    yield model_is_in_the_script(target)
