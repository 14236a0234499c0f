"""Flags of a torchtitan command, which count before its configuration: ``--training.seq_len 8192``."""

from __future__ import annotations

from collections.abc import Iterator

from profiles.documents import shown
from service.launchers.reading.commands import script_of
from service.launchers.reading.documents import Found
from service.launchers.reading.known import Known

_RECOMPUTE = "activation-checkpoint:"
_SECTIONS = ("parallelism", "training", "activation_checkpoint", "optimizer", "model")


def overrides(known: Known) -> dict[str, Found]:
    """Values by dotted name, of the commands in the scripts beside the configuration; the last counts."""
    found: dict[str, Found] = {}
    for source in known.source.scripts():
        for words in script_of(source, known.told).commands:
            texts = [word.text for word in words]
            found |= {name: Found(text, words[at].line) for at, name, text in _flags(texts)}
    return found


def _flags(texts: list[str]) -> Iterator[tuple[int, str, str]]:
    """Place, name and value of each flag with a section."""
    for at, text in enumerate(texts):
        if text.startswith(_RECOMPUTE):  # 0.3: activation-checkpoint:full
            yield at, "activation_checkpoint.mode", text.removeprefix(_RECOMPUTE)
        name, equals, value = text.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        section, dot, _ = name.partition(".")
        if text.startswith("--") and dot and section in _SECTIONS:
            following = texts[at + 1] if at + 1 < len(texts) else "--"
            yield at, name, value if equals else "true" if following.startswith("--") else following


def over(values: dict[str, Found], known: Known) -> tuple[dict[str, Found], list[str]]:
    """The configuration's values with the command's over them, and what that changed."""
    given = overrides(known)
    notes = [
        f"line {found.line} of the command: {shown(name)} is {shown(str(found.value))}, not the file's"
        for name, found in given.items()
        if name not in values or str(values[name].value).lower() != str(found.value).lower()
    ]
    return values | given, notes
