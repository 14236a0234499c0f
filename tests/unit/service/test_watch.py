"""One look at the database tells every connection of a process what is new to it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from meshwright.service.api.watch import LOOK_S, Watch
from meshwright.service.db.database import Database
from meshwright.service.jobs.engine import JobEngine
from tests.job_records import SUCCESS, TENANT, add_job, claimed

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
    watch = Watch(gated, is_stopping=lambda: False)

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
    watch = Watch(gated, is_stopping=lambda: False)

    async def follow(job_id: str) -> list[list[int]]:
        many = (watch.events(TENANT, job_id, after=QUEUED, timeout_s=5) for _ in range(200))
        return [[event.id for event in found] for found in await asyncio.gather(*many)]

    assert asyncio.run(follow(ended_job(database, engine))) == [[RUNNING, ENDED]] * 200
    assert gated.num_reads == 1
    gated.close()


def test_a_server_that_stops_lets_its_followers_go(database: Database, engine: JobEngine) -> None:
    watch = Watch(database, is_stopping=lambda: True)
    job_id = ended_job(database, engine)
    found = asyncio.run(
        asyncio.wait_for(watch.events(TENANT, job_id, after=ENDED, timeout_s=60), 10 * LOOK_S)
    )
    assert found == []
