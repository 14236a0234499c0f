"""What processes write to stderr: lines for people, or one JSON object a line for a collector.

Whatever is logged while a request is served, or a job is run, carries its ids.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]
REQUESTS = "service.requests"  # one line a request: for collectors, not for terminals
_about: ContextVar[MutableMapping[str, str] | None] = ContextVar("about", default=None)


@contextmanager
def about(**ids: str | None) -> Iterator[MutableMapping[str, str]]:
    """While inside, every line carries these ids; what is added to the mapping later is carried too."""
    known = {name: value for name, value in ids.items() if value is not None}
    token = _about.set({**(_about.get() or {}), **known})
    try:
        yield _about.get() or {}
    finally:
        _about.reset(token)


def add(**ids: str) -> None:
    """Add ids to what is being done now, if anything is."""
    known = _about.get()
    if known is not None:
        known.update(ids)


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, ids, and ``data`` of the record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON; an exception stands in it as text."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
            **(_about.get() or {}),
            **getattr(record, "data", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(log_format: LogFormat) -> None:
    """Log to stderr from now on."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(name)s[%(process)d] %(message)s")
    handler.setFormatter(JsonLines() if log_format == "json" else plain)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger(REQUESTS).setLevel(logging.INFO if log_format == "json" else logging.WARNING)
