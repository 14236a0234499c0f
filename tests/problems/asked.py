"""Answers to whole problems under the profile that ships; what was asked once is not asked again."""

from collections.abc import Callable

from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.answer import Answer
from meshwright.solver.planner import plan
from meshwright.solver.planner.fewest_nodes import explained_search
from meshwright.solver.problem import Problem
from meshwright.solver.search import search

_KNOWN = dict[tuple[str, str], Answer]()  # by who was asked, and all the words of the problem


def answered(problem: Problem, *, anew: bool = False) -> Answer:
    """The planner's answer; ``anew``: whatever it was, for tests that change what is searched."""
    return _known(plan.ask, problem, anew=anew)


def searched(problem: Problem, *, anew: bool = False) -> Answer:
    """The same of the search alone, without reasons and remedies."""
    return _known(search.search, problem, anew=anew)


def searched_with_reasons(problem: Problem) -> Answer:
    """The same with the reasons of an infeasible answer, without remedies."""
    return _known(explained_search, problem)


def _known(ask: Callable[[Problem, Profile], Answer], problem: Problem, *, anew: bool = False) -> Answer:
    name, profile = (ask.__qualname__, repr(problem)), default_profile(problem.cluster, problem.launcher)
    if anew:
        return ask(problem, profile)
    if name not in _KNOWN:
        _KNOWN[name] = ask(problem, profile)
    return _KNOWN[name]
