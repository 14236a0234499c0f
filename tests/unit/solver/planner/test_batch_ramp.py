"""A batch ramp: one layout for every stage, ranked by the time of all steps."""

from dataclasses import replace

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import Profile, default_profile
from meshwright.service.report.verdict import verdict_of
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from meshwright.solver.answer import Answer
from meshwright.solver.check import violations
from meshwright.solver.clock import OutOfTime
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.planner import batch_ramp as ramp
from meshwright.solver.planner.plan import ask
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from meshwright.solver.space.rules import ramp_stages
from tests.builders import a_cluster, a_model, a_problem
from tests.problems.asked import searched

SHAPE = {"num_layers": 6, "hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 16}
TOKENS = 8192 * 1000


def ramped(
    ramp: tuple[tuple[int, int], ...] = ((8, TOKENS), (16, 3 * TOKENS)), **options: object
) -> Problem:
    """6 layers on 8 GPUs; batches 8, 16 and 32 for 1, 2 and 5 times TOKENS."""
    limits: dict[str, object] = {"certify": "none", "pin": {"context_parallel_size": 1}, "top_k": 3}
    limits |= {"batch_ramp": ramp, "total_tokens": 8 * TOKENS}
    return a_problem(model=a_model(**SHAPE), cluster=a_cluster(num_nodes=1), batch=32, **limits | options)


def profile_of(problem: Problem) -> Profile:
    return default_profile(problem.cluster, problem.launcher)


def answered(problem: Problem) -> Answer:
    return ask(problem, profile_of(problem))


def total_s(problem: Problem, config: Configuration) -> float:
    """The whole ramp, written out."""
    found = 0.0
    for stage in ramp_stages(problem):
        one = stage.configuration(config)
        found += stage.steps * predict(stage.problem, profile_of(problem), one).step_time_s
    return found


def test_stages_take_the_tokens_between_their_ends() -> None:
    # 1, 2 and 5 times 8192 * 1000 tokens of 8, 16 and 32 sequences of 8192: 125, 125 and 156.25 steps
    assert [stage.steps for stage in ramp_stages(ramped())] == [125.0, 125.0, 156.25]
    assert [stage.batch for stage in ramp_stages(ramped())] == [8, 16, 32]


def test_the_first_plan_has_the_shortest_ramp_of_all_layouts() -> None:
    problem = ramped()
    answer = answered(problem)
    assert answer.status == "optimal"
    plain = replace(problem, options=replace(problem.options, batch_ramp=(), top_k=10_000))
    everyone = [plan.config for plan in searched(plain).plans]
    legal = [
        config
        for config in everyone
        if not any(
            list(violations(stage.problem, profile_of(problem), stage.configuration(config)))
            for stage in ramp_stages(problem)
        )
    ]
    assert 3 < len(legal) < len(everyone)
    least = min(total_s(problem, config) for config in legal)
    assert answer.objective is not None
    assert answer.objective.value is not None
    assert answer.objective.value <= least * (1 + 1e-9)
    assert answer.objective.value == pytest.approx(total_s(problem, answer.plans[0].config))
    assert answer.objective.bound is not None
    assert answer.objective.bound <= answer.objective.value


def test_the_answer_names_the_versions_that_every_answer_names() -> None:
    plain = answered(replace(ramped(), options=replace(ramped().options, batch_ramp=())))
    assert answered(ramped()).versions == plain.versions
    assert set(plain.versions) == {"profile", "meshwright", "solver"}


def test_every_plan_is_legal_in_every_stage() -> None:
    problem = ramped()
    for plan in answered(problem).plans:
        for stage in ramp_stages(problem):
            config = stage.configuration(plan.config)
            assert config.global_batch_size == stage.batch
            assert not list(violations(stage.problem, profile_of(problem), config))


def test_a_ramp_with_a_short_first_stage_ranks_as_the_search_does() -> None:
    pins = {"context_parallel_size": 1, "micro_batch_size": 1}  # legal in both stages
    problem = ramped(ramp=((16, TOKENS // 1000),), pin=pins)
    plain = replace(problem, options=replace(problem.options, batch_ramp=()))
    assert answered(problem).plans[0].config == answered(plain).plans[0].config


def test_a_ramp_that_no_layout_can_start_with_is_infeasible() -> None:
    problem = ramped(ramp=((3, TOKENS),), pin={"data_parallel_size": 8})
    answer = answered(problem)
    assert answer.status == "infeasible"
    assert answer.infeasible is not None
    assert "every stage of the ramp (batches 3, 32)" in answer.infeasible.reasons[0]


def test_a_ramp_that_is_stopped_at_once_has_a_plan_to_resume_from() -> None:
    problem = ramped()
    profile, whole = profile_of(problem), answered(problem)
    broken = ask(problem, profile, should_stop=lambda: True)
    assert (broken.status, len(broken.plans)) == ("feasible", 1)  # of the three that the whole search ranks
    again = ask(problem, profile, known=[plan.config for plan in broken.plans])
    assert (again.status, again.objective) == (whole.status, whole.objective)
    assert [plan.config for plan in again.plans] == [plan.config for plan in whole.plans]
    assert len(whole.plans) == 3


def test_days_are_those_of_the_whole_ramp() -> None:
    problem = ramped()
    plan = answered(problem).plans[0]
    assert plan.outlook is not None
    assert plan.outlook.days == pytest.approx(
        total_s(problem, plan.config) / plan.outlook.goodput / 86400, rel=1e-9
    )


def asked(workload: dict[str, object], **search: object) -> dict[str, object]:
    return {
        "model": {"name": "llama-3.1-8b"},
        "cluster": {"name": "dgx-h100", "num_nodes": 4},
        "workload": {"global_batch_size": 128, "seq_length": 8192, **workload},
        "search": search,
    }


RAMP = [{"batch": 32, "until_tokens": 10**9}, {"batch": 64, "until_tokens": 10**10}]


def test_a_ramp_survives_its_canonical_request() -> None:
    problem = parse_problem(asked({"batch_ramp": RAMP, "total_tokens": 10**11}))
    assert problem.options.batch_ramp == ((32, 10**9), (64, 10**10))
    assert parse_problem(problem_to_mapping(problem)) == problem


@pytest.mark.parametrize(
    ("workload", "search", "pointer"),
    [
        ({"batch_ramp": RAMP}, {}, "/workload/total_tokens"),
        ({"batch_ramp": RAMP[::-1], "total_tokens": 10**11}, {}, "/workload/batch_ramp"),
        ({"batch_ramp": RAMP, "total_tokens": 10**9}, {}, "/workload/batch_ramp"),
        ({"batch_ramp": RAMP, "total_tokens": 10**11}, {"pareto": True}, "/search/pareto"),
        (
            {"batch_ramp": RAMP, "total_tokens": 10**11, "global_batch_size": [128, 256]},
            {},
            "/workload/global_batch_size",
        ),
    ],
)
def test_what_does_not_make_a_ramp_is_refused(
    workload: dict[str, object], search: dict[str, object], pointer: str
) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        parse_problem(asked(workload, **search))
    assert [fault.pointer for fault in caught.value.errors] == [pointer]


def test_a_ramp_that_is_cut_before_its_rows_are_priced_has_not_explored_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = ramped()
    real = ramp._ramp_of

    def cut_if_there_are_rows(problem: Problem, profile: Profile, columns: Columns) -> object:
        if len(columns):
            raise OutOfTime
        return real(problem, profile, columns)

    monkeypatch.setattr(ramp, "_ramp_of", cut_if_there_are_rows)
    answer = answered(problem)
    assert answer.status == "unknown"
    assert answer.legal > 0
    assert answer.explored == answer.space_size - answer.legal  # those that break a rule


def test_more_time_is_not_advised_for_a_ramp_of_which_a_sample_alone_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = ramped()
    gpu = replace(problem.cluster.groups[0].gpu, memory_bytes=2**30)
    group = replace(problem.cluster.groups[0], gpu=gpu)
    problem = replace(problem, cluster=replace(problem.cluster, groups=(group,)))
    monkeypatch.setattr(ramp, "LARGE_OUTER", 0)
    answer = answered(problem)
    assert (answer.status, answer.plans) == ("unknown", ())
    assert verdict_of(answer, problem).certainty[1].startswith("More time alone will not help")
    options = replace(problem.options, time_limit_s=1e-9)
    cut = answered(replace(problem, options=options))
    assert cut.status == "unknown"


def test_plans_of_a_ramp_have_no_odds_of_one_step() -> None:
    assert [plan.odds for plan in answered(ramped()).plans] == [None] * 3
