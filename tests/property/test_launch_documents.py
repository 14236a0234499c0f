"""Changed values of documents change the answer or are accounted for by the launcher's table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from meshwright.launchers.flags import flag_names
from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.documents import looks_like_document
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from tests.draws import some_of
from tests.launchers.exported import OLDER, exported, older

GOLDEN = Path(__file__).parents[1] / "golden"
# A launcher's documents, and the programs with tables of their arguments.
DOCUMENTS: dict[str, dict[str, tuple[str, ...]]] = {
    "accelerate": {"accelerate.yaml": ("accelerate",)},
    "deepspeed": {"ds_config.json": ("deepspeed",)},
    "torchtitan": {"torchtitan_0_2.toml": ("torchtitan",)},
    "trl": {"accelerate.yaml": ("accelerate",), "trl_sft.yaml": ("trl", "transformers")},
}
# The header of an exported file states the model, whatever name the code registers it by.
BY_HEADER = ("model.name", "model.flavor")
SCALAR = re.compile(r'(?P<before>\s*"?[\w.]+"?\s*[:=]\s*)(?P<value>[^\s{\[#,][^{\[#]*?)(?P<after>,?\s*)')
CASES = [
    (launcher, folder.name, file)
    for launcher, files in DOCUMENTS.items()
    for folder in sorted((GOLDEN / launcher).iterdir())
    for file in files
    if (folder / file).is_file()
] + [("torchtitan", name, "torchtitan_0_2.toml") for name in OLDER]


@dataclass(frozen=True)
class Change:
    """One value of a document, changed."""

    name: str
    value: str
    text: str


def others(value: str) -> list[str]:
    plain = value.strip("\"'")
    if plain.lower() in ("true", "false"):
        return ["false" if plain.lower() == "true" else "true"]
    if re.fullmatch(r"\d+", plain):
        return [str(int(plain) + 1), str(int(plain) * 2)]
    if re.fullmatch(r"-?[\d.]+(?:e[-+]?\d+)?", plain):
        return [str(float(plain) * 2 + 0.5)]
    quote = '"' if value.startswith('"') else ""
    return [f"{quote}{plain}x{quote}"]


def changes(file: str, text: str) -> Iterator[Change]:
    """Every value of one line, changed alone."""
    lines = text.splitlines()
    for name, found in looks_like_document(Source(name=file, text=text)).items():
        match = SCALAR.fullmatch(lines[found.line - 1]) if found.line else None
        if match is None:
            continue
        for value in others(match["value"]):
            line = f"{match['before']}{value}{match['after']}"
            yield Change(name, value, "\n".join([*lines[: found.line - 1], line, *lines[found.line :], ""]))


def read(file: str, files: dict[str, str]) -> LaunchFile:
    return read_launch_files(Source(name=file, text=files[file], files=files), Overrides())


def answer(found: LaunchFile) -> object:
    return found.model, found.workload, found.configuration, found.num_nodes, found.gpus_per_node


@pytest.mark.parametrize(("launcher", "name", "file"), some_of(CASES, each=4))
def test_a_changed_value_changes_the_answer_or_is_refused_listed_or_harmless(
    launcher: str, name: str, file: str
) -> None:
    files = dict(older(name) if launcher == "torchtitan" else exported(launcher, name))
    programs = DOCUMENTS[launcher][file]
    usual, names = read(file, files), flag_names(*programs)
    tried, ignored = list(changes(file, files[file])), []
    for change in tried:
        try:
            found = read(file, files | {file: change.text})
        except InvalidProblemError:
            continue
        said = " ".join((*found.notes, *found.unread))
        noted = change.name in said or change.name.rpartition(".")[2] in said or change.name in BY_HEADER
        if answer(found) == answer(usual) and not (noted or names.is_free(change.name)):
            ignored.append((change.name, change.value))
    assert tried
    assert ignored == []
