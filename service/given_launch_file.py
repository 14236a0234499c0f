"""A launch file as it stands in a request's body: texts by name, bounded before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from profiles.documents import pointer
from profiles.errors import InvalidProblemError, UnknownNameError
from service.launchers.reading.base import Source
from service.launchers.reading.registry import reader_names

MAX_TEXT = 200_000  # characters of all files: reading takes half a second for so many
MAX_FILES = 8  # beside the first
MAX_NAME = 128
MAX_VARIABLES = 64
_AT = "launch_file"
_NAMES = ("name", "text", "launcher", "files", "variables")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenLaunchFile:
    """The files, whose they are, and what the shell would know."""

    source: Source
    launcher: str | None
    variables: Mapping[str, str]


def given_launch_file(raw: Mapping[str, object]) -> GivenLaunchFile:
    """The launch file of a body: ``{"name": "train.sh", "text": "…"}``, with ``files`` beside it.

    Raises:
        InvalidProblemError: a part is missing, of a wrong kind, or too big.
    """
    for name in raw.keys() - set(_NAMES):
        raise UnknownNameError.among(pointer(_AT, name), name, list(_NAMES))
    launcher = raw.get("launcher")
    if launcher is not None and launcher not in reader_names():
        raise UnknownNameError.among(pointer(_AT, "launcher"), str(launcher), reader_names())
    name, files = _name(raw.get("name"), "name"), _texts(raw, "files", MAX_FILES)
    for other in files:
        _name(other, "files", other)
    variables = _texts(raw, "variables", MAX_VARIABLES)
    text = _text(raw.get("text"), "text")
    if len(text) + sum(map(len, files.values())) > MAX_TEXT:
        message = "the files are too big together"
        raise InvalidProblemError.of(pointer(_AT, "files"), message, allowed=f"{MAX_TEXT} characters")
    source = Source(name=name, text=text, files={**files, name: text} if files else {})
    return GivenLaunchFile(source=source, launcher=str(launcher) if launcher else None, variables=variables)


def _name(value: object, *where: str) -> str:
    """The base name of a file; no folder is part of it."""
    if not (isinstance(value, str) and value and len(value) <= MAX_NAME and value.isprintable()):
        message = f"must be the name of a file, of at most {MAX_NAME} characters"
        raise InvalidProblemError.of(pointer(_AT, *where), message)
    if "/" in value or "\\" in value:
        raise InvalidProblemError.of(pointer(_AT, *where), "must be a name without folders")
    return value


def _texts(raw: Mapping[str, object], part: str, most: int) -> dict[str, str]:
    """Texts by name."""
    found = raw.get(part, {})
    if not isinstance(found, Mapping) or len(found) > most:
        raise InvalidProblemError.of(pointer(_AT, part), f"must be an object of at most {most} texts")
    return {str(name): _text(text, part, str(name)) for name, text in found.items()}


def _text(value: object, *where: str) -> str:
    """One text."""
    if not isinstance(value, str):
        raise InvalidProblemError.of(pointer(_AT, *where), "must be text")
    if len(value) > MAX_TEXT:
        at = pointer(_AT, *where)
        raise InvalidProblemError.of(at, "the text is too big", allowed=f"{MAX_TEXT} characters")
    return value
