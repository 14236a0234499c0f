"""The roles of post-training as the service stores them: the question, ranked plans, and their files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from meshwright.launchers.post_training.registry import export
from meshwright.launchers.target import ExportBundle
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.jobs.answers import versions_of
from meshwright.service.jobs.submission import FleetAsked
from meshwright.service.post_training.request import PostTrainingRequest, read_post_training
from meshwright.service.requests.fields import POST_TRAINING
from meshwright.solver.answer import plan_from_json
from meshwright.solver.configuration import record_from_json
from meshwright.solver.post_training.problem import PostTraining, RolePlan

_COLUMNS = ("mfu", "peak_memory_bytes", "out_of_memory_probability")  # of the training role


def roles_asked(request: PostTrainingRequest) -> FleetAsked:
    """Return a question in the form that is stored."""
    asked = request.asked
    return FleetAsked(
        request=request.canonical,
        versions=versions_of(asked.training),
        time_limit_s=request.time_limit_s,
        kind=POST_TRAINING,
        title=asked.name or question_title(asked),
    )


def question_title(asked: PostTraining) -> str:
    """Return a question's model, algorithm and pool in words."""
    return f"{asked.model.title}, {asked.algorithm.upper()} on {asked.training.cluster.title}"


def plan_row(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of one ranked plan, with the figures that lists of plans filter by.

    The configuration is that of training; step, interval and rate are the whole step's.
    """
    training = shown["training"]["plan"]
    return {
        **shown,
        "config": training["config"],
        "prediction": {
            "step_time_s": shown["step_s"],
            "step_time_low_s": shown["step_low_s"],
            "step_time_high_s": shown["step_high_s"],
            "tokens_per_s_per_gpu": shown["tokens_per_s_per_gpu"],
            **{name: training["prediction"][name] for name in _COLUMNS},
        },
    }


def role_plan_of(body: Mapping[str, Any]) -> RolePlan:
    """Return the placement that ``plan_row`` wrote.

    Raises:
        InvalidProblemError: another version wrote it.
    """
    try:
        raw = {name: value for name, value in body.items() if name in RolePlan.__slots__}
        training = {name: value for name, value in raw["training"].items() if name != "layout"}
        plan = plan_from_json(training.pop("plan"))
        whole: RolePlan = record_from_json(
            RolePlan, {**raw, "training": {**training, "plan": asdict(plan)}}
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidProblemError.of("", "another version wrote the plan: plan again") from None
    return whole


def exported_roles(
    request: Mapping[str, Any], body: Mapping[str, Any], launcher: str | None
) -> tuple[str, ExportBundle]:
    """Return the launcher of a stored plan and its files.

    Raises:
        UnknownNameError: no such launcher.
        RefusedExportError: it cannot express the plan.
    """
    asked = read_post_training(request).asked
    return launcher or asked.launcher, export(asked, role_plan_of(body), launcher)
