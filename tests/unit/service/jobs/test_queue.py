"""A broker that is away or mute costs a submission less than a second, once."""

import socket
import time
from collections.abc import Iterator

import pytest

from meshwright.service.jobs.queue import CeleryQueue, PollingQueue, queue_for


@pytest.fixture
def mute_broker() -> Iterator[str]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


def wake_s(queue: CeleryQueue) -> float:
    started = time.monotonic()
    queue.wake("job")
    return time.monotonic() - started


def test_without_an_address_workers_poll() -> None:
    assert isinstance(queue_for(None), PollingQueue)
    assert PollingQueue().health() == "polling"


@pytest.mark.alone
def test_a_broker_that_is_away_costs_less_than_a_second() -> None:
    queue = CeleryQueue("redis://127.0.0.1:1/0")
    assert wake_s(queue) < 1.0
    assert queue.health() == "degraded"


@pytest.mark.alone
def test_a_broker_that_is_mute_costs_little_more_than_a_second_and_then_nothing(mute_broker: str) -> None:
    queue = CeleryQueue(mute_broker)
    assert wake_s(queue) < 1.5
    assert wake_s(queue) < 0.1  # left alone for a while
    assert queue.health() == "degraded"
