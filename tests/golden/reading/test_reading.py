"""Launch files with drawn arguments, and how they are read; UPDATE_GOLDEN=1 writes the outcomes anew.

A line holds the reviewed export that the arguments were put into, the arguments, and either the sentences
that refuse the file or the values in which its run differs from the export's. ``drawing.py`` drew them.
Every fourth line is read every day, all of them by ``make fuzz``.
"""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.launchers.reading.base import Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from tests.draws import some_of
from tests.golden.answers.test_answers import values_of
from tests.launchers.exported import OLDER, older

FOLDER = Path(__file__).parent
GOLDEN = FOLDER.parent
# The file of an export that takes the arguments; of a list of arguments also the script that starts it.
READ = {
    "accelerate": "accelerate.yaml",
    "axolotl": "axolotl.yaml",
    "deepspeed": "ds_config.json",
    "flagscale": "train_plan.yaml",
    "llama_factory": "llama_factory.yaml",
    "llama_factory_accelerate": "llama_factory_train.yaml",
    "maxtext": "maxtext.yml",
    "megatron_bridge": "plan_args.sh",
    "megatron_lm": "megatron_args.sh",
    "ms_swift": "plan_args.sh",
    "nanotron": "nanotron.yaml",
    "torchtitan": "torchtitan_0_2.toml",
    "trl": "trl_sft.yaml",
}
STARTED = {
    "megatron_bridge": "scripts/performance/run_script.py",
    "megatron_lm": "pretrain_gpt.py",
    "ms_swift": "swift/cli/_megatron/sft.py",
}
_NODES = re.compile(r"^# Nodes: (\d+) of (\d+) ", re.MULTILINE)
Arguments = Mapping[str, Any]


def cases_of(launcher: str) -> list[str]:
    """The exports that are read, without the one on several kinds of nodes."""
    if launcher == "torchtitan":
        return [*OLDER]
    folders = sorted((GOLDEN / launcher).iterdir())
    return [one.name for one in folders if (one / READ[launcher]).is_file() and "placed" not in one.name]


@cache
def text_of(launcher: str, name: str) -> str:
    if launcher == "torchtitan":
        return older(name)[READ[launcher]]
    return (GOLDEN / launcher / name / READ[launcher]).read_text(encoding="utf-8")


def source_with(launcher: str, name: str, arguments: Arguments) -> Source:
    """The export with the arguments put into it, in place of those of the same names."""
    file, text = READ[launcher], text_of(launcher, name)
    comment = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    if file.endswith(".sh"):
        return Source(name="launch.sh", text=_script(launcher, comment, text, arguments))
    if file.endswith(".json"):
        changed = json.dumps(_tree(json.loads(text), arguments), indent=1)
    elif file.endswith(".toml"):
        changed = comment + _toml(_tree(tomllib.loads(text), arguments))
    else:
        tree = _tree(yaml.load(text, yaml.CSafeLoader), arguments)
        changed = comment + yaml.dump(tree, Dumper=yaml.CSafeDumper, sort_keys=True)
    if launcher == "torchtitan":  # with the model's sizes next to it
        model = older(name)["torchtitan_0_2_model.py"]
        return Source(name=file, text=changed, files={"torchtitan_0_2_model.py": model, file: changed})
    return Source(name=file, text=changed)


def _script(launcher: str, comment: str, text: str, arguments: Arguments) -> str:
    """A command with the arguments of the export that are not drawn, then with those that are."""
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    names = {line: re.split(r"[ =]", line.strip("'"), maxsplit=1)[0] for line in lines}
    kept = [line for line in lines if not line.startswith("#") and names[line] not in arguments]
    nodes, gpus = _nodes_of(text)
    start = f"torchrun --nnodes {nodes} --nproc-per-node {gpus} {STARTED[launcher]}"
    return f"{comment}{' '.join([start, *kept, *map(_word, arguments.items())])}\n"


def _nodes_of(text: str) -> tuple[int, int]:
    """The nodes of an export, and the GPUs of each."""
    found = _NODES.search(text)
    assert found is not None
    return int(found[1]), int(found[2])


def _word(argument: tuple[str, Any]) -> str:
    name, value = argument
    if not name.startswith("--"):
        return f"'{name}={value}'"
    return name if value is None else f"{name} {value}"


def _tree(tree: dict[str, Any], arguments: Arguments) -> dict[str, Any]:
    """The mapping with each value at its path, or where the path's last name already is."""
    for name, value in arguments.items():
        at = tree
        *sections, last = name.split(".")
        for section in sections:
            if not isinstance(at.get(section), dict):
                at[section] = {}
            at = at[section]
        at[last] = value
    return tree


def _toml(tree: Mapping[str, Any], table: str = "") -> str:
    plain = {name: one for name, one in tree.items() if not isinstance(one, dict)}
    lines = [f"{name} = {json.dumps(one)}\n" for name, one in plain.items() if one is not None]
    inner = (_toml(one, f"{table}{name}.") for name, one in tree.items() if name not in plain)
    head = f"[{table.rstrip('.')}]\n" if table else ""
    return "".join([head, *lines, *inner])


def read(launcher: str, name: str, arguments: Arguments) -> dict[str, Any] | str:
    """Every value of the run, or the sentences that refuse the file."""
    num_gpus = None
    if launcher == "flagscale":  # its hosts are in a file of their own
        num_gpus = math.prod(_nodes_of(text_of(launcher, name)))
    try:
        found = read_launch_files(source_with(launcher, name, arguments), Overrides(num_gpus=num_gpus))
    except InvalidProblemError as refused:
        return " | ".join(one.sentence() for one in refused.errors)
    values = asdict(found)
    listed = {f"{name}: {one}": True for name in ("notes", "unread") for one in values.pop(name)}
    return dict(values_of(json.loads(json.dumps(values)))) | listed


@cache
def usual(launcher: str, name: str) -> Mapping[str, Any]:
    found = read(launcher, name, {})
    assert isinstance(found, dict), found
    return found


def outcome(launcher: str, name: str, arguments: Arguments) -> object:
    """The sentences that refuse the arguments, or what they change."""
    now, was = read(launcher, name, arguments), usual(launcher, name)
    if isinstance(now, str):
        return now
    return {at: now.get(at) for at in sorted({**now, **was}) if now.get(at) != was.get(at)}


def reviewed(launcher: str) -> Iterator[tuple[str, dict[str, Any], object]]:
    for line in (FOLDER / f"{launcher}.jsonl").read_text(encoding="utf-8").splitlines():
        yield tuple(json.loads(line))


@pytest.mark.parametrize("launcher", READ)
def test_drawn_arguments_are_refused_or_read_as_they_were_reviewed(launcher: str) -> None:
    before = some_of(list(reviewed(launcher)), each=4)
    found = [(name, arguments, outcome(launcher, name, arguments)) for name, arguments, _ in before]
    if os.environ.get("UPDATE_GOLDEN"):
        write(launcher, found)
        before = list(reviewed(launcher))
    now = [json.loads(json.dumps(one)) for *_, one in found]
    assert [f"{was} -> {one}" for was, one in zip(before, now, strict=True) if was[2] != one] == []


def write(launcher: str, found: list[tuple[str, dict[str, Any], object]]) -> None:
    lines = [json.dumps(one, separators=(",", ":"), ensure_ascii=False) for one in found]
    (FOLDER / f"{launcher}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
