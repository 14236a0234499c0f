"""Questions that differ from the one asked in one figure: GPUs, memory, network or batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from meshwright.profiles.cluster import ClusterSpec, LinkSpec, NodeGroup
from meshwright.profiles.profile import Profile
from meshwright.service.report import formatting as figures
from meshwright.solver.answer import Plan
from meshwright.solver.problem import Problem

FACTORS = (0.5, 2.0, 4.0)  # of GPUs, network and batch
_MEMORY_FACTORS = (0.75, 1.5, 2.0)
SUBJECTS = ("GPUs", "memory", "network", "batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfQuestion:
    """A problem with what prices it."""

    problem: Problem
    profile: Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfChange:
    """One changed question."""

    subject: str
    factor: float  # against the question as asked
    words: str
    question: WhatIfQuestion


def settled(question: WhatIfQuestion, plan: Plan) -> WhatIfQuestion:
    """Return the question with batch and GPUs as a plan has them, where they were left open."""
    problem, options = question.problem, question.problem.options
    workload = problem.workload
    if options.batch_sizes:
        workload = replace(workload, global_batch_size=plan.config.global_batch_size)
    closed = replace(options, batch_sizes=(), num_nodes=(), gpus="all", reserve_nodes=0)
    found = WhatIfQuestion(
        problem=replace(problem, workload=workload, options=closed), profile=question.profile
    )
    open_nodes = options.num_nodes or options.reserve_nodes or options.gpus != "all"
    if not open_nodes or len(problem.cluster.groups) != 1:
        return found
    nodes = -(-plan.config.num_gpus // problem.cluster.groups[0].gpus_per_node)
    return with_groups(found, lambda group: replace(group, num_nodes=nodes))


def changes_of(question: WhatIfQuestion) -> Iterator[WhatIfChange]:
    """Yield every changed question; halves and doubles of every subject before what goes further."""
    by_subject = [list(change(question)) for change in (gpus, _memory, network, batches)]
    for at in range(max(map(len, by_subject))):
        yield from (some[at] for some in by_subject if at < len(some))


def gpus(question: WhatIfQuestion) -> Iterator[WhatIfChange]:
    """Yield fewer and more nodes, of every group alike."""
    groups = question.problem.cluster.groups
    for factor in FACTORS:
        if all(is_whole(group.num_nodes * factor) for group in groups):
            changed = with_groups(question, partial(_more_nodes, factor))
            words = f"{figures.count(changed.problem.cluster.num_gpus)} GPUs"
            yield WhatIfChange(subject="GPUs", factor=factor, words=words, question=changed)


def _memory(question: WhatIfQuestion) -> Iterator[WhatIfChange]:
    sizes = {group.gpu.memory_bytes for group in question.problem.cluster.groups}
    for factor in _MEMORY_FACTORS:
        of_all = f"{figures.gib(min(sizes) * factor)} GiB a GPU"
        words = of_all if len(sizes) == 1 else f"memory of each GPU × {factor:g}"
        changed = with_groups(question, partial(_larger, factor))
        yield WhatIfChange(subject="memory", factor=factor, words=words, question=changed)


def network(question: WhatIfQuestion) -> Iterator[WhatIfChange]:
    """Yield a slower and a faster network between nodes; none with one island, or if it was measured."""
    cluster = question.problem.cluster
    alone = len(cluster.groups) == 1 and cluster.num_gpus <= cluster.groups[0].island_gpus
    if alone or any(group.measured is not None for group in cluster.groups):
        return
    rates = {group.inter_node.bytes_per_s for group in cluster.groups}
    for factor in FACTORS:
        of_all = f"{min(rates) * factor / 1e9:.3g} GB/s a GPU between nodes"
        words = of_all if len(rates) == 1 else f"network between nodes × {factor:g}"
        between = cluster.between_groups and _faster(factor, cluster.between_groups)
        changed = with_groups(question, partial(_wired, factor), between)
        yield WhatIfChange(subject="network", factor=factor, words=words, question=changed)


def batches(question: WhatIfQuestion) -> Iterator[WhatIfChange]:
    """Yield smaller and larger global batches."""
    problem = question.problem
    batch = problem.workload.global_batch_size
    for factor in FACTORS:
        if is_whole(batch * factor):
            workload = replace(problem.workload, global_batch_size=round(batch * factor))
            changed = replace(question, problem=replace(problem, workload=workload))
            words = f"batch {round(batch * factor)}"
            yield WhatIfChange(subject="batch", factor=factor, words=words, question=changed)


def is_whole(number: float) -> bool:
    """Return whether there can be so many of something."""
    return number >= 1 and number == round(number)


def _more_nodes(factor: float, group: NodeGroup) -> NodeGroup:
    return replace(group, num_nodes=round(group.num_nodes * factor))


def _larger(factor: float, group: NodeGroup) -> NodeGroup:
    return replace(group, gpu=replace(group.gpu, memory_bytes=round(group.gpu.memory_bytes * factor)))


def _wired(factor: float, group: NodeGroup) -> NodeGroup:
    return replace(group, inter_node=_faster(factor, group.inter_node))


def _faster(factor: float, link: LinkSpec) -> LinkSpec:
    return replace(link, bytes_per_s=link.bytes_per_s * factor)


def with_groups(
    question: WhatIfQuestion, change: Callable[[NodeGroup], NodeGroup], between: LinkSpec | None = None
) -> WhatIfQuestion:
    """Return other node groups, in the problem and in the profiles that price them."""
    problem, profile = question.problem, question.profile
    cluster: ClusterSpec = replace(
        problem.cluster,
        groups=tuple(map(change, problem.cluster.groups)),
        between_groups=between or problem.cluster.between_groups,
    )
    return WhatIfQuestion(
        problem=replace(problem, cluster=cluster),
        profile=replace(
            profile,
            group=change(profile.group),
            by_group=tuple(replace(one, group=change(one.group)) for one in profile.by_group),
        ),
    )
