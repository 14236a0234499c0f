"""The clock of a search."""

from contextlib import suppress
from types import SimpleNamespace

import pytest

from meshwright.solver import clock as watch_module
from meshwright.solver.clock import OutOfTime, Watch, look, relative_gap
from meshwright.solver.problem import Progress


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


def test_closing_clocks_of_one_answer_end_together_after_a_stop_and_after_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    monkeypatch.setattr(watch_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    stopped_at_s = 103.0
    whole = Watch(time_limit_s=60.0, should_stop=lambda: now_s >= stopped_at_s)
    inner = Watch(time_limit_s=60.0, should_stop=whole.should_stop)  # of the search itself
    assert inner.closing(0.5).left_s == 60.5
    early = inner.closing(0.5)
    now_s = 103.0
    assert inner.interrupted()
    now_s = 103.4  # after plans were predicted, under the search's closing clock
    assert not whole.closing(0.5).interrupted()
    now_s = 103.6  # after they were explained
    assert whole.closing(0.5).interrupted()
    assert inner.closing(0.5).interrupted()
    assert early.interrupted()  # a stop is heard however early the clock was made
    limited = Watch(time_limit_s=1.0)
    now_s = 105.2
    assert limited.closing(0.5).left_s == 0.0


def test_work_that_looks_again_after_its_time_ends_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "time", SimpleNamespace(monotonic=lambda: 0.0))
    looks = 0
    with Watch(time_limit_s=1.0, should_stop=lambda: True).cut():
        with suppress(OutOfTime):
            look()
        looks += 1
        look()
        looks += 1
    assert looks == 1
