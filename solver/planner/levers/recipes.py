"""Published recipes of the model, and plans of the answer that need a package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from meshwright.profiles.profile import Profile
from meshwright.profiles.switches import EVERY_SWITCH
from meshwright.solver.answer import Answer, Lever, settled_problem
from meshwright.solver.clock import look
from meshwright.solver.planner.levers.change import Best, Change, Find, as_lever, time_per_token
from meshwright.solver.planner.levers.searched import lever_by_score
from meshwright.solver.planner.recipes import (
    WORTH_OF_A_RECIPE,
    Candidate,
    fastest_recipe,
    has_recipes,
    in_words,
)
from meshwright.solver.predict import profile_of_variant
from meshwright.solver.problem import Problem


def published(problem: Problem, profile: Profile, answer: Answer) -> Iterator[tuple[Lever, Change]]:
    """Yield the fastest published recipe, if it is faster than the first plan, with what it asks for.

    In the request's precision; where none is published in bf16, in 8 bits.
    """
    first = answer.ranking[0]
    per_token_s = time_per_token(problem, first.config, first.prediction)
    within_s = per_token_s * problem.workload.global_batch_size * problem.workload.tokens_per_sequence
    for one, change in _fastest(problem, profile, within_s):
        own_profile = profile_of_variant(one.problem, profile)
        best = Best(one.config, one.prediction, one.problem, own_profile, proved=False)
        lever = as_lever(problem, answer, change, best)
        if lever.saves > WORTH_OF_A_RECIPE:
            yield lever, change


def as_published(problem: Problem, profile: Profile) -> Iterator[Change]:
    """Yield what the fastest published recipe asks for."""
    yield from (change for _, change in _fastest(problem, profile, inf))


def _fastest(problem: Problem, profile: Profile, within_s: float) -> Iterator[tuple[Candidate, Change]]:
    own = problem.workload.precision
    other = own == "bf16" and not has_recipes(problem, own)
    one = fastest_recipe(problem, profile, precision="fp8" if other else own, within_s=within_s)
    if one is not None:
        yield (
            one,
            Change(
                kind="recipe",
                words=f"{one.name}{f' ({in_words(one.needs)})' if one.needs else ''}",
                effect=one.effect,
                problem=one.asked(problem),
                settings=one.settings,
            ),
        )


def relaid(
    problem: Problem, answer: Answer, recipes: Sequence[tuple[Lever, Change]], find: Find
) -> Iterator[Lever]:
    """Yield recipes with the plan of a search, which their settings give; else with their own layout."""
    for lever, change in recipes:
        look()
        plans, _ = find(change)
        yield as_lever(problem, answer, change, plans[0]) if plans else lever


def packaged(
    problem: Problem, profile: Profile, answer: Answer, *, scored: bool = False
) -> Iterator[Lever]:
    """Yield the plans behind the ranking as levers: they need a package that the request does not allow.

    ``scored``: by what ranks plans, where that is not the time for each token.
    """
    for plan in answer.plans:
        if not plan.ranked and plan.needs:
            change = Change(
                kind="package",
                words=" and ".join(plan.needs),
                effect="not in a stock installation",
                problem=problem,
                settings={"search.allow": [EVERY_SWITCH]},
            )
            way = settled_problem(plan, problem)
            own = profile_of_variant(way, profile)
            best = Best(plan.config, plan.prediction, way, own, proved=answer.is_optimal)
            if scored:
                yield lever_by_score(problem, profile, answer, change, best)
            else:
                yield as_lever(problem, answer, change, best)
