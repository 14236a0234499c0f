"""Turns measured points of an operator into a table, and judges the table by points it has not seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.catalog.aiconfigurator_rows import Points
from benchmarks.catalog.grid_fit import fit_values
from meshwright.profiles.errors import ProfileError
from meshwright.profiles.operators.tables import (
    MODELS,
    VALUE_SCALE,
    FloatArray,
    HeldOut,
    LogAxis,
    LogGrid,
    OperatorTable,
    Quantities,
    Roof,
)

_HELD_OUT = 0.1  # share of the points
_SEED = 11  # not 0: on that split libraries, smoothness and filters were chosen
_LEAST_POINTS = 20
_SMOOTHNESS = 0.03
_SMOOTHNESS_OF_REPEATS = 1e-3  # where every node was measured itself
_SAMPLES = {"gemm": 400, "grouped_mlp": 200, "attention_forward": 120}  # held-out points kept in a file
_OTHER_SAMPLES = 60

# First node and last node of each axis as log2, and the step: where training's shapes lie.
_AXES: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    "gemm": {"m": (4, 15, 1), "n": (5, 16, 1), "k": (5, 16, 1)},
    "attention_forward": {
        "seq_len": (6, 14, 1),
        "batch_heads": (0, 14, 2),
        "heads_per_kv_head": (0, 6, 2),
        "head_dim": (6, 8, 1),
    },
    "grouped_mlp": {
        "rows_per_expert": (4, 14, 1),
        "experts": (0, 8, 2),
        "hidden": (11, 13, 1),
        "ffn": (7, 14, 1),
    },
    "memory_bound": {"moved_bytes": (20, 32, 1)},
}
_COLLECTIVE_AXES = {"ranks": (1.0, 3.0, 1.0), "payload_bytes": (10.0, 29.0, 1.0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One table to be made."""

    operator: str
    precision: str
    library: str
    roof: Roof
    points: Points
    unseen: Points | None = None  # other measurements to judge the table by; None: hold some out


def distil(job: Job) -> OperatorTable:
    """Fit one table; a tenth of the points is held out of the fit where no others judge it.

    Raises:
        ProfileError: too few points lie on the table's axes.
    """
    axes = _axes(job)
    points = _on_axes(job.operator, axes, job.points)
    if len(points.seconds) < _LEAST_POINTS:
        raise ProfileError(f"{job.operator} in {job.precision}: fewer than {_LEAST_POINTS} measured points")
    if job.unseen is None:
        held = np.random.default_rng(_SEED).random(len(points.seconds)) < _HELD_OUT
        points, unseen = points.where(~held), points.where(held)
        smoothness = _SMOOTHNESS
    else:
        unseen = _on_axes(job.operator, axes, job.unseen)
        smoothness = _SMOOTHNESS_OF_REPEATS
    point, target = _logarithms(job, points)
    values = fit_values(axes, point, target, smoothness=smoothness)
    grid = LogGrid(axes=axes, values=np.round(values * VALUE_SCALE) / VALUE_SCALE)
    point, target = _logarithms(job, unseen)
    error = np.abs(np.exp2(grid.at(point) - target) - 1.0)
    return OperatorTable(
        operator=job.operator,
        precision=job.precision,
        library=job.library,
        roof=job.roof,
        grid=grid,
        held_out=HeldOut(
            count=len(error),
            median=round(float(np.median(error)), 4),
            p90=round(float(np.percentile(error, 90)), 4),
            samples=_samples(unseen, _SAMPLES.get(job.operator, _OTHER_SAMPLES)),
        ),
    )


def _on_axes(operator: str, axes: tuple[LogAxis, ...], points: Points) -> Points:
    """The points that lie on the axes of a table."""
    point = MODELS[operator].point(tuple(points.arguments.T))
    return points.where(~LogGrid(axes=axes, values=np.zeros(0)).outside(point))


def _logarithms(job: Job, points: Points) -> tuple[Quantities, FloatArray]:
    """Where points lie along the axes, and log2 of measured over roof seconds there."""
    model, arguments = MODELS[job.operator], tuple(points.arguments.T)
    return model.point(arguments), np.asarray(np.log2(points.seconds / model.roof_s(arguments, job.roof)))


def _axes(job: Job) -> tuple[LogAxis, ...]:
    """The axes of a job's table; an axis ends at the nearest node beyond the last measured quantity."""
    model = MODELS[job.operator]
    spans = _AXES.get(job.operator, _COLLECTIVE_AXES)
    quantities = model.point(tuple(job.points.arguments.T))
    axes = []
    for name, quantity in zip(model.axes, quantities, strict=True):
        low, high, step = spans[name]
        least, most = np.log2(quantity.min()), np.log2(quantity.max())
        first = max(0, int(np.floor((least - low) / step)))
        last = min(round((high - low) / step), int(np.ceil((most - low) / step)))
        axes.append(LogAxis(name=name, low=low + first * step, step=step, count=last - first + 1))
    return tuple(axes)


def _samples(points: Points, wanted: int) -> tuple[tuple[float, ...], ...]:
    """Evenly drawn points, seconds to five digits."""
    rows = np.column_stack([points.arguments, points.seconds])
    chosen = rows[np.unique(np.linspace(0, len(rows) - 1, min(wanted, len(rows))).astype(int))]
    return tuple((*row[:-1], float(f"{row[-1]:.5g}")) for row in chosen.tolist())
