"""Launch files of every other launcher, byte for byte; UPDATE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from meshwright.launchers.registry import export, launcher_names
from meshwright.profiles.inline import cluster_to_mapping
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.launch_files import source_of
from meshwright.service.requests.launch_files import own_of_files
from meshwright.solver.predict import predict
from tests.launchers.cases import CASES as MEGATRON
from tests.launchers.plans import CASES

GOLDEN = Path(__file__).parent
EVERY = pytest.mark.parametrize(
    ("launcher", "name"), [(launcher, name) for launcher, cases in CASES.items() for name in cases]
)


def kept_as(file: str) -> str:
    """Python files are kept under another name: they are no code of this repository."""
    return f"{file}.txt" if file.endswith(".py") else file


def folder_of(launcher: str, name: str) -> Path:
    return GOLDEN / launcher.replace("-", "_") / name


@EVERY
def test_the_files_are_those_that_were_looked_at(launcher: str, name: str) -> None:
    case, folder = CASES[launcher][name], folder_of(launcher, name)
    files = export(case.plan, case.problem, launcher).files
    if os.environ.get("UPDATE_GOLDEN"):
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / kept_as(file)).write_text(text)
    kept = {path.name: path.read_text() for path in folder.iterdir()}
    assert kept == {kept_as(file): text for file, text in files.items()}


@EVERY
def test_every_file_is_read_by_a_parser_of_its_kind(launcher: str, name: str) -> None:
    for path in folder_of(launcher, name).iterdir():
        text = path.read_text()
        if path.suffix in {".sh", ".sbatch"}:
            subprocess.run(["bash", "-n", path], check=True)
        elif path.suffix == ".json":
            json.loads(text)
        elif path.suffix in {".yaml", ".yml"}:
            assert isinstance(yaml.safe_load(text), dict)
        elif path.suffix == ".md":
            assert text.startswith("# Plan ")
        elif path.suffix == ".toml":
            tomllib.loads(text)
        elif path.name == "hostfile.txt":
            assert all(re.fullmatch(r"#.*|host\d+ slots=\d+ type=\S+", line) for line in text.splitlines())
        else:
            ast.parse(text)


def test_every_launcher_has_golden_files() -> None:
    assert {"megatron-lm", *CASES} == set(launcher_names())


@pytest.mark.parametrize("launcher", launcher_names())
def test_predict_of_an_exported_folder_gives_the_plans_own_figures(launcher: str, tmp_path: Path) -> None:
    for name, case in (MEGATRON if launcher == "megatron-lm" else CASES[launcher]).items():
        folder = tmp_path / name
        folder.mkdir()
        for file, text in export(case.plan, case.problem, launcher).files.items():
            (folder / file).write_text(text)
        own = own_of_files({"cluster": cluster_to_mapping(case.problem.cluster)}, source_of([folder]))
        read = replace(
            own.problem, cluster=case.problem.cluster
        )  # which is of no catalog, and no file names
        planned = predict(case.problem, profile_for(case.problem, None), case.config)
        found = predict(read, profile_for(read, None), own.configuration)
        assert (found.step_time_s, found.peak_memory_bytes) == (
            planned.step_time_s,
            planned.peak_memory_bytes,
        )
