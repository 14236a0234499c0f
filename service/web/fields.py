"""Forms: which fields there are, the request that they make, and where its faults belong.

A form checks nothing by itself. What was typed becomes the request that the API would get, and the API's
own faults, JSON pointers into that request, go back to the fields that they came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshwright.profiles.documents import DOCUMENT, pointer, read_config
from meshwright.profiles.errors import FieldError, InvalidProblemError, faults_as
from meshwright.service.requests.assignments import (
    bounds_of,
    facts_of,
    prohibitions_of,
    values_of,
)
from meshwright.service.requests.fields import Kind
from meshwright.service.requests.numbers import written_out

Values = Mapping[str, Sequence[str]]
_COLUMN = 14  # characters that a list shows in half the width of a phone
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,2})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """One field."""

    name: str
    at: tuple[str, ...]  # position of its value in the request
    label: str
    kind: Kind = "text"
    hint: str = ""
    default: str = ""
    choices: tuple[tuple[str, str], ...] = ()  # value, words
    suggestions: str = ""  # id of the list that the browser completes from
    required: bool = False
    placeholder: str = ""
    instead_of: tuple[tuple[str, ...], ...] = ()  # positions that its value leaves out of the request

    @property
    def is_wide(self) -> bool:
        """Return whether a list has words that a usual column would cut."""
        return self.kind in ("choice", "added") and any(len(words) > _COLUMN for _, words in self.choices)

    @property
    def is_listed(self) -> bool:
        """Return whether it takes one entry on each line."""
        return self.kind in ("lines", "pins", "bounds", "values", "facts", "labels")

    def values(self, values: Values | None) -> Sequence[str]:
        """Return the values in the field; its default if no form was sent."""
        if values is not None:
            return values.get(self.name, ())
        return (self.default,) if self.default else ()

    def read(self, given: Sequence[str]) -> object:
        """Return the value for the request; None: the field was left empty.

        Raises:
            InvalidProblemError: at the field's place: not JSON, or a name that occurs twice.
        """
        if self.kind == "checks":
            return list(given) or None
        text = given[-1].strip() if given else ""
        with faults_as(lambda fault: replace(fault, pointer=pointer(*self.at))):
            return _READERS[self.kind](text, self) if text else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form as a page shows it."""

    values: Values | None = None  # None: nothing was sent yet
    faults: Mapping[str, list[FieldError]] = field(default_factory=dict)  # by name of the field
    others: tuple[FieldError, ...] = ()  # of no field

    @property
    def is_faulty(self) -> bool:
        """Return whether a field must be fixed."""
        return bool(self.faults or self.others)

    def opens(self, fields: Iterable[FormField]) -> bool:
        """Return whether a folded part must be seen: it has a fault, or something in it was changed."""
        return any(
            one.name in self.faults or list(one.values(self.values)) not in ([], [""], [one.default])
            for one in fields
        )


def request_of(fields: Iterable[FormField], values: Values) -> dict[str, object]:
    """Return the request of a form.

    A later field replaces earlier values in the same place, or adds to an object or a list there.

    Raises:
        InvalidProblemError: some text cannot be read; see ``FormField.read``.
    """
    request: dict[str, object] = {}
    for one in fields:
        value = one.read(one.values(values))
        if value is None:
            continue
        for at in one.instead_of:
            _part(request, at).pop(at[-1], None)
        part = _part(request, one.at)
        part[one.at[-1]] = _joined(part.get(one.at[-1]), value, one)
    return request


def _part(request: dict[str, object], at: Sequence[str]) -> dict[str, object]:
    """Return the object that a position is in; a new one that nothing keeps where there is other text."""
    part = request
    for name in at[:-1]:
        inner = part.setdefault(name, {})
        part = inner if isinstance(inner, dict) else {}
    return part


def _joined(earlier: object, value: object, one: FormField) -> object:
    if isinstance(earlier, list) and isinstance(value, list):
        return [*earlier, *value]
    if one.kind != "pins" or not isinstance(earlier, dict) or not isinstance(value, dict):
        return value
    for name in earlier.keys() & value.keys():
        raise InvalidProblemError.of(pointer(*one.at, name), f"{name} is fixed twice")
    return earlier | value


def faulty(fields: Sequence[FormField], values: Values, fault: InvalidProblemError) -> Form:
    """Return the form with its faults next to their fields."""
    placed: dict[str, list[FieldError]] = {}
    others: list[FieldError] = []
    for error in fault.errors:
        path = tuple(error.pointer.split("/")[1:])
        found = _field_of(fields, values, path)
        if found is None:
            others.append(error)
        else:
            inside = path[len(found.at) :] if found.kind in ("named", "json") else ()
            which = "".join(f"{name}: " for name in inside)
            placed.setdefault(found.name, []).append(replace(error, message=which + error.message))
    return Form(values=values, faults=placed, others=tuple(others))


def _field_of(fields: Sequence[FormField], values: Values, path: tuple[str, ...]) -> FormField | None:
    """Return the field of a place in the request: the nearest, preferably one with a value."""

    def nearness(one: FormField) -> tuple[bool, int]:
        return any(values.get(one.name, ())), len(one.at)

    holding = [one for one in fields if path[: len(one.at)] == one.at]
    exact = [one for one in holding if one.at == path]
    within = [one for one in fields if path and one.at[: len(path)] == path]
    near = exact or [one for one in holding if any(values.get(one.name, ()))] or within or holding
    near = near or [one for one in fields if path and one.at == (path[0], "name")]
    return max(near, key=nearness) if near else None


# --------------------------------------------------------------------------------------------------
# From words to values of the request.


def _number(text: str, name: str = "") -> object:
    """Return a number, of a field with units such as ``8k`` or ``1%`` as well.

    Other text is left for the request's own check, which names it.
    """
    for whole in (True, False) if name else ():
        found = written_out(name, text, whole=whole)
        if _NUMBER.fullmatch(found):
            text = found
            break
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _numbers(text: str) -> object:
    """Return ``4`` as 4, ``2,4`` as a list, ``2:8`` as a range."""
    ends = [_number(part.strip(), "length") for part in text.split(":")]
    if len(ends) == len(_RANGE):
        return dict(zip(_RANGE, ends, strict=True))
    found = [_number(part.strip(), "length") for part in text.split(",")]
    return found if len(found) > 1 else found[0]


def _named(text: str) -> dict[str, object]:
    """Return numbers by their names: ``p50=900, p100=8192``; the request's check reports other words."""
    found = dict[str, object]()
    for part in re.split(r"[,\s]+(?=[^\s=])", text.strip(" ,")):
        name, _, value = (word.strip() for word in part.partition("="))
        if name in found:
            raise InvalidProblemError.of("", f"{name} is given more than once")
        found[name] = _number(value, "length")
    return found


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _labels(text: str) -> dict[str, object]:
    found = dict[str, object]()
    for line in _lines(text.replace(",", "\n")):
        name, _, value = (word.strip() for word in line.partition("="))
        if name in found:
            raise InvalidProblemError.of("", f"{name} is given more than once")
        found[name] = value
    return found


_SWITCHES = {"true": True, "false": False}
_RANGE = ("min", "max")
_READERS: Mapping[Kind, Callable[[str, FormField], object]] = {
    "text": lambda text, _: text,
    "long": lambda text, _: text,
    "choice": lambda text, _: _SWITCHES.get(text, _number(text)),  # most are words
    "number": lambda text, one: _number(text, "length" if one.at[-1] == "seq_length" else one.at[-1]),
    "numbers": lambda text, _: _numbers(text),
    "named": lambda text, _: _named(text),
    "sized": lambda text, _: _named(text) if "=" in text else _number(text, "length"),
    "names": lambda text, _: re.findall(r"[^\s,]+", text),
    "json": lambda text, _: dict(read_config(text, DOCUMENT)),
    "lines": lambda text, _: _lines(text),
    "pins": lambda text, _: values_of("", _lines(text)),
    "bounds": lambda text, _: bounds_of("", _lines(text)),
    "values": lambda text, _: prohibitions_of("", _lines(text)),
    "facts": lambda text, _: facts_of("", _lines(text)),
    "labels": lambda text, _: _labels(text),
    "check": lambda text, _: bool(text),
    "added": lambda text, _: [text],
}
