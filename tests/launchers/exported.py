"""Exports of the plans that were reviewed, and the form in which ``tests/golden`` keeps them.

Files of one template are kept whole for a launcher's first plan. For its other plans, the lines that
differ from that file are kept, each block behind its place there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from functools import cache

from examples.cpu_training.launchers.torchtitan_0_2 import older_files
from meshwright.launchers.registry import export
from meshwright.launchers.target import Target
from tests.launchers.cases import CASES as MEGATRON
from tests.launchers.plans import CASES as OTHERS

CASES: Mapping[str, Mapping[str, Target]] = {"megatron-lm": MEGATRON, **OTHERS}
OF_ONE_TEMPLATE = ("README.md", "launch.sbatch", "launch.sh")


@cache
def exported(launcher: str, name: str) -> Mapping[str, str]:
    """The files of a plan, by name."""
    case = CASES[launcher][name]
    return export(case.plan, case.problem, launcher, version=case.version or None).files


# Plans of torchtitan that 0.2 can run; users may have files of them.
OLDER = ("llama-3.1-70b-fsdp", "llama-3.1-70b-stages", "llama-3.1-70b-standalone")


@cache
def older(name: str) -> Mapping[str, str]:
    """The files of a plan for torchtitan 0.2, by name."""
    files = dict(exported("torchtitan", name))
    made = older_files(files.pop("torchtitan_plan.py"))
    module, toml = (
        "--module torchtitan_plan --config plan",
        '--job.config_file "${here}/torchtitan_0_2.toml"',
    )
    return {**made, **{file: text.replace(module, toml) for file, text in files.items()}}


def kept(launcher: str, name: str) -> dict[str, str]:
    """A plan's files as they are kept; Python's get another name, since they are no code of ours."""
    first = next(iter(CASES[launcher]))
    found = {}
    for file, text in exported(launcher, name).items():
        if name != first and file in OF_ONE_TEMPLATE:
            found[f"{file}.diff"] = "".join(differences(exported(launcher, first)[file], text))
        else:
            found[f"{file}.txt" if file.endswith(".py") else file] = text
    return found


def differences(first: str, other: str) -> Iterator[str]:
    """The blocks of lines that turn a text into another, from which the other can be made again.

    A place is a line that the first text has once, and the lines from it to the block: blocks that stay
    the same do not change when lines are added to the template elsewhere.
    """
    before, after = first.splitlines(keepends=True), other.splitlines(keepends=True)
    for kind, start, end, begin, stop in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            at = next((at for at in range(start - 1, -1, -1) if before.count(before[at]) == 1), -1)
            yield f"@ {start - at} after {before[at] if at >= 0 else 'the beginning' + chr(10)}"
            yield from (f"-{line}" for line in before[start:end])
            yield from (f"+{line}" for line in after[begin:stop])
