"""Prints the arguments of Megatron-LM's parser: type, default and choices by name, as one line of JSON."""

from __future__ import annotations

import argparse
import json
import sys
from enum import Enum
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import megatron_lm  # noqa: F401 - what it puts in place of a GPU
from megatron.training.arguments import add_megatron_arguments

KINDS = {"int": "int", "float": "float"}


def plain(value: object) -> object:
    """A value as YAML holds it; members of an enumeration by name."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    named = value.name if isinstance(value, Enum) else value
    return named if isinstance(named, int | float | str | None) else str(named)


def row(action: argparse.Action) -> dict[str, object]:
    """What an argument takes; switches are ``bool``."""
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


parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
add_megatron_arguments(parser)
names = {name: action for action in parser._actions for name in action.option_strings}
print(json.dumps({name[2:].replace("-", "_"): row(action) for name, action in sorted(names.items())}))
