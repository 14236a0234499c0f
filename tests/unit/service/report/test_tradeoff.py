"""The plot of step time against peak memory, and where a terminal has no room for it."""

from dataclasses import replace

import pytest

from meshwright.profiles.units import GIB
from meshwright.service.report.tradeoff import WIDE, is_efficient, tradeoff_lines
from meshwright.solver.answer import Plan
from tests.builders import a_plan


def plans_at(*points: tuple[float, float]) -> list[Plan]:
    """Plans of so many seconds and GiB, ranked in this order."""
    plans = [a_plan(rank=rank) for rank in range(1, len(points) + 1)]
    return [
        replace(
            plan,
            prediction=replace(plan.prediction, step_time_s=step_s, peak_memory_bytes=int(peak_gib * GIB)),
        )
        for plan, (step_s, peak_gib) in zip(plans, points, strict=True)
    ]


def drawn(plans: list[Plan], width: int = WIDE) -> list[str]:
    return [line.plain for line in tradeoff_lines(plans, width)]


THREE = plans_at((10.0, 70.0), (11.0, 40.0), (12.0, 60.0))


def test_the_fastest_stands_left_and_what_needs_most_memory_stands_high() -> None:
    lines = drawn(THREE)
    # rows from 70 to 40 GiB in 6 steps of 5: the third plan (60 GiB) stands in the third row, at the right
    assert lines[2] == "    70.0 GiB │1"
    assert lines[4] == "             │" + " " * 63 + "3"
    assert lines[8].startswith("    40.0 GiB │")
    assert lines[8].endswith("2")
    assert lines[8].index("2") == 14 + 32  # 11 s is half of the way over 63 columns: 31.5, rounded
    assert lines[-1].split() == ["10.0", "s", "12.0", "s"]


def test_plans_that_another_beats_in_both_are_not_on_the_front() -> None:
    assert [is_efficient(plan, THREE) for plan in THREE] == [True, True, False]
    assert "#1, #2 are Pareto-optimal" in drawn(THREE)[1]


def test_a_plan_that_is_not_ranked_has_no_plot_of_its_own() -> None:
    assert drawn([replace(a_plan(), ranked=False)]) == []  # its report was an error


def test_equal_plans_do_not_beat_each_other() -> None:
    twins = plans_at((10.0, 70.0), (10.0, 70.0))
    assert all(is_efficient(plan, twins) for plan in twins)


def test_marks_of_plans_at_one_place_stand_side_by_side() -> None:
    lines = drawn(plans_at((10.0, 70.0), (10.0, 70.0), (12.0, 40.0)))
    assert lines[2] == "    70.0 GiB │1 2"


def test_more_plans_than_a_line_holds_overflow_nothing() -> None:
    crowd = plans_at((10.0, 70.0), *[(10.0, 40.0)] * 60, (12.0, 40.0))
    assert max(map(len, drawn(crowd))) <= WIDE


@pytest.mark.parametrize(
    ("plans", "width"),
    [
        (THREE, WIDE - 1),
        (THREE[:2], WIDE),
        (plans_at((10.0, 70.0), (10.0, 60.0), (10.0, 50.0)), WIDE),
        (plans_at((10.0, 70.0), (11.0, 70.0), (12.0, 70.0)), WIDE),
    ],
)
def test_without_room_or_without_a_choice_nothing_is_drawn(plans: list[Plan], width: int) -> None:
    assert drawn(plans, width) == []
