"""What becomes of a job that one worker began and another one ends."""

from dataclasses import replace

import pytest

from service.engine.states import Outcome
from solver.plan import Answer
from tests.builders import a_plan, an_answer
from workers.checkpoint import checkpoint_of, resumed
from workers.outcome import outcome_of, outcome_without_answer


def cut(gap: float) -> Answer:
    return an_answer(a_plan(plan_id=f"gap-{gap}"), status="feasible", gap=gap)


def ended(answer: Answer, *, cancelled: bool = False) -> Outcome:
    return outcome_of(answer, cache_key="k", cancelled=cancelled)


NO_PLAN = ended(replace(an_answer(), status="unknown", plans=()))
KEPT = checkpoint_of(cut(0.03))


def test_a_search_without_a_plan_leaves_nothing_to_pass_on() -> None:
    assert checkpoint_of(None) is None
    assert checkpoint_of(replace(an_answer(), status="unknown", plans=())) is None


@pytest.mark.parametrize("outcome", [NO_PLAN, outcome_without_answer(None, cancelled=False)])
def test_a_resumed_search_that_finds_nothing_in_time_ends_with_what_was_kept(outcome: Outcome) -> None:
    kept = resumed(outcome, KEPT)
    assert (kept.state, kept.problem, kept.cache_key) == ("succeeded", None, None)
    assert [plan["plan_id"] for plan in kept.plans] == ["gap-0.03"]
    assert kept.answer is not None
    assert "plans" not in kept.answer


def test_of_two_answers_that_were_cut_the_better_proved_one_is_stored() -> None:
    assert [plan["plan_id"] for plan in resumed(ended(cut(0.05)), KEPT).plans] == ["gap-0.03"]
    assert [plan["plan_id"] for plan in resumed(ended(cut(0.01)), KEPT).plans] == ["gap-0.01"]


def test_a_proof_and_a_bug_stand_whatever_was_kept() -> None:
    for outcome in (ended(an_answer()), outcome_without_answer(ZeroDivisionError(), cancelled=False)):
        assert resumed(outcome, KEPT) is outcome


def test_a_job_cancelled_after_it_was_resumed_keeps_its_plans() -> None:
    outcome = resumed(outcome_without_answer(None, cancelled=True), KEPT)
    assert (outcome.state, len(outcome.plans)) == ("cancelled", 1)


def test_without_a_checkpoint_nothing_changes() -> None:
    assert resumed(NO_PLAN, None) is NO_PLAN
