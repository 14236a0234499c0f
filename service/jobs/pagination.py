"""Pages of a list, continued by an opaque token with the position where the last one ended."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from meshwright.service.errors import BadPageTokenError

Item = TypeVar("Item")
_WORD = re.compile(r"[A-Za-z0-9._-]{1,64}")  # an id, a name or an order; PostgreSQL cannot look for a NUL
MAX_TOKEN_CHARS = 256
_FOREIGN = "this page token was not issued by this service"
MAX_POSITION = 2**53  # times in seconds and ranks are far below


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[Item]):
    """Some items, and the token of the page after them; None: these were the last."""

    items: tuple[Item, ...]
    next_page_token: str | None


def page_of(
    found: Sequence[Item], page_size: int, position: Callable[[Item], Sequence[object]]
) -> Page[Item]:
    """Return a page of rows, of which one more than fit on it were read if there are more.

    ``position`` returns the place of a row in the list, after which the next page begins.
    """
    shown = tuple(found[:page_size])
    return Page(
        items=shown, next_page_token=encode_token(*position(shown[-1])) if len(found) > page_size else None
    )


def encode_token(*position: object) -> str:
    """Return an opaque token for the position after which the next page starts."""
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def decode_token(token: str, *types: type) -> tuple[Any, ...]:
    """Return the position of a token, one value per type.

    Raises:
        BadPageTokenError: the token is not one that ``encode_token`` made for these types.
    """
    try:
        padded = token[:MAX_TOKEN_CHARS] + "=" * (-len(token) % 4)
        position = json.loads(base64.urlsafe_b64decode(padded.encode("ascii")))
    except (ValueError, binascii.Error, RecursionError):
        raise BadPageTokenError(_FOREIGN) from None
    if not isinstance(position, list) or [type(value) for value in position] != list(types):
        raise BadPageTokenError(_FOREIGN)
    if not all(_is_storable(value) for value in position):
        raise BadPageTokenError(_FOREIGN)
    return tuple(position)


def _is_storable(value: object) -> bool:
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None
    return isinstance(value, int | float) and abs(value) < MAX_POSITION
