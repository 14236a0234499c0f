"""The planner without the extra ``service``: no packages but its own dependencies can be imported."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
QUESTION = ["--model", "llama-3.2-1b", "--gpus", "2xh100", "--launcher", "megatron-lm"]
QUESTION += ["--global-batch-size", "16", "--seq-length", "2048"]
REFUSING = """
import sys
REFUSED = {names!r}
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refusing())
"""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(requirements: Iterable[str]) -> set[str]:
    """Distributions that these requirements install, without anybody's extras."""
    found, left = set[str](), list(requirements)
    while left:
        requirement = left.pop()
        named = re.match(r"[A-Za-z0-9._-]+", requirement)
        assert named is not None
        name = canonical(named[0])
        if name in found or "extra ==" in requirement:
            continue
        found.add(name)
        try:
            left += requires(name) or []
        except PackageNotFoundError:  # of another platform
            found.discard(name)
    return found


@pytest.fixture(scope="module")
def planner_alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose Python imports the base dependencies of the project and no other package."""
    own = {*closure(PROJECT["dependencies"]), "meshwright"}
    refused = {
        name for name, owners in packages_distributions().items() if own.isdisjoint(map(canonical, owners))
    }
    assert {"fastapi", "uvicorn", "sqlalchemy", "alembic", "psycopg", "celery", "httpx"} <= refused
    folder = tmp_path_factory.mktemp("planner")
    (folder / "sitecustomize.py").write_text(REFUSING.format(names=sorted(refused)))
    state = tmp_path_factory.mktemp("state")
    return {**os.environ, "PYTHONPATH": str(folder), "XDG_STATE_HOME": str(state)}


def meshwright(planner: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshwright", *arguments]
    return subprocess.run(command, cwd=folder, env=planner, capture_output=True, text=True, check=False)


def python(planner: dict[str, str], folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, env=planner, capture_output=True, text=True, check=False)


# One process loads what several commands need; what cannot be imported, none of them can import.
ONE_BY_ONE = """
import sys
from meshwright.service.cli.main import main
for words in {commands!r}:
    sys.argv = ["meshwright", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, f"{{words}} ended with {{end.code}}"
"""


def test_the_planner_works_without_the_packages_of_the_service(
    planner_alone: dict[str, str], tmp_path: Path
) -> None:
    head, *rows = (ROOT / "profiles/catalog/runs/measured_runs.csv").read_text().splitlines()
    runs = [row for row in rows if "nemo-h100-24.05" in row]
    (tmp_path / "runs.csv").write_text("\n".join([head, *runs]))
    commands = (
        ["plan", *QUESTION, "--save-dir", "run"],
        ["predict", *QUESTION, "--set", "tensor_parallel_size=2"],
        ["explain", *QUESTION, "--set", "tensor_parallel_size=2"],
        ["export", "--from", "run/answer.json", "--save-dir", "again"],
        ["report", "--from", "run/answer.json", "--what-if", "none", "--out", "page.html"],
        ["report", "--from", "run/answer.json", "--timeline", "trace.json"],
        ["validate", "runs.csv"],
        ["calibrate", "runs.csv", "--cluster", "nemo-h100-24.05", "--out", "mine.json"],
        ["models"],
        ["clusters"],
        ["gpus"],
        *([command, "--help"] for command in ("compare", "shapes", "profile", "import")),
    )
    run = python(planner_alone, tmp_path, ONE_BY_ONE.format(commands=commands))
    assert run.returncode == 0, run.stderr
    assert "llama-3.2-1b" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["demo"],
        ["serve"],
        ["worker"],
        ["jobs", "list"],
        ["launch", "--", "true"],
        ["keys", "list"],
        ["db", "upgrade"],
        ["report", "some-job", "--url", "http://127.0.0.1:1"],
    ],
    ids=" ".join,
)
def test_a_command_of_the_service_names_the_extra_that_it_needs(
    planner_alone: dict[str, str], tmp_path: Path, words: list[str]
) -> None:
    run = meshwright(planner_alone, tmp_path, *words)
    assert run.returncode == 2
    command = "report --url" if words[0] == "report" else words[0]
    assert run.stderr.startswith(f"error: meshwright {command} needs the packages of the service (")
    assert run.stderr.endswith(" is not installed): pip install '.[service]' in a checkout\n")
    assert run.stderr.count("\n") == 1


def test_the_python_interface_works_without_the_packages_of_the_service(
    planner_alone: dict[str, str], tmp_path: Path
) -> None:
    code = """
import meshwright
request = {
    "model": {"name": "llama-3.2-1b"},
    "cluster": {"gpu": "h100-sxm-80gb", "num_gpus": 2},
    "workload": {"global_batch_size": 16, "seq_length": 2048},
    "launcher": "megatron-lm",
}
found = meshwright.plan(request)
assert found._repr_html_()
assert meshwright.predict(request, {"tensor_parallel_size": 2}).to_json()
assert meshwright.explain(request, {"tensor_parallel_size": 2}).to_json()
print(*sorted(meshwright.export(found).files))
"""
    run = python(planner_alone, tmp_path, code)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


def test_every_package_of_the_service_stands_in_its_extra_alone() -> None:
    service = {re.split(r"[>\[]", one)[0] for one in PROJECT["optional-dependencies"]["service"]}
    base = {re.split(r"[>\[]", one)[0] for one in PROJECT["dependencies"]}
    assert service.isdisjoint(base)
    assert "meshwright[service]" in PROJECT["optional-dependencies"]["dev"]
