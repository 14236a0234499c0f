"""Traces from a request to its search, through the job's row (W3C trace context, OpenTelemetry).

Nothing is recorded unless the process has an endpoint to send it to: OTEL_EXPORTER_OTLP_ENDPOINT, with the
``telemetry`` extra installed. The API's own spans are FastAPI's, which sends them there too.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

from opentelemetry import trace
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()
_log = logging.getLogger(__name__)


def current_traceparent() -> str | None:
    """Return the W3C ``traceparent`` of the span that is open now; None: there is none."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get("traceparent")


@contextmanager
def span(name: str, traceparent: str | None, attributes: Mapping[str, str | int]) -> Iterator[None]:
    """Open a span of work that another process asked for; ``traceparent`` is that process's."""
    parent = _PROPAGATOR.extract({"traceparent": traceparent} if traceparent else {})
    tracer = trace.get_tracer("meshwright")
    with tracer.start_as_current_span(
        name, context=parent, kind=SpanKind.CONSUMER, attributes=dict(attributes)
    ):
        yield


def sends_spans() -> bool:
    """Return whether this process has an endpoint to send spans to."""
    return bool(os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"))


def configure() -> None:
    """Send this process's spans to OTEL_EXPORTER_OTLP_ENDPOINT, if it is set."""
    if not sends_spans():
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - optional
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - optional
    except ImportError:
        _log.warning("no traces: install meshwright with its telemetry extra")
        return
    os.environ.setdefault("OTEL_SERVICE_NAME", "meshwright-worker")
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


# --------------------------------------------------------------------------------------------------
# What processes write to stderr: lines for people, or one JSON object a line for a collector.
#
# Whatever is logged while a request is served, or a job is run, carries its ids.


LogFormat = Literal["text", "json"]
REQUESTS = "service.requests"  # one line a request
_about: ContextVar[MutableMapping[str, str] | None] = ContextVar("about", default=None)


@contextmanager
def about(**ids: str | None) -> Iterator[MutableMapping[str, str]]:
    """Add these ids to every line while inside; ids added to the mapping later are included."""
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
        """Return the record as JSON, with an exception as text."""
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


class PlainLines(logging.Formatter):
    """A line for people: time, logger, message, and the ids of what was being done."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text."""
        line, ids = super().format(record), _about.get() or {}
        head, newline, rest = line.partition("\n")
        return head + "".join(f" {name}={value}" for name, value in ids.items()) + newline + rest


def configure_logging(log_format: LogFormat) -> None:
    """Log to stderr from now on."""
    handler = logging.StreamHandler(sys.stderr)
    plain = PlainLines("%(asctime)s %(name)s[%(process)d] %(message)s")
    handler.setFormatter(JsonLines() if log_format == "json" else plain)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
