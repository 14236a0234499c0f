"""The ranking as comma-separated values (RFC 4180): glossary names, units in the names."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import fields

from solver.plan import Configuration, Plan, Prediction

_LISTS = ("stage_layers", "stage_groups", "replicas")
_SIZES = tuple(field.name for field in fields(Configuration) if field.name not in _LISTS)
_FIGURES = tuple(
    field.name
    for field in fields(Prediction)
    if field.name not in {"time_breakdown_s", "stages", "extrapolated"}
)


def to_csv(plans: Sequence[Plan]) -> str:
    """One line a plan; ``stage_layers`` is joined by blanks."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", "plan_id", *_SIZES, "stage_layers", *_FIGURES])
    for plan in plans:
        layers = " ".join(map(str, plan.config.stage_layers))
        sizes = [getattr(plan.config, name) for name in _SIZES]
        figures = [getattr(plan.prediction, name) for name in _FIGURES]
        writer.writerow([plan.rank, plan.plan_id, *sizes, layers, *figures])
    return text.getvalue()
