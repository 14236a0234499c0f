"""One look at the database tells every connection of a process what is new to it."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Connection

from meshwright.service.api.watch import LOOK_S, EventWatch
from meshwright.service.db.database import Database
from meshwright.service.db.event_records import EventRecord, events_after
from meshwright.service.jobs.engine import JobEngine
from tests.served.api_client import PROBLEM_TYPE, answer_next, submit
from tests.served.job_records import SUCCESS, TENANT, add_job, claimed

QUEUED, RUNNING, ENDED = 1, 2, 3  # events of the only job


class GatedDatabase(Database):
    """Answers when it is let, and counts how often it was asked."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.gate = threading.Event()
        self.asked = threading.Semaphore(0)
        self.num_reads = 0

    @contextmanager
    def read(self) -> Iterator[Connection]:
        self.num_reads += 1
        self.asked.release()
        assert self.gate.wait(10)
        with super().read() as connection:
            yield connection


def ended_job(database: Database, engine: JobEngine) -> str:
    job_id = add_job(database)
    engine.complete(claimed(engine), SUCCESS)
    return job_id


def test_who_comes_during_a_look_misses_nothing(database: Database, engine: JobEngine) -> None:
    gated = GatedDatabase(str(database.url))
    watch = EventWatch(gated, is_stopping=lambda: False)

    async def come(job_id: str) -> list[list[int]]:
        early = asyncio.create_task(watch.events(TENANT, job_id, after=RUNNING, timeout_s=5))
        await asyncio.to_thread(gated.asked.acquire)
        late = asyncio.create_task(watch.events(TENANT, job_id, after=0, timeout_s=5))
        await asyncio.sleep(0)  # it waits now, but was not there when the look began
        gated.gate.set()
        return [[event.id for event in await one] for one in (early, late)]

    assert asyncio.run(come(ended_job(database, engine))) == [[ENDED], [QUEUED, RUNNING, ENDED]]
    gated.close()


def test_two_hundred_followers_are_one_look(database: Database, engine: JobEngine) -> None:
    gated = GatedDatabase(str(database.url))
    gated.gate.set()
    watch = EventWatch(gated, is_stopping=lambda: False)

    async def follow(job_id: str) -> list[list[int]]:
        many = (watch.events(TENANT, job_id, after=QUEUED, timeout_s=5) for _ in range(200))
        return [[event.id for event in found] for found in await asyncio.gather(*many)]

    assert asyncio.run(follow(ended_job(database, engine))) == [[RUNNING, ENDED]] * 200
    assert gated.num_reads == 1
    gated.close()


def test_a_server_that_stops_lets_its_followers_go(database: Database, engine: JobEngine) -> None:
    watch = EventWatch(database, is_stopping=lambda: True)
    job_id = ended_job(database, engine)
    found = asyncio.run(
        asyncio.wait_for(watch.events(TENANT, job_id, after=ENDED, timeout_s=60), 10 * LOOK_S)
    )
    assert found == []


# What happened to a job, told in order from the database, and where a client comes back in.

PROGRESS = {"stage": "frontier", "explored": 1, "total": 9, "elapsed_s": 0.5}


@dataclass(frozen=True)
class Sent:
    """One event as a browser sees it."""

    id: int
    name: str
    data: dict[str, Any]


def sent(text: str) -> list[Sent]:
    """The events of a stream, comments and the retry time left out."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            found.append(Sent(int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


def told(database: Database, after: int = 0) -> list[EventRecord]:
    with database.read() as connection:
        return events_after(connection, TENANT, "job", after=after, limit=100)


def test_a_stream_tells_everything_that_happened_and_ends_with_the_job(
    client: TestClient, engine: JobEngine
) -> None:
    here = f"/v1/jobs/{submit(client)}/events"
    claim = claimed(engine)
    engine.heartbeat(claim, PROGRESS)
    engine.release(claim)
    answer_next(engine)
    stream = client.get(here)
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers["Cache-Control"] == "no-store"
    events = sent(stream.text)
    assert [event.name for event in events] == [
        "queued",
        "running",
        "running",
        "queued",
        "running",
        "succeeded",
    ]
    assert events[2].data["progress"]["explored"] == 1
    assert stream.text.startswith("retry: 1000\n\n")


def test_a_client_that_comes_back_is_told_the_rest_only(client: TestClient, engine: JobEngine) -> None:
    here = f"/v1/jobs/{submit(client)}/events"
    answer_next(engine)
    events = sent(client.get(here).text)
    ids = [event.id for event in events]
    assert ids == sorted(set(ids))
    for place, event in enumerate(events[:-1]):
        rest = sent(client.get(here, headers={"Last-Event-ID": str(event.id)}).text)
        assert rest == events[place + 1 :]
    seen = client.get(here, headers={"Last-Event-ID": str(ids[-1])})
    assert (seen.status_code, seen.content) == (204, b"")  # an EventSource stops at that


def test_an_id_of_another_life_of_the_database_tells_everything(
    client: TestClient, engine: JobEngine
) -> None:
    here = f"/v1/jobs/{submit(client)}/events"
    answer_next(engine)
    assert len(sent(client.get(here, headers={"Last-Event-ID": str(10**17)}).text)) == 3


@pytest.mark.parametrize("wrong", ["x", "-1", "1.0", "9" * 19, "²"])
def test_an_id_that_is_none_of_ours_is_refused(client: TestClient, wrong: str) -> None:
    here = f"/v1/jobs/{submit(client)}/events"
    answer = client.get(here, headers={b"Last-Event-ID": wrong.encode()})
    assert (answer.status_code, answer.headers["content-type"]) == (422, PROBLEM_TYPE)


def test_each_change_that_a_client_can_see_is_one_event(database: Database, engine: JobEngine) -> None:
    add_job(database)
    claim = claimed(engine)
    for _ in range(3):
        engine.heartbeat(claim)  # renews the lease, changes nothing visible
    engine.heartbeat(claim, PROGRESS)
    engine.heartbeat(claim, PROGRESS)
    engine.cancel(TENANT, "job")
    seen = [(event.state, event.cancel_requested, event.progress is not None) for event in told(database)]
    assert seen == [
        ("queued", False, False),
        ("running", False, False),
        ("running", False, True),
        ("running", True, True),
    ]


def test_of_a_job_that_has_ended_each_change_and_the_last_progress_are_kept_and_few_between(
    client: TestClient, database: Database, engine: JobEngine
) -> None:
    here = f"/v1/jobs/{submit(client)}/events"
    claim = claimed(engine)
    for explored in range(115):
        engine.heartbeat(claim, {**PROGRESS, "explored": explored})
    engine.release(claim)
    claim = claimed(engine)
    engine.heartbeat(claim, {**PROGRESS, "explored": 200})
    engine.cancel(TENANT, claim.job_id)
    engine.heartbeat(claim, {**PROGRESS, "explored": 201})
    with database.read() as connection:
        before = [one.id for one in events_after(connection, TENANT, claim.job_id, after=0, limit=500)]
    assert len(before) == 2 + 115 + 2 + 1 + 1 + 1
    done = replace(SUCCESS, progress={**PROGRESS, "stage": "done", "explored": 202})
    engine.complete(claim, done)
    kept = sent(client.get(here).text)
    told_of = [(event.name, event.data["cancel_requested"]) for event in kept]
    assert [one for one, _ in groupby(told_of)] == [
        ("queued", False),
        ("running", False),
        ("queued", False),
        ("running", False),
        ("running", True),
        ("succeeded", True),
    ]
    assert len(kept) == 6 + 123 // 3 - 1  # each third of 123; the last of them is a change itself
    assert kept[-1].data["progress"]["explored"] == 202
    assert kept[-1].id > max(before)  # SQLite gives the number of a forgotten last row again
    for last_seen in before[::7]:  # whoever comes back after an event, forgotten or not, hears the rest
        rest = sent(client.get(here, headers={"Last-Event-ID": str(last_seen)}).text)
        assert [event.id for event in rest] == [event.id for event in kept if event.id > last_seen]


def test_a_change_that_is_rolled_back_is_no_event(database: Database) -> None:
    add_job(database)
    with suppress(ZeroDivisionError), database.write() as connection:
        connection.exec_driver_sql("UPDATE jobs SET state = 'failed'")
        raise ZeroDivisionError
    assert [event.state for event in told(database)] == ["queued"]


def test_a_list_of_jobs_reads_no_bodies(client: TestClient, engine: JobEngine, database: Database) -> None:
    job = submit(client)
    answer_next(engine)
    with database.write() as connection:  # whoever reads these breaks
        connection.exec_driver_sql("UPDATE jobs SET request = 'no JSON', answer = 'no JSON'")
    (listed,) = client.get("/v1/jobs").json()["jobs"]
    assert (listed["id"], listed["state"]) == (job, "succeeded")
    assert listed["links"]["plans"] == f"/v1/jobs/{job}/plans"
