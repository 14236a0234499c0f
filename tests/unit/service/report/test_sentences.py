"""Three sentences: where the time goes, what binds, how sure the first rank is."""

from dataclasses import replace

from meshwright.service.report.formatting import signed
from meshwright.service.report.sentences import (
    limit_sentence,
    measure_line,
    reason_lines,
    sentences,
)
from meshwright.solver.answer import Limit, Loss, Odds, Why
from tests.builders import a_plan

WHY = Why(
    waterfall_s={"ideal": 4.0, "gemm_efficiency": 1.2, "bubble": 0.8},
    losses=(
        Loss(term="gemm_efficiency", seconds=1.2, share=0.2, lowered_by="a larger micro-batch"),
        Loss(term="bubble", seconds=0.8, share=0.13, lowered_by="more micro-batches", change="vpp 5",
             saves_s=0.1, step_change_s=0.46),
    ),
    limits=(Limit(name="memory: activations of stage 1, 41.0 GiB more", change="tp 4", gain_s=0.15),),
)  # fmt: skip
PLAN = replace(a_plan(), why=WHY, odds=Odds(best_probability=0.58, regret_p90=0.031))
TIME = "Time: 67 % of the step is the model's own work at the peak; most of the rest is "
OWN = "your own measured runs narrow this (meshwright calibrate)"
REGRET = "being the fastest of these; with 90 % probability it is at most 3.1 % slower than the fastest"


def said(*plans: object, is_calibrated: bool = False, width: int = 300) -> list[str]:
    found = sentences(plans or (PLAN, PLAN), width, is_calibrated=is_calibrated)  # type: ignore[arg-type]
    return [line.plain.strip() for line in found]


def test_there_are_three_sentences_without_a_word_of_the_waterfall() -> None:
    assert said() == [
        # 4.0 of 6.0 s
        f"{TIME}matrix products below the peak (1.20 s) and the pipeline's bubble (0.80 s).",
        "Binds: tp 4 would be 0.15 s faster but for memory (activations of stage 1, 41.0 GiB more).",
        f"Certainty: #1 has a 58 % chance of {REGRET}; {OWN}.",
    ]


def test_a_rule_that_binds_is_named_whole() -> None:
    rule = Limit(name="tensor_parallel_size divides an island", change="tp 16", gain_s=0.2)
    assert limit_sentence(replace(WHY, limits=(rule,))) == (
        "Binds: tp\N{NO-BREAK SPACE}16 would be 0.20\N{NO-BREAK SPACE}s faster but for this limit: "
        "tensor_parallel_size divides an island."
    )


def test_where_nothing_binds_the_best_change_is_told_with_its_cost() -> None:
    text = limit_sentence(replace(WHY, limits=())).replace("\N{NO-BREAK SPACE}", " ")
    assert text == (
        "Binds: no limit; vpp 5, which lowers the pipeline's bubble most, makes a step 0.46 s longer."
    )
    bare = limit_sentence(replace(WHY, limits=(), losses=WHY.losses[:1]))
    assert bare == "Binds: no limit; no single change of a size lowers these losses."


def test_a_first_plan_by_another_objective_may_have_a_faster_neighbour_and_that_is_said() -> None:
    faster = replace(WHY.losses[0], change="mbs 2", saves_s=0.2, step_change_s=-0.1)
    text = limit_sentence(replace(WHY, limits=(), losses=(WHY.losses[1], faster)))
    assert text.replace("\N{NO-BREAK SPACE}", " ") == (
        "Binds: no limit; mbs 2, which lowers matrix products below the peak most, "
        "makes a step 0.10 s shorter."
    )


def test_certainty_is_not_claimed_of_a_plan_without_rivals_nor_sold_where_it_is_had() -> None:
    assert "no other plan is listed" in said(PLAN)[-1]
    assert "calibrate" not in said(is_calibrated=True)[-1]
    sure = replace(PLAN, odds=Odds(best_probability=0.9999, regret_p90=0.0))
    assert said(sure, PLAN)[-1] == (
        "Certainty: #1 has a more than 99.9 % chance of being the fastest of these; "
        "with 90 % probability it is less than 0.1 % slower than the fastest."
    )


def test_narrow_terminals_get_narrow_lines_and_unexplained_plans_none() -> None:
    assert max(len(line) for text in said(width=60) for line in text.splitlines()) <= 60
    assert said(a_plan()) == []


# The reasons of a plan as people read them.

BUBBLE = Loss(term="bubble", seconds=0.58, share=0.1, lowered_by="more micro-batches", change="vpp 5",
              saves_s=0.11, step_change_s=0.46)  # fmt: skip
BUBBLING = Why(
    waterfall_s={"ideal": 4.0, "gemm_efficiency": 1.2, "bubble": 0.58, "offload": 0.0},
    losses=(
        Loss(term="gemm_efficiency", seconds=1.2, share=0.21, lowered_by="a larger micro-batch"),
        BUBBLE,
    ),
    limits=(
        Limit(name="memory: activations of stage 1, 41.0 GiB more", change="tp 4, dp 128", gain_s=0.15),
    ),
)
BUBBLING_PLAN = replace(a_plan(), why=BUBBLING, odds=Odds(best_probability=0.58, regret_p90=0.031))


def text_of(width: int = 200) -> str:
    return "\n".join(line.plain for line in reason_lines(BUBBLING_PLAN, width))


def test_the_losses_the_limits_and_the_certainty_are_said() -> None:
    text = text_of()
    assert "costs: GEMM efficiency 1.20 s (21 %); lower: a larger micro-batch\n" in text
    assert "vpp 5: −0.11 s of it, +0.46 s of the step" in text
    assert (
        "binds: memory: activations of stage 1, 41.0 GiB more; without that limit tp 4, dp 128: −0.15 s"
        in text
    )
    assert "Certainty: #1 has a 58 % chance of being the fastest of its ranking" in text
    assert "at most 3.1 % slower than the fastest" in text


def test_narrow_terminals_get_narrow_lines() -> None:
    assert max(map(len, text_of(60).splitlines())) <= 60


def test_a_plan_without_reasons_says_nothing() -> None:
    assert reason_lines(a_plan(), 100) == []


def test_small_steps_are_told_in_milliseconds() -> None:
    assert signed(-0.0123, 0.5) == "−12 ms"
    assert signed(0.31, 32.8) == "+0.3 s"


def test_runs_worth_measuring_are_named_with_what_they_gain() -> None:
    assert (
        f"#1 ({BUBBLING_PLAN.plan_id[:4]}, 1.27 %)"
        in measure_line([(BUBBLING_PLAN, 0.0127)], width=200).plain
    )
