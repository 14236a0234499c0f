"""The arguments of a launcher's parser or dataclass as rows of a table: type, default and choices."""

from __future__ import annotations

import argparse
import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum

KINDS = {"int": "int", "float": "float", "string_to_bool": "bool", "str_to_bool": "bool"}
LONGEST = 60  # characters of a default


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


def rows_of(parser: argparse.ArgumentParser) -> dict[str, dict[str, object]]:
    """Return the rows of a parser by name in snake case, without the ``no_`` twins of its switches."""
    actions = [action for action in parser._actions if action.dest != "help"]
    names = {
        name[2:].replace("-", "_"): action
        for action in actions
        for name in action.option_strings
        if name.startswith("--")
    }
    return {name: row(action) for name, action in sorted(names.items()) if not is_twin(name, action, names)}


def is_twin(name: str, action: argparse.Action, names: Mapping[str, argparse.Action]) -> bool:
    """Return whether an argument only turns off another one, which takes ``false`` as well."""
    other = names.get(action.dest)
    return name == f"no_{action.dest}" and other is not None and other.nargs == "?"


def show(parser: argparse.ArgumentParser) -> None:
    """Print the arguments as one line of JSON."""
    print(json.dumps(rows_of(parser)))


def kind_of(annotation: object) -> str:
    """Return an annotation in the words of a table; None beside a type is left out."""
    if typing.get_origin(annotation) is typing.Annotated:
        return kind_of(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is typing.Literal:
        return "str"
    parts = [one for one in typing.get_args(annotation) if one is not type(None)]
    if type(None) in typing.get_args(annotation) and len(parts) == 1:
        return kind_of(parts[0])
    if not isinstance(annotation, type):
        either = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
        return " | ".join(dict.fromkeys(map(kind_of, parts))) if either else "object"
    return annotation.__name__ if annotation in (bool, int, float, str, list, dict) else "object"


def row_of_field(annotation: object, default: object) -> dict[str, object]:
    """Return the row of a dataclass's or a pydantic model's field."""
    found: dict[str, object] = {"type": kind_of(annotation)}
    short = plain(default) if isinstance(default, bool | int | float | str | Enum) else None
    if short is not None and short is not False and len(str(short)) <= LONGEST:
        found["default"] = short
    words = typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()
    return found | ({"choices": [str(one) for one in words]} if words else {})


def inside(annotation: object) -> list[type]:
    """Return the dataclasses that an annotation names, of a union each."""
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return [annotation]
    if typing.get_origin(annotation) in (list, dict, tuple):
        return []
    return [one for part in typing.get_args(annotation) for one in inside(part)]


def rows_of_record(
    record: type, before: str = "", seen: tuple[type, ...] = ()
) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the fields of a dataclass by dotted name, with those of the dataclasses that they hold."""
    hints = typing.get_type_hints(record, include_extras=True)
    for one in dataclasses.fields(record):
        yield before + one.name, row_of_field(hints[one.name], one.default)
        made = one.default_factory if isinstance(one.default_factory, type) else None
        for other in dict.fromkeys([*inside(hints[one.name]), *([made] if made else [])]):
            if other not in seen and dataclasses.is_dataclass(other):
                yield from rows_of_record(other, f"{before}{one.name}.", (*seen, record))
