"""The search as a worker calls it: the default profile of the problem's cluster and launcher."""

from __future__ import annotations

from profiles.profile import default_profile
from solver.plan import Answer
from solver.problem import Problem
from solver.progress import OnProgress, ShouldStop
from solver.search.search import search


def run_search(problem: Problem, *, on_progress: OnProgress, should_stop: ShouldStop) -> Answer:
    """Search with the profile that ships for this cluster and launcher."""
    profile = default_profile(problem.cluster, problem.launcher)
    return search(problem, profile, on_progress=on_progress, should_stop=should_stop)
