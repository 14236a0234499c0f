"""The calibrated residual in the prices: one factor a row for its time and one for its memory.

A row's factor depends on the row alone, never on the split, so prices stay linear in the split.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.profiles.profile import Profile
from meshwright.solver.configuration import Columns, Configuration, FloatArray
from meshwright.solver.cost.stages import RowPrices
from meshwright.solver.problem import Problem

# --------------------------------------------------------------------------------------------------
# What sets one configuration apart from another, as numbers between which distances mean something.
#
# Natural logarithms of sizes and weighted switches, one row per configuration. Nothing measured enters.


NUM_FEATURES = 27
_SWITCH = 0.7  # a switch weighs about as much as a doubling, ln 2
# Another number of tensor-parallel ranks changes every product's shape and adds collectives to every layer.
# It lies twice as far off as other sizes: the marginal likelihood of the open clusters, nothing shared, is
# then larger by 8.7 (log). To double another size gains 4.7 at most. A switch for one node (one host, no
# network) gains 2.6.
_TENSOR = 2.0
_KERNELS = {
    "flash1": 2.0, "flash2": 2.0, "triton": 2.0, "flex": 2.0, "flash3": 2.5, "flash4": 2.5, "cudnn": 2.5,
    "megatron-fused": 0.0, "torch": -1.0, "efficient": 1.5, "sdpa": 2.0, "flash2+sdpa": 2.0, "auto": 2.0,
}  # fmt: skip
_NOT_STATED = 1.0
# Of switches of recipes, in the same unit: what takes another path through the machine lies further off.
_GRAPHS = {"none": 0.0, "layer": 1.5, "full_iteration": 2.0}
_OTHER_GRAPH = 1.0
_DISPATCHERS = {"allgather": -0.5, "alltoall": 0.0, "deepep": 1.0, "hybridep": 1.5}
_RECIPES = {"nvfp4": 1.0, "mxfp8": 0.5, "fp8-current": 0.5, "fp8-blockwise": 0.5}
_MODULE = 0.5  # each one that is recomputed in addition to what selective recomputation replays anyway:
_SELECTIVE = ("core_attn", "every_second_mm")  # of Megatron-Core, and of torchtitan
# Experts padded to a capacity: other kernels, and a step that waits for no sizes. They share the axis of
# graphs, against them: one of their own moves the open clusters with such runs by .4 points at most.
_PADDED = -3.0


def features(problem: Problem, columns: Columns) -> FloatArray:
    """Return the features of every row, shape (n, 27): logarithms of twelve sizes, and 15 switches.

    A run on one island of fast links predicts little of runs that cross several: their number is a size.
    """
    c, model, workload = columns, problem.model, problem.workload
    n, group = len(columns), problem.cluster.groups[0]
    sizes = (
        c.tensor_parallel_size**_TENSOR, c.pipeline_parallel_size, c.virtual_pipeline_size,
        c.context_parallel_size, c.expert_parallel_size, c.data_parallel_size, c.num_microbatches,
        c.micro_batch_size * workload.seq_length / c.context_parallel_size,
        np.full(n, model.hidden_size), np.full(n, model.num_layers), np.full(n, workload.seq_length),
        np.maximum(c.num_gpus / group.island_gpus, 1.0),
    )  # fmt: skip
    options = workload.framework_options
    graphs = _GRAPHS.get(str(options.get("cuda_graph", "none")), _OTHER_GRAPH)
    replayed = [name for name in str(options.get("recompute_modules", "")).split("+") if name]
    of_all = (
        2.0 * (workload.precision == "fp8"),
        2.0 * (model.moe is not None),
        float(bool(options.get("norm_fused", False))),
        _KERNELS.get(str(options.get("attention_kernel", "")), _NOT_STATED),
        graphs + (_PADDED if options.get("moe_capacity_factor") else 0.0),
        _DISPATCHERS.get(str(options.get("moe_dispatcher", "alltoall")), 0.0),
        float(bool(options.get("overlap_experts", False))),
        _RECIPES.get(str(options.get("precision_recipe", "")), 0.0),
        _MODULE * sum(name not in _SELECTIVE for name in replayed),
    )
    switches = (
        c.sequence_parallel, c.zero_stage / 2.0, c.recompute, *(np.full(n, one) for one in of_all),
        np.full(n, 2.0 * workload.language_frozen), 2.0 * (c.offload > 0),
        c.num_gpus <= group.gpus_per_node,
    )  # fmt: skip
    logs = [np.log(np.asarray(size, dtype=np.float64)) for size in sizes]
    weighted = [_SWITCH * np.asarray(switch, dtype=np.float64) for switch in switches]
    return np.stack([*logs, *weighted], axis=1)


def features_of(problem: Problem, configuration: Configuration) -> FloatArray:
    """Return the features of one configuration, shape (27,)."""
    row: FloatArray = features(problem, Columns.of([configuration]))[0]
    return row


_BYTES = (
    "weights_bytes", "gradients_bytes", "reduced_gradients_bytes", "optimizer_bytes", "activation_bytes",
    "checkpoint_bytes", "head_workspace_bytes", "replay_workspace_bytes", "buffer_bytes", "context_bytes",
)  # fmt: skip


def with_residuals(prices: RowPrices, problem: Problem, columns: Columns, profile: Profile) -> RowPrices:
    """Multiply prices by the expectation of the cluster's residual processes, if it has any."""
    if profile.residual is None and profile.memory_residual is None:
        return prices
    points = features(problem, columns)
    if profile.residual is not None:
        factor = np.exp(profile.residual.log_factor(points))
        prices = replace(prices, straggler=prices.straggler * factor, fixed_s=prices.fixed_s * factor)
    if profile.memory_residual is not None:
        factor = np.exp(profile.memory_residual.log_factor(points))
        scaled = {name: (getattr(prices, name).T * factor).T for name in _BYTES}
        apart = {
            name: each * factor if name in _BYTES else each for name, each in prices.prediction.items()
        }
        moments = {name: each * factor for name, each in prices.moments.items()}
        prices = replace(prices, **scaled, prediction=apart, moments=moments)
    return prices
