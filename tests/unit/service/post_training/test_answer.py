"""Answers on post-training for people: twelve lines, a whole picture, a range for unknown lengths."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from meshwright.service.post_training.answer import post_training_document
from meshwright.service.post_training.request import read_post_training
from meshwright.service.report.post_training import render_post_training, timeline_of
from meshwright.solver.post_training.plan import plan_post_training
from tests.unit.service.post_training.test_request import REQUEST


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    request = read_post_training(REQUEST)
    return post_training_document(request, plan_post_training(request.asked))


def lines_of(document: dict[str, Any], width: int) -> list[str]:
    """The answer on a terminal of so many columns."""
    console = Console(width=width, file=None, record=True, highlight=False, quiet=False)
    with console.capture() as captured:
        console.print(render_post_training(document, width=width))
    return captured.get().rstrip("\n").split("\n")


def test_the_answer_is_twelve_lines(document: dict[str, Any]) -> None:
    lines = lines_of(document, 160)
    assert len(lines) == 12
    assert "step off policy" in lines[1]
    assert "·" in lines[5]  # training waits for the longest answers


@pytest.mark.parametrize("width", [60, 80])
def test_lines_that_go_on_are_indented_and_marks_are_those_of_the_picture(
    document: dict[str, Any], width: int
) -> None:
    title, *lines = lines_of(document, width)
    assert all(line == line.rstrip() and len(line) <= width for line in (title, *lines))
    assert [line for line in lines if not line.startswith("  ")] == [lines[1]]  # the verdict
    assert "refit" in "".join(lines)
    assert "swap" not in "".join(lines)  # nothing moves between roles apart


def test_the_best_of_each_way_is_ranked(document: dict[str, Any]) -> None:
    plans = document["plans"]
    assert {plan["mode"] for plan in plans} == {"colocated", "apart", "async"}
    assert [plan["step_s"] for plan in plans] == sorted(plan["step_s"] for plan in plans)
    assert document["bound_s"] <= plans[0]["step_s"] <= document["bound_s"] * 1.0001


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_parts_fill_the_step(document: dict[str, Any], rank: int) -> None:
    plan = document["plans"][rank]
    parts = plan["parts_s"]
    side = parts["log_probabilities"] + parts["update"] + parts["other"]
    in_turn = parts["generate"] + side + parts["refit"] + parts["swap"]
    at_once = max(parts["generate"], side) + parts["refit"]
    assert plan["step_s"] == pytest.approx(at_once if plan["mode"] == "async" else in_turn)
    assert max(one.end_s for one in timeline_of(plan)) == pytest.approx(plan["step_s"])


def test_lengths_without_percentiles_give_a_range_and_what_decides(document: dict[str, Any]) -> None:
    assert document["deciding"] in {"mean", "p90", "p99"}
    assert {one["percentile"] for one in document["outcomes"]} == {"mean", "p90", "p99"}
    spread = [one["step_s"] for one in document["outcomes"] if one["percentile"] == "p90"]
    assert spread == sorted(spread)  # longer answers keep a step waiting


def test_stated_percentiles_give_one_answer() -> None:
    lengths = {"prompt": 100, "percentiles": {"p50": 2000, "p99": 7000, "p100": 8192}}
    request = read_post_training({**REQUEST, "lengths": lengths})
    assert plan_post_training(request.asked).outcomes == ()
