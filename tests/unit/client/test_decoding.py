import json
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from meshwright.solver.configuration import Configuration
from meshwright_client import answers, errors, plans
from meshwright_client.decoding import decoded
from meshwright_client.errors import UnexpectedAnswerError
from tests.builders import a_plan

SCHEMAS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "docs" / "openapi.json").read_text()
)["components"]["schemas"]
PROGRESS = {"stage": "solving", "explored": 3, "total": 7, "elapsed_s": 1}
MOMENT = "2026-11-20T14:00:00Z"
JOB: dict[str, object] = {
    "id": "a", "state": "running", "created_at": MOMENT, "expires_at": MOMENT, "priority": 5, "attempts": 1,
    "cancel_requested": False, "links": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("record", "schema"),
    [
        (answers.Job, "JobDetail"),
        (answers.JobPage, "JobPage"),
        (answers.Progress, "ProgressView"),
        (answers.Export, "ExportView"),
        (answers.Infeasibility, "Infeasibility"),
        (answers.KeyUsage, "UsageView"),
        (answers.Worker, "WorkerView"),
        (errors.Problem, "ProblemView"),
        (errors.FieldFault, "FaultView"),
        (plans.Answer, "AnswerView"),
        (plans.Plan, "RankedPlan"),
        (plans.Point, "PointView"),
        (plans.Configuration, "Configuration"),
        (plans.StageGroup, "StageGroup"),
        (plans.Prediction, "Prediction"),
        (plans.StagePrediction, "StagePrediction"),
        (plans.PricedConfiguration, "PredictionView"),
        (plans.PlanSummary, "PlanSummary"),
        (plans.Measured, "MeasuredView"),
        (plans.Learnt, "MeasurementView"),
        (plans.StoredProfile, "ProfileDetail"),
    ],
)
def test_a_record_has_fields_that_the_service_documents_and_all_that_it_promises(
    record: Any,  # noqa: ANN401
    schema: str,
) -> None:
    """A field with a default may be newer than this client, or than the service; others are promised."""
    names = {field.name for field in fields(record)}
    needed = {one.name for one in fields(record) if MISSING is one.default is one.default_factory}
    documented, promised = SCHEMAS[schema]["properties"], SCHEMAS[schema].get("required", ())
    assert set(promised) <= names <= set(documented)
    assert needed <= set(promised)


def test_a_configuration_has_every_variable_with_the_value_that_turns_it_off() -> None:
    """The client is a distribution of its own: it lists by hand what the planner's table says."""
    ours, theirs = plans.Configuration(), Configuration()
    listed = [(field.name, getattr(ours, field.name)) for field in fields(ours)]
    assert listed == [(field.name, getattr(theirs, field.name)) for field in fields(theirs)]


def test_a_plan_as_the_service_writes_it_is_read_whole() -> None:
    plan = a_plan(plan_id="aaa")
    read = decoded(plans.Plan, json.loads(json.dumps(plan.to_json())))
    assert read.plan_id == "aaa"
    assert read.config.stage_layers == plan.config.stage_layers
    assert read.prediction.step_time_s == plan.prediction.step_time_s
    assert [stage.memory_bytes for stage in read.prediction.stages] == [
        dict(stage.memory_bytes) for stage in plan.prediction.stages
    ]


def test_moments_are_in_utc_and_whole_numbers_are_numbers() -> None:
    job = decoded(answers.Job, {**JOB, "progress": PROGRESS})
    assert job.created_at == datetime(2026, 11, 20, 14, tzinfo=UTC)
    assert job.progress is not None
    assert (job.progress.elapsed_s, job.progress.gap) == (1.0, None)


def test_what_a_newer_service_adds_is_left_out() -> None:
    job = decoded(answers.Job, {**JOB, "mood": "fine", "state": "paused"})
    assert str(job.state) == "paused"


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"created_at": None}, "/created_at"),
        ({"created_at": "yesterday"}, "/created_at"),
        ({"cancel_requested": 1}, "/cancel_requested"),
        ({"progress": []}, "/progress"),
        ({"progress": {**PROGRESS, "explored": True}}, "/progress/explored"),
        ({"progress": {"stage": "solving"}}, "/progress/explored"),
    ],
)
def test_what_is_no_such_record_is_refused_by_place(changes: dict[str, object], where: str) -> None:
    with pytest.raises(UnexpectedAnswerError, match=f"^{where}: "):
        decoded(answers.Job, {**JOB, **changes})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(UnexpectedAnswerError, match=r"^/created_at: missing"):
        decoded(answers.Job, {name: value for name, value in JOB.items() if name != "created_at"})
