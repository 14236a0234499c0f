"""The rules that hold for every launcher: sizes, ranks, batch, split, and divisibility.

They are the general ones of Megatron-LM's rules; ``megatron_lm.rules`` names the code that enforces each
there. No parser of the other launchers enforces more than a few of them.
"""

from __future__ import annotations

from meshwright.launchers.megatron_lm import model_rules
from meshwright.launchers.megatron_lm import rules as parallel_rules
from meshwright.launchers.rules import Rule, refuse, schedule_fits_the_stages, within_capabilities
from meshwright.launchers.target import Target

COMMON_RULES: tuple[Rule, ...] = (
    parallel_rules.stages_stand_on_like_nodes,
    parallel_rules.gpus_fit_the_cluster,
    parallel_rules.nodes_are_whole,
    parallel_rules.tensor_ranks_stay_near,
    parallel_rules.batch_is_conserved,
    parallel_rules.split_has_every_stage,
    parallel_rules.split_has_every_layer,
    parallel_rules.no_stage_is_empty,
    schedule_fits_the_stages,
    parallel_rules.interleaving_needs_full_groups,
    parallel_rules.recompute_is_known,
    parallel_rules.recompute_fits_a_chunk,
    parallel_rules.zero_stage_is_known,
    parallel_rules.shards_divide_the_replicas,
    parallel_rules.weight_shards_divide_the_replicas,
    model_rules.heads_divide_over_ranks,
    model_rules.kv_groups_divide_over_ranks,
    model_rules.ffn_divides_over_ranks,
    model_rules.sequence_divides_over_context,
    model_rules.sequence_divides_over_tensor_ranks,
    model_rules.experts_divide_over_ranks,
    model_rules.expert_ranks_divide_the_stage,
)


def refuse_first(target: Target, launcher: str, own: tuple[Rule, ...] = ()) -> None:
    """Check the plan against the common rules, the launcher's data, and its own rules.

    Raises:
        RefusedExportError: rules are broken; every fault of every rule is in it.
    """
    refuse((parallel_rules.sizes_are_positive,), target)  # the other rules divide by sizes
    refuse((*COMMON_RULES, within_capabilities(launcher), *own), target)
