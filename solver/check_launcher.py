"""The independent verdict on what a launcher cannot express."""

from __future__ import annotations

from collections.abc import Iterator

from profiles.capabilities import launcher_capabilities
from solver.columns import Columns
from solver.host_rules import host_rules
from solver.launcher_own import is_a_row, own_faults
from solver.plan import Configuration
from solver.problem import Problem
from solver.rank_orders import RANK_ORDERS, plain_order


def launcher_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """What the launcher cannot express."""
    able = launcher_capabilities(problem.launcher)
    if config.pipeline_schedule not in able.schedules:
        yield f"{able.launcher} has no schedule {config.pipeline_schedule}"
    most = able.max_zero_stage_with_pipeline if config.pipeline_parallel_size > 1 else max(able.zero_stages)
    if config.zero_stage not in able.zero_stages or config.zero_stage > most:
        yield f"{able.launcher} cannot run zero_stage = {config.zero_stage} here"
    if config.recompute_granularity not in able.recompute:
        yield f"{able.launcher} has no recomputation {config.recompute_granularity}"
    partial = 0 < config.recompute_layers < max(config.stage_layers, default=0)
    if partial and not able.recompute_layer_counts:
        yield f"{able.launcher} recomputes every layer or none"
    if len(set(config.stage_layers)) > 1 and not able.uneven_stages:
        yield f"{able.launcher} has no stages of different size"
    if config.context_parallel_size > 1 and not able.context_parallel:
        yield f"{able.launcher} has no context parallelism"
    if config.expert_parallel_size > 1 and not able.expert_parallel:
        yield f"{able.launcher} has no expert parallelism"
    yield from _state_faults(problem, config)
    yield from _order_faults(problem, config)
    yield from own_faults(problem, able, config)


def _state_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """Shards, experts, sequences and host memory that the launcher cannot express."""
    able = launcher_capabilities(problem.launcher)
    ranks = config.data_parallel_size * config.context_parallel_size
    if config.zero_stage and config.zero_shard_size != ranks and not able.hybrid_sharding:
        yield f"{able.launcher} shards over all data-parallel ranks or none"
    if config.expert_tensor_parallel_size > 1 and not able.expert_tensor_parallel:
        yield f"{able.launcher} has no tensor parallelism of experts"
    alone = config.tensor_parallel_size > 1 and not config.sequence_parallel
    if alone and problem.model.moe is not None and able.experts_need_sequence_parallel:
        yield f"{able.launcher} needs sequence_parallel for experts beside tensor parallelism"
    if config.stage_recompute_layers and not able.recompute_per_stage:
        yield f"{able.launcher} recomputes as many layers of every stage"
    if config.context_parallel_mode not in able.context_parallel_modes:
        yield f"{able.launcher} has no context parallelism by {config.context_parallel_mode}"
    yield from _offload_faults(problem, config)


def _offload_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """What the launcher offloads, the request allows and the hosts hold."""
    able = launcher_capabilities(problem.launcher)
    if config.offload not in able.offload:
        yield f"{able.launcher} does not offload {config.offload}"
    if config.offload != "none" and "offload" not in problem.options.allow:
        yield "offload is not allowed"
    elif config.offload != "none" and is_a_row(config):
        one = Columns.of([config])
        yield from (
            f"{rule.name}: {rule.reason}" for rule in host_rules(problem) if rule.violated(one).any()
        )


def _order_faults(problem: Problem, config: Configuration) -> Iterator[str]:
    """The order of the ranks is the launcher's, and none that says the same as another."""
    able, order = launcher_capabilities(problem.launcher), config.rank_order
    if order not in able.rank_orders:
        yield f"{able.launcher} does not number ranks by {order}"
    elif plain_order(config) != order:
        yield f"rank_order = {order} numbers the ranks as {plain_order(config)} does"
    if able.data_parallel_alike and order != RANK_ORDERS[0]:
        inner = config.tensor_parallel_size * config.context_parallel_size
        experts = config.expert_parallel_size * config.expert_tensor_parallel_size
        if experts != (inner if problem.model.moe is not None else config.context_parallel_size):
            yield f"{able.launcher} needs as many replicas of experts as of attention with {order}"
