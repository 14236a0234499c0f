"""The clock of a search."""

import pytest

from solver.progress import Progress
from solver.search.watch import Watch, relative_gap


def test_reports_are_held_back_until_some_time_has_passed_or_at_once_when_asked() -> None:
    seen: list[Progress] = []
    watch = Watch(time_limit_s=10.0, on_progress=seen.append)
    for _ in range(5):
        watch.report("solving")
    watch.report("done", now=True)
    assert [report.stage for report in seen] == ["solving", "done"]


def test_once_stopped_it_stays_stopped() -> None:
    answers = iter([True, False])
    watch = Watch(time_limit_s=10.0, should_stop=lambda: next(answers))
    assert watch.interrupted()
    assert watch.interrupted()


def test_the_time_limit_stops_without_being_asked() -> None:
    assert Watch(time_limit_s=0.0).interrupted()


def test_a_report_carries_the_gap_between_incumbent_and_bound() -> None:
    # 10 of 40 s are not proved yet
    seen: list[Progress] = []
    Watch(time_limit_s=10.0, on_progress=seen.append).report("solving", incumbent_s=40.0, bound_s=30.0)
    assert seen[0].gap == pytest.approx(0.25)


def test_a_gap_needs_both_sides_and_is_never_negative() -> None:
    assert relative_gap(None, 1.0) is None
    assert relative_gap(1.0, 1.1) == 0.0
