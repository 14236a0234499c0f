"""A pytest plugin: a test's duration is its CPU seconds and those of processes that ended in it.

``pytest -p benchmarks.mutation.cpu_times --durations 50`` shows what costs, also on a busy machine.
"""

from __future__ import annotations

import resource
from collections.abc import Generator

import pytest

_before_s = [0.0]


def _spent_s() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def pytest_collection_finish() -> None:
    """Count from here: imports belong to no test."""
    _before_s[0] = _spent_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replace the seconds of a phase (setup, call, teardown) by the CPU seconds since the last one."""
    report = yield
    now_s = _spent_s()
    report.duration, _before_s[0] = now_s - _before_s[0], now_s
    return report
