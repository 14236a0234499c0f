"""The API in process, over a real SQLite file: shapes, statuses, and hostile input."""

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event, update
from sqlalchemy.exc import OperationalError

from meshwright.service.api.app import create_app
from meshwright.service.db import migrations
from meshwright.service.db.database import BUSY_TIMEOUT_MS, REMEMBER_S, Database
from meshwright.service.db.tables import jobs
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.settings import Settings
from tests.served.api_client import BODY, PROBLEM_TYPE, answer_next, submit
from tests.served.job_records import claimed


def test_a_submission_is_accepted_with_its_address_and_a_time_to_ask_again(client: TestClient) -> None:
    answer = client.post("/v1/jobs", json=BODY)
    job = answer.json()
    assert (answer.status_code, job["state"]) == (202, "queued")
    assert answer.headers["Location"] == f"/v1/jobs/{job['id']}" == job["links"]["self"]
    assert int(answer.headers["Retry-After"]) >= 1
    assert job["request"]["model"]["num_layers"] == 32  # every figure spelled out


def test_a_job_is_sent_again_only_when_it_changed(client: TestClient, engine: JobEngine) -> None:
    here = f"/v1/jobs/{submit(client)}"
    tag = client.get(here).headers["ETag"]
    assert not tag.startswith("W/")
    unchanged = client.get(here, headers={"If-None-Match": f'"other", {tag}'})
    assert (unchanged.status_code, unchanged.content, unchanged.headers["ETag"]) == (304, b"", tag)
    assert unchanged.headers["Cache-Control"] == "no-cache"
    assert client.get(here, headers={"If-None-Match": "*"}).status_code == 304
    claimed(engine)
    assert client.get(here, headers={"If-None-Match": tag}).json()["state"] == "running"


def test_a_long_poll_returns_with_the_change(client: TestClient, engine: JobEngine) -> None:
    here = f"/v1/jobs/{submit(client)}"
    tag = client.get(here).headers["ETag"]
    later = threading.Timer(0.3, lambda: claimed(engine))
    later.start()
    started = time.monotonic()
    answer = client.get(here, params={"wait": 20}, headers={"If-None-Match": tag})
    assert 0.2 < time.monotonic() - started < 15  # without a change it waits for 20 s
    assert answer.json()["state"] == "running"


def test_a_long_poll_without_a_tag_waits_for_the_end_or_its_own(client: TestClient) -> None:
    started = time.monotonic()
    answer = client.get(f"/v1/jobs/{submit(client)}", params={"wait": 0.3})
    assert time.monotonic() - started > 0.3
    assert answer.json()["state"] == "queued"


def test_cancelling_twice_is_fine(client: TestClient) -> None:
    here = f"/v1/jobs/{submit(client)}"
    answers = [client.post(f"{here}:cancel") for _ in range(2)]
    assert [(answer.status_code, answer.json()["state"]) for answer in answers] == [(200, "cancelled")] * 2
    assert "cancel" not in answers[0].json()["links"]


def test_the_answer_comes_page_by_page_with_its_certificate(client: TestClient, engine: JobEngine) -> None:
    here = f"/v1/jobs/{submit(client)}"
    early = client.get(f"{here}/plans")
    assert (early.status_code, early.headers["content-type"]) == (409, PROBLEM_TYPE)
    assert early.headers["Retry-After"]
    answer_next(engine)
    first = client.get(f"{here}/plans", params={"page_size": 1}).json()
    token = first["next_page_token"]
    second = client.get(f"{here}/plans", params={"page_size": 1, "page_token": token}).json()
    assert [first["plans"][0]["plan_id"], second["plans"][0]["plan_id"]] == ["aaa", "bbb"]
    assert (first["status"], first["certified_by"]) == ("optimal", ["exact-dp", "cp-sat"])
    assert second["next_page_token"] is None
    assert client.get("/v1/plans/bbb").json()["plan"] == second["plans"][0]


def test_lists_are_paged(client: TestClient) -> None:
    for _ in range(3):
        submit(client)
    page = client.get("/v1/jobs", params={"page_size": 2}).json()
    rest = client.get("/v1/jobs", params={"page_size": 2, "page_token": page["next_page_token"]}).json()
    assert (len(page["jobs"]), len(rest["jobs"]), rest.get("next_page_token")) == (2, 1, None)


def test_one_key_makes_one_job_and_refuses_another_body(client: TestClient) -> None:
    headers = {"Idempotency-Key": "my-key"}
    ids = {client.post("/v1/jobs", json=BODY, headers=headers).json()["id"] for _ in range(3)}
    assert len(ids) == 1
    other = client.post("/v1/jobs", json={**BODY, "launcher": "none"}, headers=headers)
    assert (other.status_code, other.json()["type"]) == (422, "urn:meshwright:problem:idempotency_conflict")


def test_wrong_fields_are_named_by_json_pointers(client: TestClient) -> None:
    wrong = {**BODY, "workload": {"global_batch_size": True, "seq_length": -1}}
    answer = client.post("/v1/jobs", json=wrong)
    assert (answer.status_code, answer.headers["content-type"]) == (422, PROBLEM_TYPE)
    problem = answer.json()
    assert {error["pointer"] for error in problem["errors"]} == {
        "/workload/global_batch_size",
        "/workload/seq_length",
    }
    assert problem["request_id"] == answer.headers["X-Request-ID"]
    assert problem["instance"] == "/v1/jobs"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/jobs/none", 404),
        ("GET", "/v1/jobs/none/plans", 404),
        ("POST", "/v1/jobs/none:cancel", 404),
        ("GET", "/v1/plans/none", 404),
        ("GET", "/v1/plans/none/export", 404),
        ("DELETE", "/v1/jobs", 405),
        ("GET", "/v1/jobs?page_size=0", 422),
        ("GET", "/v1/jobs?page_size=201", 422),
        ("GET", "/v1/jobs?page_token=nonsense", 422),
        ("GET", "/v1/jobs/none?wait=nan", 422),
        ("GET", "/v1/jobs/%00", 404),
        ("GET", "/v1/jobs/", 404),
        ("POST", "/v1/jobs/", 404),
    ],
)
def test_every_refusal_is_a_problem_document(
    client: TestClient, method: str, path: str, status: int
) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM_TYPE)
    assert answer.json()["status"] == status
    assert answer.json()["request_id"]


def test_a_database_that_is_away_is_a_503_that_asks_to_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = Settings(database_url=f"sqlite:///{tmp_path / 'no such folder' / 'x.db'}")
    app = create_app(missing)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        answer = client.get("/v1/jobs")
        assert (answer.status_code, answer.headers["content-type"]) == (503, PROBLEM_TYPE)
        assert answer.headers["Retry-After"]
        assert caplog.messages[-1] == "the database failed: unable to open database file"
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["database"]) == (503, "unavailable")
        assert client.get("/livez").status_code == 200


def test_a_schema_of_another_version_is_not_ready(client: TestClient, database: Database) -> None:
    assert client.get("/readyz").json() == {
        "ready": True,
        "database": "ok",
        "migration": "current",
        "queue": "polling",
    }
    migrations.downgrade(database, "base")
    assert client.get("/readyz").json()["migration"] == "outdated"


def test_a_database_that_takes_no_writes_is_not_ready(client: TestClient) -> None:
    def refuse(connection: sqlite3.Connection, *_arguments: object) -> None:
        connection.execute("PRAGMA query_only = ON")

    served: Database = client.app.state.service.database  # type: ignore[attr-defined]
    event.listen(served._engine, "connect", refuse)
    served.close()
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()["database"], ready.json()["ready"]) == (503, "read_only", False)
    assert client.get("/v1/jobs").status_code == 200  # it still answers what it can
    event.remove(served._engine, "connect", refuse)
    served.close()
    time.sleep(REMEMBER_S)
    assert client.get("/readyz").status_code == 200


def test_a_full_disk_is_named_in_the_error(client: TestClient) -> None:
    def full(connection: sqlite3.Connection, *_arguments: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # no page more than there are

    served: Database = client.app.state.service.database  # type: ignore[attr-defined]
    event.listen(served._engine, "connect", full)
    served.close()
    answers = (client.post("/v1/jobs?fresh=true", json=BODY) for _ in range(100))
    refused = next(answer for answer in answers if answer.status_code != 202)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
    assert refused.json()["type"] == "urn:meshwright:problem:disk_full"
    assert refused.json()["detail"] == (
        "the database's disk is full: nothing can be stored until space is freed. Nothing was lost"
    )
    event.remove(served._engine, "connect", full)
    served.close()
    assert client.post("/v1/jobs?fresh=true", json=BODY).status_code == 202


def test_a_database_with_files_that_are_gone_is_not_full(tmp_path: Path) -> None:
    """SQLite reports an I/O error for that as for a used-up quota."""
    cause = sqlite3.OperationalError("disk I/O error")
    cause.sqlite_errorcode = sqlite3.SQLITE_IOERR
    gone = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    assert not gone.is_full(OperationalError("INSERT", None, cause))


def test_a_database_that_another_process_writes_to_is_ready(
    client: TestClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: Database = client.app.state.service.database  # type: ignore[attr-defined]
    monkeypatch.setattr(served, "_ask_again_at", 0.0)
    with closing(sqlite3.connect(database.url.database or "", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["database"]) == (200, "ok")
        writer.execute("ROLLBACK")
    with served.read() as connection:
        patience_ms = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
    assert patience_ms == BUSY_TIMEOUT_MS  # of the connection that asked too


def test_only_one_request_at_a_time_asks_whether_the_database_takes_writes(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: Database = client.app.state.service.database  # type: ignore[attr-defined]
    assert served.takes_writes()
    asked, answered = threading.Event(), threading.Event()

    def slow() -> bool:
        assert not asked.is_set(), "two ask at once"
        asked.set()
        return answered.wait(60.0)

    monkeypatch.setattr(served, "_try_write", slow)
    monkeypatch.setattr(served, "_ask_again_at", 0.0)
    first = threading.Thread(target=served.takes_writes)
    first.start()
    assert asked.wait(60.0)
    assert client.get("/readyz").json()["database"] == "ok"  # what was known
    answered.set()
    first.join()


def test_a_bug_is_a_500_problem_without_its_text(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_free = submit(client)

    def broken(*_given: object) -> None:
        raise RuntimeError("progress")

    monkeypatch.setattr(Jobs, "read", broken)
    monkeypatch.setattr(Jobs, "look", broken)
    answer = client.get(f"/v1/jobs/{claim_free}")
    assert (answer.status_code, answer.headers["content-type"]) == (500, PROBLEM_TYPE)
    assert answer.json()["request_id"] == answer.headers["X-Request-ID"]
    assert "progress" not in answer.text
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    counted = 'meshwright_http_requests_total{method="GET",route="/v1/jobs/{job_id}",status="500"} 1.0'
    assert counted in client.get("/metrics").text


def test_what_a_newer_worker_adds_to_progress_is_left_out(client: TestClient, database: Database) -> None:
    job_id = submit(client)
    known = {"stage": "solving", "explored": 1, "total": 2, "elapsed_s": 0.5}
    with database.write() as connection:
        connection.execute(update(jobs).values(progress={**known, "newer": 7}))
    assert client.get(f"/v1/jobs/{job_id}").json()["progress"] == known


def test_a_harmless_request_id_is_kept_and_another_replaced(client: TestClient) -> None:
    assert client.get("/livez", headers={"X-Request-ID": "abc-1"}).headers["X-Request-ID"] == "abc-1"
    replaced = client.get("/livez", headers={"X-Request-ID": "a b"}).headers["X-Request-ID"]
    assert len(replaced) == 32


@pytest.mark.parametrize(
    ("catalog", "known"),
    [("models", "llama-3.1-70b"), ("clusters", "dgx-h100"), ("gpus", "h100-sxm-80gb")],
)
def test_catalogs_list_what_requests_may_name(client: TestClient, catalog: str, known: str) -> None:
    items = client.get(f"/v1/{catalog}").json()["items"]
    assert known in [item["name"] for item in items]
