"""Plans put before their launchers over HTTP; tests/torch lets real launchers build."""

import threading
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.queue import PollingQueue
from meshwright.service.stores.verifications import Verifications
from meshwright.service.verify.environments import FOLDER_VARIABLE, MEGATRON_LM
from meshwright.workers.verifying import verify_next
from tests.processes.servers import until, working
from tests.served.api_client import answer_next, submit
from tests.served.job_records import TENANT

KEY = {"Idempotency-Key": "once"}
BUILT = {
    "plan_id": "aaa", "launcher": "megatron-lm", "version": "0.19.2", "verdict": "verified", "reasons": [],
    "ranks": [0], "peak_memory_bytes": 2**35,
    "quantities": [{"rank": 0, "stage": 0, "name": "layers", "priced": [4, 4], "built": [4, 4],
                    "exact": True, "error": None}],
}  # fmt: skip


@pytest.fixture
def found(client: TestClient, engine: JobEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A plan that a job has found; no launcher is installed."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    submit(client)
    answer_next(engine)
    return "/v1/plans/aaa"


@pytest.fixture
def store(database: Database, engine: JobEngine) -> Verifications:
    queue = PollingQueue()
    return Verifications(database, Jobs(database, engine, queue, queue_timeout_s=60.0), queue)


def install_nothing_but_its_stamp() -> None:
    MEGATRON_LM.folder.mkdir(parents=True)
    (MEGATRON_LM.folder / "ready").write_text(MEGATRON_LM.stamp)


def a_slow_launcher(client: TestClient, engine: JobEngine) -> None:
    """Plans that can be exported, and a launcher that takes its time."""
    install_nothing_but_its_stamp()
    submit(
        client,
        model={"name": "llama-3.1-70b"},
        cluster={"name": "dgx-h100", "num_nodes": 16},
        workload={"global_batch_size": 512, "seq_length": 8192},
    )  # whose plans can be exported
    answer_next(engine)
    python = MEGATRON_LM.python
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)


def verified_by(store: Verifications, leaving: threading.Event) -> bool:
    return verify_next(store, memory_bytes=2**30, time_s=60.0, leaving=leaving)


def verified_in_lists(client: TestClient, **wanted: str) -> dict[str, str | None]:
    plans = client.get("/v1/plans", params=wanted).json()["plans"]
    return {plan["plan_id"]: plan["verified"] for plan in plans}


def test_without_the_launcher_a_plan_is_not_queued_and_the_remedy_is_named(
    client: TestClient, found: str
) -> None:
    answer = client.post(f"{found}:verify")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:meshwright:problem:missing_extra")
    assert "meshwright verify --install megatron-lm" in answer.json()["detail"]
    assert client.get(f"{found}/verification").status_code == 404
    assert client.post("/v1/plans/none:verify").status_code == 404


def test_a_plan_is_queued_once_claimed_by_one_worker_and_its_verdict_stands_in_lists(
    client: TestClient, found: str, store: Verifications
) -> None:
    install_nothing_but_its_stamp()
    for _ in range(2):
        answer = client.post(f"{found}:verify")
        assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    assert verified_in_lists(client) == {"aaa": "queued", "bbb": None}
    asked = store.claim()
    assert asked is not None
    assert (asked.tenant, asked.plan.plan_id) == (TENANT, "aaa")
    assert store.claim() is None
    assert client.post(f"{found}:verify").json()["state"] == "running"
    store.settle(asked.tenant, asked.plan_id, BUILT)
    store.give_back(asked)  # by a worker that lost its claim
    assert verified_in_lists(client)["aaa"] == "verified"
    assert store.claim() is None
    assert client.post(f"{found}:verify", headers=KEY).json()["state"] == "queued"  # it may be built again
    store.settle(asked.tenant, asked.plan_id, BUILT)
    assert client.post(f"{found}:verify", headers=KEY).json()["state"] == "done"  # asked once, told twice
    told = client.get(f"{found}/verification").json()
    assert (told["state"], told["verdict"], told["peak_memory_bytes"]) == ("done", "verified", 2**35)
    assert verified_in_lists(client, verified="verified") == {"aaa": "verified"}
    assert client.get("/v1/plans", params={"verified": "perhaps"}).status_code == 422


def test_a_key_stands_for_one_plan(client: TestClient, found: str) -> None:
    install_nothing_but_its_stamp()
    assert client.post(f"{found}:verify", headers=KEY).status_code == 202
    other = client.post("/v1/plans/bbb:verify", headers=KEY)
    assert (other.status_code, other.json()["type"]) == (
        422, "urn:meshwright:problem:idempotency_conflict",
    )  # fmt: skip
    assert verified_in_lists(client) == {"aaa": "queued", "bbb": None}


@pytest.mark.usefixtures("found")
def test_a_claim_that_nobody_renews_is_another_workers_after_the_lease(store: Verifications) -> None:
    store.ask(TENANT, "aaa")
    store.lease_s = 0.3
    first = store.claim()
    assert first is not None
    for _ in range(3):  # .6 s, renewed every .2
        time.sleep(0.2)
        store.keep(first)
        assert store.claim() is None
    time.sleep(0.4)  # its worker is gone
    assert store.claim() == first


def test_a_worker_that_leaves_stops_the_launcher_and_gives_the_plan_back(
    client: TestClient, found: str, store: Verifications, engine: JobEngine
) -> None:
    a_slow_launcher(client, engine)
    store.ask(TENANT, "aaa")
    leaving = threading.Event()
    threading.Timer(0.2, leaving.set).start()
    started = time.monotonic()
    assert not verified_by(store, leaving)
    assert time.monotonic() - started < 10.0
    assert verified_in_lists(client)["aaa"] == "queued"
    assert not verified_by(store, leaving)  # nor does it take another
    MEGATRON_LM.python.write_text("#!/bin/sh\necho no fan >&2\n")
    assert verified_by(store, threading.Event())
    told = client.get(f"{found}/verification").json()
    assert (told["verdict"], told["reasons"]) == ("not built", ["the launcher's process ended: no fan"])


@pytest.mark.usefixtures("found")
@pytest.mark.parametrize("options", [(), ("--verify",)])
def test_a_worker_process_that_is_told_to_end_leaves_no_launcher_behind(
    client: TestClient,
    store: Verifications,
    engine: JobEngine,
    database: Database,
    options: tuple[str, ...],
) -> None:
    a_slow_launcher(client, engine)
    said = MEGATRON_LM.folder / "pid"
    MEGATRON_LM.python.write_text(f"#!/bin/sh\necho $$ >{said}.new; mv {said}.new {said}; exec sleep 60\n")
    store.ask(TENANT, "aaa")
    with working({"database_url": str(database.url)}, *options):
        until(said.exists)
    assert not Path("/proc", said.read_text().strip()).exists()
    assert store.find(TENANT, "aaa") == ("queued", None)


def test_a_plan_that_is_found_again_keeps_its_verdict(
    client: TestClient, found: str, store: Verifications, engine: JobEngine
) -> None:
    store.ask(TENANT, found.rpartition("/")[2])
    store.settle(TENANT, "aaa", BUILT)
    submit(client, search={"top_k": 2})
    answer_next(engine)
    assert verified_in_lists(client) == {"aaa": "verified", "bbb": None}


def test_plans_survive_a_schema_that_knows_no_verdicts(
    client: TestClient, found: str, store: Verifications, database: Database
) -> None:
    store.ask(TENANT, found.rpartition("/")[2])
    store.settle(TENANT, "aaa", BUILT)
    migrations.downgrade(database, "0012")
    migrations.upgrade(database)
    assert verified_in_lists(client) == {"aaa": None, "bbb": None}  # and it can be asked for again
    store.ask(TENANT, "aaa")
    assert verified_in_lists(client)["aaa"] == "queued"
