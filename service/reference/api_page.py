"""docs/reference/api.md: every path of the API with its parameters and answers, from docs/openapi.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiles.documents import DOCUMENT, FILE, MAX_DEPTH, PROBLEM, YAML_FILE
from service.api import deps
from service.reference.schemas import fields_table, openapi, schema
from service.web.callers import DOCUMENT_FORM, QUESTION_FORM

_HEAD = """# API

The OpenAPI description that these tables are made from: [openapi.json](../openapi.json); a running service
serves its own at `/openapi.json`. Faults are `application/problem+json` (RFC 9457) with a stable `type`, a
sentence in `detail`, and one entry in `errors` for each wrong field. Where a key is needed it is sent as
`Authorization: Bearer KEY`.

## How much a body may hold

{limits}

Beyond the bytes the answer is 413, beyond values, keys or {depth} levels 422, each with what to do. A body
of more than {small} KiB waits for its turn, {problems} problems and {documents} documents being in work at
a time: 503 with `Retry-After` after {wait:g} s. One that has not arrived {upload:g} s after its turn came
is answered with 408.
"""
_LIMITS = {
    "problems, and every body that is not named here": PROBLEM,
    "`POST /v1/profiles`, `PUT /v1/models/{name}`, `PUT /v1/clusters/{name}`": DOCUMENT,
    "forms of the pages: `POST /jobs`, `POST /own`, `POST /keys`": QUESTION_FORM,
    "forms of the pages: `POST /models`, `POST /clusters`, `POST /profiles`": DOCUMENT_FORM,
    "files of the command line in JSON": FILE,
    "files of the command line in YAML": YAML_FILE,
}
_ANSWERS = ("AnswerView", "Plan", "Configuration", "Prediction", "JobDetail", "ProblemView")


def api_page() -> str:
    """The whole page."""
    lines = [_head()]
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


def _head() -> str:
    """What holds for every path."""
    table = ["| what | bytes | values | keys of one object |", "|---|---|---|---|"]
    for what, limits in _LIMITS.items():
        size = f"{limits.max_bytes // 2**10:,} KiB".replace(",", " ")
        counts = (f"{count:,}".replace(",", " ") for count in (limits.max_values, limits.max_keys))
        table.append(f"| {what} | {size} | {' | '.join(counts)} |")
    return _HEAD.format(
        limits="\n".join(table),
        depth=MAX_DEPTH,
        small=deps.SMALL_BYTES // 2**10,
        problems=deps.MAX_PROBLEMS,
        documents=deps.MAX_DOCUMENTS,
        wait=deps.MAX_WAIT_FOR_TURN_S,
        upload=deps.MAX_UPLOAD_S,
    )


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
