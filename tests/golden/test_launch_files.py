"""Launch files of every launcher, byte for byte; UPDATE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from meshwright.launchers.registry import launcher_names
from meshwright.profiles.inline import cluster_to_mapping
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.launch_files import source_of
from meshwright.service.requests.launch_files import own_of_files
from meshwright.solver.predict import predict
from tests.launchers.exported import CASES, differences, exported, kept
from tests.launchers.megatron_arguments import parser, words, words_by_bash

GOLDEN = Path(__file__).parent
EVERY = pytest.mark.parametrize("launcher", CASES)
OF_MEGATRON = pytest.mark.parametrize("name", sorted(CASES["megatron-lm"]))


@EVERY
def test_the_files_are_those_that_were_looked_at(launcher: str) -> None:
    folder = GOLDEN / launcher.replace("-", "_")
    files = {
        f"{name}/{file}": text for name in CASES[launcher] for file, text in kept(launcher, name).items()
    }
    if os.environ.get("UPDATE_GOLDEN"):
        for file, text in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
    assert {str(path.relative_to(folder)): path.read_text() for path in folder.glob("*/*")} == files


def test_kept_differences_hold_what_a_text_adds_lacks_and_where() -> None:
    first = "a\nx\nb\nx\nc\n"  # x is there twice: a place is counted from a line that is there once
    others = [
        "a\nx\nb\nx\nd\n",
        "a\nx\nb\nx\nnew\nc\n",
        "a\nx\nnew\nb\nx\nc\n",
        "a\nb\nx\nc\n",
        "a\nx\nb\nc\n",
    ]
    found = ["".join(differences(first, other)) for other in others]
    assert found[0] == "@ 2 after b\n-c\n+d\n"
    assert found[1] == "@ 2 after b\n+new\n"
    assert found[2] == "@ 2 after a\n+new\n"
    assert len({*found}) == len(others)
    assert list(differences(first, first)) == []


def written(files: Mapping[str, str], folder: Path) -> Path:
    folder.mkdir()
    for file, text in files.items():
        (folder / file).write_text(text)
    return folder


@EVERY
def test_every_file_is_read_by_a_parser_of_its_kind(launcher: str, tmp_path: Path) -> None:
    folders = [written(exported(launcher, name), tmp_path / name) for name in CASES[launcher]]
    scripts = [path for folder in folders for path in sorted(folder.glob("*.s[hb]*"))]
    check = 'for file in "$@"; do bash -n "$file" || exit; done'
    subprocess.run(["bash", "-c", check, "check", *scripts], check=True)
    for path in (path for folder in folders for path in folder.iterdir() if path not in scripts):
        text = path.read_text()
        if path.suffix == ".json":
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
    assert {*CASES} == set(launcher_names())


@EVERY
def test_predict_of_an_exported_folder_gives_the_plans_own_figures(launcher: str, tmp_path: Path) -> None:
    for name, case in CASES[launcher].items():
        folder = written(exported(launcher, name), tmp_path / name)
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


@OF_MEGATRON
def test_bash_and_the_reader_of_the_tests_see_the_same_flags(name: str) -> None:
    path = GOLDEN / "megatron_lm" / name / "megatron_args.sh"
    seen = words_by_bash(path)
    assert seen == words(path.read_text())
    parser().parse_args(seen)


@OF_MEGATRON
def test_megatron_knows_every_flag_and_none_is_repeated(name: str) -> None:
    fixture = Path(__file__).parents[1] / "fixtures" / "megatron_lm_flags.txt"
    known = {line for line in fixture.read_text().splitlines() if not line.startswith("#")}
    flags = [word for word in words(exported("megatron-lm", name)["megatron_args.sh"]) if word[:2] == "--"]
    since_0_19 = {"--tensor-parallel-num-weight-shards", "--expert-tensor-parallel-num-weight-shards"}
    assert set(flags) <= known | since_0_19
    assert len(flags) == len(set(flags))
