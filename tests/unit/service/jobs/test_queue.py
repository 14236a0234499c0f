"""A broker that is away or mute costs a submission less than a second, once."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import pytest
from celery import Celery

from meshwright.service.jobs.queue import BURST_S, MAX_HINTS, CeleryQueue, PollingQueue, queue_for
from meshwright.workers.tasks import register
from tests.processes.quiet_clock import quiet_seconds


@pytest.fixture
def mute_broker() -> Iterator[str]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


def wake_s(queue: CeleryQueue) -> float:
    with quiet_seconds() as clock:
        queue.wake("job")
    return clock.took_s


def test_without_an_address_workers_poll() -> None:
    assert isinstance(queue_for(None), PollingQueue)
    assert PollingQueue().health() == "polling"


def test_a_broker_that_is_away_costs_less_than_a_second() -> None:
    queue = CeleryQueue("redis://127.0.0.1:1/0")
    assert wake_s(queue) < 1.0
    assert queue.health() == "degraded"


def test_a_broker_that_is_mute_costs_little_more_than_a_second_and_then_nothing(mute_broker: str) -> None:
    queue = CeleryQueue(mute_broker)
    assert wake_s(queue) < 1.5
    assert wake_s(queue) < 0.1  # left alone for a while
    assert queue.health() == "degraded"


def test_a_burst_wakes_at_most_64_workers_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, now, sent = CeleryQueue("redis://127.0.0.1:1/0"), [0.0], list[str]()
    monkeypatch.setattr(queue, "_send", lambda _task, about, _queue: sent.append(about))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    late = list[tuple[float, Callable[[], None]]]()

    def timer(after_s: float, act: Callable[[str], None], about: list[str]) -> Mock:
        return Mock(start=lambda: late.append((after_s, lambda: act(*about))))

    monkeypatch.setattr(threading, "Timer", timer)
    for number in range(100):
        queue.wake(f"job {number}")
    assert len(sent) == MAX_HINTS == 64
    ((after_s, act),) = late  # one hint after the burst, as the woken workers may have stopped
    act()
    assert (after_s, sent.pop()) == (BURST_S, "job 64")
    queue.wake("again in the burst")
    assert len(late) == 2
    now[0] = BURST_S
    queue.wake("a second later")
    assert sent[-1] == "a second later"


def test_a_worker_that_was_woken_works_until_nothing_waits() -> None:
    waiting = ["first", "second"]
    app = Celery(set_as_current=False)
    register(app, "hint", lambda: bool(waiting and waiting.pop(0)), threading.Event())
    app.tasks["hint"]("first")
    assert waiting == []


def test_a_worker_that_leaves_takes_no_second_job() -> None:
    leaving, taken = threading.Event(), list[str]()
    app = Celery(set_as_current=False)

    def step() -> bool:
        taken.append("a job")
        leaving.set()
        return True

    register(app, "last hint", step, leaving)
    app.tasks["last hint"]("first")
    assert taken == ["a job"]
