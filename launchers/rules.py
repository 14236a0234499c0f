"""Rules of launchers, and the nearest legal values for their faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import gcd

from meshwright.launchers.target import Target
from meshwright.profiles.capabilities import Capabilities, launcher_capabilities
from meshwright.profiles.errors import FieldError, RefusedExportError
from meshwright.solver.configuration import (
    RANK_ORDERS,
    VARIABLE_OF,
    VARIABLES,
    Columns,
    chunk_sizes,
    holds_layers,
)
from meshwright.solver.schedules.schedule import plain_schedule, schedules_of
from meshwright.solver.space.expressions import Node
from meshwright.solver.space.launcher_rules import (
    constraints_of,
    is_a_row,
    model_faults,
    offloads,
    option_faults,
    problem_faults,
    switch_rules,
    weight_shard_obstacle,
)
from meshwright.solver.space.request_rules import broken_by, constraint_of
from meshwright.solver.splits import divisors, launcher_split

Rule = Callable[[Target], Iterator[FieldError]]  # yields one fault for each broken value


def fault(field: str, message: str, *, allowed: str | None = None, nearest: object = None) -> FieldError:
    """Return a fault of one field of the plan's configuration (``/config/<field>``)."""
    return FieldError(
        pointer=f"/config/{field}",
        message=message,
        allowed=allowed,
        nearest=None if nearest is None else str(nearest),
    )


def near_divisors(value: int, total: int) -> str:
    """Return the divisors of ``total`` next to ``value``, below and above."""
    return _neighbours(value, divisors(total))


def near_multiples(value: int, unit: int) -> str:
    """Return the positive multiples of ``unit`` next to ``value``."""
    below = value // unit * unit
    return _neighbours(value, [n for n in (below, below + unit) if n > 0])


def refuse(rules: Iterable[Rule], target: Target) -> None:
    """Check ``target`` against every rule.

    Raises:
        RefusedExportError: rules are broken; every fault of every rule is in it.
    """
    faults = [found for rule in rules for found in rule(target)]
    if faults:
        raise RefusedExportError(faults)


def _neighbours(value: int, legal: list[int]) -> str:
    below = [n for n in legal if n <= value][-1:]
    above = [n for n in legal if n > value][:1]
    return " or ".join(str(n) for n in below + above)


# --------------------------------------------------------------------------------------------------
# Checks of a plan against its launcher's data: plans that the search never proposes are refused here, too.
#
# The data are in profiles/catalog/frameworks/capabilities.yaml, each entry with its source.


def within_capabilities(launcher: str) -> Rule:
    """Return the rule that ``launcher`` can express the plan."""
    able = launcher_capabilities(launcher)

    def expressible(target: Target) -> Iterator[FieldError]:
        """Yield a fault for every value that the launcher does not have."""
        yield from problem_faults(target.problem, able)
        yield from _broken_switches(able, target)
        yield from _word_faults(able, target)
        yield from _axis_faults(able, target)
        yield from shares_weights(launcher)(target)
        if able.data_parallel_alike:
            yield from grouped_alike(target)
        yield from _stage_faults(able, target)
        yield from _inner_output_faults(able, target)
        beside = able.standalone_constraints * (0 in target.config.stage_layers)
        by_stage = able.stage_recompute_constraints * bool(target.config.stage_recompute_layers)
        texts = tuple(dict.fromkeys((*constraints_of(target.problem, able), *beside, *by_stage)))
        yield from constraint_faults(able, target, texts)

    return expressible


def options_hold(launcher: str) -> Rule:
    """Return the rule that options fit the model, the precision, the plan and each other."""
    able = launcher_capabilities(launcher)

    def held(target: Target) -> Iterator[FieldError]:
        """Yield the faults with which the launcher does not start."""
        yield from option_faults(target.problem, able)
        yield from _broken_switches(able, target)

    return held


def _broken_switches(able: Capabilities, target: Target) -> Iterator[FieldError]:
    if not is_a_row(target.config):
        return
    row = Columns.of([target.config])
    for rule in switch_rules(target.problem, able):
        if rule.violated(row).any():
            name = VARIABLE_OF[rule.reads[0]].name
            value = getattr(target.config, name)
            yield fault(name, f"{able.launcher} does not run {value} with these options: {rule.reason}")


def model_is_stated(launcher: str) -> Rule:
    """Return the rule that the launch file can state every fact of the model."""
    able = launcher_capabilities(launcher)
    return lambda target: model_faults(target.model, able)


def shares_weights(launcher: str) -> Rule:
    """Return the rule that ``launcher`` lets data-parallel ranks share weights in this plan."""
    able = launcher_capabilities(launcher)

    def shared(target: Target) -> Iterator[FieldError]:
        """Yield a fault where it shares none, or not next to the plan's other values."""
        sizes = {
            name: size
            for name in ("weight_shard_size", "expert_weight_shard_size")
            if (size := getattr(target.config, name)) > 1
        }
        if not sizes:
            return
        if why := weight_shard_obstacle(target.problem, able):
            for name, size in sizes.items():
                yield fault(name, f"{size} with {able.launcher}: {why}", allowed="1", nearest=1)
        yield from constraint_faults(able, target, able.weight_shard_constraints)

    return shared


def schedule_fits_the_stages(target: Target) -> Iterator[FieldError]:
    """Require a schedule for the number of stages and chunks (PyTorch has single- and multi-stage ones)."""
    config = target.config
    fitting = schedules_of(config.pipeline_parallel_size, config.virtual_pipeline_size)
    if config.pipeline_schedule not in fitting:
        yield fault(
            "pipeline_schedule",
            f"{config.pipeline_schedule!s:.40} with pp {config.pipeline_parallel_size} and vpp "
            f"{config.virtual_pipeline_size}",
            allowed=", ".join(fitting),
            nearest=plain_schedule(config.pipeline_parallel_size, config.virtual_pipeline_size),
        )
    elif config.pipeline_schedule == "dualpipe_v" and config.num_microbatches < len(config.stage_layers):
        yield fault(
            "num_microbatches",
            f"dualpipe_v needs one for each of the {len(config.stage_layers)} chunks",
            nearest=len(config.stage_layers),
        )


def _word_faults(able: Capabilities, target: Target) -> Iterator[FieldError]:
    config = target.config
    stages = [
        stage
        for stage in able.zero_stages
        if config.pipeline_parallel_size == 1 or stage <= able.max_zero_stage_with_pipeline
    ]
    offers = {
        "pipeline_schedule": able.schedules,
        "recompute_granularity": able.recompute,
        "offload": offloads(target.problem, able),
        "zero_stage": tuple(stages),
        "context_parallel_mode": able.context_parallel_modes,
        "rank_order": able.rank_orders,
    }
    for name, offered in offers.items():
        value = getattr(config, name)
        if value not in offered:
            words = ", ".join(map(str, offered))
            why = f": {able.offload_note}" if name == "offload" and able.offload_note else ""
            yield fault(name, f"{able.launcher} does not offer {value!s:.40}{why}", allowed=words)
    partial = 0 < config.recompute_layers < max(config.stage_layers, default=0)
    if partial and not able.recompute_layer_counts:
        yield fault(
            "recompute_layers",
            f"{able.launcher} recomputes every layer or none",
            nearest=sum(config.stage_layers),
        )


def _axis_faults(able: Capabilities, target: Target) -> Iterator[FieldError]:
    """Yield faults of parallel axes that the launcher lacks, and of splits that it cannot make."""
    config, model = target.config, target.model
    for name, variable in VARIABLES.items():
        value = getattr(config, name)
        if variable.needs and not getattr(able, variable.needs) and value > 1:
            yield fault(name, f"{able.launcher} is not planned with {value}", allowed="1", nearest=1)
    if config.sequence_parallel and not able.sequence_parallel:
        yield fault("sequence_parallel", f"{able.launcher} has none", allowed="false", nearest=False)
    tp = config.tensor_parallel_size
    kv_heads = gcd(*model.kv_head_counts)
    if able.heads_whole_on_ranks and kv_heads % tp:
        yield fault(
            "tensor_parallel_size",
            f"{tp} does not divide {kv_heads} key/value heads; {able.launcher} copies none",
            allowed=f"divisors of {kv_heads}",
        )
    slices = tp * config.context_parallel_size * (2 if config.context_parallel_size > 1 else 1)
    if able.halves_on_ranks and target.workload.seq_length % slices:
        yield fault(
            "context_parallel_size",
            f"tp * 2 cp = {slices} does not divide seq_length {target.workload.seq_length}",
        )
    if config.zero_stage and config.zero_shard_size != target.shard_ranks and not able.hybrid_sharding:
        yield fault(
            "zero_shard_size",
            f"{able.launcher} shards over all dp * cp = {target.shard_ranks} ranks",
            nearest=target.shard_ranks,
        )


def grouped_alike(target: Target) -> Iterator[FieldError]:
    """Require equal replicas of experts and attention for Megatron-Core's second rank order."""
    config, dense = target.config, target.model.moe is None
    if config.rank_order == RANK_ORDERS[0]:
        return
    shared = config.context_parallel_size * (1 if dense else config.tensor_parallel_size)
    if config.expert_ranks != shared:
        yield fault(
            "rank_order",
            f"{config.rank_order} needs as many data-parallel ranks for experts as for attention"
            + (": context_parallel_size 1" if dense else ": ep * expert tp = tp * cp"),
            allowed=RANK_ORDERS[0],
            nearest=RANK_ORDERS[0],
        )


def _inner_output_faults(able: Capabilities, target: Target) -> Iterator[FieldError]:
    """Require the layers that add a tower's inner outputs in the first chunk, which embeds the images."""
    tower, first = target.model.tower, next(iter(target.config.stage_layers), 0)
    if tower is not None and tower.model_type in able.towers and first < tower.inner_outputs:
        yield fault(
            "stage_layers",
            f"the first chunk has {first} layers; the tower's {tower.inner_outputs} inner outputs are "
            "added behind as many layers",
            allowed=f"{tower.inner_outputs} or more layers in the first chunk",
        )


def _stage_faults(able: Capabilities, target: Target) -> Iterator[FieldError]:
    config, split = target.config, target.config.stage_layers
    own = launcher_split(target.problem, config)
    if len(set(split)) > 1 and not able.uneven_stages:
        yield fault("stage_layers", f"{able.launcher} has no stages of different size")
    elif not holds_layers(split, alone := able.alone(target.model)):
        yield fault("stage_layers", "a chunk without a layer", allowed=chunk_sizes(alone))
    elif own is None:
        yield fault(
            "pipeline_parallel_size",
            f"{able.launcher} splits the layers itself: one of {len(split)} stages would lack a layer, or "
            "the last one the output head",
            nearest=_most_stages(target),
        )
    elif own and own != split:
        words = " ".join(map(str, own))
        yield fault(
            "stage_layers", f"{able.launcher} splits the layers itself", allowed=words, nearest=words
        )


def _most_stages(target: Target) -> int:
    """Return the largest smaller number of stages that the launcher's own split fills."""
    most = min(target.config.pipeline_parallel_size, target.model.num_layers + 1)
    fewer = (replace(target.config, pipeline_parallel_size=pp) for pp in range(1, most))
    filled = [one.pipeline_parallel_size for one in fewer if launcher_split(target.problem, one)]
    return max(filled, default=1)


def _first_name(node: Node) -> str:
    inside = (_first_name(operand) for operand in node.operands)
    return str(node.value) if node.sign == "name" else next(filter(None, inside), "")


def constraint_faults(
    able: Capabilities, target: Target, constraints: Iterable[str]
) -> Iterator[FieldError]:
    """Yield the ``constraints`` of the launcher that the plan breaks."""
    if not is_a_row(target.config):
        return
    one = Columns.of([target.config])
    for text in constraints:
        node = constraint_of(text)
        if broken_by(node, one, target.model.num_layers).any():
            name = _first_name(node)
            value = getattr(target.config, name)
            yield fault(name, f"{able.launcher} does not run {value} next to the others", allowed=text)
