"""Answers on unlike node groups against every placement that a request means (``placed_meaning``).

Nothing here imports the product's enumeration, its exact program or its bounds."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.profiles.sequences import SequenceLengths
from meshwright.solver.answer import Answer
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from meshwright.solver.search.search import search
from tests.draws import draws
from tests.property.placed_meaning import Placed, a_placed_request, all_placed

EXAMPLES = draws(2)
PARTS = 2
ROUNDING = 1 + 1e-9
RANKING = 1 + 1e-7  # scores are compared in whole nanoseconds
LEAST_SLICE = 2048  # tokens; shorter ones are tried where a limit names them (docs/requests.md)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_placement_that_a_request_means_is_better_than_what_is_proved(part: int) -> None:
    for seed in range(part, EXAMPLES, PARTS):
        problem = a_placed_request(Random(seed))
        profile = default_profile(problem.cluster, "none")
        try:
            judge(problem, search(problem, profile), all_placed(problem, profile))
        except AssertionError as fault:
            fault.add_note(f"the request is a_placed_request(Random({seed}))")
            raise


def test_documents_of_unequal_length_are_priced_on_the_groups_that_their_stages_stand_on() -> None:
    lengths = SequenceLengths(percentiles=((0.0, 1), (50.0, 200), (100.0, 4096)))
    plain = a_placed_request(Random(0))  # pipelines of two stages over two groups
    problem = replace(plain, workload=replace(plain.workload, lengths=lengths))
    profile = default_profile(problem.cluster, "none")
    answer, every = search(problem, profile), all_placed(problem, profile)
    judge(problem, answer, [one for one in every if not one.config.replicas])  # replicas are alike
    assert min(plan.prediction.time_breakdown_s["unequal_lengths"] for plan in answer.plans) > 0.0
    whole, packed = (predict(one, profile, answer.plans[0].config) for one in (plain, problem))
    assert packed.time_breakdown_s["compute"] < whole.time_breakdown_s["compute"]  # attention of short ones


def judge(problem: Problem, answer: Answer, every: list[Placed]) -> None:
    """Hold an answer against all placements that are legal and fit."""
    able = [one for one in every if answer.space == "every" or is_usual(problem, one.config)]
    assert answer.status == ("optimal" if able else "infeasible")
    if not able:
        assert not every
        return
    known, shown = {one.config: one.step_s for one in able}, [plan.config for plan in answer.plans]
    steps = [plan.prediction.step_time_s for plan in answer.plans]
    assert steps == pytest.approx([known[config] for config in shown], rel=1e-9)
    assert all(one <= other * RANKING for one, other in pairwise(steps))
    assert answer.bound_step_time_s is not None
    assert answer.bound_step_time_s <= min(known.values()) * ROUNDING
    # of a field the score is some placement's step, so none is larger than its slowest
    fields: dict[object, list[Placed]] = defaultdict(list)
    for one in able:
        fields[field_of(one.config)].append(one)
    slowest = [max(some, key=lambda one: one.step_s) for some in fields.values()]
    surely, truly = best_steps(problem, slowest), best_steps(problem, able)
    assert all(step <= sure * RANKING for step, sure in zip(steps, surely, strict=False))
    for plan, least in zip(answer.plans, truly, strict=False):
        assert plan.gap is not None
        assert plan.prediction.step_time_s * (1.0 - plan.gap) <= least * ROUNDING


def best_steps(problem: Problem, some: list[Placed]) -> list[float]:
    """The steps of the best K layouts, each with its best recomputation; groups that share a batch are one.

    Diverse ones are of the best K meshes; of all where there are fewer, beside their best other layouts.
    """
    best: dict[object, tuple[float, object]] = {}
    for one in some:
        shared = frozenset(each.stage_groups[0].group for each in one.config.replicas)
        name = shared or field_of(replace(one.config, recompute_granularity="none"))
        sizes = replace(one.config, recompute_granularity="none", zero_stage=0, micro_batch_size=1,
                        num_microbatches=1)  # fmt: skip
        mine = (one.step_s, shared or field_of(sizes))
        best[name] = min(best.get(name, mine), mine, key=lambda known: known[0])
    ordered = sorted(best.values(), key=lambda known: known[0])
    firsts: dict[object, float] = {}
    others = list[float]()
    for step_s, mesh in ordered:
        if problem.options.diverse and mesh not in firsts:
            firsts[mesh] = step_s
        else:
            others.append(step_s)
    ahead = list(firsts.values())[: problem.options.top_k]
    return sorted([*ahead, *others[: problem.options.top_k - len(ahead)]])


def is_usual(problem: Problem, config: Configuration) -> bool:
    """Whether it is tried unasked (docs/requests.md).

    Context parallelism in powers of two that leave enough tokens. Batches are too small here for the limits
    on micro-batches.
    """
    limits = " ".join((*problem.options.pin, *problem.options.constraints))
    size, seq = config.context_parallel_size, problem.workload.seq_length
    return "context_parallel_size" in limits or (size & (size - 1) == 0 and size * LEAST_SLICE <= seq)


def field_of(config: Configuration) -> object:
    """What placements have in common that are ranked as one: berths and sizes, not order and split."""
    if config.replicas:
        return frozenset(map(field_of, config.replicas))
    berths = frozenset((one.group, one.tensor_parallel_size) for one in config.stage_groups)
    return (berths, config.pipeline_parallel_size, config.data_parallel_size, config.context_parallel_size,
            config.expert_parallel_size, config.micro_batch_size, config.num_microbatches,
            config.zero_stage, config.recompute_granularity)  # fmt: skip
