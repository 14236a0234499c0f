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


NUM_FEATURES = 18
_SWITCH = 0.7  # a switch weighs about as much as a doubling, ln 2
_KERNELS = {"flash1": 2.0, "flash2": 2.0, "triton": 2.0, "flash3": 2.5, "cudnn": 2.5, "torch": -1.0}
_UNFUSED = {"megatron-fused": 0.0}
_NOT_STATED = 1.0


def features(problem: Problem, columns: Columns) -> FloatArray:
    """Features of every row, shape (n, 18): logarithms of eleven sizes, and seven switches."""
    c, model, workload = columns, problem.model, problem.workload
    n = len(columns)
    sizes = (
        c.tensor_parallel_size, c.pipeline_parallel_size, c.virtual_pipeline_size,
        c.context_parallel_size, c.expert_parallel_size, c.data_parallel_size, c.num_microbatches,
        c.micro_batch_size * workload.seq_length / c.context_parallel_size,
        np.full(n, model.hidden_size), np.full(n, model.num_layers), np.full(n, workload.seq_length),
    )  # fmt: skip
    options = workload.framework_options
    kernel = str(options.get("attention_kernel", ""))
    switches = (
        c.sequence_parallel, c.zero_stage / 2.0, c.recompute,
        np.full(n, 2.0 * (workload.precision == "fp8")),
        np.full(n, 2.0 * (model.moe is not None)),
        np.full(n, float(bool(options.get("norm_fused", False)))),
        np.full(n, (_KERNELS | _UNFUSED).get(kernel, _NOT_STATED)),
    )  # fmt: skip
    logs = [np.log(np.asarray(size, dtype=np.float64)) for size in sizes]
    weighted = [_SWITCH * np.asarray(switch, dtype=np.float64) for switch in switches]
    return np.stack([*logs, *weighted], axis=1)


def features_of(problem: Problem, configuration: Configuration) -> FloatArray:
    """Features of one configuration, shape (18,)."""
    row: FloatArray = features(problem, Columns.of([configuration]))[0]
    return row


_BYTES = (
    "weights_bytes", "gradients_bytes", "optimizer_bytes", "activation_bytes", "checkpoint_bytes",
    "head_workspace_bytes", "replay_workspace_bytes", "buffer_bytes", "context_bytes",
)  # fmt: skip


def with_residuals(prices: RowPrices, problem: Problem, columns: Columns, profile: Profile) -> RowPrices:
    """Prices times what the cluster's residual processes expect; the same prices without any."""
    if profile.residual is None and profile.memory_residual is None:
        return prices
    points = features(problem, columns)
    if profile.residual is not None:
        factor = np.exp(profile.residual.log_factor(points))
        prices = replace(prices, straggler=prices.straggler * factor, fixed_s=prices.fixed_s * factor)
    if profile.memory_residual is not None:
        factor = np.exp(profile.memory_residual.log_factor(points))
        scaled = {name: (getattr(prices, name).T * factor).T for name in _BYTES}
        prices = replace(prices, **scaled)
    return prices
