"""The search's benchmarks: problems as the service reads them, their table, the picture of their growth."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.growth import Panel, by_gpus, drawn
from benchmarks.recipes import Recipe, counts_of, plain_question, problem_of
from benchmarks.search import HEADINGS, PROBLEMS, aligned, measured, renewed, written
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.documents import read_problem_file
from meshwright.service.requests.parse import parse_problem
from tests.catalog import catalog_runs

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("path", sorted(PROBLEMS.glob("*.json")), ids=lambda path: path.stem)
def test_every_problem_is_complete(path: Path) -> None:
    raw = read_problem_file(path)
    problem = parse_problem(raw)
    assert set(raw) == {"model", "cluster", "workload", "launcher", "search"}
    assert str(problem.cluster.num_gpus) in path.stem.split("-")
    assert problem.options.top_k == 10


def test_a_measurement_says_what_was_covered_and_proved(tmp_path: Path) -> None:
    problem = json.loads((PROBLEMS / "qwen3-30b-64-h100-128k.json").read_text())
    problem |= {"model": {"name": "llama-3.1-8b"}, "cluster": {"name": "dgx-h100", "num_nodes": 1}}
    (tmp_path / "small.json").write_text(json.dumps(problem))
    found = measured(tmp_path / "small.json", "none")
    assert (found["gpus"], found["status"], found["certified_by"]) == (8, "optimal", ["exact-dp"])
    assert found["curve"][0][0] <= found["cpu_s"]
    assert found["gap"] >= 0.0


def test_the_table_is_written_between_its_marks_and_nothing_else_changes() -> None:
    lines = aligned(HEADINGS, [tuple("x" * len(HEADINGS))])
    document = "before\n<!-- table: search -->\nold\n<!-- end -->\nafter\n"
    assert (
        written(document, lines, "search")
        == f"before\n<!-- table: search -->\n{lines}\n<!-- end -->\nafter\n"
    )


def test_a_panel_has_a_point_for_every_measurement_higher_where_it_took_longer() -> None:
    picture = ET.fromstring(  # noqa: S314 - our own text
        drawn(
            [
                Panel("one", "GPUs", ((8.0, 0.1), (64.0, 1.0))),
                Panel("two", "layers", ((1.0, 0.2), (2.0, 0.2))),
            ]
        )
    )
    heights = [float(circle.attrib["cy"]) for circle in picture.iter(f"{SVG}circle")]
    assert len(heights) == 4
    assert heights[1] < heights[0]
    assert heights[2] == heights[3]
    assert {"one", "two"} <= {text.text for text in picture.iter(f"{SVG}text")}


def test_problems_grow_by_what_the_axis_says() -> None:
    assert [value == problem.cluster.num_gpus for value, problem in by_gpus()] == [True] * 6


def test_lines_of_problems_that_are_measured_again_replace_theirs_alone() -> None:
    table = aligned(("problem", "proof"), [("one", "2.00 s"), ("other", "3.00 s")])
    document = f"<!-- table: search -->\n{table}\n<!-- end -->\nmore"
    lines = [("other", "1.00 s"), ("new", "4.00 s")]
    assert renewed(document, "search", lines) == [("one", "2.00 s"), *lines]


def test_a_recipe_is_searched_in_a_space_that_has_its_layout_or_not_at_all() -> None:
    shapes = {run.run_id: run.shape for run in catalog_runs()}

    def launcher(run_id: str) -> str | None:
        shape = shapes[run_id]
        assert shape is not None
        found = problem_of(shape, default_profile(shape.problem.cluster, shape.framework), 0.5)
        return None if found is None else found.launcher

    assert launcher("BRDG-0084") == "megatron-bridge"
    assert launcher("DGXC-0246") == "megatron-bridge", "its files lack a squared ReLU, its search does not"
    assert launcher("BRDG-0170") == "megatron-bridge", "it keeps half of its layers on the hosts"
    assert launcher("BRDG-0042") == "none", "its graph holds experts with any number of tokens"


def test_a_sceptic_counts_recipes_that_are_faster_and_answers_that_are_silent() -> None:
    run = next(run for run in catalog_runs() if run.run_id == "BRDG-0084")
    assert run.shape is not None
    plain = plain_question(run.shape)
    assert plain is not None
    assert (plain.launcher, plain.workload.framework_options) == ("megatron-bridge", {})

    def recipe(best_s: float | None, plain_s: float | None, names: str) -> Recipe:
        return Recipe(
            run=run, published_s=9.0, ours_s=10.0, chance_of_failing=0.06, best_s=best_s, bound_s=best_s,
            edge_s=best_s and 0.8 * best_s, refused=False, plain_s=plain_s, names=names,
        )  # fmt: skip

    lines = counts_of([recipe(10.5, 12.0, "recipe"), recipe(9.5, 10.0, ""), recipe(None, 13.0, "")])
    told = [line.split(" ")[1:4] for line in lines if line.startswith("*")]
    assert [counted[0] + counted[2] for counted in told] == [
        "**1**2", "**1**3", "**2**2", "**3**3", "**0**3", "**2**3",
    ]  # fmt: skip
    assert "by 30%" not in lines[-1]
    assert "30% at most" in lines[-1]
    assert "silent about 1" in lines[-1]
