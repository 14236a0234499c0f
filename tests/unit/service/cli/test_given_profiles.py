"""Profile files that a command is given, alone and together."""

import json
from pathlib import Path

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli.calibrate import profile_for
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from meshwright.solver.problem import Problem

FOLDER = Path(__file__).parents[4] / "benchmarks" / "data" / "sailor"
A100, V100 = (FOLDER / f"opt-350m-{gpu}.json" for gpu in ("a100-sxm-40gb", "v100-sxm-16gb"))


def asked(**part: object) -> Problem:
    return parse_problem(
        {
            "model": {"name": "opt-350m"},
            "cluster": {"groups": [{"gpu": "a100-sxm-40gb", "num_nodes": 2}]},
            "workload": {"global_batch_size": 64, "seq_length": 2048},
            "launcher": "none",
            **part,
        }
    )


def test_a_problem_file_names_its_profile_and_keeps_it() -> None:
    problem = asked(profile=str(A100))
    assert parse_problem(problem_to_mapping(problem)) == problem
    layers = profile_for(problem, None).layers
    assert layers is not None
    assert layers.model.name == "opt-350m"
    assert profile_for(asked(), None).layers is None


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([V100], "was measured on v100-sxm-16gb, not on a100-sxm-40gb"),
        ([A100, A100], "several profiles for a100-sxm-40gb; give one"),
    ],
)
def test_profiles_that_do_not_hold_are_refused(paths: list[Path], message: str) -> None:
    with pytest.raises(InvalidProblemError) as raised:
        profile_for(asked(), paths)
    (fault,) = raised.value.errors
    assert (fault.pointer, fault.message) == ("--profile", message)


def test_a_broken_measured_profile_names_file_and_field(tmp_path: Path) -> None:
    raw = json.loads(A100.read_text())
    del raw["subject"]["seq_length"]
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(InvalidProblemError, match=r"broken\.json, /subject/seq_length: is required"):
        profile_for(asked(), path)
