"""Plans of a request with fewer allowed words, where those with all of them leave some candidates out.

A word of ``search.allow`` adds rows, or switches to search them under. Where all candidates are then no
longer few, a search goes through the usual ones alone (``enumerate.searched_space``), or through a sample
of too many. A best plan that only the other candidates have would be lost to a word that adds plans. So the
request without some of its words is searched too, where it reaches more candidates. The first plan under
all words refutes nearly all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, islice

from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.profile import Profile
from meshwright.profiles.switches import NO_SWITCH
from meshwright.solver.answer import Answer
from meshwright.solver.calibration.credible import require_credible
from meshwright.solver.clock import Watch
from meshwright.solver.planner.variants import (
    Answered,
    Variant,
    best_score_s,
    found_by,
    score_of,
    searchable,
    searched_together,
    searched_variants,
    switched_of,
)
from meshwright.solver.problem import Problem, SearchOptions, altered, for_one_plan
from meshwright.solver.search.frontier import Rivals
from meshwright.solver.space.enumerate import is_too_large, searched_space

Run = Callable[..., Answer]  # of a problem and its profile, as ``search``
Settle = Callable[[Problem], Problem]
_APART = ("fp8", NO_SWITCH, *OPTIMIZERS)  # each has searches of its own, or none
_SAMPLE, _USUAL, _EVERY = range(3)  # how far a search reaches among the candidates
_MOST = 8  # sets of words that are looked at
_LEAST_S = 0.01  # a search is given this much


def with_fewer_words(
    problem: Problem,
    profile: Profile,
    answered: Sequence[Answered],
    run: Run,
    watch: Watch,
    *,
    settle: Settle,
) -> list[Answered]:
    """Add the answers with fewer words that have a better plan than those with all of them.

    Args:
        problem: the request.
        profile: its prices.
        answered: its variants with their answers.
        run: searches one variant.
        watch: the time of the request.
        settle: limits a problem to the numbers of GPUs of all variants.
    """
    found, reached = list(answered), _reached(answered)
    words = [word for word in dict.fromkeys(problem.options.allow) if word not in _APART]
    has_plan = any(one.answer.plans for one in answered) and not watch.interrupted()
    if not words or not has_plan or problem.options.gpus != "all" or min(reached.values()) == _EVERY:
        return found
    with watch.cut():
        for groups in _reaching_further(problem, profile, words, reached, settle):
            for group in groups:
                found += _if_better(problem, group, found, run, watch)
    return found


def _reached(answered: Sequence[Answered]) -> dict[tuple[str, ...], int]:
    """Return how far the searches of each launcher, precision and optimizer reached."""
    reached = dict[tuple[str, ...], int]()
    for one in answered:
        own = _EVERY if one.answer.space == "every" else _USUAL
        own = _SAMPLE if is_too_large(one.variant.problem) else own
        kind = _kind(one.variant)
        reached[kind] = min(own, reached.get(kind, own))
    return reached


def _kind(variant: Variant) -> tuple[str, ...]:
    problem = variant.problem
    ends = "apart" if problem.options.standalone_stages else ""
    return problem.launcher, problem.workload.precision, problem.workload.optimizer, ends


def _reaching_further(
    problem: Problem,
    profile: Profile,
    words: Sequence[str],
    reached: dict[tuple[str, ...], int],
    settle: Settle,
) -> Iterator[list[list[Variant]]]:
    """Yield groups of variants of the largest sets of words whose candidates reach further."""
    seen = list[set[str]]()

    def further(some: Sequence[str]) -> list[list[Variant]]:
        groups = _groups(problem, profile, {*words} - {*some})
        return [group for group in groups if _reach(group, settle) > reached.get(_kind(group[0]), _EVERY)]

    none = further(())
    if not none:  # more words reach no further
        return
    several = (some for size in range(len(words) - 1, 0, -1) for some in combinations(words, size))
    for some in islice(several, _MOST):
        if not any({*some} <= larger for larger in seen) and (groups := further(some)):
            seen.append({*some})
            yield groups
    if not seen:
        yield none


def _groups(problem: Problem, profile: Profile, without: set[str]) -> list[list[Variant]]:
    allow = tuple(word for word in problem.options.allow if word not in without)
    asked = altered(problem, options=replace(problem.options, allow=allow))
    variants, _ = searchable(searched_variants(switched_of(asked, profile)))
    return searched_together(variants)


def _reach(group: Sequence[Variant], settle: Settle) -> int:
    problem = settle(group[0].problem)
    if is_too_large(problem):
        return _SAMPLE
    return _EVERY if searched_space(problem, legal_only=True, ways=len(group)).every else _USUAL


def _if_better(
    problem: Problem, group: Sequence[Variant], before: Sequence[Answered], run: Run, watch: Watch
) -> list[Answered]:
    """Return the proved answer to a group if its best plan is better than all before; else nothing."""
    best_s, (variant, *others) = best_score_s(problem, before), group
    own = partial(run, profile=variant.profile, should_stop=watch.should_stop, explained=False,
                  ways=[one.problem for one in others])  # fmt: skip
    answer = own(_in_time(variant.problem, for_one_plan(variant.problem.options), watch),
                 rivals=Rivals(best_s, best_s))  # fmt: skip
    if not answer.plans or score_of(variant, answer.plans[0]) >= best_s:
        return []
    known = [plan.config for plan in answer.plans]
    proved = own(_in_time(variant.problem, variant.problem.options, watch), known=known)
    answer, (first, *rest) = proved if proved.plans else answer, [_allowing(one, problem) for one in group]
    variant_of = found_by([first, *rest])
    for plan in answer.plans:
        require_credible(variant_of(plan).problem, first.profile, [(plan.config, plan.prediction)])
    return [Answered(variant=first, answer=answer, others=tuple(rest))]


def _in_time(problem: Problem, options: SearchOptions, watch: Watch) -> Problem:
    """Return a problem with options, in the time that is left."""
    return altered(problem, options=replace(options, time_limit_s=max(watch.left_s, _LEAST_S)))


def _allowing(variant: Variant, problem: Problem) -> Variant:
    options = replace(variant.problem.options, allow=problem.options.allow)
    return replace(variant, problem=altered(variant.problem, options=options))
