"""What holds for several answers together is no more than what holds for each."""

from dataclasses import replace

import pytest

from profiles.profile import default_profile
from solver.merged import Answered, merged
from solver.plan import Answer, Infeasibility, Remedy
from solver.problem import Problem
from solver.variants import Variant
from tests.builders import a_configuration, a_problem, an_answer, an_infeasible_answer

ASKED = replace(a_problem(), launcher="any")


def answered(*answers: Answer) -> list[Answered]:
    """Each as the answer for Megatron-LM."""
    problem: Problem = replace(ASKED, launcher="megatron-lm")
    profile = default_profile(problem.cluster, problem.launcher)
    return [Answered(variant=Variant(problem=problem, profile=profile), answer=one) for one in answers]


def test_the_bound_of_all_is_the_least_where_every_one_has_one() -> None:
    both = merged(ASKED, answered(an_answer(), an_answer(bound_step_time_s=31.0)))
    assert (both.status, both.bound_step_time_s) == ("optimal", 31.0)


def test_what_is_proved_to_have_no_plan_needs_no_bound() -> None:
    both = merged(ASKED, answered(an_answer(), an_infeasible_answer()))
    assert (both.status, both.bound_step_time_s) == ("optimal", 32.5)


@pytest.mark.parametrize("plans", [True, False])
def test_a_search_that_was_stopped_before_its_bound_leaves_none_for_all(plans: bool) -> None:
    # its plans may be faster than the other's bound: a bound above the first plan's step was said
    stopped = an_answer(status="feasible" if plans else "unknown", bound_step_time_s=None, gap=None)
    stopped = stopped if plans else replace(stopped, plans=())
    both = merged(ASKED, answered(an_answer(), stopped))
    assert (both.status, both.bound_step_time_s) == ("feasible", None)


def test_searches_that_never_began_leave_nothing_proved() -> None:
    for asked in (ASKED, replace(ASKED, launcher="megatron-lm")):
        cut = merged(asked, answered(an_answer()), unasked=1)
        assert (cut.status, cut.bound_step_time_s, cut.certified_by) == ("feasible", None, ())
    assert merged(ASKED, answered(an_infeasible_answer()), unasked=1).status == "unknown"


def test_without_a_plan_the_launcher_whose_change_costs_least_is_told_and_named() -> None:
    def lost(gpu_s_per_token: float) -> Answer:
        remedy = Remedy(change="16 nodes", config=a_configuration(), step_time_s=12.0, num_gpus=128,
                        gpu_s_per_token=gpu_s_per_token, peak_memory_bytes=1)  # fmt: skip
        found = Infeasibility(reasons=("memory: 1 GiB short",), changes=("16 nodes",), remedies=(remedy,))
        return replace(an_infeasible_answer(), infeasible=found)

    none = merged(ASKED, answered(lost(7.0), lost(1.0), an_infeasible_answer())).infeasible
    assert none is not None
    assert [one.gpu_s_per_token for one in none.remedies] == [1.0]
    assert none.remedies[0].change == none.changes[0] == "16 nodes under megatron-lm"
    assert none.reasons == ("under megatron-lm: memory: 1 GiB short",)
