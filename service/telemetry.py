"""Traces from a request to its search, through the job's row (W3C trace context, OpenTelemetry).

Nothing is recorded unless the process is told where to send it: OTEL_EXPORTER_OTLP_ENDPOINT, with the
``telemetry`` extra installed. The API's own spans are FastAPI's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import SpanKind, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()
_log = logging.getLogger(__name__)


def current_traceparent() -> str | None:
    """The W3C ``traceparent`` of the span that is open now; None: there is none."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get("traceparent")


@contextmanager
def span(
    name: str,
    traceparent: str | None,
    attributes: Mapping[str, str | int],
    *,
    provider: TracerProvider | None = None,
) -> Iterator[None]:
    """A span of work that another process asked for; ``traceparent`` is what that one left."""
    parent = _PROPAGATOR.extract({"traceparent": traceparent} if traceparent else {})
    tracer = trace.get_tracer("meshwright", tracer_provider=provider)
    with tracer.start_as_current_span(
        name, context=parent, kind=SpanKind.CONSUMER, attributes=dict(attributes)
    ):
        yield


def configure() -> None:
    """Send this process's spans where OTEL_EXPORTER_OTLP_ENDPOINT says, if it says anything."""
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider as Provider  # noqa: PLC0415 - optional
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - optional
    except ImportError:
        _log.warning("no traces: install meshwright with its telemetry extra")
        return
    os.environ.setdefault("OTEL_SERVICE_NAME", "meshwright-worker")
    provider = Provider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
