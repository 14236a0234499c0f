"""Nothing fits on a mixed cluster: the nearest changes that do, each with its best plan, cheapest first.

A change is offered only after its own space was searched and its best plan passed the independent check.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from math import ceil

from profiles.cluster import NodeGroup
from profiles.profile import Profile, default_profile
from solver.cost.memory import memory_limit_bytes, out_of_memory_probability
from solver.mixed.fleet import Fleet
from solver.plan import Infeasibility, Remedy
from solver.problem import Problem
from solver.search.search import search
from solver.search.watch import Watch, look
from solver.why.placed_conflicts import Limits, explained, limits_of
from solver.why.placed_nearest import Lack, nearest_lack
from solver.why.relaxed import (
    LARGEST_RISK,
    NODE_FACTORS,
    Change,
    larger_gpus,
    less_work,
    lighter,
    missing,
    remedy_of,
    with_gpu,
    without_limits,
)

_MOST = 8
_ENOUGH = 2  # of the kinds where each further change only goes further
_SEARCH_S = 10.0  # for each change
_ROUNDING = 1e-6  # in tenths of a per cent: a peak is rounded to bytes


def placed_infeasibility(problem: Problem, profile: Profile, watch: Watch) -> Infeasibility:
    """Reasons, minimal conflicts, the nearest configuration and verified changes.

    Those that were found before the time was over; the reasons say what was cut.
    """
    lack = nearest_lack(problem, profile, watch)
    limits = limits_of(problem, profile)
    found = explained(limits, lack, watch)
    cheap, work, hardware = list[Remedy](), list[Remedy](), list[Remedy]()
    complete, judged = False, True
    with watch.cut():
        judged &= _add_fitting(cheap, _free(limits, lack), _MOST)
        judged &= _add_fitting(work, less_work(problem, profile), _ENOUGH)
        for group in range(len(problem.cluster.distinct_groups)):
            for changes in (_more_nodes(problem, profile, group), _larger_gpus(problem, profile, group)):
                judged &= _add_fitting(hardware, changes, len(hardware) + 1)
        complete = True
    kinds = [sorted(kind, key=lambda one: one.gpu_s_per_token) for kind in (cheap, work, hardware)]
    remedies = (*kinds[0][: _MOST - 4], *kinds[1][:1], *kinds[2][:3])
    reasons = (*found.reasons, *missing(complete=complete, judged=judged))
    offered = tuple(one.change for one in remedies)
    return replace(found, reasons=reasons, remedies=remedies, changes=offered)


def _free(limits: Limits, lack: Lack | None) -> Iterator[Change]:
    """What needs neither other work nor other machines."""
    problem, profile = limits.problem, limits.profile
    yield from _more_risk(problem, profile, lack)
    yield from _asked_less(limits)
    yield from lighter(problem, profile, offload=False)


def _more_risk(problem: Problem, profile: Profile, lack: Lack | None) -> Iterator[Change]:
    """A larger chance to run out of memory, where a moderate one is enough."""
    if lack is None:
        return
    fleet = Fleet.of(problem, profile)
    limit = float(memory_limit_bytes(fleet.problems[fleet.names.index(lack.group)]))
    risk = out_of_memory_probability(lack.shortfall.needed_bytes, limit, lack.log_memory_sigma)
    if problem.options.max_out_of_memory_probability < risk <= LARGEST_RISK:
        accepted = ceil(risk * 1000 + _ROUNDING) / 1000  # never rounded down
        options = replace(problem.options, max_out_of_memory_probability=accepted)
        words = f"an out-of-memory risk of {accepted * 100:.1f} %"
        yield Change(words=words, problem=replace(problem, options=options), profile=profile)


def _asked_less(limits: Limits) -> Iterator[Change]:
    """The request's own limits given up: the fewest together."""
    names = [name for name in limits.names if name != limits.memory]
    every, dropped = frozenset(limits.names), list[set[str]]()
    for size in range(1, len(names) + 1):
        for some in combinations(names, size):
            known = any(one <= set(some) for one in dropped)
            if known or not limits.leave_a_plan(every - set(some)):
                continue
            dropped.append(set(some))
            problem = without_limits(limits.problem, some)
            yield Change(words=f"without {' and '.join(some)}", problem=problem, profile=limits.profile)


def _more_nodes(problem: Problem, profile: Profile, group: int) -> Iterator[Change]:
    """More nodes of one group, fewest first."""
    now = problem.cluster.distinct_groups[group].num_nodes
    for nodes in sorted({ceil(now * factor) for factor in NODE_FACTORS} - {now}):
        yield on_nodes_of(problem, profile, group, nodes)


def on_nodes_of(problem: Problem, profile: Profile, group: int, nodes: int) -> Change:
    """The problem with so many nodes of one of its distinct groups."""
    larger = replace(problem.cluster.distinct_groups[group], num_nodes=nodes)
    words = f"{nodes} nodes of {problem.cluster.group_names[group]}"
    return _with_group(problem, profile, group, larger, words)


def _larger_gpus(problem: Problem, profile: Profile, group: int) -> Iterator[Change]:
    """GPUs of more memory in one group, the smallest first."""
    own, name = problem.cluster.distinct_groups[group], problem.cluster.group_names[group]
    for gpu in larger_gpus(own):
        words = f"{gpu.display_name} instead of {name}"
        yield _with_group(problem, profile, group, with_gpu(own, gpu), words)


def _with_group(problem: Problem, profile: Profile, at: int, group: NodeGroup, words: str) -> Change:
    """The problem with one of its distinct groups changed; others keep the profile that prices them."""
    groups = (*problem.cluster.distinct_groups[:at], group, *problem.cluster.distinct_groups[at + 1 :])
    changed = replace(problem, cluster=replace(problem.cluster, groups=groups))
    fresh = default_profile(changed.cluster, changed.launcher)
    if len(fresh.by_group) == len(groups):
        same_gpu = profile.by_group[at].group.gpu == group.gpu
        own = replace(profile.by_group[at], group=group) if same_gpu else fresh.by_group[at]
        fresh = replace(fresh, by_group=(*profile.by_group[:at], own, *profile.by_group[at + 1 :]))
    return Change(words=words, problem=changed, profile=fresh)


def _add_fitting(group: list[Remedy], changes: Iterator[Change], enough: int) -> bool:
    """Add changes that have a plan until there are ``enough``; whether all that were tried were judged."""
    judged = True
    for change in changes:
        if len(group) == enough:
            break
        look()
        if change.last_resort and group:
            continue
        options = replace(
            change.problem.options, top_k=1, certify="none", deadline_days=None, time_limit_s=_SEARCH_S
        )
        answer = search(replace(change.problem, options=options), change.profile)
        if not answer.plans:
            judged &= answer.status == "infeasible"
            continue
        config, prediction = answer.plans[0].config, answer.plans[0].prediction
        tokens = change.problem.workload.global_batch_size * change.problem.workload.seq_length
        group.append(remedy_of(change.words, config, prediction, tokens=tokens))
    return judged
