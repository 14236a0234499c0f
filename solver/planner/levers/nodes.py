"""Fewer nodes for a request on the fewest, and one of unlike node groups alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Answer, Lever
from meshwright.solver.clock import look
from meshwright.solver.planner.fewest_nodes import alone_on, node_counts
from meshwright.solver.planner.least_memory import first_that_fits
from meshwright.solver.planner.levers.change import Best, Change, as_lever, within_seconds
from meshwright.solver.planner.levers.launchers import of_each_stack
from meshwright.solver.planner.levers.numerics import bases, of_fewer_bits
from meshwright.solver.planner.levers.searched import searched_plans
from meshwright.solver.planner.levers.switches import offload
from meshwright.solver.problem import Problem, per_node_of


def saving_nodes(problem: Problem, answer: Answer) -> Iterator[Lever]:
    """Yield the change of each kind that fits on the fewest nodes, with its configuration of least memory.

    Its step is no shorter than that of the plan which a search finds there. Of several changes the simplest
    counts, and the fastest launcher.
    """
    nodes = -(-answer.ranking[0].config.num_gpus // per_node_of(problem))
    fewer = [count for count in node_counts(problem) if count < nodes][-_FEW_COUNTS:]

    def levers(changes: Iterable[Change]) -> Iterator[Lever]:
        for change in changes if fewer else ():
            look()
            need = first_that_fits([alone_on(change.problem, count) for count in fewer])
            if need is not None and need.fits:
                lever = as_lever(problem, answer, change, Best(need.config, need.prediction, need.problem))
                saved = 1.0 - need.problem.cluster.num_nodes / nodes
                yield replace(lever, saves=saved, at_least=False)

    for alike in (of_fewer_bits(problem), bases(problem), offload(problem), of_each_stack(problem)):
        found = [*levers(alike)]
        most = max((one.saves for one in found), default=0.0)
        best = [one for one in found if one.saves == most]
        yield from sorted(best, key=lambda one: (one.kind == "states", one.gpu_s_per_token))[:1]


_FEW_COUNTS = 16  # numbers of nodes that are tried, each in some hundredths of a second


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
