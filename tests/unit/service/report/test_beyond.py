"""Lines about the objective, the whole run and the client's own configuration."""

from dataclasses import replace

from meshwright.service.report.beyond import beyond_lines
from meshwright.solver.answer import Answer, Baseline, ObjectiveClaim, Outlook
from tests.builders import a_configuration, a_plan, a_prediction, an_answer

OUTLOOK = Outlook(
    num_gpus=128, goodput=0.931, checkpoint_interval_s=840.0, gpu_hours_per_token=1e-6,
    energy_per_token_j=2.34, days=54.31, cost=1_700_000.4,
)  # fmt: skip
BASELINE = Baseline(
    plan_id="abc", config=a_configuration(), prediction=a_prediction(), outlook=OUTLOOK, rank=4,
    gap_to_best=0.0312, problems=(),
)  # fmt: skip


def said(answer: Answer) -> str:
    return "\n".join(line.plain for line in beyond_lines(answer, 200)).replace("\xa0", " ")


def test_a_plain_answer_has_nothing_more_to_say() -> None:
    claim = ObjectiveClaim(name="step_time", unit="s", value=32.8, bound=32.5, gap=0.009)
    assert said(an_answer(objective=claim)) == ""


def test_objective_run_and_baseline_are_said_in_one_line_each() -> None:
    claim = ObjectiveClaim(
        name="gpu_hours_per_token", unit="GPU h/token", value=1e-6, bound=9.9e-7, gap=0.01
    )
    answer = an_answer(replace(a_plan(), outlook=OUTLOOK), objective=claim, baseline=BASELINE)
    objective, run, own = said(answer).splitlines()
    assert objective.strip() == (
        "Ranked by GPU hours per token, including interruptions: 1e-06 GPU h/token."
    )
    assert run.strip() == (
        "Run of #1 on 128 GPUs: 54.3 days, goodput 93 % with a checkpoint every 14 min, "
        "cost 1 700 000, 2.3 J/token."
    )
    assert own.strip() == (
        "Your configuration (tp 8 · pp 4 · vpp 5 · dp 4 · zero 1 · mbs 1): 32.8 s ±4 %, rank 4, "
        "3.1 % behind #1."
    )


def test_co2_of_the_run_is_stated_in_kilograms_next_to_energy() -> None:
    for kg, shown in ((48_123.4, "48 123 kg"), (0.0123, "0.012 kg")):
        words = said(an_answer(replace(a_plan(), outlook=replace(OUTLOOK, co2_kg=kg))))
        assert words.endswith(f"cost 1 700 000, 2.3 J/token, {shown} CO2 (GPUs alone).")


def test_a_baseline_that_cannot_run_says_why() -> None:
    lost = replace(BASELINE, rank=None, gap_to_best=-0.05, problems=("stage 0 needs more",))
    words = said(an_answer(baseline=lost))
    assert "cannot run: stage 0 needs more. Its step would take 32.8 s ±4 %, 5.0 % ahead of #1." in words
