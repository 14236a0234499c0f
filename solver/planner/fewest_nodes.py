"""Fewest nodes on which the request has a plan.

Numbers of nodes are tried from the smallest that has room for the states of the model (``Room``), which
needs no row: a number is left behind when no legal row of it, of all candidates, has a split that fits
(``fitting``), or when its search proves that none fits and meets the
deadline. So the first one with a plan is the fewest, and its ranking is the answer. Ways that differ in
switches alone are asked together, so that one search on so many nodes ranks them all. A number of nodes
with more GPUs than any legal configuration uses is searched as a cluster of that size: on as many as can
be used. Numbers of GPUs that were refuted on fewer nodes are not looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Answer, Plan
from meshwright.solver.clock import Watch
from meshwright.solver.configuration import Columns, Configuration, plan_id_of
from meshwright.solver.problem import (
    OnProgress,
    Problem,
    ShouldStop,
    on_gpus,
    on_switches,
    problem_digest,
)
from meshwright.solver.search.feasible import fitting
from meshwright.solver.search.priced_space import CHUNK, Priced, Room, priced_parts, priced_space
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import (
    LegalOn,
    enumerate_space,
    is_too_large,
    numbers_of_gpus,
    same_rows,
)
from meshwright.solver.space.factored import Crossing


def node_counts(problem: Problem) -> tuple[int, ...]:
    """Return the numbers of nodes in question, smallest first."""
    most = problem.cluster.num_nodes - problem.options.reserve_nodes
    named = sorted(count for count in problem.options.num_nodes if count <= most)
    return tuple(named) or tuple(range(1, most + 1))


def explained_search(
    problem: Problem, profile: Profile, *, explained: bool = True, should_stop: ShouldStop | None = None,
    **how: Any,  # noqa: ANN401 - whatever else ``search`` is given
) -> Answer:  # fmt: skip
    """Return the answer of ``search``, with its reasons if it is infeasible and they are asked for."""
    watch = Watch(time_limit_s=problem.options.time_limit_s, should_stop=should_stop)
    answer = search(problem, profile, should_stop=should_stop, **how)
    if answer.status != "infeasible" or answer.infeasible is not None or not explained:
        return answer
    from meshwright.solver.planner.no_plan import with_reasons_of_none  # noqa: PLC0415 - no plan

    return with_reasons_of_none(problem, profile, answer, watch)


def fewest(
    problem: Problem,
    profile: Profile,
    *,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
    known: Sequence[Configuration] = (),
    ways: Sequence[Problem] = (),
    differing_on: Callable[[int], tuple[int, ...]] = lambda _: (),
    most_nodes: float = inf,
) -> Answer:
    """Return the answer on the fewest nodes; on the most of them if none has a plan.

    ``known``: configurations to begin with, as ``search``; those of other numbers of nodes are ignored.
    ``ways``: the same problem under other switches, as ``search``: the fewest nodes are those on which one
    of them has a plan.
    ``differing_on``: the numbers of GPUs to search on so many nodes; none: as many as can be used.
    ``most_nodes``: another variant has a plan on so many: more are not tried, and none is not explained.
    A limit before the first plan leaves status ``unknown``. Errors as ``search``.
    """
    watch = Watch(
        time_limit_s=problem.options.time_limit_s, on_progress=on_progress, should_stop=should_stop
    )
    refuted, refuted_on = 0, dict[tuple[int, ...], int]()  # candidates: of all nodes tried, of each GPUs
    legal_on: LegalOn = {}
    counts = [count for count in node_counts(problem) if count <= most_nodes]
    with watch.cut():
        counts = [*_with_room(problem, profile, ways, counts[:-1]), *counts[-1:]]
    for count in counts:
        limit_s = max(watch.left_s, 0.01)
        here = replace(
            problem, options=replace(problem.options, num_nodes=(count,), gpus="all", time_limit_s=limit_s)
        )
        is_over, refuted_here = watch.interrupted(), 0
        is_last = count == counts[-1] or is_over
        with watch.cut():
            here, numbers = _usable(problem, here, count, differing_on, legal_on)
            if not is_last:
                refuted_here = refuted_on.get(numbers) or _refuted(here, profile, ways)
                refuted_on |= {numbers: refuted_here} if numbers else {}
        watch.report("enumerating", explored=refuted, total=refuted + refuted_here)
        if refuted_here:
            refuted += refuted_here
            continue
        answer = explained_search(here, profile, explained=is_last and most_nodes == inf, known=known,
                                  ways=ways, on_progress=on_progress, should_stop=should_stop)  # fmt: skip
        if is_over and count != counts[-1] and answer.status == "infeasible":  # others were not tried
            answer = replace(answer, status="unknown", certified_by=(), infeasible=None)
        if is_last or answer.status != "infeasible":
            return replace(
                answer,  # the rows of smaller clusters, all of them refuted, count as well
                plans=_as_asked(problem, here, ways, answer.plans),
                space_size=answer.space_size + refuted,
                explored=answer.explored + refuted,
                elapsed_s=watch.elapsed_s,
                notes={**answer.notes, "gpus": "fewest"},
            )
        refuted += answer.space_size
    raise AssertionError("there is at least one node")


def _as_asked(
    problem: Problem, here: Problem, ways: Sequence[Problem], plans: Sequence[Plan]
) -> tuple[Plan, ...]:
    """Return plans that were found on a cluster of fewer nodes, with their ids in the problem's own."""
    digests = {
        problem_digest(on_fewer): problem_digest(own)
        for on_fewer, own in zip(_under_all(here, ways), _under_all(problem, ways), strict=True)
    }
    ids = {
        plan_id_of(on_fewer, plan.config): plan_id_of(own, plan.config)
        for on_fewer, own in digests.items()
        for plan in plans
    }
    return tuple(replace(plan, plan_id=ids[plan.plan_id]) for plan in plans)


def _with_room(
    problem: Problem, profile: Profile, ways: Sequence[Problem], counts: Sequence[int]
) -> list[int]:
    """Return the numbers of nodes whose GPUs have room for the states of the model under some switches."""
    (group,) = problem.cluster.groups
    rooms = [Room.of(way, profile) for way in _under_all(problem, ways)]
    return [count for count in counts if any(room.on(count * group.gpus_per_node) for room in rooms)]


def _usable(
    problem: Problem,
    here: Problem,
    count: int,
    differing_on: Callable[[int], tuple[int, ...]],
    legal_on: LegalOn,
) -> tuple[Problem, tuple[int, ...]]:
    """Return the problem on ``count`` nodes and the numbers of GPUs that legal rows use there; (): unknown.

    They are a cluster of their own, on which a plan may leave a part of a node idle.
    """
    if problem.options.num_nodes:
        return here, ()
    alone, differing = alone_on(here, count), differing_on(count)
    if differing:
        return on_gpus(alone, differing), differing
    return alone, numbers_of_gpus(alone, legal_on)


def alone_on(problem: Problem, count: int) -> Problem:
    """Return the problem on a cluster of ``count`` nodes, of which the request names none."""
    (group,) = problem.cluster.groups
    return replace(
        problem,
        cluster=replace(problem.cluster, groups=(replace(group, num_nodes=count),)),
        options=replace(problem.options, num_nodes=(), reserve_nodes=0),
    )


def differing_gpus(problems: Sequence[Problem], *, nodes: int | None = None) -> tuple[int, ...]:
    """Return the numbers of GPUs that some problems can use of so many nodes; () if all agree.

    Were each searched on as many as it can use, what one finds on fewer GPUs might be better under another.
    """
    here = (one if nodes is None else alone_on(one, nodes) for one in problems)
    numbers = {found for found in map(numbers_of_gpus, here) if found}
    return tuple(sorted(set().union(*numbers), reverse=True)) if len(numbers) > 1 else ()


def _under_all(problem: Problem, ways: Sequence[Problem]) -> list[Problem]:
    return [problem, *(on_switches(problem, way) for way in ways)]


def _refuted(problem: Problem, profile: Profile, ways: Sequence[Problem]) -> int:
    """Count the candidates under all switches if none has a split that fits; 0 if one may."""
    alike, size = dict[Hashable, list[Problem]](), 0
    for way in _under_all(problem, ways):
        alike.setdefault(same_rows(way), []).append(way)
    for group in alike.values():
        wide = not is_too_large(group[0], wide=True)
        space = enumerate_space(group[0], legal_only=True, wide=wide)
        if not (wide or space.every) or _may_fit(group, profile, space.rows):
            return 0
        size += space.size * len(group)
    return size


def _may_fit(group: Sequence[Problem], profile: Profile, rows: Columns | Crossing) -> bool:
    """Return whether some legal row may have a split that fits; False is a proof."""
    problems = [
        replace(one, options=replace(one.options, objective="step_time", deadline_days=None))
        for one in group
    ]
    if isinstance(rows, Crossing) and len(rows):
        return _some_fit(priced_parts([(one, rows) for one in problems], profile))
    return any(_some_fit(priced_space(one, profile, rows)) for one in problems)


def _some_fit(priced: Priced) -> bool:
    if priced.by_kind is None:
        pieces = np.split(np.arange(len(priced)), range(CHUNK, len(priced), CHUNK))
        return any(fitting(priced.take(piece)).any() for piece in pieces)
    kinds = priced.by_kind.kinds
    able = np.sort(priced.by_kind.families.members)  # as many rows together as there are in a piece
    ends = np.flatnonzero(np.diff(np.cumsum(kinds.sizes[able]) // CHUNK)) + 1
    some = (kinds.rows(piece) for piece in np.split(able, ends))
    return any(fitting(replace(priced, prices=priced.prices.afresh()).take(one)).any() for one in some)
