"""Tables of arguments before the launchers' own parsers: ``make launchers ARGS="--update --only NAME"``.

The parser, or the sources of a wheel that is not run, gives the type, the default and the choices; the
roles are people's. An argument that is new has no role, which ``tests/unit/launchers/test_flags.py``
refuses; one that is gone stays, as older releases and forks have it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.catalog import launcher_flags
from meshwright.launchers.flags import table_path
from meshwright.service.verify.environments import Environment
from tests.launchers.environments import interpreter

# Scripts that print a parser, by program.
PARSERS = {
    path.name.removesuffix("_arguments.py").replace("_", "-"): path
    for path in sorted((Path(__file__).parent / "judges").glob("*_arguments.py"))
}
# Programs with wheels that are read, not run.
SOURCES = ("axolotl", "llama-factory", "ms-swift")
# Environments with a program's parser, where it is not that of its launcher.
INSTALLED_IN = {"torchtitan": "torchtitan-0.3", "transformers": "accelerate"}
_OF_THE_PARSER = ("type", "default", "choices")
_READ = ("priced", "sets")  # rows with a type of our own: a list of the schedule's words is one text
Row = dict[str, Any]


def declared(program: str, environment: Environment) -> dict[str, Row]:
    """Return the arguments that a program's parser declares, by name."""
    done = subprocess.run(
        [interpreter(environment), str(PARSERS[program])],
        capture_output=True, text=True, check=True, env={"PYTHONPATH": str(environment.path)},
    )  # fmt: skip
    found: dict[str, Row] = json.loads(done.stdout.splitlines()[-1])
    return found


def merged(rows: Mapping[str, Row], parser: Mapping[str, Row]) -> dict[str, Row]:
    """A table with what a parser declares, and the roles that it has."""
    found = {}
    for name in sorted({*rows, *parser}):
        old, new = dict(rows.get(name, {})), parser.get(name)
        if new is None:
            found[name] = old | {"of": old.get("of", "older releases")}
            continue
        kept = {key: value for key, value in old.items() if key not in (*_OF_THE_PARSER, "of")}
        if any(key in old for key in _READ):
            new = {**new, "type": old["type"]}
        found[name] = {**new, **kept}
    return found


def changed_rows(old: Mapping[str, Row], new: Mapping[str, Row]) -> list[str]:
    """Return what a release changes, one line an argument: added, gone, or declared otherwise."""
    found = []
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name, {})
        if before is None:
            found.append(f"added    {name}: {_declaration(after)}; it needs a role")
        elif any(mark in after and mark not in before for mark in ("of", "until")):
            found.append(f"gone     {name}")
        elif _declaration(before) != _declaration(after):
            found.append(f"changed  {name}: {_declaration(before)} -> {_declaration(after)}")
    return found


def _declaration(row: Row) -> str:
    return ", ".join(f"{key} {row[key]}" for key in _OF_THE_PARSER if key in row)


def text_of(rows: Mapping[str, Row], head: str) -> str:
    """A table as text, one line an argument."""
    lines = [
        yaml.dump(
            {name: row},
            Dumper=yaml.CSafeDumper,
            default_flow_style=True,
            width=10_000,
            sort_keys=False,
            allow_unicode=True,
        )
        for name, row in rows.items()
    ]
    return head + "".join(f"{line.strip()[1:-1]}\n" for line in lines)


def renewed(program: str, environment: Environment) -> tuple[Path, str]:
    """The file of a program's table, and its text by the parser at hand."""
    path = table_path(program)
    if program in SOURCES:
        newest = launcher_flags.PROGRAMS[program][0].name
        if not any(environment.path.glob(f"{newest}-*.whl")):
            sys.exit(f"{program}: {newest} is not what is installed: --latest, or another release there")
        rows = launcher_flags.renewed(program, environment.path)
        return path, launcher_flags.written(program, rows)
    text = path.read_text("utf-8")
    head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    return path, text_of(merged(yaml.load(text, yaml.CSafeLoader), declared(program, environment)), head)
