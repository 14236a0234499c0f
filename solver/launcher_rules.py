"""What a launcher cannot express, as rules of the space."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from profiles.capabilities import Capabilities
from solver.columns import (
    ALL_LAYERS,
    CONTEXT_MODES,
    OFFLOAD,
    PER_STAGE,
    RECOMPUTE,
    SCHEDULES,
    BoolArray,
    Columns,
)
from solver.cost.placement import DEFAULT
from solver.launcher_own import own_rules
from solver.problem import Problem
from solver.rank_orders import RANK_ORDERS
from solver.rule import Rule

_FULL = RECOMPUTE.index("full")


def launcher_rules(problem: Problem, able: Capabilities) -> Iterator[Rule]:
    """Every limit of a launcher."""
    return chain(
        _step_rules(able),
        _mesh_rules(problem, able),
        _order_rules(problem, able),
        _state_rules(problem, able),
        own_rules(problem, able),
    )


def _step_rules(able: Capabilities) -> Iterator[Rule]:
    """What the launcher cannot express."""
    name = able.launcher
    schedules = np.array([SCHEDULES.index(word) for word in able.schedules])
    recompute = np.array([RECOMPUTE.index(word) for word in able.recompute])
    yield Rule(
        name=f"{name} has the schedule",
        reason=f"it runs {', '.join(able.schedules)}",
        violated=lambda c: ~np.isin(c.pipeline_schedule, schedules),
    )
    yield Rule(
        name=f"{name} has the ZeRO stage",
        reason=f"stages {able.zero_stages}; up to {able.max_zero_stage_with_pipeline} with pipeline stages",
        violated=lambda c: (
            ~np.isin(c.zero_stage, np.array(able.zero_stages))
            | ((c.pipeline_parallel_size > 1) & (c.zero_stage > able.max_zero_stage_with_pipeline))
        ),
    )
    yield Rule(
        name=f"{name} has the recomputation",
        reason=f"it offers {', '.join(able.recompute)}",
        violated=lambda c: (
            ~np.isin(c.recompute, recompute)
            | (
                (c.recompute == _FULL)
                & (c.recompute_layers < ALL_LAYERS)
                & (not able.recompute_layer_counts)
            )
            | ((c.recompute_layers == PER_STAGE) & (not able.recompute_per_stage))
        ),
    )


def _state_rules(problem: Problem, able: Capabilities) -> Iterator[Rule]:
    """Shards, experts, sequences and host memory as the launcher has them."""
    name, offload = able.launcher, np.array([OFFLOAD.index(word) for word in able.offload])
    sequence = able.experts_need_sequence_parallel and problem.model.moe is not None
    yield Rule(
        name=f"{name} has the shard sets",
        reason="sharding inside groups, replicas across them, where the launcher has that",
        violated=lambda c: (
            (c.zero_stage > 0)
            & (c.zero_shard_size != c.data_parallel_size * c.context_parallel_size)
            & (not able.hybrid_sharding)
        ),
    )
    yield Rule(
        name=f"{name} has the split of experts and sequences",
        reason="expert tensor parallelism, and experts without sequence parallelism, where it has them",
        violated=lambda c: (
            ((c.expert_tensor_parallel_size > 1) & (not able.expert_tensor_parallel))
            | ((c.tensor_parallel_size > 1) & (c.sequence_parallel == 0) & sequence)
        ),
    )
    yield Rule(
        name=f"{name} offloads so",
        reason=f"it has {', '.join(able.offload)}" + (able.offload_note and f"; {able.offload_note}"),
        violated=lambda c: ~np.isin(c.offload, offload),
    )


def _mesh_rules(problem: Problem, able: Capabilities) -> Iterator[Rule]:
    """Axes and stages that the launcher cannot express."""
    layers, name = problem.model.num_layers, able.launcher
    modes = np.array([CONTEXT_MODES.index(word) for word in able.context_parallel_modes])
    yield Rule(
        name=f"{name} has the parallel axes",
        reason="context or expert parallelism that the launcher lacks",
        violated=lambda c: (
            ((c.context_parallel_size > 1) & (not able.context_parallel))
            | ((c.expert_parallel_size > 1) & (not able.expert_parallel))
            | ~np.isin(c.context_parallel_mode, modes)
        ),
    )
    yield Rule(
        name=f"{name} has stages of one size alone",
        reason="it has no stages of different size",
        violated=lambda c: (
            (layers % (c.pipeline_parallel_size * c.virtual_pipeline_size) != 0) & (not able.uneven_stages)
        ),
    )


def _order_rules(problem: Problem, able: Capabilities) -> Iterator[Rule]:
    """Orders of the mesh axes that the launcher lacks, and what goes with the others."""
    name, orders = able.launcher, np.array([RANK_ORDERS.index(word) for word in able.rank_orders])
    yield Rule(
        name=f"{name} numbers the ranks so",
        reason=f"its orders of the mesh axes are {', '.join(able.rank_orders)}",
        violated=lambda c: ~np.isin(c.rank_order, orders),
    )
    if able.data_parallel_alike:
        yield Rule(
            name=f"{name} has as many replicas of experts as of attention",
            reason="with pp before dp, experts are split over tp * cp ranks, and a dense model has no cp",
            violated=lambda c: (c.rank_order != DEFAULT) & ~equally_replicated(problem, c),
        )


def equally_replicated(problem: Problem, columns: Columns) -> BoolArray:
    """Rows with as many data-parallel ranks for experts as for attention, shape (n,).

    Megatron-Core forms groups for experts in a dense model too, of the tensor-parallel size.
    """
    experts = columns.expert_parallel_size * columns.expert_tensor_parallel_size
    tensor = columns.tensor_parallel_size if problem.model.moe is not None else 1
    return np.asarray(experts == tensor * columns.context_parallel_size)
