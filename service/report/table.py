"""The ranking as comma-separated values (RFC 4180): glossary names, units in the names."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, fields

from meshwright.solver.answer import Plan, Prediction
from meshwright.solver.configuration import Configuration

_LISTS = ("stage_layers", "stage_groups", "replicas")
_SIZES = tuple(field.name for field in fields(Configuration) if field.name not in _LISTS)
_FIGURES = tuple(
    field.name
    for field in fields(Prediction)
    if field.name not in {"time_breakdown_s", "stages", "extrapolated"}
)


_DECIDED = ("launchers", "workload", "placement", "needs", "ranked")


def to_csv(plans: Sequence[Plan]) -> str:
    """Return one line a plan; lists are joined by blanks.

    ``launchers`` and ``workload`` (``precision=fp8``) state how the plan settles what the request leaves
    open; ``placement`` is JSON: the node groups of a mixed cluster's stages, or its classes of replicas;
    ``needs`` are packages that a stock installation lacks, and a plan with packages that the request does
    not allow is not ranked.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", "plan_id", *_SIZES, "stage_layers", *_FIGURES, *_DECIDED])
    for plan in plans:
        layers = " ".join(map(str, plan.config.stage_layers))
        sizes = [getattr(plan.config, name) for name in _SIZES]
        figures = [getattr(plan.prediction, name) for name in _FIGURES]
        writer.writerow([plan.rank, plan.plan_id, *sizes, layers, *figures, *_decided(plan)])
    return text.getvalue()


def _decided(plan: Plan) -> list[str]:
    """Return the choices that a request left open, and the places of stages; empty without a choice."""
    workload = " ".join(f"{name}={value}" for name, value in plan.workload.items())
    placed = [asdict(one) for one in plan.config.replicas or plan.config.stage_groups]
    stages = json.dumps(placed) if placed else ""
    return [" ".join(plan.launchers), workload, stages, ", ".join(plan.needs), str(plan.ranked).lower()]
