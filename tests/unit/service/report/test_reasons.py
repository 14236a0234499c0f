"""The reasons of a plan as people read them."""

from dataclasses import replace

from meshwright.service.report.sentences import measure_line, reason_lines, signed
from meshwright.solver.answer import Limit, Loss, Odds, Why
from tests.builders import a_plan

BUBBLE = Loss(term="bubble", seconds=0.58, share=0.1, lowered_by="more micro-batches", change="vpp 5",
              saves_s=0.11, step_change_s=0.46)  # fmt: skip
WHY = Why(
    waterfall_s={"ideal": 4.0, "gemm_efficiency": 1.2, "bubble": 0.58, "offload": 0.0},
    losses=(
        Loss(term="gemm_efficiency", seconds=1.2, share=0.21, lowered_by="a larger micro-batch"),
        BUBBLE,
    ),
    limits=(
        Limit(name="memory: activations of stage 1, 41.0 GiB more", change="tp 4, dp 128", gain_s=0.15),
    ),
)
PLAN = replace(a_plan(), why=WHY, odds=Odds(best_probability=0.58, regret_p90=0.031))


def text_of(width: int = 200) -> str:
    return "\n".join(line.plain for line in reason_lines(PLAN, width))


def test_the_losses_the_limits_and_the_certainty_are_said() -> None:
    text = text_of()
    assert "costs: GEMM efficiency 1.20 s (21 %); lower: a larger micro-batch\n" in text
    assert "vpp 5: −0.11 s of it, +0.46 s of the step" in text
    assert (
        "binds: memory: activations of stage 1, 41.0 GiB more; without that limit tp 4, dp 128: −0.15 s"
        in text
    )
    assert "Certainty: 58 % that #1 is the fastest of its ranking" in text
    assert "at most 3.1 % slower than the fastest" in text


def test_narrow_terminals_get_narrow_lines() -> None:
    assert max(map(len, text_of(60).splitlines())) <= 60


def test_a_plan_without_reasons_says_nothing() -> None:
    assert reason_lines(a_plan(), 100) == []


def test_small_steps_are_told_in_milliseconds() -> None:
    assert signed(-0.0123, 0.5) == "−12 ms"
    assert signed(0.31, 32.8) == "+0.3 s"


def test_runs_worth_measuring_are_named_with_what_they_gain() -> None:
    assert f"#1 ({PLAN.plan_id[:4]}, 1.27 %)" in measure_line([(PLAN, 0.0127)], width=200).plain
