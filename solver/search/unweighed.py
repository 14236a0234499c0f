"""From the objective that rows were weighed by back to seconds of a step."""

from __future__ import annotations

import numpy as np

from solver.columns import FloatArray
from solver.search.priced import Priced
from solver.search.rows import Rows


def steps_s(rows: Priced | Rows, index: list[int], values: FloatArray) -> FloatArray:
    """Step seconds of rows from values of the objective."""
    if isinstance(rows, Rows) or rows.weighing is None:
        return values
    return np.asarray((values - rows.weighing.offset[index]) / rows.weighing.scale[index])


def least_step_s(rows: Priced | Rows, row: int, bound: float | None) -> float | None:
    """From a bound of the objective: no row of as many GPUs and sequences as ``row`` steps faster."""
    if bound is None or isinstance(rows, Rows) or rows.weighing is None:
        return bound
    columns = rows.columns.take(np.arange(len(rows)))
    batch = columns.global_batch_size
    alike = (columns.num_gpus == columns.num_gpus[row]) & (batch == batch[row])
    weighing = rows.weighing
    least = float(((bound - weighing.offset[alike]) / weighing.scale[alike]).min())
    return least if least > 0.0 else None
