"""Answers as JSON, read back: what the service sends, and what ``plan --json`` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from profiles.errors import InvalidProblemError
from solver.plan import (
    Answer,
    Baseline,
    Infeasibility,
    ObjectiveClaim,
    Outlook,
    ParetoFront,
    ParetoPoint,
    Remedy,
    Shortfall,
    SkippedLauncher,
    configuration_from_json,
    plan_from_json,
    prediction_from_json,
)


def answer_from_json(raw: Mapping[str, Any]) -> Answer:
    """The Answer that ``Answer.to_json`` wrote; what the service adds to it is left out.

    Raises:
        InvalidProblemError: it was written by another version.
    """
    try:
        values = {field.name: raw[field.name] for field in fields(Answer) if field.name in raw}
        values["plans"] = tuple(plan_from_json(plan) for plan in raw["plans"])
        values["certified_by"] = tuple(raw["certified_by"])
        values["warnings"] = tuple(raw.get("warnings", ()))
        values["infeasible"] = _infeasibility(raw.get("infeasible"))
        values["objective"] = ObjectiveClaim(**raw["objective"]) if raw.get("objective") else None
        values["pareto"] = _front(raw.get("pareto"))
        values["baseline"] = _baseline(raw.get("baseline"))
        values["skipped_launchers"] = tuple(
            SkippedLauncher(launcher=one["launcher"], reasons=tuple(one["reasons"]))
            for one in raw.get("skipped_launchers", ())
        )
        return Answer(**values)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidProblemError.of("", "the answer was written by another version") from None


def _baseline(raw: Mapping[str, Any] | None) -> Baseline | None:
    """The client's own configuration."""
    if raw is None:
        return None
    values = {**raw, "config": configuration_from_json(raw["config"]), "problems": tuple(raw["problems"])}
    return Baseline(
        **{
            **values,
            "prediction": prediction_from_json(raw["prediction"]),
            "outlook": Outlook(**raw["outlook"]),
        }
    )


def _front(raw: Mapping[str, Any] | None) -> ParetoFront | None:
    """The front of step time and peak memory."""
    if raw is None:
        return None
    points = (
        ParetoPoint(plan=plan_from_json(point["plan"]), budget_bytes=point["budget_bytes"])
        for point in raw["points"]
    )
    return ParetoFront(**{**raw, "points": tuple(points)})


def _infeasibility(raw: Mapping[str, Any] | None) -> Infeasibility | None:
    """The reasons of an infeasible answer."""
    if raw is None:
        return None
    nearest = raw.get("nearest")
    if nearest is not None:
        nearest = Shortfall(**{**nearest, "config": configuration_from_json(nearest["config"])})
    return Infeasibility(
        reasons=tuple(raw["reasons"]),
        conflicts=tuple(tuple(conflict) for conflict in raw.get("conflicts", ())),
        nearest=nearest,
        changes=tuple(raw.get("changes", ())),
        remedies=tuple(
            Remedy(**{**remedy, "config": configuration_from_json(remedy["config"])})
            for remedy in raw.get("remedies", ())
        ),
    )
