"""docs/reference/api.md: every path of the API with its parameters and answers, from docs/openapi.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.reference.schemas import fields_table, openapi, schema

_HEAD = """# API

The OpenAPI description that these tables are made from: [openapi.json](../openapi.json); a running service
serves its own at `/openapi.json`. Faults are `application/problem+json` (RFC 9457) with a stable `type`, a
sentence in `detail`, and one entry in `errors` for each wrong field. Where a key is needed it is sent as
`Authorization: Bearer KEY`.
"""
_ANSWERS = ("AnswerView", "Plan", "Configuration", "Prediction", "JobDetail", "ProblemView")


def api_page() -> str:
    """The whole page."""
    lines = [_HEAD]
    for path, operations in openapi()["paths"].items():
        for method, operation in operations.items():
            lines += _operation(method.upper(), path, operation)
    lines.append("## What comes back\n")
    for name in _ANSWERS:
        lines += [
            f"### {name}",
            "",
            str(schema(name).get("description", "")),
            "",
            *fields_table(schema(name)),
        ]
    return "\n".join(lines) + "\n"


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> list[str]:
    """One operation."""
    about = str(operation.get("description") or operation.get("summary", ""))
    lines = [f"## {method} {path}", "", about, ""]
    parameters = operation.get("parameters", [])
    if parameters:
        lines += ["| parameter | in | |", "|---|---|---|", *map(_parameter, parameters), ""]
    body = operation.get("requestBody", {}).get("content", {})
    lines += [f"Body: {_media(body)}.", ""] if body else []
    answers = [
        f"{code} {_media(answer.get('content', {}))}" for code, answer in operation["responses"].items()
    ]
    scopes = [scope for one in operation.get("security", []) for scope in one.get("key", [])]
    needs = f" Needs a key of scope `{scopes[0]}` where there are keys." if scopes else ""
    return [*lines, f"Answers: {', '.join(map(str.strip, answers))}.{needs}", ""]


def _parameter(parameter: Mapping[str, Any]) -> str:
    """One parameter."""
    about = " ".join(str(parameter.get("description", "")).split()).replace("|", "\\|")
    return f"| `{parameter['name']}` | {parameter['in']} | {about} |"


def _media(content: Mapping[str, Any]) -> str:
    """The object of a body, or its media type; faults are said once for all."""
    for media, body in content.items():
        if media == "application/problem+json":
            return ""
        name = str(body.get("schema", {}).get("$ref", "")).rpartition("/")[2]
        return f"`{name}`" if name else f"`{media}`"
    return ""
