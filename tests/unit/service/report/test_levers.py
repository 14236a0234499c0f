"""Changes with their gains, in the words of what plans are ranked by."""

from dataclasses import replace
from typing import Any

import pytest

from meshwright.service.report.levers import render_levers
from meshwright.solver.answer import Lever
from tests.builders import a_configuration, a_plan

LIMIT = Lever(
    change="a power limit", effect="steps take longer", kind="power_limit_w", saves=0.16,
    config=a_configuration(), step_time_s=40.0, num_gpus=128, gpu_s_per_token=1.0,
    peak_memory_bytes=60 * 2**30, settings={"search.allow": ["power_limit_w"]},
)  # fmt: skip


def said(*levers: Lever, **asked: Any) -> str:  # noqa: ANN401 - of any option
    shown = render_levers(levers, a_plan(), **{"sought": True, "complete": True, "width": 200} | asked)
    return " ".join(str(line).strip() for line in shown.renderables).replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    ("objective", "of_first", "saved", "step"),
    [
        ("step_time", "first plan's step of 32.8 s", "time per token", "40.0 s"),
        (
            "energy_per_token",
            "first plan's energy per token",
            "energy per token",
            "a predicted step of 40.0 s",
        ),
        (
            "robust",
            "first plan's 90th-percentile step of 34.1 s",
            "90th-percentile time per token",
            "a predicted step of 40.0 s",
        ),
    ],
)
def test_gains_are_of_what_plans_are_ranked_by(
    objective: str, of_first: str, saved: str, step: str
) -> None:
    """The step beside a gain of a percentile or of energy is another figure, and named."""
    found = said(LIMIT, objective=objective)
    assert f"{of_first}:" in found
    assert f"saves 16 % of the {saved}: {step} on 128 GPUs" in found
    assert f"{of_first}." in said(objective=objective)


def test_a_gain_that_is_a_lower_bound_says_so() -> None:
    found = said(replace(LIMIT, at_least=True), objective="step_time")
    assert "saves at least 16 % of the time per token" in found


def test_on_the_fewest_nodes_the_longest_step_stands_next_to_that_of_the_first_plan() -> None:
    found = said(replace(LIMIT, saves=0.5), objective="step_time", fewest=True)
    assert "first plan's nodes, on which a step takes 32.8 s:" in found
    assert "saves 50 % of the nodes: up to 40.0 s on 128 GPUs" in found


def test_where_no_change_is_sought_none_is_said_to_save_nothing() -> None:
    found = said(objective="robust", sought=False)
    assert found.startswith("No changes are searched for this request.")
    assert "saves" not in found
