"""A search that begins with what an earlier one had found ends as if it had not."""

from dataclasses import replace

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import Answer
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Problem
from meshwright.solver.search.frontier import Frontier, Interrupt
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import searched_space
from meshwright.solver.space.factored import rows_of
from tests.builders import a_cluster, a_configuration, a_model, a_problem

PROBLEM = a_problem(
    model=a_model(num_layers=32, hidden_size=4096, num_attention_heads=32, ffn_hidden_size=14336),
    cluster=a_cluster(num_nodes=2),
    batch=64,
    top_k=3,
    certify="none",
)


def asked(problem: Problem, known: list[Configuration]) -> Answer:
    return search(problem, default_profile(problem.cluster, problem.launcher), known=known)


def timeless(answer: Answer) -> dict[str, object]:
    """Everything but how long it took and how many rows were opened for it."""
    return replace(answer, elapsed_s=0.0, counts={}).to_json()


def test_a_plan_is_found_again_among_the_rows() -> None:
    space = searched_space(PROBLEM, legal_only=True)
    plans = asked(PROBLEM, []).plans
    for plan in plans:
        (row,) = rows_of(space.rows, [plan.config])
        assert space.columns.configuration(row, plan.config.stage_layers) == plan.config


def test_what_is_no_row_is_passed_over() -> None:
    space = searched_space(PROBLEM, legal_only=True)
    far = a_configuration(tensor_parallel_size=7)
    assert rows_of(space.rows, [far, a_configuration(stage_layers=())]) == []
    assert timeless(asked(PROBLEM, [far])) == timeless(asked(PROBLEM, []))


def test_the_answer_is_the_same_whatever_was_known_beforehand() -> None:
    whole = asked(replace(PROBLEM, options=replace(PROBLEM.options, top_k=40)), [])
    fresh = timeless(asked(PROBLEM, []))
    found = [plan.config for plan in whole.plans]
    for known in (found[:3], found[-3:], found[::7]):  # the best, far behind, and mixed
        assert timeless(asked(PROBLEM, known)) == fresh


def test_what_is_known_is_ranked_before_any_other_row_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    best = asked(PROBLEM, []).plans
    began: list[float] = []
    real = Frontier.run

    def run(self: Frontier, interrupted: Interrupt) -> None:
        began.append(self.cutoff_s)
        real(self, interrupted)

    monkeypatch.setattr(Frontier, "run", run)
    asked(PROBLEM, [plan.config for plan in best])
    assert began[-1] == pytest.approx(
        best[-1].prediction.step_time_s
    )  # the K-th of K; the opening ran first


def test_rows_that_are_written_down_are_searched_in_the_same_way() -> None:
    space = searched_space(PROBLEM, legal_only=True)
    known = [plan.config for plan in asked(PROBLEM, []).plans]
    assert rows_of(space.columns, known) == rows_of(space.rows, known)
