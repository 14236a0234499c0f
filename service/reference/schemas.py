"""Tables of the fields of a JSON schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

Schema = Mapping[str, Any]

_OPENAPI = Path(__file__).parents[2] / "docs" / "openapi.json"
_LIMITS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}
_HUGE = 2**31 - 1  # a limit of the type, which says nothing about the field


@cache
def openapi() -> dict[str, Any]:
    """docs/openapi.json, which is tested to be what the service serves."""
    document: dict[str, Any] = json.loads(_OPENAPI.read_text(encoding="utf-8"))
    return document


def schema(name: str) -> Schema:
    """One of the API's objects."""
    found: Schema = openapi()["components"]["schemas"][name]
    return found


def fields_table(of: Schema) -> list[str]:
    """A row for each field: name, type with limits, default, what it is."""
    required = of.get("required", ())
    rows = [_row(name, field, is_required=name in required) for name, field in of["properties"].items()]
    return ["| field | type | default | |", "|---|---|---|---|", *rows, ""]


def _row(name: str, field: Schema, *, is_required: bool) -> str:
    """One field."""
    default = "required" if is_required else _default(field)
    about = " ".join(str(field.get("description", "")).split()).replace("|", "\\|")
    return f"| `{name}` | {_kind(field)} | {default} | {about} |"


def _default(field: Schema) -> str:
    """The default as it is written in JSON."""
    default = field.get("default")
    return "–" if default in (None, [], {}) else f"`{json.dumps(default)}`"


def _kind(field: Schema) -> str:
    """The type with its limits; links to objects of their own stay names."""
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "enum" in field or "const" in field:
        return " \\| ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if "anyOf" in field:
        kinds = [_kind(one) for one in field["anyOf"] if one.get("type") != "null"]
        return " \\| ".join(dict.fromkeys(kinds))
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    limits = [
        text.format(f"{field[key]:g}")
        for key, text in _LIMITS.items()
        if abs(field.get(key, _HUGE)) < _HUGE
    ]
    return " ".join([str(field.get("type", "any")), *limits])
