"""Plans put before their launchers over HTTP; tests/torch lets real launchers build."""

import fcntl
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from meshwright.service.db.tables import plans, verifications
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.queue import PollingQueue
from meshwright.service.jobs.sweeper import sweep
from meshwright.service.stores.verifications import VerificationClaim, Verifications
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
    return Verifications(
        database, Jobs(database, engine, queue, queue_timeout_s=60.0), queue, lease_s=15.0, max_attempts=3
    )


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


def built(store: Verifications) -> None:
    """The plan that waits, as its launcher built it."""
    claim = store.claim()
    assert claim is not None
    assert store.settle(claim, BUILT)


def lost(store: Verifications) -> VerificationClaim:
    """The claim of a worker that was heard of no more."""
    claim = store.claim()
    assert claim is not None
    time.sleep(1.1 * store.lease_s)
    swept(store)
    return claim


def swept(store: Verifications) -> None:
    """What the leader does; no other ends a claim."""
    with store._database.write() as connection:
        sweep(connection, lease_s=store.lease_s)


def waits_for_a_lock(pid: int) -> bool:
    """Whether the kernel lets a process wait for a file that another has locked."""
    waiting = (line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line)
    return any(words[5] == str(pid) for words in waiting)


def verified_in_lists(client: TestClient, **wanted: str) -> dict[str, str | None]:
    plans = client.get("/v1/plans", params=wanted).json()["plans"]
    return {plan["plan_id"]: plan["verified"] for plan in plans}


def test_without_the_launcher_a_plan_is_not_queued_and_the_remedy_is_named(
    client: TestClient, found: str
) -> None:
    answer = client.post(f"{found}:verify")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:meshwright:problem:missing_extra")
    assert "meshwright verify --install megatron-lm" in answer.json()["detail"]
    unasked = client.get(f"{found}/verification")
    assert (unasked.status_code, "was not verified" in unasked.json()["detail"]) == (404, True)
    missing = client.get("/v1/plans/none/verification")  # of no plan: not one to ask for
    assert (missing.status_code, missing.json()["detail"]) == (
        404, client.post("/v1/plans/none:verify").json()["detail"]
    )  # fmt: skip


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
    assert store.settle(asked, BUILT)
    assert not store.give_back(asked)  # it is no claim any more
    assert verified_in_lists(client)["aaa"] == "verified"
    assert store.claim() is None
    assert client.post(f"{found}:verify", headers=KEY).json()["state"] == "queued"  # it may be built again
    built(store)
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
    client.post(f"{found}:verify", headers={"Idempotency-Key": "twice"})  # which forgets none
    assert client.post("/v1/plans/bbb:verify", headers=KEY).status_code == 422
    assert client.post("/v1/plans/bbb:verify", headers={"Idempotency-Key": "thrice"}).status_code == 202


@pytest.mark.usefixtures("found")
def test_a_claim_that_nobody_renews_is_another_workers_after_the_lease(store: Verifications) -> None:
    store.ask(TENANT, "aaa")
    store.lease_s = 0.3
    first = store.claim()
    assert first is not None
    store.lease_s = 60.0
    assert store.keep(first)
    time.sleep(0.4)  # longer than the lease it was claimed for, not than the renewed one
    swept(store)
    assert store.claim() is None
    store.lease_s = 0.05
    assert store.keep(first)
    time.sleep(0.1)  # its worker is gone
    swept(store)
    second = store.claim()
    assert second is not None
    assert (second.plan_id, second.fence) == (first.plan_id, first.fence + 1)
    # nor was it: all that it may do is to find out
    assert (store.keep(first), store.give_back(first), store.settle(first, BUILT)) == (False, False, False)
    assert store.find(TENANT, "aaa") == ("running", None)
    assert store.settle(second, BUILT)


@pytest.mark.usefixtures("found")
def test_a_plan_that_costs_one_worker_after_another_counts_as_not_built(
    client: TestClient, store: Verifications
) -> None:
    store.lease_s = 0.05
    store.ask(TENANT, "aaa")
    claim = lost(store)
    assert not store.give_back(replace(claim, fence=0))
    lost(store)
    claim = lost(store)  # the third of three
    assert store.claim() is None
    told = client.get("/v1/plans/aaa/verification").json()
    reason = "its worker was lost while its launcher built it, 3 times"
    assert (told["verdict"], told["reasons"]) == ("not built", [reason])
    assert not store.settle(claim, BUILT)
    store.ask(TENANT, "aaa")  # who asks again wants it tried again
    assert store.claim() is not None


@pytest.mark.usefixtures("found")
def test_a_worker_that_leaves_costs_a_plan_no_attempt(store: Verifications) -> None:
    store.ask(TENANT, "aaa")
    for _ in range(5):
        claim = store.claim()
        assert claim is not None
        assert store.give_back(claim)
    assert store.claim() is not None


@pytest.mark.usefixtures("found")
def test_behind_a_plan_that_cannot_be_read_the_next_is_claimed(
    store: Verifications, database: Database
) -> None:
    for plan_id in ("aaa", "bbb"):
        store.ask(TENANT, plan_id)
    with database.write() as connection:
        connection.execute(update(plans).where(plans.c.plan_id == "aaa").values(body={"of": "no version"}))
    claim = store.claim()
    assert claim is not None
    assert claim.plan_id == "bbb"
    state, found = store.find(TENANT, "aaa")
    assert (state, (found or {})["verdict"]) == ("done", "not built")


def test_a_worker_that_lost_its_claim_stops_its_launcher_and_leaves_the_plan_alone(
    client: TestClient, found: str, store: Verifications, engine: JobEngine, database: Database
) -> None:
    a_slow_launcher(client, engine)
    store.ask(TENANT, found.rpartition("/")[2])
    store.lease_s = 0.3

    def taken_over() -> None:
        with database.write() as connection:
            connection.execute(update(verifications).values(fence=verifications.c.fence + 1))

    threading.Timer(0.4, taken_over).start()
    started = time.monotonic()
    assert verified_by(store, threading.Event())  # and looks at the next plan
    assert time.monotonic() - started < 30.0  # of the launcher's 60
    assert store.find(TENANT, "aaa") == ("running", None)


def test_a_worker_that_leaves_stops_the_launcher_and_gives_the_plan_back(
    client: TestClient, found: str, store: Verifications, engine: JobEngine
) -> None:
    a_slow_launcher(client, engine)
    store.ask(TENANT, "aaa")
    leaving = threading.Event()
    threading.Timer(0.2, leaving.set).start()
    started = time.monotonic()
    assert not verified_by(store, leaving)
    assert time.monotonic() - started < 30.0  # of the launcher's 60
    assert verified_in_lists(client)["aaa"] == "queued"
    assert not verified_by(store, leaving)  # nor does it take another
    MEGATRON_LM.python.write_text("#!/bin/sh\necho no fan >&2\n")
    assert verified_by(store, threading.Event())
    told = client.get(f"{found}/verification").json()
    memory = "1 GiB (--memory-gib, verify_memory_bytes of a service)"
    limits = f"{memory} and 60 s (--time-limit, verify_time_s of a service)"
    assert (told["verdict"], told["reasons"]) == (
        "not built",
        [f"the launcher's process ended: no fan; it may take {limits}"],
    )


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


def test_a_worker_that_still_installs_leaves_when_it_is_told_to(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    lock = tmp_path / ".lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # another process installs, for minutes
        with working({"database_url": str(database.url)}, "--verify", "--install") as worker:
            until(lambda: waits_for_a_lock(worker.pid))
        assert worker.poll() == 0


def test_a_plan_that_is_found_again_keeps_its_verdict(
    client: TestClient, found: str, store: Verifications, engine: JobEngine
) -> None:
    store.ask(TENANT, found.rpartition("/")[2])
    built(store)
    submit(client, search={"top_k": 2})
    answer_next(engine)
    assert verified_in_lists(client) == {"aaa": "verified", "bbb": None}


def test_plans_survive_a_schema_that_knows_no_verdicts(
    client: TestClient, found: str, store: Verifications, database: Database
) -> None:
    store.ask(TENANT, found.rpartition("/")[2])
    built(store)
    migrations.downgrade(database, "0012")
    migrations.upgrade(database)
    assert verified_in_lists(client) == {"aaa": None, "bbb": None}  # and it can be asked for again
    store.ask(TENANT, "aaa")
    assert verified_in_lists(client)["aaa"] == "queued"
