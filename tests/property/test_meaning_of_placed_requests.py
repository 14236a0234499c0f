"""Answers on unlike node groups against every placement that a request means (``placed_meaning``).

Nothing here takes a judgement from the product's enumeration, its exact program or its bounds.
``MESHWRIGHT_TEST_DRAWS=34`` draws 204 problems, with pins, expressions and constraints on node groups,
under unlike launchers, precisions, optimizers and framework options.
"""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.profiles.sequences import SequenceLengths
from meshwright.solver.answer import Answer
from meshwright.solver.check import violations
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from meshwright.solver.search.mixed.frontier import MixedFrontier
from meshwright.solver.search.search import search
from tests.draws import draws, some_of
from tests.problems.mixed_clusters import a_group, a_mixed_problem
from tests.property.placed_meaning import Placed, a_placed_request, all_placed, keeps, on_groups

EXAMPLES = draws(2)
PARTS = 2
ROUNDING = 1 + 1e-9
RANKING = 1 + 1e-7  # steps are compared in whole nanoseconds
PROVED = 0.01 + 1e-9  # of the closed form
LEAST_SLICE = 2048  # tokens; shorter ones are tried where a limit names them (docs/requests.md)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_placement_that_a_request_means_is_better_than_what_is_proved(part: int) -> None:
    varied = part == 1
    for seed in range(part, EXAMPLES, PARTS):
        problem = a_placed_request(Random(seed), varied=varied)
        profile = default_profile(problem.cluster, problem.launcher)
        try:
            judge(problem, search(problem, profile), all_placed(problem, profile))
        except AssertionError as fault:
            fault.add_note(f"the request is a_placed_request(Random({seed}), varied={varied})")
            raise


@pytest.mark.parametrize("part", range(PARTS))
def test_constraints_on_node_groups_leave_the_placements_that_keep_them(part: int) -> None:
    for seed in range(part, draws(2, of_more=4), PARTS):
        random = Random(seed)
        plain = a_placed_request(random)
        written, python = on_groups(random, plain)
        options = replace(plain.options, constraints=(*plain.options.constraints, written))
        problem = replace(plain, options=options)
        profile = default_profile(problem.cluster, "none")
        every = [one for one in all_placed(plain, profile) if not one.config.replicas]  # they are alike
        able = [one for one in every if keeps(problem, one.config, python)]
        try:
            assert [one.config for one in able] == [
                one.config for one in every if not list(violations(problem, profile, one.config))
            ]
            answer = search(problem, profile)
            judge(problem, answer, able)
            assert all(keeps(problem, plan.config, python) for plan in answer.plans)
        except AssertionError as fault:
            fault.add_note(f"seed {seed}: {written}")
            raise


@pytest.mark.parametrize(
    ("speeds", "layers", "batch"),
    some_of([((0.5, 0.3, 0.7), 7, 2), ((0.5, 0.7, 0.7), 6, 3), ((1.7, 0.7, 1.7), 6, 3)], each=3),
)
def test_neighbours_of_near_best_plans_lead_to_the_shortest_step_of_few_placements(
    speeds: tuple[float, ...], layers: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = tuple(a_group(speed=speed, gpus=1, slug=f"gpu-{at}") for at, speed in enumerate(speeds))
    pinned = {"data_parallel_size": 1, "micro_batch_size": 1, "recompute_granularity": "none"}
    problem = a_mixed_problem(groups, num_layers=layers, batch=batch, certify="none", top_k=1, pin=pinned)
    profile = default_profile(problem.cluster, "none")
    answer = search(problem, profile)
    every = all_placed(problem, profile)
    judge(problem, answer, every)
    step_s = answer.plans[0].prediction.step_time_s
    assert step_s == pytest.approx(min(one.step_s for one in every), rel=1e-9)
    monkeypatch.setattr(MixedFrontier, "improve", lambda *_: None)
    assert step_s < search(problem, profile).plans[0].prediction.step_time_s  # of the closed form alone


@pytest.mark.parametrize("part", range(PARTS))
def test_neighbours_of_near_best_plans_never_make_the_answer_slower(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = [a_placed_request(Random(seed)) for seed in range(part, EXAMPLES, PARTS)]

    def steps_of(problem: Problem) -> list[float]:
        answer = search(problem, default_profile(problem.cluster, "none"))
        return [plan.prediction.step_time_s for plan in answer.plans]

    found = [steps_of(problem) for problem in problems]
    monkeypatch.setattr(MixedFrontier, "improve", lambda *_: None)
    for problem, ours in zip(problems, found, strict=True):
        without = steps_of(problem)
        assert len(ours) >= len(without)
        assert all(one <= other * RANKING for one, other in zip(ours, without, strict=False))


def test_documents_of_unequal_length_are_priced_on_the_groups_that_their_stages_stand_on() -> None:
    lengths = SequenceLengths(percentiles=((0.0, 1), (50.0, 200), (100.0, 4096)))
    first = 9  # three stages over two groups, which wait less for long documents than two stages would
    for seed in range(first, first + draws(1)):
        plain = a_placed_request(Random(seed))
        problem = replace(plain, workload=replace(plain.workload, lengths=lengths))
        profile = default_profile(problem.cluster, "none")
        answer, every = search(problem, profile), all_placed(problem, profile)
        judge(problem, answer, [one for one in every if not one.config.replicas])  # replicas are alike
        for plan in answer.plans[:1]:
            assert seed > first or plan.prediction.time_breakdown_s["unequal_lengths"] > 0.0
            whole, packed = (predict(one, profile, plan.config) for one in (plain, problem))
            # attention of short documents
            assert packed.time_breakdown_s["compute"] < whole.time_breakdown_s["compute"]


def judge(problem: Problem, answer: Answer, every: list[Placed]) -> None:
    """Hold an answer against all placements that are legal and fit.

    What is proved is the closed form: no placement's is below the bound. A group may mix tensor-parallel
    sizes in an answer, which none of these placements does.
    """
    able = [one for one in every if answer.space == "every" or is_usual(problem, one.config)]
    if not answer.plans:
        assert (answer.status, able) == ("infeasible", [])
        return
    assert answer.status in {"optimal", "feasible"}
    known = {one.config: one for one in able}
    steps = [plan.prediction.step_time_s for plan in answer.plans]
    assert all(one <= other * RANKING for one, other in pairwise(steps))
    for plan in answer.plans:
        assert not list(violations(problem, default_profile(problem.cluster, problem.launcher), plan))
        if plan.config in known:
            assert plan.prediction.step_time_s == pytest.approx(known[plan.config].step_s, rel=1e-9)
    assert len({field_of(plan.config) for plan in answer.plans}) == len(answer.plans)
    assert answer.bound_step_time_s is not None
    assert answer.objective_gap is not None
    assert answer.objective_excess is not None
    assert (answer.objective_gap <= PROVED) == (answer.status == "optimal")  # few have a bound alone
    first = answer.plans[0]
    own_s = first.prediction.step_time_s if first.config.replicas else first.objective_s
    proved_s = own_s * (1.0 - answer.objective_excess) * (1.0 - answer.objective_gap)
    for one in able:
        assert answer.bound_step_time_s <= one.step_s * ROUNDING, one
        assert proved_s <= one.objective_s * ROUNDING, one


def is_usual(problem: Problem, config: Configuration) -> bool:
    """Whether it is tried unasked (docs/requests.md).

    Context parallelism in powers of two that leave enough tokens. Batches are too small here for the limits
    on micro-batches.
    """
    limits = " ".join((*problem.options.pin, *problem.options.constraints))
    size, seq = config.context_parallel_size, problem.workload.seq_length
    return "context_parallel_size" in limits or (size & (size - 1) == 0 and size * LEAST_SLICE <= seq)


def field_of(config: Configuration) -> object:
    """What placements have in common that are ranked as one: groups and sizes, not order and split."""
    if config.replicas:
        return frozenset(map(field_of, config.replicas))
    groups = frozenset((one.group, one.tensor_parallel_size) for one in config.stage_groups)
    return (groups, config.pipeline_parallel_size, config.data_parallel_size, config.context_parallel_size,
            config.expert_parallel_size, config.micro_batch_size, config.num_microbatches,
            config.zero_stage, config.recompute_granularity)  # fmt: skip
