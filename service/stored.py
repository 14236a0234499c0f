"""Stored JSON that cannot be read: a damaged file, a foreign hand, or another release wrote it.

Lists show such a row by what can be read of it. Who needs the document itself says that it is unreadable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# What reading a document of another shape raises; pydantic's ValidationError is a ValueError.
FOREIGN_SHAPE = (KeyError, TypeError, ValueError, AttributeError, IndexError)
NO_OBJECT = "what is stored is not a JSON object"


class Unreadable(dict[str, Any]):
    """Stands where a document cannot be read, and shows why wherever a document is shown."""

    def __init__(self, why: str = NO_OBJECT, **known: object) -> None:
        super().__init__(**known, unreadable=why)


def read_document(text: str | bytes) -> Mapping[str, Any] | None:
    """Return the object in a column of JSON; an ``Unreadable`` where it holds anything else."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):  # SQLite gives a number as one
        return Unreadable()
    return found if found is None or isinstance(found, dict) else Unreadable()
