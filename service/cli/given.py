"""What a command that was given nothing can be given: the last answer's plan, or a file in the folder."""

from __future__ import annotations

import shlex
from pathlib import Path

from meshwright.service.cli.examples import EXAMPLES
from meshwright.service.cli.saved_plans import state_folder

_A_PLAN = "992b"  # the id of a plan in the examples
_LISTED = {"JOB_ID": "meshwright jobs list", "KEY_ID": "meshwright keys list"}
# Files of the examples, and the endings of those that are meant in a folder.
_FILES = {"train.sh": (".sh", ".slurm", ".sbatch"), "runs.csv": (".csv",)}


def filled_example(command: str) -> str:
    """Return an example of a command with a plan or a file that is here; empty: it has none.

    Of a command that needs a plan where there is none yet, it is how to find one.
    """
    examples = [one.partition(" | ")[0] for one in EXAMPLES.get(command, ())]
    example = next((one for one in examples if _A_PLAN in one.split()), next(iter(examples), ""))
    words = example.split()
    if found := next((_LISTED[word] for word in words if word in _LISTED), ""):
        return found
    if _A_PLAN in words:
        return example.replace(_A_PLAN, "1", 1) if _has_answers() else EXAMPLES["plan"][1]
    for name, endings in _FILES.items():
        if name in words and (here := _first_here(endings)):
            return example.replace(name, shlex.quote(here), 1)
    return example


def _first_here(endings: tuple[str, ...]) -> str:
    try:
        return min((one.name for one in Path().iterdir() if one.suffix in endings), default="")
    except OSError:
        return ""


def _has_answers() -> bool:
    try:
        return any(state_folder().glob("*.json"))
    except OSError:
        return False
