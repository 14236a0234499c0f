"""Two sentences, on where the time goes and what binds; the figures and the proof behind them."""

from dataclasses import replace

from meshwright.service.report.formatting import signed
from meshwright.service.report.sentences import (
    measure_line,
    proof_lines,
    reason_lines,
    sentences,
)
from meshwright.solver.answer import Answer, Limit, Loss, Odds, Plan, Why
from meshwright.solver.explain.sentences import limit_sentence
from meshwright.solver.problem import Problem, SearchOptions
from tests.builders import a_plan, a_problem, an_answer

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
TIME = "Time: 67 % of the step is useful work at peak speed. Biggest losses: "


def said(plan: Plan, width: int = 300) -> list[str]:
    return [line.plain.strip() for line in sentences(plan, width)]


def test_time_and_limit_have_a_sentence_each_without_a_word_of_the_waterfall() -> None:
    assert said(PLAN) == [
        # 4.0 of 6.0 s
        f"{TIME}matrix products below the peak (1.20 s) and the pipeline's bubble (0.80 s).",
        "Binds: tp 4 would save 0.15 s, but memory is the limit (activations of stage 1, 41.0 GiB more).",
    ]


def test_a_rule_that_binds_is_named_whole() -> None:
    rule = Limit(name="tensor_parallel_size divides an island", change="tp 16", gain_s=0.2)
    assert limit_sentence(replace(WHY, limits=(rule,))) == (
        "Binds: tp\N{NO-BREAK SPACE}16 would save 0.20\N{NO-BREAK SPACE}s, but breaks the rule that "
        "tensor_parallel_size divides an island."
    )


def test_too_few_gpus_of_a_node_group_are_counted() -> None:
    few = Limit(name="GPUs of h100-sxm-80gb: only 8", change="tp 2 on h100-sxm-80gb", gain_s=0.2)
    assert limit_sentence(replace(WHY, limits=(few,))).replace("\N{NO-BREAK SPACE}", " ") == (
        "Binds: tp 2 on h100-sxm-80gb would save 0.20 s, but there are only 8 GPUs of h100-sxm-80gb."
    )


def test_where_nothing_binds_the_best_change_is_told_with_its_cost() -> None:
    text = limit_sentence(replace(WHY, limits=())).replace("\N{NO-BREAK SPACE}", " ")
    assert text == (
        "Nothing to gain: even vpp 5, which lowers the pipeline's bubble most, makes the step 0.46 s "
        "longer."
    )
    bare = limit_sentence(replace(WHY, limits=(), losses=WHY.losses[:1]))
    assert bare == "Nothing to gain: no single change of a size lowers these losses."


def test_a_first_plan_by_another_objective_may_have_a_faster_neighbour_and_that_is_said() -> None:
    faster = replace(WHY.losses[0], change="mbs 2", saves_s=0.2, step_change_s=-0.1)
    text = limit_sentence(replace(WHY, limits=(), losses=(WHY.losses[1], faster)))
    assert text.replace("\N{NO-BREAK SPACE}", " ") == (
        "Try next: mbs 2 lowers matrix products below the peak most and makes the step 0.10 s shorter."
    )


def test_narrow_terminals_get_narrow_lines_and_unexplained_plans_none() -> None:
    assert max(len(line) for text in said(PLAN, 60) for line in text.splitlines()) <= 60
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
    assert "costs: GEMMs below peak 1.20 s (21 %); lower: a larger micro-batch\n" in text
    assert "vpp 5: −0.11 s of it, +0.46 s of the step" in text
    assert (
        "binds: tp 4, dp 128 would save 0.15 s, but memory is the limit (activations of stage 1, 41.0 GiB "
        "more)." in text
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


def proof(answer: Answer, problem: Problem | None = None) -> str:
    return " ".join(line.plain.strip() for line in proof_lines(answer, problem or a_problem(), 500))


def test_the_proof_names_its_solvers_its_switches_and_the_bound() -> None:
    assert proof(an_answer()) == (
        "Proof: by exact-dp, cp-sat, over tp, pp, vpp, cp, zero, mbs, recompute, rank order, "
        "split of layers; #1 simulates 32.8 s; no plan takes less than 32.5 s."
    )
    assert "; no configuration searched takes less than 32.5 s" in proof(an_answer(space="usual"))
    assert proof(an_answer(status="unknown", plans=())) == ""


def test_where_batches_or_gpus_are_open_the_bound_is_that_of_the_first_plans() -> None:
    open_sizes = replace(a_problem(), options=SearchOptions(batch_sizes=(256,), num_nodes=(8, 16)))
    # dp 4 x 1 x 128 micro-batches, on 8 x 4 x 4 GPUs
    assert "no plan of batch 512 on 128 GPUs takes less than 32.5 s" in proof(an_answer(), open_sizes)


def test_a_best_plan_that_the_closed_form_does_not_favour_is_said_to_be_so() -> None:
    assert "; #1's closed-form objective is 0.3 % above the least." in proof(
        an_answer(objective_excess=0.003)
    )
    assert "objective is <0.1 % above" in proof(an_answer(objective_excess=1e-6))
    assert "closed-form" not in proof(an_answer(objective_excess=0.0))


def test_runs_worth_measuring_are_named_with_what_they_gain() -> None:
    assert (
        f"#1 ({BUBBLING_PLAN.plan_id[:4]}, 1.27 %)"
        in measure_line([(BUBBLING_PLAN, 0.0127)], width=200).plain
    )
