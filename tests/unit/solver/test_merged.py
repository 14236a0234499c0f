"""What holds for several answers together is no more than what holds for each."""

from dataclasses import replace

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import SAMPLE, Answer, Infeasibility, ObjectiveClaim, Outlook, Plan, Remedy
from meshwright.solver.planner.variants import Answered, Variant, merged
from meshwright.solver.problem import Problem
from tests.builders import a_configuration, a_plan, a_prediction, a_problem, an_answer, an_infeasible_answer

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


def stepping(step_s: float, days: float | None = None, **changes: object) -> Plan:
    """A plan with that step; a run of so many days where they are given."""
    run = Outlook(num_gpus=128, goodput=0.99, checkpoint_interval_s=600.0, gpu_hours_per_token=1e-6,
                  energy_per_token_j=None, days=days, cost=None)  # fmt: skip
    plan = a_plan(**changes)  # type: ignore[arg-type]
    outlook = run if days is not None else None
    return replace(plan, prediction=a_prediction(step_time_s=step_s), outlook=outlook)


def claiming(step_s: float) -> Answer:
    """An answer whose one plan, the same configuration in all of them, has that step."""
    claim = ObjectiveClaim(name="step_time", unit="s", value=step_s, bound=step_s, gap=0.0)
    return an_answer(stepping(step_s), objective=claim, bound_step_time_s=step_s)


def test_the_objective_is_that_of_the_launcher_that_prices_the_first_plan() -> None:
    # both rank the same configuration: 30 s under one of them, 20 s under the other
    both = merged(ASKED, answered(claiming(30.0), claiming(20.0)))
    assert both.plans[0].prediction.step_time_s == 20.0
    assert both.objective is not None
    assert (both.objective.value, both.objective.bound, both.bound_step_time_s) == (20.0, 20.0, 20.0)


def test_a_layout_that_launchers_run_otherwise_stands_once() -> None:
    slower = stepping(30.0, recompute_granularity="selective")
    both = merged(ASKED, answered(an_answer(stepping(20.0)), an_answer(slower)))
    assert [plan.prediction.step_time_s for plan in both.plans] == [20.0]


def test_the_fewest_nodes_are_those_of_the_launcher_that_needs_fewest() -> None:
    asked = replace(ASKED, options=replace(ASKED.options, gpus="fewest"))
    half = stepping(60.0, data_parallel_size=2, zero_shard_size=2, num_microbatches=256)  # 64 of 128 GPUs
    both = merged(asked, answered(an_answer(stepping(30.0)), an_answer(half)))
    assert [plan.config.num_gpus for plan in both.plans] == [64]


def test_ramps_of_several_launchers_are_ranked_by_the_time_of_all_steps() -> None:
    # the step at the last batch is shorter, the whole ramp is not: 9 days against 8
    options = replace(ASKED.options, batch_ramp=((256, 10**9),), total_tokens=10**10)
    asked = replace(ASKED, options=options)
    some = [an_answer(stepping(30.0, days=9.0)), an_answer(stepping(31.0, days=8.0, micro_batch_size=2,
                                                                     num_microbatches=64))]  # fmt: skip
    runs = [replace(one, variant=replace(one.variant, problem=replace(asked, launcher="megatron-lm")))
            for one in answered(*some)]  # fmt: skip
    both = merged(asked, runs)
    assert [plan.outlook.days for plan in both.plans if plan.outlook] == [8.0, 9.0]


def test_a_step_is_bounded_by_what_is_known_of_steps_on_as_many_gpus() -> None:
    # 40 s bounds steps on 64 GPUs; on 128, those of the first plan, only its objective says something
    half = stepping(60.0, data_parallel_size=2, zero_shard_size=2, num_microbatches=256)
    claim = ObjectiveClaim(name="step_time", unit="s", value=60.0, bound=25.0, gap=0.5)
    other = an_answer(half, bound_step_time_s=20.0, objective=claim)
    assert merged(ASKED, answered(claiming(30.0), other)).bound_step_time_s == 25.0


def test_a_merged_answer_is_of_a_sample_where_more_time_changes_no_part_of_it() -> None:
    unknown = replace(an_answer(status="unknown"), plans=())
    sampled, refuted = replace(unknown, notes=SAMPLE), replace(unknown, status="infeasible")
    for others, expected in (((refuted,), True), ((sampled,), True), ((unknown,), False)):
        assert ("sample" in merged(ASKED, answered(sampled, *others)).notes) is expected
    assert "sample" not in merged(ASKED, answered(sampled), unasked=1).notes
