"""Server-sent events as they come over the wire (WHATWG HTML, "Server-sent events")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

MEDIA_TYPE = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One event; without data it is only a sign of life."""

    id: str | None = None
    data: str = ""


@dataclass(slots=True)
class _Unfinished:
    """The lines of an event so far."""

    id: str | None = None
    data: list[str] = field(default_factory=list)


def frames(lines: Iterable[str]) -> Iterator[Frame]:
    """Every whole event, and an empty one for every comment; what breaks off in the middle is dropped."""
    event = _Unfinished()
    for line in lines:
        if not line:
            if event.data:
                yield Frame(id=event.id, data="\n".join(event.data))
            event = _Unfinished()
        elif line.startswith(":"):
            yield Frame()
        else:
            _take(event, line)


def _take(event: _Unfinished, line: str) -> None:
    """One ``name: value``."""
    name, _, value = line.partition(":")
    value = value.removeprefix(" ")
    if name == "data":
        event.data.append(value)
    elif name == "id":
        event.id = value
