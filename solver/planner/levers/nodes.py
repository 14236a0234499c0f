"""Fewer nodes for a request on the fewest, and one of unlike node groups alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Answer, Lever
from meshwright.solver.clock import look
from meshwright.solver.planner.fewest_nodes import alone_on, node_counts
from meshwright.solver.planner.least_memory import Need, least_memory
from meshwright.solver.planner.levers.change import Best, Change, as_lever, within_seconds
from meshwright.solver.planner.levers.launchers import of_each_stack
from meshwright.solver.planner.levers.numerics import bases, of_fewer_bits
from meshwright.solver.planner.levers.searched import groups_of, searched_plans
from meshwright.solver.planner.levers.switches import offload
from meshwright.solver.problem import Problem, per_node_of
from meshwright.solver.search.priced_space import Room


def saving_nodes(problem: Problem, profile: Profile, answer: Answer) -> Iterator[Lever]:
    """Yield the change of each kind that fits on the fewest nodes, with its configuration of least memory.

    Its step is no shorter than that of the plan which a search finds there. Where the states of the model
    have room on fewer nodes, such a search may find a plan on these. Of several changes the simplest
    counts, and the fastest launcher.
    """
    each = per_node_of(problem)
    nodes = -(-answer.ranking[0].config.num_gpus // each)
    fewer = [count for count in node_counts(problem) if count < nodes]

    def levers(changes: Iterable[Change]) -> Iterator[Lever]:
        for change in changes:
            look()
            ways = (way for group in groups_of(change, profile) for way in group)
            rooms = [Room.of(way.problem, way.profile) for way in ways]
            counts = [count for count in fewer if any(room.on(count * each) for room in rooms)]
            need = _on_fewest(change.problem, counts)
            if need is not None:
                lever = as_lever(problem, answer, change, Best(need.config, need.prediction, need.problem))
                used = -(-need.num_gpus // each)
                yield replace(lever, saves=1.0 - used / nodes, at_least=used > counts[0])

    for alike in (of_fewer_bits(problem), bases(problem), offload(problem), of_each_stack(problem)):
        found = [*levers(alike)]
        most = max((one.saves for one in found), default=0.0)
        best = [one for one in found if one.saves == most]
        yield from sorted(best, key=lambda one: (one.kind == "states", one.gpu_s_per_token))[:1]


def _on_fewest(problem: Problem, counts: Sequence[int]) -> Need | None:
    """Return the configuration of least memory on the fewest nodes that it fits, found by bisection."""
    found = dict[int, Need | None]()

    def fits(count: int) -> bool:
        look()
        found[count] = least_memory(alone_on(problem, count))
        return (need := found[count]) is not None and need.fits

    at = bisect_left(counts, True, key=fits)
    return found[counts[at]] if at < len(counts) else None


def one_group_alone(
    problem: Problem, profile: Profile, answer: Answer, *, seconds: float
) -> Iterator[Lever]:
    """Yield what one of unlike node groups saves alone, each by a search of at most so many seconds."""
    if problem.cluster.is_homogeneous:
        return
    from meshwright.solver.explain.remedies import groups_alone  # noqa: PLC0415 - for unlike nodes alone

    for one in groups_alone(problem, profile):
        look()
        change = Change(
            kind=one.kind, words=one.words, effect="", problem=one.problem, settings=one.settings
        )
        plans, _ = searched_plans(problem, within_seconds(change, seconds), one.profile, answer)
        if plans:
            yield as_lever(problem, answer, change, plans[0])
