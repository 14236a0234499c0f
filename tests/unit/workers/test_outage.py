"""How often the outage of a database is logged, and what waits for its end."""

import threading

import pytest
from sqlalchemy.exc import OperationalError

from meshwright.workers.outage import Outage, patiently

AWAY = OperationalError("SELECT 1", None, Exception("refused"))


@pytest.fixture
def outage() -> tuple[Outage, list[float]]:
    """An outage and the seconds of its clock."""
    now_s = [100.0]
    return Outage(clock_s=lambda: now_s[0]), now_s


def test_an_outage_is_logged_when_it_begins_ever_less_often_and_when_it_ends(
    outage: tuple[Outage, list[float]], caplog: pytest.LogCaptureFixture
) -> None:
    ours, now_s = outage
    for _ in range(4 * 75):  # four threads notice it once a second: 75 s
        ours.noticed(AWAY)
        now_s[0] += 0.25
    ours.over()
    ours.over()
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for the database, which has not answered for 0 s (OperationalError)",
        "waiting for the database, which has not answered for 10 s (OperationalError)",
        "waiting for the database, which has not answered for 30 s (OperationalError)",  # 10 + 20
        "waiting for the database, which has not answered for 70 s (OperationalError)",  # 10 + 20 + 40
        "the database answers again after 75 s",
    ]


def test_a_database_that_fails_every_other_call_is_not_logged_each_time(
    outage: tuple[Outage, list[float]], caplog: pytest.LogCaptureFixture
) -> None:
    ours, now_s = outage
    for _ in range(20):
        ours.noticed(AWAY)
        now_s[0] += 0.1
        ours.over()
    assert len(caplog.records) == 2  # away, back; the other 19 times are within 10 s


def test_a_step_is_called_until_it_is_answered() -> None:
    calls = []

    def step() -> None:
        calls.append(1)
        if len(calls) < 2:
            raise AWAY

    assert patiently(step, threading.Event())
    assert len(calls) == 2


def test_a_worker_that_leaves_waits_no_longer() -> None:
    leaving = threading.Event()

    def step() -> None:
        leaving.set()
        raise AWAY

    assert not patiently(step, leaving)
