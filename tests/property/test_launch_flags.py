"""Changed values of files change the answer or are accounted for; unknown ones are refused by line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.launchers.flags import flags_of, plain_name
from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError

GOLDEN = Path(__file__).parents[1] / "golden" / "megatron_lm"
TABLE = flags_of("megatron-lm")
# Notes that name the value or what becomes of it instead of the flag.
BY_VALUE = {"--recompute-num-layers": "recomputation in groups"}


def files_of(name: str) -> dict[str, str]:
    return {file: (GOLDEN / name / file).read_text("utf-8") for file in ("launch.sh", "megatron_args.sh")}


def read(files: dict[str, str]) -> LaunchFile:
    return read_launch_files(Source(name="launch.sh", text=files["launch.sh"], files=files), Overrides())


def flag_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """The lines of an arguments file with a flag and its values."""
    for place, line in enumerate(text.splitlines()):
        if line.strip().startswith("--"):
            words = shlex.split(line)
            if len(words) > 1:
                yield place, words


def with_line(files: dict[str, str], place: int, line: str) -> dict[str, str]:
    lines = files["megatron_args.sh"].splitlines()
    return files | {"megatron_args.sh": "\n".join([*lines[:place], f"    {line}", *lines[place + 1 :], ""])}


def other_values(text: str) -> list[str]:
    if re.fullmatch(r"\d+", text):
        return [str(int(text) + 1), str(int(text) * 2)]
    return [str(float(text) * 2 + 0.5)] if re.fullmatch(r"[\d.e-]+", text) else [f"{text}x", "none"]


def answer(found: LaunchFile) -> object:
    return found.model, found.workload, found.configuration, found.batch_ramp


EVERY = pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir()))


@EVERY
def test_a_changed_value_changes_the_answer_or_is_refused_noted_or_harmless(name: str) -> None:
    files = files_of(name)
    usual = answer(read(files))
    for place, words in flag_lines(files["megatron_args.sh"]):
        for value in other_values(words[1]):
            try:
                found = read(with_line(files, place, shlex.join([words[0], value, *words[2:]])))
            except InvalidProblemError:
                continue
            flag = words[0]
            said = " ".join((*found.notes, *found.unread))
            noted = flag in said or BY_VALUE.get(flag, "\0") in said
            harmless = TABLE[plain_name(flag)].role == "harmless"
            same = flag == "--make-vocab-size-divisible-by" and int(value) % 128 == 0  # may pad to the same
            assert answer(found) != usual or noted or harmless or same, (flag, value)


def faults_of(files: dict[str, str]) -> list[str] | None:
    """Return the fault that the files are refused for; None if they are read."""
    try:
        read(files)
    except InvalidProblemError as fault:
        return [error.message for error in fault.errors]
    return None


@EVERY
def test_a_value_that_cannot_be_evaluated_is_refused_with_its_line(name: str) -> None:
    files = files_of(name)
    for place, words in flag_lines(files["megatron_args.sh"]):
        faults = faults_of(with_line(files, place, f'{words[0]} "$(date +%s)"'))
        if faults is None:
            assert TABLE[plain_name(words[0])].role == "harmless", words[0]
        else:
            assert any(f"line {place + 1}:" in one for one in faults), (words[0], faults)
