"""A sweep's points fit the terminal: plans that have no room in the table follow it."""

import io
from dataclasses import asdict
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from meshwright.service.report.points import render_points
from tests.builders import a_configuration


def point(num_nodes: int, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return a point that has a plan."""
    found = {
        "values": {"num_nodes": num_nodes}, "rank": num_nodes, "state": "succeeded", "status": "optimal",
        "plan_id": "0123456789ab", "num_gpus": 8 * num_nodes, "step_time_s": 25.2, "tokens_per_s": 83_349.0,
        "tokens_per_s_per_gpu": 10_419.0, "peak_memory_bytes": 66 << 30, "efficient": True,
        "config": asdict(a_configuration()), "infeasible": None, "problem": None,
    }  # fmt: skip
    return found | changes


NONE = {"rank": None, "status": "infeasible", "plan_id": None, "config": None, "infeasible": "needs 90 GiB"}
ANSWER = {
    "points": [point(1, **NONE), point(2)], "status": "optimal", "gap": 0.01, "explored": 617_104,
    "elapsed_s": 12.3, "warnings": [],
}  # fmt: skip


def text_of(width: int) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    with console.capture() as capture:
        console.print(render_points(ANSWER, width=width))
    return capture.get()


@pytest.mark.parametrize("width", [160, 100, 80, 70])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = text_of(width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert "12.3 s\n" in text


def test_plans_without_room_in_the_table_follow_it_by_the_values_of_their_point() -> None:
    assert "best plan" in text_of(160)
    narrow = text_of(70)
    assert "best plan" not in narrow
    assert "  num_nodes 1: needs 90 GiB\n" in narrow
    assert "  num_nodes 2: tp 8 · pp 4 · " in narrow
