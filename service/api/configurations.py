"""Reads a configuration that a client wrote: names and types; what is legal is the solver's business."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from profiles.errors import FieldError, InvalidProblemError, UnknownNameError
from service.json_input import pointer
from solver.plan import Configuration, configuration_from_json

MAX_SIZE = 2**31 - 1
_TEMPLATE: dict[str, Any] = asdict(Configuration())
_KINDS = {bool: "true or false", int: "an integer", str: "text", tuple: "a list of integers"}


def part_of(body: Mapping[str, object], name: str) -> Mapping[str, object]:
    """The object under ``name`` of a body that holds a problem and a configuration.

    Raises:
        InvalidProblemError: it is missing or no object, or the body holds something else too.
    """
    for other in body.keys() - {"problem", "configuration"}:
        raise UnknownNameError.among(pointer(other), other, ["problem", "configuration"])
    part = body.get(name)
    if not isinstance(part, dict):
        raise InvalidProblemError.of(pointer(name), "is required and must be an object")
    return part


def configuration_of(raw: Mapping[str, object]) -> Configuration:
    """The Configuration of ``raw``; what is left out is off.

    Raises:
        InvalidProblemError: with one FieldError per unknown name or wrong type.
    """
    faults: list[FieldError] = []
    for name, value in raw.items():
        where = pointer("configuration", name)
        if name not in _TEMPLATE:
            faults.extend(UnknownNameError.among(where, name, _TEMPLATE).errors)
        elif not _fits(value, type(_TEMPLATE[name])):
            kind = _KINDS[type(_TEMPLATE[name])]
            faults.append(FieldError(pointer=where, message=f"must be {kind}", allowed=f"up to {MAX_SIZE}"))
    if faults:
        raise InvalidProblemError(faults)
    return configuration_from_json({**_TEMPLATE, **raw})


def _fits(value: object, kind: type) -> bool:
    """Whether a JSON value is of ``kind``; a bool is no integer, and integers are bounded."""
    if kind is tuple:
        return isinstance(value, list) and all(_fits(item, int) for item in value)
    if kind is int:
        return type(value) is int and 0 <= value <= MAX_SIZE
    return type(value) is kind
