"""From the objective that rows were weighed by back to seconds of a step."""

from __future__ import annotations

import numpy as np

from solver.columns import Columns, FloatArray
from solver.search.priced import Priced
from solver.search.rows import Rows


def steps_s(rows: Priced | Rows, index: list[int], values: FloatArray) -> FloatArray:
    """Step seconds of rows from values of the objective."""
    if isinstance(rows, Rows) or rows.weighing is None:
        return values
    at = rows.weight_of(np.array(index, dtype=np.int64))
    return np.asarray((values - rows.weighing.offset[at]) / rows.weighing.scale[at])


def least_step_s(rows: Priced | Rows, row: int, bound: float | None) -> float | None:
    """From a bound of the objective: no row of as many GPUs and sequences as ``row`` steps faster."""
    if bound is None or isinstance(rows, Rows) or rows.weighing is None:
        return bound
    columns = rows.columns if isinstance(rows.columns, Columns) else rows.columns.outer
    at = int(rows.weight_of(row))
    batch, gpus = columns.global_batch_size, columns.num_gpus
    alike = (gpus == gpus[at]) & (batch == batch[at])
    weighing = rows.weighing
    least = float(((bound - weighing.offset[alike]) / weighing.scale[alike]).min())
    return least if least > 0.0 else None
