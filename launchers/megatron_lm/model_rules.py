"""Megatron-LM's requirements on a model's shape, experts, precision and kernels in a configuration.

Sources as in ``rules``. That no token visits more experts than there are (Megatron-LM does
not notice) is already certain: ``meshwright.profiles.model`` refuses such a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from meshwright.launchers.megatron_lm.flags import FP8_RECIPES, facts, positions_of, uses_fp8
from meshwright.launchers.rules import (
    Rule,
    constraint_faults,
    fault,
    near_divisors,
    near_multiples,
    options_hold,
    shares_weights,
)
from meshwright.launchers.target import Target
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.errors import FieldError
from meshwright.solver.space.launcher_rules import batching_faults, constraints_of_model, offloads

PRECISIONS = ("bf16", "fp16", "fp8")


def heads_divide_over_ranks(target: Target) -> Iterator[FieldError]:
    """Require heads % tp = 0 (``TransformerConfig``)."""
    heads, tp = target.model.num_attention_heads, target.config.tensor_parallel_size
    if heads % tp:
        yield fault(
            "tensor_parallel_size",
            f"{tp} does not divide {heads} attention heads",
            allowed=f"divisors of {heads}",
            nearest=near_divisors(tp, heads),
        )


def kv_groups_divide_over_ranks(target: Target) -> Iterator[FieldError]:
    """Require query groups that are a multiple or a divisor of tp (``TransformerConfig``); MLA has none."""
    groups, tp = target.model.num_kv_heads, target.config.tensor_parallel_size
    if target.model.mla is None and groups % tp and tp % groups:
        yield fault(
            "tensor_parallel_size",
            f"{tp} is neither a divisor nor a multiple of {groups} query groups",
            nearest=near_divisors(tp, groups),
        )


def ffn_divides_over_ranks(target: Target) -> Iterator[FieldError]:
    """Require tensor ranks that divide each MLP (Megatron-Core ``ensure_divisibility``, on clusters)."""
    model, config = target.model, target.config
    widths = []
    if "dense" in model.layer_kinds():
        widths.append(("tensor_parallel_size", "ffn_hidden_size", model.ffn_hidden_size))
    if model.moe:
        widths.append(("tensor_parallel_size", "shared_ffn_hidden_size", model.moe.shared_ffn_hidden_size))
        widths.append(("expert_tensor_parallel_size", "moe ffn_hidden_size", model.moe.ffn_hidden_size))
    for field, name, width in widths:
        size = getattr(config, field)
        if width % size:
            yield fault(
                field,
                f"{size} does not divide {name} = {width}",
                allowed=f"divisors of {width}",
                nearest=near_divisors(size, width),
            )


def sequence_divides_over_context(target: Target) -> Iterator[FieldError]:
    """Require seq % (2 cp) = 0: each rank takes two slices, balanced under the mask (``validate_args``)."""
    cp, seq = target.config.context_parallel_size, target.workload.seq_length
    if cp > 1 and seq % (2 * cp):
        halves = seq // 2 if seq % 2 == 0 else 1
        yield fault(
            "context_parallel_size",
            f"2 * {cp} does not divide seq_length {seq}",
            nearest=near_divisors(cp, halves),
        )


def sequence_divides_over_tensor_ranks(target: Target) -> Iterator[FieldError]:
    """Require seq % (tp * cp) = 0 with sequence parallelism (no parser notices)."""
    config, seq = target.config, target.workload.seq_length
    ranks = config.tensor_parallel_size * config.context_parallel_size
    if config.sequence_parallel and seq % ranks:
        yield fault(
            "sequence_parallel",
            f"tp * cp = {ranks} does not divide seq_length {seq}",
            allowed=f"a seq_length of {near_multiples(seq, ranks)}",
            nearest=False,
        )


def positions_cover_the_sequence(target: Target) -> Iterator[FieldError]:
    """Require a row for every token in a learned position table (``validate_args``)."""
    model, seq = target.model, target.workload.seq_length
    most = model.max_position_embeddings or seq
    if model.learned_position_embeddings and seq > most:
        yield FieldError(
            pointer="/workload/seq_length",
            message=f"{seq} is longer than the {most} learned positions",
            allowed=f"1 to {most}",
            nearest=str(most),
        )


def experts_divide_over_ranks(target: Target) -> Iterator[FieldError]:
    """Require experts if ep > 1, with experts % ep = 0 (``validate_args``)."""
    moe, ep = target.model.moe, target.config.expert_parallel_size
    if moe is None and ep > 1:
        yield fault("expert_parallel_size", f"{ep} for a model without experts", allowed="1", nearest=1)
    elif moe and moe.num_experts % ep:
        yield fault(
            "expert_parallel_size",
            f"{ep} does not divide {moe.num_experts} experts",
            allowed=f"divisors of {moe.num_experts}",
            nearest=near_divisors(ep, moe.num_experts),
        )


def expert_ranks_divide_the_stage(target: Target) -> Iterator[FieldError]:
    """Require W % (etp * ep * pp) = 0 (Megatron-Core ``initialize_model_parallel``, on the cluster)."""
    config = target.config
    stage = config.tensor_parallel_size * config.context_parallel_size * config.data_parallel_size
    experts = config.expert_ranks
    if target.model.moe and stage % experts:
        room = stage // math.gcd(stage, config.expert_tensor_parallel_size)
        yield fault(
            "expert_parallel_size",
            f"expert tp * ep = {experts} does not divide tp * cp * dp = {stage}",
            allowed=f"divisors of {stage} / expert tp",
            nearest=near_divisors(config.expert_parallel_size, room),
        )


def experts_with_tensor_ranks_need_sequence_parallel(target: Target) -> Iterator[FieldError]:
    """Require sequence parallelism for MoE with tp > 1 (Megatron-Core ``MoELayer.forward``)."""
    config = target.config
    if target.model.moe and config.tensor_parallel_size > 1 and not config.sequence_parallel:
        yield fault(
            "sequence_parallel",
            f"off, with experts and tp {config.tensor_parallel_size}",
            allowed="on",
            nearest=True,
        )


def gathered_tokens_are_of_equal_sequences(target: Target) -> Iterator[FieldError]:
    """Refuse to gather tokens of sequences with different lengths (``TransformerConfig``)."""
    if target.model.moe and facts(target).moe_dispatcher == "allgather":
        yield FieldError(
            pointer="/workload/framework_options/moe_dispatcher",
            message="allgather, with sequences of different lengths",
            allowed="alltoall",
            nearest="alltoall",
        )


def precision_is_known(target: Target) -> Iterator[FieldError]:
    """Require bf16, fp16 or fp8 (fp16 with bf16 is refused); fp8 only if the GPU has it."""
    precision = target.workload.precision
    if precision not in PRECISIONS:
        yield FieldError(
            pointer="/workload/precision",
            message=f"{precision[:40]!r} is unknown",
            allowed=", ".join(PRECISIONS),
            nearest="bf16",
        )
    elif uses_fp8(target) and "fp8" not in target.gpu.peak_flops:
        yield FieldError(
            pointer="/workload/precision",
            message=f"fp8 on {target.gpu.display_name}, which has none",
            allowed=", ".join(sorted(set(PRECISIONS) & set(target.gpu.peak_flops))),
            nearest="bf16",
        )


def every_weight_is_trained(target: Target) -> Iterator[FieldError]:
    """Refuse adapters, which Megatron-LM's own scripts lack (Megatron-Bridge's ``peft`` has them)."""
    if target.workload.lora_rank:
        yield FieldError(
            pointer="/workload/lora_rank",
            message=f"Megatron-LM is not exported with adapters of rank {target.workload.lora_rank}",
            allowed="0",
            nearest="0",
        )


def documents_pass_one_sequence_at_a_time(target: Target) -> Iterator[FieldError]:
    """Require one sequence at a time for document boundaries (``pretrain_gpt.py get_batch``, ``--sft``)."""
    size = target.config.micro_batch_size
    yield from batching_faults(target.problem, launcher_capabilities("megatron-lm"))
    if target.workload.lengths is not None and size > 1:
        yield fault(
            "micro_batch_size",
            f"{size} sequences of documents of stated lengths: --sft packs one per micro-batch",
            allowed="1",
            nearest=1,
        )


def states_alone_are_offloaded(target: Target) -> Iterator[FieldError]:
    """Require the distributed optimizer for ``--optimizer-cpu-offload`` (``validate_args``)."""
    offload, able = target.config.offload, launcher_capabilities("megatron-lm")
    words = offloads(target.problem, able)
    if offload not in words:
        yield fault(
            "offload",
            f"Megatron-LM is not exported with {offload[:40]} offloaded: {able.offload_note}",
            allowed=", ".join(words),
            nearest="none",
        )
    elif "optimizer" in offload and target.config.zero_stage != 1:
        yield fault(
            "offload", f"{offload} with zero_stage {target.config.zero_stage}", allowed="zero_stage 1"
        )


def optimizer_is_known(target: Target) -> Iterator[FieldError]:
    """Require a known optimizer; AdamW is Megatron-LM's adam (decoupled weight decay)."""
    optimizer, able = target.workload.optimizer, launcher_capabilities("megatron-lm")
    if optimizer not in able.optimizers:
        yield FieldError(
            pointer="/workload/optimizer",
            message=f"{optimizer[:40]!r} is not planned for",
            allowed=", ".join(able.optimizers),
            nearest="adamw",
        )
    else:
        yield from constraint_faults(able, target, dict(able.optimizer_constraints).get(optimizer, ()))


def fp8_recipe_is_known(target: Target) -> Iterator[FieldError]:
    """Require a recipe of Transformer Engine that ``--fp8-recipe`` accepts for all linear layers."""
    recipe = facts(target).precision_recipe
    if recipe not in FP8_RECIPES:
        yield FieldError(
            pointer="/workload/framework_options/precision_recipe",
            message=f"Megatron-LM is not exported with {recipe}",
            allowed=", ".join(FP8_RECIPES),
            nearest="fp8-delayed",
        )


def prediction_layers_need_rotary(target: Target) -> Iterator[FieldError]:
    """Require plain rotary positions for multi-token prediction (``validate_args``)."""
    model, positions = target.model, positions_of(target.model)
    if model.num_mtp_layers and positions != "rope":
        words = "learned positions" if positions == "learned_absolute" else "positions by YaRN"
        yield FieldError(
            pointer="/model/num_mtp_layers",
            message=f"{model.num_mtp_layers} with {words}",
            allowed=f"0 with {words}",
            nearest="0",
        )


def layers_run_in_the_plan(target: Target) -> Iterator[FieldError]:
    """Require what Megatron-Core asks of kinds of layers, such as ranks that divide their groups."""
    able = launcher_capabilities("megatron-lm")
    yield from constraint_faults(able, target, constraints_of_model(target.model, able))


options_go_together = options_hold("megatron-lm")
weights_are_shared = shares_weights("megatron-lm")
MODEL_RULES: tuple[Rule, ...] = (
    heads_divide_over_ranks,
    kv_groups_divide_over_ranks,
    ffn_divides_over_ranks,
    sequence_divides_over_context,
    sequence_divides_over_tensor_ranks,
    positions_cover_the_sequence,
    experts_divide_over_ranks,
    expert_ranks_divide_the_stage,
    experts_with_tensor_ranks_need_sequence_parallel,
    precision_is_known,
    optimizer_is_known,
    every_weight_is_trained,
    documents_pass_one_sequence_at_a_time,
    states_alone_are_offloaded,
    fp8_recipe_is_known,
    options_go_together,
    weights_are_shared,
    prediction_layers_need_rotary,
    layers_run_in_the_plan,
)
