"""What becomes of a job that one worker began and another one ends."""

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest

from meshwright.service.db.database import Database
from meshwright.service.jobs.states import Outcome
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Answer, Plan
from meshwright.solver.problem import Problem, ShouldStop
from meshwright.workers.checkpoint import checkpoint_of, known_in, passed_on, resumed
from meshwright.workers.outcome import outcome_of, outcome_without_answer
from meshwright.workers.search import StoredSearch
from tests.builders import a_plan, an_answer
from tests.served.commands import without_levers
from tests.served.job_records import TINY_PROBLEM


def cut(gap: float) -> Answer:
    return cut_of(a_plan(plan_id=f"gap-{gap}"), gap)


def cut_of(plan: Plan, gap: float | None) -> Answer:
    return an_answer(plan, status="feasible", gap=gap)


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


def test_plans_without_a_bound_are_kept_too() -> None:
    """A search that is told to stop before it has priced every row knows a plan and no bound."""
    boundless = checkpoint_of(replace(cut(0.03), gap=None, bound_step_time_s=None))
    for outcome in (NO_PLAN, outcome_without_answer(None, cancelled=False)):
        assert [plan["plan_id"] for plan in resumed(outcome, boundless).plans] == ["gap-0.03"]


def faster(step_s: float, gap: float | None) -> Answer:
    plan = a_plan(plan_id=f"{step_s:g} s")
    return cut_of(replace(plan, prediction=replace(plan.prediction, step_time_s=step_s)), gap)


def test_a_resumed_search_never_ends_with_slower_plans_than_it_began_with() -> None:
    """Placed stages begin anew: a short second try is far from what the first had found."""
    kept = checkpoint_of(faster(30.0, None))
    assert [plan["plan_id"] for plan in resumed(ended(faster(31.0, 0.5)), kept).plans] == ["30 s"]
    assert [plan["plan_id"] for plan in resumed(ended(faster(29.0, None)), kept).plans] == ["29 s"]
    cancelled = resumed(ended(faster(31.0, 0.5), cancelled=True), kept)
    assert (cancelled.state, [plan["plan_id"] for plan in cancelled.plans]) == ("cancelled", ["30 s"])


def test_a_second_worker_that_leaves_with_less_passes_on_what_the_first_had_found() -> None:
    kept = checkpoint_of(faster(30.0, 0.1))
    assert passed_on(faster(31.0, 0.5), kept) is None  # the earlier one stands
    assert passed_on(replace(an_answer(), status="unknown", plans=()), kept) is None
    better = passed_on(faster(29.0, 0.5), kept)
    assert better is not None
    assert better["plans"][0]["plan_id"] == "29 s"


def test_a_proof_and_a_bug_stand_whatever_was_kept() -> None:
    for outcome in (ended(an_answer()), outcome_without_answer(ZeroDivisionError(), cancelled=False)):
        assert resumed(outcome, KEPT) is outcome


def test_a_job_cancelled_after_it_was_resumed_keeps_its_plans() -> None:
    outcome = resumed(outcome_without_answer(None, cancelled=True), KEPT)
    assert (outcome.state, len(outcome.plans)) == ("cancelled", 1)


def test_without_a_checkpoint_nothing_changes() -> None:
    assert resumed(NO_PLAN, None) is NO_PLAN


# A search that was broken off and is resumed gives the answer that it would have given anyway.
#
# A space, the fewest GPUs and batches that grow begin with what was found; placed stages begin anew. What
# they are given must change nothing.

SMALL = {"name": "gpt-3-350m"}
WORKLOAD = {"global_batch_size": 64, "seq_length": 512}
MIXED = {
    "model": SMALL,
    "cluster": {
        "groups": [
            {"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 2},
            {"gpu": "a100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 2},
        ]
    },
    "workload": WORKLOAD,
    "launcher": "none",
    "search": {"top_k": 3, "certify": "none"},
}
FEWEST = {
    "model": {"name": "llama-3.1-8b"},
    "cluster": {"name": "dgx-h100", "num_nodes": 2},
    "workload": {"global_batch_size": 64, "seq_length": 2048},
    "launcher": "megatron-lm",
    "search": {"top_k": 3, "certify": "none", "gpus": "fewest"},
}
PLAIN = {**TINY_PROBLEM, "search": {"top_k": 3, "certify": "none"}}
ASKED = {"one space": PLAIN, "placed stages": MIXED, "fewest GPUs": FEWEST}


def never() -> bool:
    return False


def after(looks: int) -> ShouldStop:
    """Stops a search once it has asked so often."""
    asked = count()
    return lambda: next(asked) >= looks


def said(answer: Answer) -> Mapping[str, object]:
    """What an answer claims; how it came about (rows opened, seconds, warnings of a limit) may differ."""
    body = answer.to_json()
    names = ("status", "bound_step_time_s", "objective", "infeasible")
    plans = [{**plan, "rank": place} for place, plan in enumerate(body["plans"])]
    return {"plans": plans, **{name: body[name] for name in names}}


@pytest.mark.parametrize("asked", ASKED.values(), ids=list(ASKED))
def test_a_resumed_search_gives_the_answer_of_one_that_was_left_alone(
    asked: Mapping[str, object], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a first plan is sought for half a second: of CPU time here, so that a busy machine changes nothing
    monkeypatch.setattr("meshwright.solver.clock.time", SimpleNamespace(monotonic=time.process_time))
    # what would train faster is sought after the plans, and not part of what is passed on
    without_levers(monkeypatch)
    problem: Problem = parse_problem(asked)
    search = StoredSearch(database)
    whole = search(problem, on_progress=lambda _: None, should_stop=never)
    assert whole.status == "optimal"
    broken = [search(problem, on_progress=lambda _: None, should_stop=after(looks)) for looks in (1, 3, 12)]
    kept = [known for answer in broken if (known := known_in(checkpoint_of(answer)))]
    assert kept  # some of them had found something to pass on; without that the search is the same
    for known in kept:
        again = search(problem, on_progress=lambda _: None, should_stop=never, known=known)
        assert said(again) == said(whole)
