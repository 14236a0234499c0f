"""CP-SAT's choice as the answer, and what becomes of it where CP-SAT and the search differ."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import Answer
from meshwright.solver.clock import Watch
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem, on_gpus
from meshwright.solver.search.certify.judge import Judge
from meshwright.solver.search.decision.choices import Table
from meshwright.solver.search.decision.decide import DifferentDecisionWarning, decided, left_to_planner
from meshwright.solver.search.decision.question import Question
from meshwright.solver.search.search import search
from meshwright.solver.space.rules import rules_of
from tests.builders import a_cluster, a_model, a_problem

WATCH = Watch(time_limit_s=60.0)


def small(**options: Any) -> Problem:  # noqa: ANN401 - options of a search
    """Eight layers on eight GPUs."""
    given = {"certify": "cp-sat", "top_k": 3} | options
    return a_problem(model=a_model(num_layers=8), cluster=a_cluster(num_nodes=1), batch=16, **given)


def on_eight() -> Problem:
    """The same on all eight alone: one choice, of which nothing is decided on fewer GPUs."""
    return on_gpus(small(), (8,))


def left_open(problem: Problem) -> Answer:
    """The answer of a search with its choices, not decided yet."""
    with left_to_planner():
        return search(problem, default_profile(problem.cluster, problem.launcher))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"objective": "gpu_hours_per_token"},
        {"pin": {"tensor_parallel_size": 2}, "forbid": {"recompute_granularity": ("full", "selective")}},
        {"bounds": {"pipeline_parallel_size": (2, 4)}, "constraints": ("mbs == 1 or tp * pp > 4",)},
        {"constraints": ("8 % tp == 0 and dp // 2 >= 1", "tp < pp => zero_stage == 1")},
        {"gpus": "fewest"},
    ],
)
def test_cp_sat_chooses_the_first_plan_of_a_request(options: Mapping[str, Any]) -> None:
    problem = small(**options)
    answer = ask(problem, default_profile(problem.cluster, problem.launcher))
    assert (answer.status, answer.decided_by) == ("optimal", "cp-sat")
    assert answer.certified_by == answer.plans[0].certified_by == ("exact-dp", "cp-sat")
    assert answer.counts["decided"] > 1
    assert answer.choices == ()


def test_without_it_the_search_decides() -> None:
    problem = small(certify="none")
    answer = ask(problem, default_profile(problem.cluster, problem.launcher))
    assert (answer.decided_by, answer.certified_by) == ("exact-dp", ("exact-dp",))
    assert "decided" not in answer.counts


class Saying(Judge):
    """A judge that says this instead of CP-SAT."""

    def __init__(self, problem: Problem, verdict: Mapping[str, Any] | None) -> None:
        super().__init__(problem.options, lazy=True)
        self._verdict = verdict

    def decide(self, _question: Question, _watch: Watch) -> Mapping[str, Any] | None:
        """The same verdict on every question."""
        return self._verdict


def test_if_it_is_late_the_answer_says_so() -> None:
    problem = small()
    answer = decided(problem, left_open(problem), Saying(problem, None), WATCH)
    assert answer.decided_by == "exact-dp"
    assert answer.warnings[-1].startswith("CP-SAT did not decide in time")


def test_if_it_finds_nothing_the_answer_says_so() -> None:
    problem = small()
    nothing = Saying(problem, {"status": "INFEASIBLE", "row": None, "cpu_s": 0.0})
    with pytest.warns(DifferentDecisionWarning, match="CP-SAT finds no configuration among"):
        answer = decided(problem, left_open(problem), nothing, WATCH)
    assert (answer.decided_by, answer.certified_by, answer.status) == ("exact-dp", (), "feasible")
    assert "please report this" in answer.warnings[-1]
    assert json.loads(answer.notes["decision"])["search"]["plan_id"] == answer.plans[0].plan_id


def test_of_two_different_plans_the_better_one_is_listed_first_with_a_record_of_both() -> None:
    problem = on_eight()
    right = left_open(problem)
    (choices,) = right.choices
    choices.frontier.ranked = choices.frontier.ranked[1:]  # as if the search had missed its best plan
    wrong = replace(right, plans=tuple(replace(plan, rank=plan.rank - 1) for plan in right.plans[1:]))
    with Judge(problem.options) as judge, pytest.warns(DifferentDecisionWarning, match="CP-SAT chooses"):
        answer = decided(problem, wrong, judge, WATCH)
    assert answer.decided_by == "cp-sat"
    assert answer.plans[0].config == right.plans[0].config
    assert [plan.rank for plan in answer.plans] == [1, 2]
    record = json.loads(answer.notes["decision"])
    assert record["cp-sat"]["score_s"] < record["search"]["score_s"]


def test_a_choice_with_a_bound_for_its_value_is_priced_and_decided_again() -> None:
    problem = on_eight()
    answer = left_open(problem)
    (choices,) = answer.choices
    best, frontier = choices.frontier.ranked[0], choices.frontier
    del frontier.scores_s[best.row]
    assert not Table.of_all(problem, [choices]).exact[choices.index.tolist().index(best.row)]
    with Judge(problem.options) as judge:
        found = decided(problem, answer, judge, WATCH)
    assert found.decided_by == "cp-sat"
    assert frontier.scores_s[best.row] == best.score_s


@pytest.mark.parametrize("launcher", ["megatron-lm", "torchtitan", "deepspeed"])
def test_rules_without_a_form_are_kept_by_every_row_that_cp_sat_may_choose(launcher: str) -> None:
    problem = replace(on_eight(), launcher=launcher)
    (choices,) = left_open(problem).choices
    rows, own = choices.frontier.rows.take(choices.index).columns, choices.problems[0]
    rules = [rule for rule in rules_of(own) if not rule.form and not rule.of_request]
    assert len(rules) > 3
    assert not any(rule.violated(rows).any() for rule in rules)
