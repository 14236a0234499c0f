"""``meshwright demo`` brings its own problem file, so that it runs from an installation."""

from pathlib import Path

import pytest

import meshwright
from meshwright.service.cli.demo import EXAMPLE
from meshwright.service.requests.documents import read_problem_file
from meshwright.service.requests.parse import parse_problem

PACKAGE = Path(meshwright.__file__).parent


def test_the_example_is_in_the_package_and_is_read_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert EXAMPLE.is_relative_to(PACKAGE)
    problem = parse_problem(read_problem_file(EXAMPLE))
    assert problem.cluster.num_gpus == 128


def test_the_example_that_the_readme_links_to_is_the_same_file() -> None:
    root = PACKAGE.resolve().parents[1]
    assert (root / "examples" / "llama-3.1-70b-128xh100.json").resolve() == EXAMPLE.resolve()
