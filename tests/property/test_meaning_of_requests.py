"""Answers to random requests against every configuration that the request means (``meaning``).

Nothing here imports the product's enumeration. Fewer requests leave the launcher or the nodes open or have
a deadline or a front: each of these is several searches.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import islice, pairwise
from math import inf
from random import Random
from typing import Any

import pytest

from meshwright.profiles.profile import Profile, default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Answer, Plan
from meshwright.solver.configuration import Configuration
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem, with_changes
from meshwright.solver.search.priced_space import have_room
from tests.draws import draws, some_of
from tests.problems.requests_drawn import OPEN_KINDS, a_drawn_request, an_open_request
from tests.property.meaning import (
    Judged,
    Tried,
    configurations,
    numbers_of_gpus,
    of_each_launcher,
    run_days,
    slowdown,
    tried,
    way_of,
    work_of,
)
from tests.property.unexplained import unexplained

EXAMPLES = draws(5, of_more=15)  # and 5 awkward ones (test_hostile_requests)
OPEN_EXAMPLES = draws(10)
PARTS = 5
ROUNDING = 1 + 1e-9
RANKING = 1 + 1e-7  # scores are compared in whole nanoseconds
MEMORY_STEP = 0.04  # between two points of a front (docs/requests.md)
# torchrun starts their ranks, fewer on the last node
SHORT_LAST_NODES = {
    "megatron-lm", "megatron-bridge", "deepspeed", "torchtitan", "accelerate", "trl", "axolotl",
    "llama-factory", "llama-factory-accelerate", "none",
}  # fmt: skip
# What a layout is run with; layouts that differ in more are ranked apart (docs/how-the-search-works.md).
HOW_IT_RUNS: dict[str, Any] = {
    "stage_layers": (), "stage_recompute_layers": (), "virtual_pipeline_size": 1,
    "recompute_granularity": "none", "recompute_layers": 0, "pipeline_schedule": "none",
    "zero_shard_size": 1, "sequence_parallel": False, "offload": "none",
    "context_parallel_mode": "ring", "rank_order": "tp-cp-dp-pp",
}  # fmt: skip


# Precision and optimizer, and what a configuration is but for how it runs.
Layout = tuple[tuple[str, str], Configuration]


def most_of_row(row: list[Tried]) -> Tried:
    """No score of a row is larger than that of its slowest split of least J, which chooses among splits."""
    least = min(one.closed_s for one in row) * (1 + 1e-7)
    slowest = max(one.step_s for one in row if one.closed_s <= least) * ROUNDING
    return max((one for one in row if one.step_s <= slowest), key=lambda one: one.score)


def layout_of(one: Tried) -> Layout:
    """What tells plans apart: of one rank no ZeRO stage, which shards nothing."""
    stage = one.config.zero_stage if one.config.replicating_ranks > 1 else 0
    return work_of(one.launcher), replace(one.config, **HOW_IT_RUNS, zero_stage=stage)


def rows_of(every: list[Tried]) -> list[list[Tried]]:
    """All that was tried, together where it differs in the split alone."""
    found: dict[tuple[str, Configuration], list[Tried]] = defaultdict(list)
    for one in every:
        own = one.config.stage_recompute_layers
        row = replace(one.config, stage_layers=(), stage_recompute_layers=(),
                      recompute_layers=-1 if own else one.config.recompute_layers)  # fmt: skip
        found[one.launcher, row].append(one)
    return list(found.values())


@pytest.mark.parametrize("part", range(PARTS))
def test_no_configuration_that_a_request_means_is_better_than_what_is_proved(part: int) -> None:
    for seed in range(part, EXAMPLES, PARTS):
        with unexplained(), seeded(f"a_drawn_request(Random({seed}))"):
            problem = decided_by_cp_sat(a_drawn_request(Random(seed)))
            judge(problem, ask(problem, profile_of(problem)))


@pytest.mark.parametrize("kind", some_of([*OPEN_KINDS], each=2))
def test_nothing_that_an_open_request_means_is_better_than_what_is_proved(kind: str) -> None:
    each = 6 if kind == "switches" else 1  # up to a hundred ways to run every configuration
    for seed in range(max(OPEN_EXAMPLES // (len(OPEN_KINDS) * each), 1)):
        with unexplained(), seeded(f"an_open_request(Random({seed}), {kind!r})"):
            problem = an_open_request(Random(seed), kind)
            judge(problem, ask(problem, profile_of(of_each_launcher(problem)[0])))


def test_no_place_of_weights_and_states_is_better_than_what_is_proved() -> None:
    """DeepSpeed has each on the GPU, the host or drives."""
    problem = parse_problem(
        {
            "model": "llama-3.2-1b",
            "cluster": {"groups": [{"gpu": "l4", "num_nodes": 1, "gpus_per_node": 2}]},
            "workload": {"global_batch_size": 2, "seq_length": 2048},
            "launcher": "deepspeed",
            "search": {"allow": ["offload", "none"], "top_k": 3},
        }
    )
    problem = decided_by_cp_sat(problem)
    answer = ask(problem, profile_of(problem))
    assert answer.plans
    assert "parameters" in {one.config.offload for one in judge(problem, answer)}


def decided_by_cp_sat(problem: Problem) -> Problem:
    """The request with CP-SAT's decision, which is an error where it differs from the search."""
    return replace(problem, options=replace(problem.options, certify="cp-sat"))


def profile_of(problem: Problem) -> Profile:
    """The one that ships."""
    return default_profile(problem.cluster, problem.launcher)


@contextmanager
def seeded(request: str) -> Iterator[None]:
    """Add to what fails how its request is drawn."""
    try:
        yield
    except Exception as error:
        error.add_note(f"the request is {request}")
        raise


def judge(problem: Problem, answer: Answer) -> list[Tried]:
    """Hold the answer to a request against everything that the request means, and return all that fits."""
    found = everything(problem, answer)
    sure = [most for row in rows_of(found) if in_time(problem, most := most_of_row(row))]
    able = [one for one in found if in_time(problem, one)]
    assert answer.space == "every"
    if answer.status == "optimal" and problem.options.certify == "cp-sat":
        assert answer.decided_by == "cp-sat"
    assert answer.status in {"optimal" if able else "infeasible", "optimal" if sure else "infeasible"}
    if answer.plans:
        assert_named(problem, answer, found)
        assert_bounds(problem, answer, able)
        able, sure = listed(problem, able, by=sure), listed(problem, sure, by=able)
        assert_ranking(problem, answer.plans, able, sure)
        assert_gaps(problem, answer.plans, able)
    if problem.options.pareto and answer.plans:
        assert_front(problem, answer, found)
    return found


def everything(problem: Problem, answer: Answer) -> list[Tried]:
    """Everything that the request means, legal and fitting, under each launcher that it leaves open."""
    used = {plan.config.num_gpus for plan in answer.plans}
    counts, each_launcher = numbers_of_gpus(problem), of_each_launcher(problem)
    for some in [[count] for count in counts] if problem.options.gpus == "fewest" else [counts]:
        meant = {count for one in each_launcher for count in usable_by(one, some, used)}
        found = [each for one in each_launcher for each in tried_on(one, meant)]
        if any(in_time(problem, most_of_row(row)) for row in rows_of(found)):
            break
        if any(in_time(problem, one) and one.config.num_gpus in used for one in found):
            break
    return found


def listed(problem: Problem, some: list[Tried], by: list[Tried]) -> list[Tried]:
    """Those that may be listed: on fewer GPUs they are faster than every one in ``by`` on the most usable.

    On fewer GPUs each diverse plan is the best of its mesh. Plans of equal score and ``layout_of`` all
    count: of one rank under any ZeRO stage.
    """
    if problem.options.gpus == "fewest" or not leaves_nodes_open(problem):
        return some
    on_most = {name: most_used(problem, name) for name in {launcher_and_work(one) for one in some}}
    least: dict[tuple[str, ...], float] = defaultdict(lambda: inf)
    for one in by:
        if one.config.num_gpus == on_most.get(name := launcher_and_work(one)):
            least[name] = min(least[name], one.score)
    on_all, idle = list[Tried](), list[Tried]()
    for one in some:
        (idle if one.config.num_gpus < on_most[launcher_and_work(one)] else on_all).append(one)
    best = {mesh(one): one for one in sorted(idle, key=lambda one: -one.score)}
    alike = [one for one in idle if one.score == best[mesh(one)].score
             and layout_of(one) == layout_of(best[mesh(one)])]  # fmt: skip
    faster = (one for one in (alike if problem.options.diverse else idle)
              if one.score < least[launcher_and_work(one)])  # fmt: skip
    return [*on_all, *faster]


def launcher_and_work(one: Tried) -> tuple[str, ...]:
    """Each has a search of its own, over all its switches."""
    return (one.launcher.split()[0], *work_of(one.launcher))


def most_used(problem: Problem, name: tuple[str, ...]) -> int:
    """All GPUs, or the largest number below that anything is legal on."""
    each = next(one for one in of_each_launcher(problem) if (one.launcher, *work_of(way_of(one))) == name)
    counts = numbers_of_gpus(each)
    return max(counts) if any_legal(each, profile_of(each), counts) else fewer_used(each, max(counts))


def fewer_used(problem: Problem, most: int) -> int:
    """The largest number below that anything is legal on, whole nodes before others; 0: none."""
    each = problem.cluster.groups[0].gpus_per_node
    numbers = sorted(range(1, most), key=lambda count: (count % each > 0, -count))
    return next((count for count in numbers if any_legal(problem, profile_of(problem), [count])), 0)


def leaves_nodes_open(problem: Problem) -> bool:
    """Whether plans on fewer nodes are ranked with those on all."""
    return problem.options.objective == "step_time" and not problem.options.num_nodes


def in_time(problem: Problem, one: Tried) -> bool:
    """Whether it meets the deadline."""
    allowed = problem.options.deadline_days
    return allowed is None or run_days(problem, one.config, one.step_s) <= allowed


def usable_by(problem: Problem, counts: list[int], used: set[int]) -> set[int]:
    """Numbers of GPUs that one launcher means: these; where none is legal there, as many as can be used."""
    profile = profile_of(problem)
    each, most = problem.cluster.groups[0].gpus_per_node, max(counts)

    def fewer_than(count: int) -> set[int]:
        """All that start, and others where nothing is legal on the whole of as many nodes."""
        if not leaves_nodes_open(problem):
            return set()
        legal = cache(lambda one: any_legal(problem, profile, [one]))
        whole = {one: -(-one // each) * each for one in range(1, count)}
        starts = {one for one in whole if one in (whole[one], min(one, each))}
        starts |= {*whole} if problem.launcher in SHORT_LAST_NODES else set()
        return {one for one in whole if (one in starts or not legal(whole[one])) and legal(one)}

    if problem.options.num_nodes or any_legal(problem, profile, counts):
        return {*counts, *fewer_than(most)}
    first = fewer_used(problem, most)
    if not first:
        return set()
    near = {count for count in used if count >= 0.9 * first}  # these may be ranked beside them
    return {first, *fewer_than(first), *(count for count in near if any_legal(problem, profile, [count]))}


def tried_on(problem: Problem, counts: Iterable[int]) -> list[Tried]:
    """All configurations of one launcher on so many GPUs."""
    profile = profile_of(problem)
    fitting = Judged.of(problem, profile, list(on_any_of(problem, counts))).fitting
    assert have_room(problem, profile) or not fitting
    return tried(problem, profile, fitting)


def on_any_of(problem: Problem, counts: Iterable[int]) -> Iterator[Configuration]:
    """Every configuration on these numbers of GPUs."""
    return (config for count in counts for config in configurations(problem, count))


def any_legal(problem: Problem, profile: Profile, counts: Iterable[int]) -> bool:
    """Whether the check finds one of them legal, whatever its memory."""
    every = on_any_of(problem, counts)
    return any(
        Judged.of(problem, profile, some).legal for some in iter(lambda: list(islice(every, 64)), [])
    )


def launcher_of(problem: Problem, plan: Plan) -> str:
    """How a plan is priced: under the first launcher that it names, or the request's, with its switches."""
    launcher = plan.launchers[0] if problem.launcher == "any" else problem.launcher
    return way_of(replace(problem, launcher=launcher), plan.workload)


def assert_named(problem: Problem, answer: Answer, found: list[Tried]) -> None:
    """Each plan is one of the configurations, with its own time, run and launchers."""
    known = {(one.launcher, one.config): one for one in found}
    for plan in answer.plans:
        one = known[launcher_of(problem, plan), plan.config]
        assert plan.prediction.step_time_s == pytest.approx(one.step_s, rel=1e-9)
        if problem.launcher == "any":
            own = with_changes(problem.workload, plan.workload)
            alike = [each for each in of_each_launcher(problem) if each.workload == own]
            able = {each.launcher for each in alike
                    if Judged.of(each, profile_of(each), [plan.config]).fitting}  # fmt: skip
            assert set(plan.launchers) == able
        if problem.options.total_tokens is not None:
            assert_run(problem, plan, one)


def assert_run(problem: Problem, plan: Plan, one: Tried) -> None:
    """Days and goodput of a plan's run, written out."""
    assert plan.outlook is not None
    slower = slowdown(problem, plan.config.num_gpus)
    days = run_days(problem, plan.config, one.step_s)
    assert plan.outlook.days == pytest.approx(days, rel=1e-9)
    assert plan.outlook.goodput == pytest.approx(1 / slower, rel=1e-9)


def assert_bounds(problem: Problem, answer: Answer, able: list[Tried]) -> None:
    """What is proved of the step and of the objective holds for every configuration."""
    plan, claim = answer.plans[0], answer.objective
    first = next(one for one in able
                 if (one.launcher, one.config) == (launcher_of(problem, plan), plan.config))  # fmt: skip
    alike = [one.step_s for one in able if one.config.num_gpus == first.config.num_gpus
             and one.config.global_batch_size == first.config.global_batch_size]  # fmt: skip
    if answer.bound_step_time_s is not None:
        assert answer.bound_step_time_s <= min(alike) * ROUNDING
    assert claim is not None
    assert claim.value is not None
    rate = claim.name == "tokens_per_s_per_gpu"
    if claim.name != "energy_per_token":
        assert (1 / claim.value if rate else claim.value) == pytest.approx(first.score, rel=1e-9)
    if claim.bound is not None:
        share = claim.value / claim.bound if rate else claim.bound / claim.value
        assert first.score * share <= min(one.score for one in able) * ROUNDING


def mesh_of(layout: Layout) -> tuple[Any, ...]:
    """How the GPUs are laid out, in which precision and with which optimizer."""
    names = ("tensor", "pipeline", "context", "expert", "expert_tensor", "data")
    work, config = layout
    return (*work, *(getattr(config, f"{name}_parallel_size") for name in names))


def mesh(one: Tried) -> tuple[Any, ...]:
    """The mesh of one configuration."""
    return mesh_of(layout_of(one))


def best_by(some: list[Tried], name: Callable[[Tried], Any]) -> dict[Any, float]:
    """The best score of all that has a name in common."""
    best: dict[Any, float] = {}
    for one in some:
        best[name(one)] = min(one.score, best.get(name(one), one.score))
    return best


def best_scores(problem: Problem, some: list[Tried]) -> list[float]:
    """The scores of the best K layouts; diverse ones of the best K meshes, of all where there are fewer.

    Then their best other layouts stand beside them: those that are not the best of their mesh.
    """
    top_k, scores = problem.options.top_k, best_by(some, layout_of)
    if not problem.options.diverse:
        return sorted(scores.values())[:top_k]
    first: dict[tuple[Any, ...], float] = {}
    others = list[float]()
    for layout, score in sorted(scores.items(), key=lambda one: one[1]):
        if mesh_of(layout) in first:
            others.append(score)
        else:
            first[mesh_of(layout)] = score
    ahead = sorted(first.values())[:top_k]
    return sorted([*ahead, *others[: top_k - len(ahead)]])


def assert_ranking(problem: Problem, plans: tuple[Plan, ...], able: list[Tried], sure: list[Tried]) -> None:
    """The plans are the best, in order, each the best of its layout or mesh, and none is left out."""
    known = {(one.launcher, one.config): one for one in able}
    shown = [known[launcher_of(problem, plan), plan.config] for plan in plans]
    scores = [one.score for one in shown]
    assert all(one <= other * RANKING for one, other in pairwise(scores))
    assert len({layout_of(one) for one in shown}) == len(plans)
    top_k, layouts = problem.options.top_k, {layout_of(one) for one in able}
    assert min(top_k, len({layout_of(one) for one in sure})) <= len(plans) <= min(top_k, len(layouts))
    surely = best_scores(problem, sure)
    assert all(score <= most * RANKING for score, most in zip(scores, surely, strict=False))
    meshes = {mesh(one) for one in shown}
    if problem.options.diverse and len(meshes) < len(plans):  # else others would be better worth reading
        assert {mesh(one) for one in sure} <= meshes
    name = mesh if problem.options.diverse else layout_of
    best = best_by(sure, name)
    firsts = {name(one): one.score for one in shown[::-1]}
    assert all(score <= best.get(key, score) * RANKING for key, score in firsts.items())


def assert_gaps(problem: Problem, plans: tuple[Plan, ...], able: list[Tried]) -> None:
    """No rank could have a plan that is better by more than its gap, whatever its split."""
    known = {(one.launcher, one.config): one.score for one in able}
    for plan, least in zip(plans, best_scores(problem, able), strict=False):
        assert plan.gap is not None
        score = known[launcher_of(problem, plan), plan.config]
        assert score * (1.0 - plan.gap) <= least * ROUNDING
        if plan.bound_step_time_s is not None:
            assert plan.bound_step_time_s <= least * ROUNDING


def assert_front(problem: Problem, answer: Answer, found: list[Tried]) -> None:
    """No configuration beats a point, and every one that none beats is reached to within a step of memory.

    Drawn at the largest of several batches, whatever the deadline.
    """
    front, known = answer.pareto, {(one.launcher, one.config): one for one in found}
    assert front is not None
    assert front.complete
    assert front.memory_step == MEMORY_STEP
    points = [(point, known[launcher_of(problem, point.plan), point.plan.config]) for point in front.points]
    for point, one in points:
        assert point.plan.prediction.step_time_s == pytest.approx(one.step_s, rel=1e-9)
        assert point.plan.prediction.peak_memory_bytes == one.peak_bytes <= point.budget_bytes
        assert not any(dominates(other, one) for _, other in points)
    for row in rows_of(found):
        for one in row:
            if one.config.global_batch_size != problem.workload.global_batch_size:
                continue
            most = within_memory(row, one.peak_bytes)
            gpus = one.config.num_gpus
            for point, other in points:
                if (other.launcher, other.config.num_gpus) == (one.launcher, gpus):
                    assert one.peak_bytes > point.budget_bytes or other.step_s <= most * RANKING
            assert any(
                other.step_s <= most * RANKING
                and other.peak_bytes * (1 - MEMORY_STEP) <= one.peak_bytes
                and other.config.num_gpus <= gpus
                for _, other in points
            )


def dominates(one: Tried, other: Tried) -> bool:
    """Whether it is no slower, no heavier, on no more GPUs, and better in one of them."""
    mine, others = ((each.step_s, each.peak_bytes, each.config.num_gpus) for each in (one, other))
    return mine != others and all(a <= b for a, b in zip(mine, others, strict=True))


def within_memory(row: list[Tried], peak_bytes: int) -> float:
    """No step of the row is longer under any budget that holds ``peak_bytes``: the slowest of least J."""
    budgets = {one.peak_bytes for one in row if one.peak_bytes >= peak_bytes}
    within = ([one for one in row if one.peak_bytes <= budget] for budget in budgets)
    return max(most_of_row(some).step_s for some in within)
