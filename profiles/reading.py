"""Reads untrusted mappings field by field and collects every fault with its JSON pointer."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from meshwright.profiles.errors import UNKNOWN_FIELD, FieldError, InvalidProblemError

T = TypeVar("T")
MAX_SHOWN = 40  # characters of an input value that a message may repeat
MAX_FAULTS = 20  # faults listed in one error
MAX_TEXT = 200  # characters of a name or a source


def shown(value: object) -> str:
    """Return a short, safe picture of an input value."""
    if isinstance(value, str):
        value = value[: MAX_SHOWN + 1]
    text = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def _in_full(limit: float) -> str:
    """Return a limit so that it reads back as itself: 2^28 is 268435456, not 2.68435e+08."""
    return short if float(short := f"{limit:g}") == limit else f"{limit:.15g}"


def _range(low: float, high: float) -> str:
    return f"{_in_full(low)} to {_in_full(high)}"


def escaped(key: str) -> str:
    """Return one token of a JSON pointer (RFC 6901, section 3), cut to a short length."""
    return key[:MAX_SHOWN].replace("~", "~0").replace("/", "~1")


_FIELD_NAME = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+")  # hidden_size: a word of prose has no underscore
_WHOLE = re.compile(r"\d{1,18}(?:\.0+)?")


def stated_number(value: object, low: int = 0, high: int = 2**63) -> str | None:
    """Return the whole number in [low, high] that a text or a fraction states (``"2048"``, 2048.0)."""
    stated = _WHOLE.fullmatch(str(value))
    number = int(str(value).partition(".")[0]) if stated else -1
    return str(number) if low <= number <= high else None


class FieldReader:
    """Typed access to one mapping; faults are collected and raised together by ``finish``.

    A faulty field yields a harmless placeholder, so that reading goes on to the next field.
    """

    def __init__(self, raw: object, pointer: str, faults: list[FieldError] | None = None) -> None:
        self.pointer = pointer
        self.faults = [] if faults is None else faults
        self._known: set[str] = set()
        self._faulty: set[str] = set()
        self._raw: Mapping[object, object] = raw if isinstance(raw, Mapping) else {}
        self.is_object = isinstance(raw, Mapping)
        if not self.is_object:
            self.fault("", f"{shown(raw)} is not an object with named fields")

    def fault(
        self, name: str, message: str, *, allowed: str | None = None, nearest: str | None = None
    ) -> None:
        """Record one fault of the field ``name`` (of the whole object when empty).

        What follows from the value that stands for a faulty one is no fault: a second fault of the field,
        or one whose message names it.
        """
        if name in self._faulty or self._faulty & set(_FIELD_NAME.findall(message)):
            return
        self._faulty |= {name} - {""}
        pointer = f"{self.pointer}/{escaped(name)}" if name else self.pointer
        self.faults.append(FieldError(pointer=pointer, message=message, allowed=allowed, nearest=nearest))

    def has(self, name: str) -> bool:
        """Return whether the field is there and not null."""
        return self._raw.get(name) is not None

    def names(self) -> tuple[str, ...]:
        """Return the names of all fields that are there."""
        return tuple(str(key) for key in self._raw)

    def unread(self) -> tuple[str, ...]:
        """Return the names of fields with a value that nothing has asked for."""
        return tuple(
            str(key)
            for key, value in self._raw.items()
            if key not in self._known and value not in (None, "", [], {})
        )

    def texts(self, name: str) -> list[str]:
        """Return a list of texts; required."""
        value = self.value(name)
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            self.fault(name, "must be a list of texts")
            return []
        return list(value)

    def first(self, names: Sequence[str]) -> str:
        """Return the first of several names that is there; the first name when none is."""
        return next((name for name in names if self.has(name)), names[0])

    def value(self, name: str) -> object:
        """Return the raw value, None when missing."""
        self._known.add(name)
        return self._raw.get(name)

    def integer(self, name: str, *, low: int = 1, high: int = 2**31 - 1, default: int | None = None) -> int:
        """Return a whole number in [low, high]; required unless there is a default."""
        value = self.value(name)
        if value is None:
            return self._missing(name, default, low, f"{low} to {high}")
        if isinstance(value, bool) or not isinstance(value, int):
            message = f"{shown(value)} is not a whole number"
            self.fault(name, message, allowed=f"{low} to {high}", nearest=stated_number(value, low, high))
            return low
        if not low <= value <= high:
            nearest = str(min(max(value, low), high))
            self.fault(name, f"{shown(value)} is out of range", allowed=f"{low} to {high}", nearest=nearest)
            return low
        return value

    def optional_integer(self, name: str, *, low: int = 1, high: int = 2**31 - 1) -> int | None:
        """Return a whole number in [low, high], or None when missing."""
        return self.integer(name, low=low, high=high) if self.value(name) is not None else None

    def number(self, name: str, *, low: float, high: float, default: float | None = None) -> float:
        """Return a finite number in [low, high]; required unless there is a default."""
        value = self.value(name)
        if value is None:
            return self._missing(name, default, low, _range(low, high))
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
            self.fault(name, f"{shown(value)} is not a finite number", allowed=_range(low, high))
            return low
        if not low <= value <= high:
            nearest = _in_full(min(max(value, low), high))
            self.fault(name, f"{shown(value)} is out of range", allowed=_range(low, high), nearest=nearest)
            return low
        return float(value)

    def numbers(self, name: str, *, low: float, high: float, most: int) -> list[float]:
        """Return a list of 1 to ``most`` finite numbers in [low, high]; required."""
        value = self.value(name)
        if not isinstance(value, list) or not 1 <= len(value) <= most:
            self.fault(name, "must be a list of numbers", allowed=f"1 to {most} of them")
            return []
        entries = {str(index): entry for index, entry in enumerate(value)}
        reader = FieldReader(entries, f"{self.pointer}/{escaped(name)}", self.faults)
        return [reader.number(index, low=low, high=high) for index in entries]

    def text(self, name: str, *, default: str | None = None) -> str:
        """Return a text of limited length; required unless there is a default."""
        value = self.value(name)
        if value is None:
            return self._missing(name, default, "")
        plain = isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable()
        if not plain or not (value or default == ""):
            self.fault(name, f"{shown(value)} is not a text of 1 to {MAX_TEXT} printable characters")
            return default or ""
        return str(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false; the default when missing."""
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fault(name, f"{shown(value)} is neither true nor false")
            return default
        return value

    def choice(self, name: str, allowed: Iterable[str], *, default: str) -> str:
        """Return one of several words; the default when missing."""
        value, words = self.value(name), tuple(allowed)
        if value is None:
            return default
        if value not in words:
            self.fault(name, f"{shown(value)} is unknown", allowed=", ".join(words))
            return default
        return str(value)

    def child(self, name: str) -> FieldReader | None:
        """Return a reader of a nested object that shares this one's faults; None when missing."""
        value = self.value(name)
        return None if value is None else FieldReader(value, f"{self.pointer}/{name}", self.faults)

    def children(self, name: str, *, high: int) -> list[FieldReader]:
        """Return the readers of the objects of a list with 1 to ``high`` entries."""
        value = self.value(name)
        if not isinstance(value, list | tuple) or not 1 <= len(value) <= high:
            self.fault(name, "must be a list of objects", allowed=f"1 to {high} entries")
            return []
        pointer = f"{self.pointer}/{name}"
        return [FieldReader(entry, f"{pointer}/{i}", self.faults) for i, entry in enumerate(value)]

    def refuse_unknown(self, meant: Mapping[str, str] = {}) -> None:
        """Record a fault for every field that nothing has asked for; ``meant``: what others call ours."""
        known = sorted(self._known)
        listed = ", ".join(known) or None  # once
        for key in list(self._raw)[: 10 * MAX_FAULTS]:
            if isinstance(key, str) and key in self._known:
                continue
            alike = difflib.get_close_matches(str(key)[:MAX_SHOWN], known, n=1)
            near = meant.get(str(key), next(iter(alike), None))
            self.fault(str(key), UNKNOWN_FIELD, allowed=None if near else listed, nearest=near)
            listed = listed if near else None

    def finish(self) -> None:
        """Raise what was found.

        Raises:
            InvalidProblemError: one or more faults; at most the first 20 are listed.
        """
        if self.faults:
            raise InvalidProblemError(self.faults[:MAX_FAULTS])

    def _missing(self, name: str, default: T | None, placeholder: T, allowed: str | None = None) -> T:
        if default is not None:
            return default
        if self.is_object:  # else that is the fault, and its fields are none
            self.fault(name, "is required", allowed=allowed)
        return placeholder


# --------------------------------------------------------------------------------------------------
# Dataclasses from mappings with their field names.


Limits = Mapping[str, tuple[int, int] | tuple[float, float]]  # whole numbers, or any numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRules:
    """Rules for reading dataclasses from mappings."""

    limits: Mapping[type, Limits]  # of the numbers of each
    lists: Callable[[FieldReader, str], tuple[object, ...]]


@cache
def _kinds(part: type) -> dict[str, object]:
    hints: dict[str, object] = {}
    for name, hint in get_type_hints(part).items():
        options = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
        union = [option for option in options if option is not NoneType]
        hints[name] = union[0] if union else hint
    return hints


def values_of(
    reader: FieldReader,
    part: type,
    rules: PartRules,
    defaults: Mapping[str, object],
    given: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the fields of a dataclass that a mapping states, read by their types.

    Args:
        reader: reads the mapping; a field without a default is required.
        part: the dataclass.
        rules: how its numbers and lists are read, and those of every dataclass inside it.
        defaults: values of fields that the mapping leaves out, in place of the dataclass's own.
        given: fields that are read elsewhere.
    """
    values = {}
    for field in (field for field in fields(part) if field.name not in given):
        stated = reader.value(field.name) is not None  # and known, also as null
        if not stated and field.name in defaults:
            values[field.name] = defaults[field.name]
        elif stated or field.default is MISSING:  # a fault where it is required and not stated
            values[field.name] = _value(reader, part, field, rules)
    return values


def _value(reader: FieldReader, part: type, field: Field[Any], rules: PartRules) -> object:
    kind, name = _kinds(part)[field.name], field.name
    low, high = rules.limits[part].get(name, (1, 2**31 - 1))
    if isinstance(kind, type) and kind in rules.limits:
        return part_of(reader.child(name), kind, rules)
    if kind is str:
        return reader.text(name, default="" if field.default == "" else None)
    if kind is float:
        return reader.number(name, low=low, high=high)
    if kind is int:
        return reader.integer(name, low=int(low), high=int(high))
    words = get_args(kind) if get_origin(kind) is Literal else ()
    if not reader.has(name):
        reader.fault(name, "is required", allowed=", ".join(words) or None)
    if words:
        return reader.choice(name, words, default=words[0])
    return reader.flag(name, default=False) if kind is bool else rules.lists(reader, name)


def part_of(reader: FieldReader | None, part: type, rules: PartRules) -> Any:  # noqa: ANN401 - of that class
    """Return a dataclass of the fields that a mapping states; None without a mapping.

    Raises:
        InvalidProblemError: one or more faults, or what the dataclass itself refuses.
    """
    if reader is None:
        return None
    values = values_of(reader, part, rules, {})
    reader.refuse_unknown()
    reader.finish()
    return part(**values)
