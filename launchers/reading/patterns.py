"""Patterns of module names, which ``target_modules`` is to peft where it is a text: the layers they mean.

No pattern is run: it is expanded to the names that it can match, and refused where that takes more than
alternatives, options and numbers (peft 0.21, tuners/tuners_utils.py check_target_module_exists).
"""

from __future__ import annotations

import re
from itertools import product

from meshwright.profiles.adapters import SINGLE_TARGETS

_MOST_LETTERS, _MOST_NAMES = 2000, 1024
_MLP = ("gate_proj", "up_proj", "down_proj")
_NUMBERS = ("[\\d]", "\\d", "[0-9]")  # of a layer: one stands for all
_LETTERS = re.compile(r"\[([\w.]+)\]")  # one of those that are listed
_SEEING = ("vis", "audio", "projector", "connector", "multi_modal")


def is_pattern(text: str) -> bool:
    """Return whether a text of targets is a pattern of paths, and no list of names."""
    return any(letter in text for letter in "(\\[^")


def targets_in(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the targets that a pattern means in the language model, and the paths it means in a tower.

    Paths have 0 for every number.

    Raises:
        ValueError: the pattern is longer, or has other operators.
    """
    if len(text) > _MOST_LETTERS:
        raise ValueError
    names, rest = _alternatives(text)
    if rest:
        raise ValueError
    found, others = set[str](), dict[str, None]()
    for path in ([part for part in name.split(".") if part] for name in names):
        *parents, last = path
        if any(part.startswith(_SEEING) for part in parents):
            others[".".join(path)] = None
        elif last in SINGLE_TARGETS and ("mlp" in parents) == (last in _MLP):
            found.add(last)
    return tuple(name for name in SINGLE_TARGETS if name in found), tuple(others)


def _alternatives(text: str) -> tuple[list[str], str]:
    """Return what alternatives match, up to the end or a closing bracket, and the rest."""
    found, rest = _sequence(text)
    while rest.startswith("|"):
        more, rest = _sequence(rest[1:])
        found += more
    return found, rest


def _sequence(text: str) -> tuple[list[str], str]:
    found, rest = [""], text
    while rest and rest[0] not in "|)":
        atoms, rest = _atom(rest)
        if rest[:1] == "?":
            atoms, rest = [*atoms, ""], rest[1:]
        elif rest[:1] == "+":
            rest = rest[1:]
        elif rest[:1] in ("*", "{"):
            raise ValueError
        if len(found) * len(atoms) > _MOST_NAMES:
            raise ValueError
        found = ["".join(pair) for pair in product(found, atoms)]
    return found, rest


def _atom(text: str) -> tuple[list[str], str]:
    for number in _NUMBERS:
        if text.startswith(number):
            return ["0"], text[len(number) :]
    if (letters := _LETTERS.match(text)) is not None:
        return list(letters[1]), text[letters.end() :]
    if text.startswith("("):
        inside, rest = _alternatives(text[1:].removeprefix("?:"))
        if not rest.startswith(")"):
            raise ValueError
        return inside, rest[1:]
    if text[0] in "^$":
        return [""], text[1:]
    if text.startswith("\\."):
        return ["."], text[2:]
    if text[0] in "[]\\*+?{}":
        raise ValueError
    return [text[0]], text[1:]
