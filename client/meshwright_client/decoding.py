"""JSON into frozen dataclasses by their type hints; names that a newer service adds are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import date, datetime
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from meshwright_client.errors import UnexpectedAnswerError

Record = TypeVar("Record")


def decoded(kind: type[Record], raw: object, *, where: str = "") -> Record:
    """The dataclass ``kind`` from a JSON object.

    Raises:
        UnexpectedAnswerError: a field is missing or of another type; names it by JSON pointer.
    """
    if not isinstance(raw, dict):
        raise UnexpectedAnswerError(f"{where or '/'}: not an object")
    hints, values = _hints(kind), {}  # type: ignore[arg-type] # classes are hashable
    for field in fields(kind):  # type: ignore[arg-type] # always a dataclass
        if field.name in raw:
            values[field.name] = _value(hints[field.name], raw[field.name], f"{where}/{field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise UnexpectedAnswerError(f"{where}/{field.name}: missing")
    return kind(**values)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(hint: Any, raw: object, where: str) -> object:  # noqa: ANN401 - a type hint is of any kind
    """One value as its hint wants it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        return _one_of(arguments, raw, where)
    if origin is tuple and isinstance(raw, list):
        return tuple(_value(arguments[0], one, f"{where}/{place}") for place, one in enumerate(raw))
    if origin is Mapping and isinstance(raw, dict):
        return {str(name): _value(arguments[1], one, f"{where}/{name}") for name, one in raw.items()}
    if origin is Literal and isinstance(raw, str):
        return raw  # a newer service may know more words
    return _plain(hint, raw, where)


def _one_of(kinds: tuple[Any, ...], raw: object, where: str) -> object:
    """A value of several kinds; only one of them is no scalar."""
    if raw is None and NoneType in kinds:
        return None
    others = [kind for kind in kinds if kind is not NoneType]
    return _value(others[0], raw, where) if len(others) == 1 else raw


def _plain(hint: Any, raw: object, where: str) -> object:  # noqa: ANN401 - the same
    """A record, a moment or a scalar."""
    if is_dataclass(hint) and isinstance(hint, type):
        return decoded(hint, raw, where=where)
    if hint is datetime and isinstance(raw, str):
        return _moment(raw, where)
    if hint is date and isinstance(raw, str):
        return _moment(raw, where).date()
    if hint in {Any, object}:
        return raw
    scalar = (int, float) if hint is float else hint
    is_bool = isinstance(raw, bool)
    if not isinstance(scalar, type | tuple) or not isinstance(raw, scalar) or is_bool != (hint is bool):
        raise UnexpectedAnswerError(f"{where}: not what this client knows")
    return raw


def _moment(text: str, where: str) -> datetime:
    """RFC 3339, whose Z Python 3.10 does not read."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise UnexpectedAnswerError(f"{where}: not a moment") from None
