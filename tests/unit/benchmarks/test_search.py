"""The problems of the search benchmark are requests as the service reads them."""

from pathlib import Path

import pytest

from benchmarks.search import HEADINGS, PROBLEMS, aligned, measured, written
from meshwright.service.requests.documents import read_problem_file
from meshwright.service.requests.parse import parse_problem


@pytest.mark.parametrize("path", sorted(PROBLEMS.glob("*.json")), ids=lambda path: path.stem)
def test_every_problem_is_complete(path: Path) -> None:
    raw = read_problem_file(path)
    problem = parse_problem(raw)
    assert set(raw) == {"model", "cluster", "workload", "launcher", "search"}
    assert str(problem.cluster.num_gpus) in path.stem.split("-")
    assert problem.options.top_k == 10


def test_a_measurement_says_what_was_covered_and_proved() -> None:
    found = measured(PROBLEMS / "gpt-3-175b-4096-a100.json", "none")
    assert (found["gpus"], found["status"], found["certified_by"]) == (4096, "optimal", ["exact-dp"])
    assert found["curve"][0][0] <= found["cpu_s"]
    assert found["gap"] >= 0.0


def test_the_table_is_written_between_its_marks_and_nothing_else_changes() -> None:
    lines = aligned(HEADINGS, [tuple("x" * len(HEADINGS))])
    document = "before\n<!-- table: search -->\nold\n<!-- end -->\nafter\n"
    assert (
        written(document, lines, "search")
        == f"before\n<!-- table: search -->\n{lines}\n<!-- end -->\nafter\n"
    )
