"""Clients that follow jobs on a real server, on both databases, while things go wrong."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from meshwright.service.db.database import Database
from meshwright.service.jobs.engine import JobEngine
from tests.processes.quiet_clock import quiet_seconds
from tests.processes.servers import HANGS_S, RunningServer, Settings, serving, until
from tests.reliability.figures import measured
from tests.served.job_records import SUCCESS, claimed

PROBLEM = {
    "model": {"name": "llama-3.1-8b"},
    "cluster": {"name": "dgx-h100", "num_nodes": 4},
    "workload": {"global_batch_size": 256, "seq_length": 8192},
}


@pytest.fixture
def settings(database: Database) -> Settings:
    return {
        "database_url": database.url.render_as_string(hide_password=False),
        "workers": "0",
        "event_heartbeat_s": "0.3",
    }


class Follower:
    """A client that reads a stream on a thread of its own and remembers what it saw."""

    def __init__(self, url: str, *, after: int = 0) -> None:
        self.names: list[str] = []
        self.ids: list[int] = []
        self.comments = 0
        self.over = threading.Event()
        self._headers = {"Last-Event-ID": str(after)} if after else {}
        self._thread = threading.Thread(target=self._follow, args=[url])
        self._thread.start()

    def end(self) -> None:
        self._thread.join(10)
        assert self.over.is_set()

    def _follow(self, url: str) -> None:
        with httpx.stream("GET", url, headers=self._headers, timeout=20) as answer:
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    self.names.append(value)
                elif name == "id":
                    self.ids.append(int(value))
                elif line == ": alive":
                    self.comments += 1
        self.over.set()


@contextmanager
def following(server: RunningServer) -> Iterator[tuple[Follower, str]]:
    """A new job of a running server, and somebody who follows it."""
    job = server.post_job(PROBLEM, params={"fresh": "true"})
    url = f"{server.url}/v1/jobs/{job['id']}/events"
    follower = Follower(url)
    until(lambda: follower.names == ["queued"])
    yield follower, url


def test_events_come_as_they_happen_and_a_silent_job_shows_signs_of_life(
    settings: Settings, engine: JobEngine
) -> None:
    with serving(settings) as server, following(server) as (follower, _):
        until(lambda: follower.comments >= 2)
        claim = claimed(engine)
        with quiet_seconds() as clock:
            until(lambda: follower.names == ["queued", "running"])
        engine.complete(claim, SUCCESS)
        follower.end()
        assert follower.names[-1] == "succeeded"
        assert clock.took_s < 1.0


def test_f11_a_server_that_is_stopped_ends_its_streams_and_no_event_is_lost(
    settings: Settings, engine: JobEngine
) -> None:
    with serving(settings) as server, following(server) as (follower, url):
        with quiet_seconds() as clock:
            server.process.terminate()
            assert server.process.wait(HANGS_S) == 0
        assert clock.took_s < 3.0
        follower.end()
    claim = claimed(engine)
    engine.complete(claim, SUCCESS)  # while nobody listens
    with serving(settings) as server:
        path = httpx.URL(url).path
        back = Follower(f"{server.url}{path}", after=follower.ids[-1])
        back.end()
        assert follower.names + back.names == ["queued", "running", "succeeded"]
        assert back.ids == sorted(set(back.ids) - set(follower.ids))
    place = "postgresql" if "postgresql" in settings["database_url"] else "sqlite"
    measured(11, "left after", clock.took_s, "s", on=place)
    measured(11, "events lost", 0, on=place)


def test_many_clients_follow_many_jobs(settings: Settings, engine: JobEngine) -> None:
    with serving(settings) as server:
        jobs = [server.post_job(PROBLEM, params={"fresh": "true"})["id"] for _ in range(5)]
        followers = [Follower(f"{server.url}/v1/jobs/{job}/events") for job in jobs for _ in range(8)]
        for _ in jobs:
            engine.complete(claimed(engine), SUCCESS)
        for follower in followers:
            follower.end()
        assert {follower.names[-1] for follower in followers} == {"succeeded"}
