"""Questions of why not: the smallest set of reasons, each needed, or how much slower the best plan is."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from random import Random
from typing import Any

import numpy as np
import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import Answer
from meshwright.solver.clock import Watch
from meshwright.solver.planner.plan import ask
from meshwright.solver.planner.why_not import WhyNot, why_not
from meshwright.solver.problem import Problem
from meshwright.solver.search.cp_sat import without_pandas
from meshwright.solver.space.enumerate import refuted_space, with_whole
from meshwright.solver.space.request_rules import coded, column_of, without_limits
from meshwright.solver.space.rules import rules_of
from tests.builders import a_cluster, a_model, a_problem
from tests.draws import TIMES

without_pandas()

from meshwright.solver.search.decision.reasons import excludes, smallest_set  # noqa: E402 - without pandas

PINNED = {"pin": {"tensor_parallel_size": 2}}
BOUND = {"bounds": {"pipeline_parallel_size": (1, 2)}, "constraints": ("mbs <= 2",)}
# Request, question, and what the names of the reasons contain; None: a plan has the values.
QUESTIONS: Sequence[tuple[Mapping[str, Any], Mapping[str, int | str], Sequence[str] | None]] = [
    ({}, {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}, None),
    (PINNED, {"tensor_parallel_size": 4}, ["pin tensor_parallel_size = 2"]),
    (BOUND, {"pipeline_parallel_size": 4}, ["bounds 1 <= pipeline_parallel_size <= 2"]),
    (BOUND, {"pipeline_parallel_size": 4, "micro_batch_size": 4}, ["bounds|constraint mbs <= 2"]),
    ({"constraints": ("tp > 1 => pp == 1",)}, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
     ["constraint tp > 1 => pp == 1"]),
    ({}, {"expert_parallel_size": 2}, ["expert_parallel_size is 1 without experts"]),
    ({}, {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}, ["sizes multiply"]),
    ({}, {"pipeline_schedule": "zb_v", "pipeline_parallel_size": 2}, ["supports the schedule"]),
    ({}, {"micro_batch_size": 16, "data_parallel_size": 8}, ["sizes multiply"]),
    ({}, {"virtual_pipeline_size": 2, "pipeline_parallel_size": 1},
     ["interleaving needs two stages|the schedule fits"]),
    ({}, {"zero_stage": 3}, None),
    ({}, {"recompute_granularity": "full"}, None),
    ({}, {"context_parallel_size": 8}, None),
    ({"forbid": {"recompute_granularity": ("full",)}}, {"recompute_granularity": "full"},
     ["forbid recompute"]),
    (PINNED, {"tensor_parallel_size": 2}, None),
    ({}, {"pipeline_parallel_size": 8, "virtual_pipeline_size": 2}, ["every chunk holds a layer"]),
    ({}, {"num_microbatches": 3}, ["sizes multiply"]),
    ({}, {"offload": "optimizer"}, ["offloads so|"]),
    ({}, {"rank_order": "tp-pp-cp-dp"}, ["rank_order puts|numbers the ranks so|"]),
    ({"constraints": ("dp == 8",)}, {"tensor_parallel_size": 2},
     ["constraint dp == 8|sizes multiply"]),
]  # fmt: skip
IN_CI = 6


def asked(**options: Any) -> Problem:  # noqa: ANN401 - options of a search
    """Eight layers on eight GPUs."""
    given = {"certify": "none", "top_k": 1} | options
    return a_problem(model=a_model(num_layers=8), cluster=a_cluster(num_nodes=1), batch=16, **given)


@cache
def answer_to(request: int) -> Answer:
    """The answer to the request of a question."""
    problem = asked(**QUESTIONS[request][0])
    return ask(problem, default_profile(problem.cluster, problem.launcher))


def found(request: int, left_out: Sequence[str] = ()) -> WhyNot:
    """The answer to a question, without some limits of its request."""
    problem = without_limits(asked(**QUESTIONS[request][0]), left_out)
    profile = default_profile(problem.cluster, problem.launcher)
    return why_not(problem, profile, QUESTIONS[request][1], answer_to(request), Watch(time_limit_s=60.0))


@pytest.mark.parametrize("number", range(len(QUESTIONS) if TIMES > 1 else IN_CI))
def test_a_question_has_the_smallest_set_of_reasons_or_the_best_plan_with_the_values(number: int) -> None:
    _, values, reasons = QUESTIONS[number]
    answer = found(number)
    assert answer.proved
    if reasons is None:
        assert answer.plan is not None
        assert {name: getattr(answer.plan.config, name) for name in values} == values
        assert answer.worse is not None
        assert answer.worse >= -1e-9
        return
    assert answer.plan is None
    assert len(answer.reasons) == len(reasons)
    for reason, words in zip(answer.reasons, reasons, strict=True):
        assert any(word in reason.name for word in words.split("|")), reason
    for left_out in [one.name for one in answer.reasons if one.of_request]:  # the others do not exclude
        without = found(number, [left_out])
        others = {one.name for one in answer.reasons} - {left_out}
        assert without.plan is not None or {one.name for one in without.reasons} != others
    assert_each_needed(asked(**QUESTIONS[number][0]), values, [one.name for one in answer.reasons])


def assert_each_needed(problem: Problem, values: Mapping[str, int | str], names: Sequence[str]) -> None:
    """Each candidate with the values breaks one of these rules, and without any one rule some does not.

    What does not fit breaks ``memory``; sizes that do not multiply have no candidate at all.
    """
    pinned = replace(problem, options=replace(problem.options, pin={**problem.options.pin, **values}))
    freed = replace(pinned, options=replace(pinned.options, pin=values, forbid={}, bounds={}))
    rows = with_whole(freed, refuted_space(freed)).columns
    alike = [column_of(rows, name, 8) == coded(name, value) for name, value in values.items()]
    rows = rows.take(np.flatnonzero(np.logical_and.reduce(alike)))
    if names == ["sizes multiply to the GPUs and the batch"]:
        assert not len(rows)
        return
    broken = {rule.name: rule.violated(rows) for rule in rules_of(problem) if rule.name in names}
    assert {*names} - {*broken} <= {"memory"}
    if "memory" not in names:
        assert np.logical_or.reduce([*broken.values()]).all()
    for left_out in broken:
        others = [mask for name, mask in broken.items() if name != left_out]
        assert len(rows)
        assert not others or not np.logical_or.reduce(others).all(), left_out


def test_the_set_is_the_smallest_and_every_reason_is_needed() -> None:
    for seed in range(40):
        random = Random(seed)
        broken = [
            frozenset(random.sample(range(7), random.randint(1, 3))) for _ in range(random.randint(1, 8))
        ]
        chosen = smallest_set(broken)
        assert excludes(broken, chosen)
        for limit in chosen:
            assert not excludes(broken, {*chosen} - {limit})
        for others in combinations(range(7), len(chosen) - 1):
            assert any(not some & {*others} for some in broken)


def test_of_equally_many_those_of_the_request_are_named() -> None:
    assert smallest_set([frozenset({0, 1}), frozenset({0, 1, 2})], droppable=[1]) == (1,)


def test_a_question_without_time_is_not_proved() -> None:
    problem = replace(asked())
    profile = default_profile(problem.cluster, problem.launcher)
    stopped = Watch(time_limit_s=30.0, should_stop=lambda: time.monotonic() > 0.0)
    answer = why_not(problem, profile, {"expert_parallel_size": 2}, answer_to(0), stopped)
    assert answer.plan is None or not answer.proved
