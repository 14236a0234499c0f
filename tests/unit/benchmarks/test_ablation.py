import pytest

from benchmarks.ablation import CLOSE, DOCUMENT, OPEN, by_family, family_of, left_out, written
from benchmarks.fit.evidence import Evidence
from benchmarks.removed import INGREDIENTS, without
from meshwright.profiles.profile import default_profile
from meshwright.solver.predict import predict
from tests.builders import a_configuration, a_problem
from tests.catalog import catalog_runs


@pytest.mark.parametrize("ingredient", INGREDIENTS)
def test_every_ingredient_can_be_taken_out_and_comes_back(ingredient: str) -> None:
    problem = a_problem()
    profile = default_profile(problem.cluster, problem.launcher)
    before = predict(problem, profile, a_configuration()).step_time_s
    with without(ingredient):
        predict(problem, default_profile(problem.cluster, problem.launcher), a_configuration())
    assert predict(problem, profile, a_configuration()).step_time_s == before


def test_without_tensor_parallel_communication_a_step_is_faster() -> None:
    problem = a_problem()
    profile = default_profile(problem.cluster, problem.launcher)
    before = predict(problem, profile, a_configuration()).step_time_s
    with without("tensor-parallel communication"):
        assert predict(problem, profile, a_configuration()).step_time_s < 0.99 * before


def test_a_pipeline_that_fills_for_nothing_errs_on_pipelines() -> None:
    runs = [run for run in catalog_runs() if run.cluster in ("zerobubble-a100", "jeanzay-a100")]
    evidence = Evidence.of_times(runs[::2])
    before = left_out(evidence)["zerobubble-a100"]
    with without("pipeline bubble"):
        assert left_out(evidence)["zerobubble-a100"] > before + 1.0


def test_clusters_count_alike_in_their_family_and_overall() -> None:
    errors = {"zerobubble-a100": 4.0, "jeanzay-a100": 10.0, "jeanzay-v100-32gb": 20.0, "mlperf-mi355x": 6.0}
    assert family_of("mlperf-mi355x") is None
    assert by_family(errors) == {"zero bubble": 4.0, "3D over nodes": 15.0, "all clusters": 10.0}


def test_the_table_goes_between_its_markers_and_nothing_else_changes() -> None:
    page = DOCUMENT.read_text(encoding="utf-8")
    again = written(page, ["| a |", "|---|"])
    assert again.split(OPEN)[0] == page.split(OPEN)[0]
    assert again.split(CLOSE)[1] == page.split(CLOSE)[1]
    assert "| a |\n|---|" in again
    assert written(again, ["| a |", "|---|"]) == again
