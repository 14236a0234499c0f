"""The best plan of a change by a search: to its end, or within limited work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Answer, Lever, Plan, settled_problem
from meshwright.solver.clock import WorkWatch, look
from meshwright.solver.planner.levers.change import (
    Best,
    Change,
    Found,
    as_lever,
    leaves_idle,
    worth_of,
    worth_s,
)
from meshwright.solver.planner.variants import (
    Variant,
    found_by,
    score_of,
    scores_s,
    searchable,
    searched_together,
    variants_of,
)
from meshwright.solver.predict import profile_of_variant
from meshwright.solver.problem import Problem
from meshwright.solver.search.frontier import Rivals
from meshwright.solver.search.gpu_seconds import LeastPasses
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import are_few, is_too_large


def has_stages(problem: Problem) -> bool:
    """Return whether a request's launcher has pipeline stages."""
    return len(launcher_capabilities(problem.launcher).schedules) > 1


def searched_plans(problem: Problem, change: Change, profile: Profile, answer: Answer) -> Found:
    """Return the first plans of a changed request that save enough to be named."""
    groups, idle = groups_of(change, profile), leaves_idle(problem, answer)
    return fastest_within(groups, worth_s(problem, change, answer), with_fewer=idle)


def proved_plans(
    problem: Problem,
    change: Change,
    profile: Profile,
    answer: Answer,
    searches: WorkWatch,
) -> Found:
    """Return the same within limited work, and no plan where it is not proved."""
    limit_s, idle = worth_s(problem, change, answer), leaves_idle(problem, answer)
    return first_proved(groups_of(change, profile), limit_s, searches, with_fewer=idle)


def by_score(problem: Problem, change: Change, profile: Profile, answer: Answer) -> Iterator[Lever]:
    """Yield a change that saves enough of what plans are ranked by, found by a search that ranks by it."""
    look()
    first = answer.ranking[0]
    now_s = _score_per_token(settled_problem(first, problem), profile, first)
    share = 1.0 - worth_of(change.kind)
    within_s = share * now_s * _tokens(change.problem)
    plans, _ = fastest_within(groups_of(change, profile), within_s, with_fewer=False)
    for best in plans[:1]:
        saved = 1.0 - _score_per_token(best.way, profile, best) / now_s
        yield replace(as_lever(problem, answer, change, best), saves=saved, at_least=not best.proved)


def _score_per_token(problem: Problem, profile: Profile, plan: Plan | Best) -> float:
    """Return what ranks a plan under a problem that has its switches, for each token asked for."""
    priced = [(plan.config, plan.prediction)]
    return scores_s(problem, profile_of_variant(problem, profile), priced)[0] / _tokens(problem)


def _tokens(problem: Problem) -> float:
    return problem.workload.global_batch_size * problem.workload.tokens_per_sequence


def first_proved(
    groups: Sequence[Sequence[Variant]],
    limit_s: float,
    searches: WorkWatch,
    *,
    with_fewer: bool,
    passes: Sequence[LeastPasses] = (),
) -> Found:
    """Return what ``fastest_within`` finds within limited work, and no plan where it is not proved.

    How soon such a plan is found depends on the machine.
    """
    plans, proved = list[Best](), False
    with searches.cut():
        if not any(is_too_large(group[0].problem) for group in groups):  # a sample proves nothing
            plans, proved = fastest_within(groups, limit_s, with_fewer=with_fewer, passes=passes)
    return (plans, True) if proved and not searches.interrupted() else ([], False)


def groups_of(change: Change, profile: Profile) -> list[list[Variant]]:
    """Return the variants of a change, those together that one search takes."""
    groups = list[list[Variant]]()
    for changed in (change.problem, *change.also):
        variants, _ = searchable(variants_of(changed, profile_of_variant(changed, profile)))
        groups += searched_together(variants)
    return groups


def fastest_within(
    groups: Sequence[Sequence[Variant]],
    limit_s: float,
    *,
    with_fewer: bool,
    passes: Sequence[LeastPasses] = (),
) -> Found:
    """Return the fastest plans within a limit, of the group with the fastest; and whether it is proved.

    On all GPUs, or ``with_fewer`` on fewer as well. ``passes``: of each group's usual candidates.
    """
    plans, proved = list[Best](), bool(groups)
    for every, own in zip_longest(groups, passes):
        least_s = None if own is None or are_few(every[0].problem) else own.of_rows
        group = every if least_s is None else _among_usual(every)
        first, *others = group
        found = search(
            first.problem, first.profile, ways=[one.problem for one in others],
            rivals=Rivals(limit_s, limit_s, least_s=least_s), proved=with_fewer,
        )  # fmt: skip
        proved = proved and found.status in ("optimal", "infeasible")
        if found.plans:
            by, best = found_by(group), found.plans[0]
            limit_s = score_of(by(best), best)
            plans = [
                Best(one.config, one.prediction, by(one).problem, by(one).profile) for one in found.plans
            ]
    return [replace(one, proved=proved) for one in plans], proved


def _among_usual(variants: Sequence[Variant]) -> list[Variant]:
    """Return variants that are searched among their usual candidates alone."""
    return [
        replace(one, problem=replace(one.problem, options=replace(one.problem.options, usual=True)))
        for one in variants
    ]
