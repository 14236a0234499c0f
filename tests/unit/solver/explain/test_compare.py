"""What each difference buys adds up, along a path that arrives."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.profiles.library import find_model
from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import Configuration
from meshwright.solver.explain.alternatives import moves_of, settle
from meshwright.solver.explain.compare import ComparedConfiguration, compared
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from tests.builders import a_moe_model, a_problem
from tests.draws import draws

YOURS = Configuration(
    tensor_parallel_size=8, sequence_parallel=True, pipeline_parallel_size=8, data_parallel_size=2,
    zero_stage=1, zero_shard_size=2, micro_batch_size=2, num_microbatches=128, pipeline_schedule="1f1b",
    recompute_granularity="full", recompute_layers=80, stage_layers=(10,) * 8,
)  # fmt: skip
BEST = Configuration(
    tensor_parallel_size=8, sequence_parallel=True, pipeline_parallel_size=4, virtual_pipeline_size=5,
    data_parallel_size=4, zero_stage=1, zero_shard_size=4, micro_batch_size=1, num_microbatches=128,
    pipeline_schedule="interleaved_1f1b", stage_layers=(4,) * 20,
)  # fmt: skip


def check(
    problem: Problem, first: Configuration, second: Configuration, start: Problem | None = None
) -> None:
    profile = default_profile(problem.cluster, problem.launcher)
    found = compared(
        profile,
        ComparedConfiguration(problem=start or problem, configuration=first),
        ComparedConfiguration(problem=problem, configuration=second),
    )
    assert found.second.step_time_s == predict(problem, profile, second).step_time_s
    total = found.second.step_time_s - found.first.step_time_s
    assert sum(step.step_change_s for step in found.steps) == pytest.approx(total, abs=1e-9)
    for step in found.steps:
        assert sum(step.terms_s.values()) == pytest.approx(step.step_change_s, abs=1e-9)


def test_differences_between_two_plans_are_carried_over_one_by_one_and_legally() -> None:
    problem = a_problem()
    profile = default_profile(problem.cluster, problem.launcher)
    check(problem, YOURS, BEST)
    sides = [ComparedConfiguration(problem=problem, configuration=one) for one in (YOURS, BEST)]
    steps = compared(profile, *sides).steps
    assert {step.change for step in steps} == {"pp 8 → 4", "vpp 1 → 5", "mbs 2 → 1", "recompute off"}
    assert all(step.fits for step in steps)
    assert not any(step.breaks for step in steps)
    off = next(step for step in steps if step.change == "recompute off")
    assert off.step_change_s < 0.0
    assert off.terms_s["recompute"] < 0.0


def test_a_configuration_differs_from_itself_by_nothing() -> None:
    problem = a_problem()
    profile = default_profile(problem.cluster, problem.launcher)
    side = ComparedConfiguration(problem=problem, configuration=BEST)
    assert compared(profile, side, side).steps == ()


def test_options_of_the_framework_are_differences_too() -> None:
    problem = a_problem()
    slow = replace(problem, workload=replace(problem.workload, framework_options={"overlap_tensor": False}))
    check(problem, YOURS, BEST, start=slow)
    profile = default_profile(problem.cluster, problem.launcher)
    found = compared(
        profile,
        ComparedConfiguration(problem=slow, configuration=YOURS),
        ComparedConfiguration(problem=problem, configuration=BEST),
    )
    assert found.steps[0].change == "overlap tensor on"
    assert found.steps[0].terms_s["tensor_parallel"] < 0.0


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        # no class of transformers has FlashAttention with ALiBi: both sides make scores in plain operators
        ("bloom-7b1", []),
        ("llama-3.1-8b", ["attention kernel flash2"]),
    ],
)
def test_an_option_under_which_the_same_runs_is_no_difference(model: str, changes: list[str]) -> None:
    plain = a_problem(model=find_model(model), batch=32).under("axolotl")
    eager = replace(
        plain, workload=replace(plain.workload, framework_options={"attention_kernel": "torch"})
    )
    profile = default_profile(plain.cluster, plain.launcher)
    own = Configuration(
        data_parallel_size=128, zero_stage=3, zero_shard_size=128, micro_batch_size=1, num_microbatches=1,
        stage_layers=(plain.model.num_layers,),
    )  # fmt: skip
    sides = [ComparedConfiguration(problem=one, configuration=own) for one in (eager, plain)]
    found = compared(profile, *sides)
    assert [step.change for step in found.steps] == changes
    assert found.second.step_time_s == predict(plain, profile, own).step_time_s


@pytest.mark.parametrize(
    ("named", "anyway"),
    [
        ({"overlap_tensor": True}, {}),
        ({"loss_kernel": "masked", "attention_kernel": "sdpa"}, {"loss_kernel": "masked"}),
    ],
)
def test_an_option_that_the_other_side_has_without_stating_it_is_no_difference(
    named: dict[str, str | bool], anyway: dict[str, str | bool]
) -> None:
    problem = a_problem()
    first, second = (
        ComparedConfiguration(
            problem=replace(problem, workload=replace(problem.workload, framework_options={**options})),
            configuration=BEST,
        )
        for options in (named, anyway)
    )
    assert compared(default_profile(problem.cluster, problem.launcher), first, second).steps == ()


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Problem, Configuration, Configuration]:
    """Two configurations of one problem, up to five moves apart."""
    problem = a_problem(model=draw(st.sampled_from((None, a_moe_model()))), certify="none")
    start = settle(problem, replace(BEST, virtual_pipeline_size=4, stage_layers=()))
    assert start is not None
    ends: list[Configuration] = []
    for _ in range(2):
        now = start
        for _ in range(draw(st.integers(0, 3))):
            now = draw(st.sampled_from([*moves_of(problem, now)]))
        ends.append(now)
    return problem, ends[0], ends[1]


@given(pairs())
@settings(max_examples=draws(12, of_more=30), deadline=None)
def test_the_parts_add_up_between_any_two_configurations(
    found: tuple[Problem, Configuration, Configuration],
) -> None:
    check(*found)


def test_another_optimizer_is_a_difference_of_its_own() -> None:
    problem = a_problem()
    small = replace(problem, workload=replace(problem.workload, optimizer="adamw-8bit"))
    check(small, YOURS, BEST, start=problem)
    profile = default_profile(problem.cluster, problem.launcher)
    sides = (
        ComparedConfiguration(problem=problem, configuration=BEST),
        ComparedConfiguration(problem=small, configuration=BEST),
    )
    steps = compared(profile, *sides).steps
    assert [step.change for step in steps] == ["optimizer adamw → adamw-8bit"]
    assert steps[0].terms_s["optimizer"] < 0.0
