"""A capture as a launch file: its calls as commands of a script, with the captured files."""

from __future__ import annotations

import json
import shlex

from meshwright.launchers.reading.base import Source, refused
from meshwright.profiles.documents import without_version

FORM = "meshwright_capture"
VERSION = 1


def is_capture(text: str) -> bool:
    """Return whether a text may be an output of ``capture``."""
    return text.lstrip()[:40].startswith("{") and f'"{FORM}"' in text[:200]


def source_of_capture(source: Source) -> Source:
    """Return the calls of a capture as a shell script, with the captured files.

    Raises:
        InvalidProblemError: it is not a capture of this version.
    """
    try:
        raw = without_version(json.loads(source.text))
    except (ValueError, RecursionError, TypeError):
        raise refused("the capture is not JSON") from None
    calls, files = (raw.get("calls"), raw.get("files")) if isinstance(raw, dict) else (None, None)
    if not isinstance(calls, list) or not isinstance(files, dict) or raw.get(FORM) != VERSION:
        raise refused(f"is not a capture of version {VERSION}: run meshwright capture again")
    lines = ["# What meshwright capture saw"]
    for call in calls:
        lines += _lines_of(call)
    beside = {str(name): str(text) for name, text in files.items()}
    return Source(name=f"{source.name.rpartition('.')[0]}.sh", text="\n".join(lines) + "\n", files=beside)


def _lines_of(call: object) -> list[str]:
    """Return one call: its environment, then its words after those of its wrappers."""
    if not isinstance(call, dict) or not isinstance(call.get("argv"), list):
        raise refused("the capture has a call without argv")
    environment = call.get("environment") or {}
    names = [name for name in environment if str(name).isidentifier()]
    words = [str(word) for words in (*(call.get("before") or ()), call["argv"]) for word in words]
    return [
        *(f"export {name}={shlex.quote(str(environment[name]))}" for name in names),
        " ".join(shlex.quote(word) for word in words),
    ]
