"""Megatron-Bridge and NeMo: a plan becomes Hydra overrides of a recipe, and the scripts that use them.

Keys: Megatron-Bridge 0.3.1, training/config.py (ConfigContainer), models/gpt_provider.py,
training/mixed_precision.py. NeMo's newer releases train through Megatron-Bridge.
"""

from __future__ import annotations

from collections.abc import Iterator

from service.launchers.base import ExportBundle
from service.launchers.bundle import bundled
from service.launchers.common_rules import refuse_first
from service.launchers.common_warnings import common_warnings
from service.launchers.megatron_bridge_overrides import override_parts
from service.launchers.megatron_bridge_precision import FP8_RECIPES, bridge_facts, recipe
from service.launchers.megatron_lm_model_rules import (
    experts_with_tensor_ranks_need_sequence_parallel,
    prediction_layers_need_rotary,
)
from service.launchers.megatron_lm_rules import interleaving_needs_a_pipeline
from service.launchers.megatron_names import environment, overlapped
from service.launchers.target import Target
from service.launchers.torchrun import ARGUMENTS_FILE, Start, arguments_file
from solver.launcher_own import overlap_notes

PRODUCT = "Megatron-Bridge 0.3.1 (NeMo)"
NEEDS = (("BRIDGE_SCRIPT", "a recipe script of Megatron-Bridge that takes key=value overrides"),)
OWN_RULES = (
    interleaving_needs_a_pipeline,
    experts_with_tensor_ranks_need_sequence_parallel,
    prediction_layers_need_rotary,
)


class MegatronBridge:
    """Exports to a training script of Megatron-Bridge that takes Hydra overrides."""

    name = "megatron-bridge"

    def export(self, target: Target) -> ExportBundle:
        """The overrides and the two scripts that start them.

        Raises:
            RefusedExportError: Megatron-Bridge cannot run the plan; one FieldError per fault.
        """
        refuse_first(target, self.name, OWN_RULES)
        return bundled(
            target,
            product=PRODUCT,
            start=Start(
                program='"${BRIDGE_SCRIPT}" "${PLAN_ARGS[@]}" "logger.log_interval=${LOG_INTERVAL:-1}"',
                needs=NEEDS,
                environment=tuple(
                    environment(target, overlaps_experts=overlapped(target, bridge_facts(target)))
                ),
                has_arguments=True,
            ),
            warnings=found_warnings(target),
            own=lambda head: {ARGUMENTS_FILE: arguments_file(head, override_parts(target))},
        )


def found_warnings(target: Target) -> Iterator[str]:
    """What the recipe decides, or does differently from the plan."""
    yield from common_warnings(target)
    yield "not verified by Megatron-Bridge's own parser: it lets most illegal values through"
    yield "attention backend, tokenizer, data and learning rate are the recipe's"
    # No override names a function (training/utils/omegaconf_utils.py _restore_excluded_fields); providers
    # of the gated models that are exported have silu already (models/*/*_provider.py: activation_func).
    activation = target.model.mlp_activation
    if activation != "silu":
        yield f"no override names the activation: take a recipe whose model has {activation}"
    yield from overlap_notes(target.problem, target.config)
    if target.model.mla:
        yield "latent attention is of the recipe's model provider; only its sizes are overridden"
    if target.workload.precision == "fp8" and recipe(target) == FP8_RECIPES["none"]:
        yield "fp8 runs with delayed scaling, the plain recipe"
