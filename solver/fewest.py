"""The fewest nodes on which the request has a plan.

Numbers of nodes are tried from the smallest: a number is left behind when no legal row of it has a split
that fits (``fitting``), or when its search proves that none fits and meets the deadline. So the first one
with a plan is the fewest, and its ranking is the answer.
"""

from __future__ import annotations

from dataclasses import replace

from profiles.profile import Profile
from solver.plan import Answer
from solver.problem import Problem
from solver.progress import OnProgress, ShouldStop
from solver.search.fitting import fitting
from solver.search.priced import CHUNK, priced_space
from solver.search.search import search
from solver.search.watch import Watch
from solver.space import Space, enumerate_space


def node_counts(problem: Problem) -> tuple[int, ...]:
    """Numbers of nodes in question, smallest first."""
    most = problem.cluster.num_nodes - problem.options.reserve_nodes
    named = sorted(count for count in problem.options.num_nodes if count <= most)
    return tuple(named) or tuple(range(1, most + 1))


def on_nodes(problem: Problem, count: int, time_limit_s: float) -> Problem:
    """The problem on exactly ``count`` nodes."""
    options = replace(problem.options, num_nodes=(count,), gpus="all", time_limit_s=time_limit_s)
    return replace(problem, options=options)


def fewest(
    problem: Problem,
    profile: Profile,
    *,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
) -> Answer:
    """The answer on the fewest nodes; on the most of them where none has a plan.

    A limit before the first plan leaves status ``unknown``. Errors as ``search``.
    """
    watch = Watch(
        time_limit_s=problem.options.time_limit_s, on_progress=on_progress, should_stop=should_stop
    )
    refuted, counts = 0, node_counts(problem)
    for count in counts:
        here = on_nodes(problem, count, max(watch.left_s, 0.01))
        space = enumerate_space(here)
        watch.report("enumerating", explored=refuted, total=refuted + len(space.columns))
        last = count == counts[-1] or watch.interrupted()
        if not last and not _may_fit(here, profile, space):
            refuted += len(space.columns)
            continue
        answer = search(here, profile, on_progress=on_progress, should_stop=should_stop)
        if last or answer.status != "infeasible":
            return _with_refuted(answer, refuted, watch)
        refuted += answer.space_size
    raise AssertionError("there is at least one node")


def _may_fit(problem: Problem, profile: Profile, space: Space) -> bool:
    """Whether some legal row may have a split that fits; False is a proof."""
    legal = space.columns.take(space.legal)
    rows = priced_space(problem, profile, legal)
    for start in range(0, len(rows), CHUNK):
        if fitting(rows.take(list(range(start, min(start + CHUNK, len(rows)))))).any():
            return True
    return False


def _with_refuted(answer: Answer, refuted: int, watch: Watch) -> Answer:
    """The answer counts the rows of smaller clusters, all of them refuted."""
    return replace(
        answer,
        space_size=answer.space_size + refuted,
        explored=answer.explored + refuted,
        elapsed_s=watch.elapsed_s,
        notes={**answer.notes, "gpus": "fewest"},
    )
