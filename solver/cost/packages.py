"""The packages that a configuration needs over Megatron-Core."""

from __future__ import annotations

from meshwright.profiles.frameworks import FrameworkFacts
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.requirements import Requirement, requirements_of
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.context import experts_overlap


def may_overlap_experts(config: Configuration, model: ModelSpec) -> bool:
    """Return whether Megatron-Core starts this configuration with overlapped all-to-alls of experts."""
    return bool(experts_overlap(Columns.of([config]), model)[0])


def packages_of(
    launcher: str, facts: FrameworkFacts, model: ModelSpec, config: Configuration
) -> tuple[Requirement, ...]:
    """Return the packages that a configuration needs, priced under ``facts``; none for other launchers."""
    return requirements_of(
        launcher,
        facts,
        model,
        overlaps=may_overlap_experts(config, model),
        offloads="activations" in config.offload,
        zero_stage=config.zero_stage,
        weight_shards=max(config.weight_shard_size, config.expert_weight_shard_size) > 1,
    )
