import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import pytest

from meshwright.service.api.client_records import words_of, written
from meshwright.solver.answer import Outlook
from meshwright.solver.configuration import Configuration
from meshwright_client import answers, records
from meshwright_client.decoding import decoded
from meshwright_client.errors import UnexpectedAnswerError
from tests.builders import a_plan

PROGRESS = {"stage": "solving", "explored": 3, "total": 7, "elapsed_s": 1}
MOMENT = "2026-11-20T14:00:00Z"
JOB: dict[str, object] = {
    "id": "a", "state": "running", "created_at": MOMENT, "expires_at": MOMENT, "priority": 5, "attempts": 1,
    "cancel_requested": False, "links": {},
}  # fmt: skip


def test_records_are_the_services_own_written_out_by_make_reference() -> None:
    """The client is a distribution of its own; a field is declared once, in the service's record."""
    assert Path(records.__file__).read_text() == written()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (list[Configuration], "tuple[Configuration, ...]"),
        (dict[str, int | bool], "Mapping[str, int | bool]"),
        (Annotated[float | None, "of a step"], "float | None"),
        (Literal["ring", "tree"], 'Literal["ring", "tree"]'),
        (tuple[tuple[str, ...], ...], "tuple[tuple[str, ...], ...]"),
        (Outlook, "Mapping[str, Any]"),
        (datetime, "datetime"),
    ],
    ids=str,
)
def test_a_type_of_the_service_is_named_as_the_client_reads_it(kind: object, words: str) -> None:
    assert words_of(kind) == words


def test_a_plan_as_the_service_writes_it_is_read_whole() -> None:
    plan = a_plan(plan_id="aaa")
    read = decoded(records.Plan, json.loads(json.dumps(plan.to_json())))
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
