"""The Python interface: plain requests in, typed results out."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.profiles.errors import InvalidProblemError, RefusedExportError
from meshwright.profiles.profile import default_profile
from meshwright.service import library
from meshwright.service.jobs.answers import stored_answer
from meshwright.service.library import (
    PlanResult,
    calibrate,
    explain,
    export,
    plan,
    predict,
    validate,
)
from meshwright.service.requests.costs import costs_of
from tests.builders import a_problem

REQUEST = {
    "model": {"name": "llama-3.1-8b"},
    "cluster": {"name": "dgx-h100", "num_nodes": 2},
    "workload": {"global_batch_size": 64, "seq_length": 4096},
    "launcher": "megatron-lm",
    "search": {"top_k": 3, "certify": "none"},
}
RUNS = Path(library.__file__).parents[1] / "profiles" / "catalog" / "runs" / "measured_runs.csv"


@pytest.fixture(scope="module")
def found() -> PlanResult:
    return plan(REQUEST)


def runs_of(cluster: str, folder: Path, most: int) -> Path:
    """The first published runs of one cluster in a file of their own."""
    head, *rows = RUNS.read_text(encoding="utf-8").splitlines()
    column = head.split(",").index("cluster")
    mine = [row for row in rows if row.split(",")[column] == cluster]
    path = folder / "runs.csv"
    path.write_text("\n".join([head, *mine[:most]]) + "\n", encoding="utf-8")
    return path


def test_a_request_in_the_form_of_the_api_is_planned(found: PlanResult) -> None:
    assert found.status == "optimal"
    assert [one.rank for one in found.plans] == [1, 2, 3]
    config = found.best.config
    sizes = (config.tensor_parallel_size, config.pipeline_parallel_size, config.context_parallel_size)
    assert sizes[0] * sizes[1] * sizes[2] * config.data_parallel_size == 16  # GPUs of two nodes


def test_a_problem_file_gives_the_plans_of_its_request(found: PlanResult, tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(REQUEST), encoding="utf-8")
    again = plan(str(path))
    assert [one.plan_id for one in again.plans] == [one.plan_id for one in found.plans]


def test_predicting_a_plan_gives_the_prediction_that_it_was_ranked_by(found: PlanResult) -> None:
    assert found.best.workload  # it has switches
    for one in found.plans:
        seen = predict(REQUEST, one)
        assert seen.prediction == one.prediction
        assert seen.breaks == ()


def test_a_plan_of_any_launcher_is_predicted_under_its_own() -> None:
    request = {**REQUEST, "launcher": "any"}
    best = plan(request).best
    seen = predict(request, best)
    assert seen.problem.launcher == best.launchers[0]
    assert seen.prediction == best.prediction


def test_a_plan_is_explained_under_its_own_switches(found: PlanResult) -> None:
    comparison = explain(REQUEST, found.best).comparison
    assert comparison.first.step_time_s == found.best.prediction.step_time_s
    assert comparison.steps == ()


def test_sizes_left_out_of_a_configuration_follow_from_the_rest() -> None:
    config = predict(REQUEST, {"tensor_parallel_size": 4}).configuration
    assert config.data_parallel_size == 16 // 4
    assert config.num_microbatches * config.micro_batch_size * config.data_parallel_size == 64


def test_the_steps_of_an_explanation_add_up_to_the_difference() -> None:
    explained = explain(REQUEST, {"tensor_parallel_size": 4})
    first, second = explained.comparison.first, explained.comparison.second
    changes = sum(step.step_change_s for step in explained.comparison.steps)
    assert first.step_time_s + changes == pytest.approx(second.step_time_s, rel=1e-9)
    assert second.step_time_s < first.step_time_s


def test_launch_files_of_a_result_and_of_its_saved_folder_are_the_same(
    found: PlanResult, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    bundle = export(found, rank=2, save_dir=folder)
    assert {path.name for path in folder.iterdir()} == {*bundle.files, "answer.json"}
    again = export(folder / "answer.json", rank=2)
    assert again.files == bundle.files


def test_a_launcher_that_cannot_express_a_plan_refuses_it(found: PlanResult) -> None:
    pipelined = next(one for one in found.plans if one.config.pipeline_parallel_size > 1)
    with pytest.raises(RefusedExportError) as refused:
        export(found, rank=pipelined.rank, launcher="deepspeed")
    assert refused.value.errors


def test_a_document_read_back_is_the_same_document(found: PlanResult) -> None:
    document = json.dumps(found.to_json())
    assert json.dumps(library.read_result(json.loads(document)).to_json()) == document


def test_a_stored_answer_is_read_and_exported_where_its_profile_is_gone(found: PlanResult) -> None:
    document = found.to_json()
    document["problem"] = {**document["problem"], "profile": "gone.json"}
    answer, problem = stored_answer(document)
    assert answer.plans == found.plans
    assert problem.profile == "gone.json"
    assert export(document, rank=2).files == export(found, rank=2).files
    with pytest.raises(InvalidProblemError, match=r"gone\.json"):
        library.read_result(document)  # pricing needs the costs themselves


def test_a_calibration_is_learnt_from_runs_saved_and_used(tmp_path: Path) -> None:
    runs = runs_of("megatron-ci-a100", tmp_path, 6)
    learnt = calibrate(runs)
    learnt.save(tmp_path / "mine.json")
    request = {**REQUEST, "cluster": {"name": "dgx-a100", "num_nodes": 2}}
    by_object = predict(request, {"tensor_parallel_size": 2}, profile=learnt)
    by_file = predict(request, {"tensor_parallel_size": 2}, profile=tmp_path / "mine.json")
    assert by_object.prediction == by_file.prediction
    assert by_object.prediction != predict(request, {"tensor_parallel_size": 2}).prediction


def test_validation_scores_every_run_that_can_be_expressed(tmp_path: Path) -> None:
    scored = validate(runs_of("bridge-h100-25.09", tmp_path, 7))
    assert scored.to_json()["overall"]["n"] + sum(scored.report.refused.values()) == 7


def test_results_show_the_charts_of_the_report_in_a_notebook(found: PlanResult) -> None:
    for shown in (found, predict(REQUEST, found.best.config)):
        markup = shown._repr_html_()
        assert markup.startswith("<iframe")
        assert "&lt;svg" in markup  # the page is escaped: it cannot break out of its frame
        assert "<svg" not in markup
    assert "MFU" in str(found)


@pytest.mark.parametrize(
    ("request_change", "field", "nearest"),
    [
        ({"workload": {"global_batch_size": 0, "seq_length": 4096}}, "workload.global_batch_size", "1"),
        ({"model": {"name": "llama-3.1-8"}}, "model.name", "llama-3.1-8b or llama-3-8b or llama-3.1-70b"),
    ],
)
def test_bad_input_names_field_and_nearest_value(
    request_change: dict[str, object], field: str, nearest: str | None
) -> None:
    with pytest.raises(InvalidProblemError) as refused:
        plan({**REQUEST, **request_change})
    (error,) = refused.value.errors
    assert error.field == field
    assert error.nearest == nearest


def test_a_rank_that_no_plan_has_is_refused_with_the_ranks_that_there_are(found: PlanResult) -> None:
    with pytest.raises(InvalidProblemError, match=r"no plan of rank 9.*Allowed: 1 to 3"):
        found.plan(9)


def test_costs_that_only_a_service_has_are_said_to_be_the_catalogs() -> None:
    """A job that a service answered with what it had learnt is explained here without that."""
    stored = replace(a_problem(), profile="0123456789abcdef" * 2)
    profile, (warning,) = costs_of(stored, None)
    assert profile == default_profile(stored.cluster, stored.launcher)
    assert "0123456789abcdef" in warning
    for word in ("latest", "catalog"):
        assert costs_of(replace(stored, profile=word), None) == (profile, ())
