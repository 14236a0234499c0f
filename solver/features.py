"""What sets one configuration apart from another, as numbers between which distances mean something.

Natural logarithms of sizes and weighted switches, one row per configuration. Nothing measured enters.
"""

from __future__ import annotations

import numpy as np

from solver.columns import Columns, FloatArray
from solver.plan import Configuration
from solver.problem import Problem

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
