"""Operations of the API as its page shows them: parameters, an example request and its answer."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One value in the path, the query or the headers."""

    name: str
    place: str
    meaning: str
    is_required: bool
    example: str  # empty for none


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One address with one method."""

    key: str  # of its place on the page
    method: str
    path: str
    summary: str
    description: tuple[str, ...]  # paragraphs
    scope: str  # that a key needs; empty for an open address
    parameters: tuple[Parameter, ...]
    body: str  # an example; empty for none
    status: str  # of success
    answer: str  # an example; empty where success has no content
    kind: str  # media type of the answer


def operations_of(document: Mapping[str, Any]) -> dict[str, list[Operation]]:
    """Return the operations of an OpenAPI document by their tag, in its order."""
    found: dict[str, list[Operation]] = {}
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            found.setdefault(one["tags"][0], []).append(_operation(path, method, one))
    return found


def _operation(path: str, method: str, one: Mapping[str, Any]) -> Operation:
    status, success = next((code, answer) for code, answer in one["responses"].items() if code[0] == "2")
    content = success.get("content", {})
    paragraphs = re.split(r"\n\s*\n", one.get("description", ""))
    return Operation(
        key=one["operationId"],
        method=method.upper(),
        path=path,
        summary=one["summary"],
        description=tuple(" ".join(text.replace("``", "").split()) for text in paragraphs if text),
        scope=next(
            (scopes[0] for needs in one.get("security", ()) for scopes in needs.values() if scopes), ""
        ),
        parameters=tuple(_parameters(one)),
        body=_example(one.get("requestBody", {}).get("content", {})),
        status=status,
        answer=_example(content),
        kind=next(iter(content), ""),
    )


def _parameters(one: Mapping[str, Any]) -> Iterator[Parameter]:
    for parameter in one.get("parameters", ()):
        schema = parameter.get("schema", {})
        meaning = parameter.get("description") or schema.get("description", "")
        default = schema.get("default")
        words = [meaning] if meaning else []
        words += [f"default: {json.dumps(default)}"] if default not in (None, "") else []
        yield Parameter(
            name=parameter["name"],
            place=parameter["in"],
            meaning="; ".join(words),
            is_required=bool(parameter.get("required")),
            example=str(parameter.get("example", "")),
        )


def _example(content: Mapping[str, Any]) -> str:
    for kind, one in content.items():
        if "example" in one:
            shown = one["example"]
            return json.dumps(shown, indent=2, ensure_ascii=False) if kind == _JSON else str(shown)
    return ""


def curl_of(one: Operation, base: str, *, has_keys: bool) -> str:
    """Return the command that makes a request; its body is the file ``request.json``."""
    is_default = one.method == "GET" or (one.method == "POST" and one.body)
    method = "" if is_default else f"-X {one.method} "
    lines = [f"curl {method}{shlex.quote(base + one.path)}"]
    if has_keys and one.scope:
        lines.append('-H "Authorization: Bearer $MESHWRIGHT_KEY"')
    if one.body:
        lines.append("-H 'Content-Type: application/json' -d @request.json")
    return " \\\n  ".join(lines)
