"""What operators see: figures for Prometheus, log lines with ids, one trace from request to search."""

import json
import logging
import threading

import pytest
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from meshwright.service.db.database import Database
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.telemetry import JsonLines, about, add, current_traceparent, span
from meshwright.workers.runner import Runner
from tests.builders import a_plan, an_answer
from tests.served.api_client import BODY, answer_next, submit
from tests.served.job_records import claimed

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"  # the example of the W3C recommendation


def figures(client: TestClient) -> dict[tuple[str, ...], float]:
    """Every sample, by its name and the values of its labels."""
    text = client.get("/metrics").text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_sees_queue_answers_and_requests(client: TestClient, engine: JobEngine) -> None:
    submit(client)
    answer_next(engine)
    submit(client)
    client.get("/v1/jobs/none")
    client.get("/nowhere/at/all")
    found = figures(client)
    assert found["meshwright_jobs", "queued"] == 1
    assert found["meshwright_jobs", "succeeded"] == 1
    assert found["meshwright_jobs", "failed"] == 0
    assert 0 <= found["meshwright_queue_oldest_seconds",] < 60
    assert found["meshwright_attempts",] == 1
    assert found["meshwright_lost_leases",] == 0
    assert found["meshwright_solve_seconds_count",] == 1
    assert found["meshwright_solve_seconds_bucket", "+Inf"] == 1
    assert found["meshwright_http_requests_total", "POST", "/v1/jobs", "202"] == 2
    assert found["meshwright_http_requests_total", "GET", "/v1/jobs/{job_id}", "404"] == 1
    assert found["meshwright_http_requests_total", "GET", "none", "404"] == 1


def test_a_lost_lease_and_the_final_gap_are_counted(
    client: TestClient, engine: JobEngine, database: Database
) -> None:
    submit(client)
    claimed(engine)
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE jobs SET lease_expires_at_s = 0")
    engine.sweep()
    claim = claimed(engine)
    progress = {"stage": "frontier", "explored": 1, "total": 1, "elapsed_s": 1.0, "gap": 0.02}
    engine.heartbeat(claim, progress)
    engine.fail(claim, code="x", detail="y")
    found = figures(client)
    assert found["meshwright_lost_leases",] == 1
    assert found["meshwright_final_gap_bucket", "0.01"] == 0
    assert found["meshwright_final_gap_bucket", "0.03"] == 1
    assert found["meshwright_final_gap_sum",] == pytest.approx(0.02)
    assert found["meshwright_last_searches", "failed"] == 1
    assert found["meshwright_last_searches", "optimal"] == 0
    assert found["meshwright_last_search_gap", "1.0"] == 0.02
    assert found["meshwright_last_search_rows", "0.5"] == 1


def test_a_request_is_one_line_with_its_id_its_tenant_and_no_id_of_anybodys_record(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    job = submit(client)
    with caplog.at_level(logging.INFO, logger="service.requests"):
        caplog.handler.setFormatter(JsonLines())
        client.get(f"/v1/jobs/{job}", headers={"X-Request-ID": "abc"})
    line = json.loads(caplog.text.splitlines()[-1])
    assert (line["request_id"], line["tenant"], line["level"]) == ("abc", "default", "info")
    assert (line["method"], line["route"], line["status"]) == ("GET", "/v1/jobs/{job_id}", 200)
    assert line["ms"] >= 0
    assert job not in caplog.text


def test_ids_are_carried_by_what_is_logged_meanwhile_and_by_nothing_else() -> None:
    record = logging.LogRecord("x", logging.ERROR, "", 0, "said %s", ("this",), None)
    with about(job_id="j", request_id=None):
        add(tenant="t")
        inside = json.loads(JsonLines().format(record))
    outside = json.loads(JsonLines().format(record))
    assert (inside["job_id"], inside["tenant"], inside["message"]) == ("j", "t", "said this")
    assert "request_id" not in inside
    assert "job_id" not in outside


def test_a_search_belongs_to_the_trace_of_its_request(
    client: TestClient, engine: JobEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.post("/v1/jobs", json=BODY, headers={"traceparent": TRACEPARENT, "X-Request-ID": "abc"})
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    inside = []

    def search(*_given: object, **_named: object) -> object:
        return an_answer(a_plan())

    runner = Runner(engine, search, worker="w", leaving=threading.Event())  # type: ignore[arg-type] # any
    with span("outer", TRACEPARENT, {}):
        inside.append(current_traceparent())
    assert runner.run_next()
    outer, job = kept.get_finished_spans()
    assert f"{job.context.trace_id:032x}" == f"{outer.context.trace_id:032x}" == TRACE
    assert job.parent is not None
    assert f"{job.parent.span_id:016x}" == "00f067aa0ba902b7"
    assert job.attributes is not None
    assert job.attributes["tenant"] == "default"
    assert inside[0] is not None
    assert inside[0].split("-")[1] == TRACE


@pytest.mark.parametrize(
    "wrong", ["", "x", f"01-{TRACE}-00f067aa0ba902b7-01", f"00-{'0' * 32}-{'1' * 16}-01"]
)
def test_a_trace_that_is_none_is_not_kept(client: TestClient, engine: JobEngine, wrong: str) -> None:
    client.post("/v1/jobs", json=BODY, headers={"traceparent": wrong, "X-Request-ID": "abc"})
    claim = claimed(engine)
    assert (claim.traceparent, claim.request_id) == (None, "abc")
