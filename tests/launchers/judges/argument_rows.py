"""The arguments of an argparse parser as rows of a table: type, default and choices by name."""

from __future__ import annotations

import argparse
import json
from enum import Enum

KINDS = {"int": "int", "float": "float"}


def plain(value: object) -> object:
    """A value as YAML holds it; members of an enumeration by name."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    named = value.name if isinstance(value, Enum) else value
    return named if isinstance(named, int | float | str | None) else str(named)


def row(action: argparse.Action) -> dict[str, object]:
    """Return the row of an argument in the table; switches are ``bool``."""
    kind = KINDS.get(getattr(action.type, "__name__", ""), "str")
    several = action.nargs in ("+", "*") or (isinstance(action.nargs, int) and action.nargs > 0)
    switch = action.nargs == 0
    found: dict[str, object] = {"type": "bool" if switch else f"list[{kind}]" if several else kind}
    default = plain(action.default)
    if default is not False and not (switch and action.const is False) and default not in (None, []):
        found["default"] = default
    if action.choices:
        found["choices"] = [str(plain(one)) for one in action.choices]
    return found


def show(parser: argparse.ArgumentParser) -> None:
    """Print the arguments as one line of JSON."""
    actions = [action for action in parser._actions if action.dest != "help"]
    names = {name: action for action in actions for name in action.option_strings if name.startswith("--")}
    print(json.dumps({name[2:].replace("-", "_"): row(action) for name, action in sorted(names.items())}))
