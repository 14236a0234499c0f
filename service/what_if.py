"""The same question with other hardware or another batch: a grid that a report shows.

Two ways to answer a changed question. *search*: its whole space, proved, as ``plan`` would; seconds each on
a large one, so within a time budget. *predict*: the listed plans carried over (replicas or micro-batches
follow GPUs and batch), checked without the solver, the fastest taken; a few milliseconds each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Literal

from profiles.cluster import NodeGroup
from profiles.errors import PlannerError
from profiles.profile import Profile
from service.report import figures
from service.report.document import WhatIf, WhatIfs
from solver.check import violations
from solver.plan import Answer, Configuration, Prediction
from solver.predict import predict
from solver.problem import Problem
from solver.why.remedies import fastest

Method = Literal["search", "predict", "none"]
_FACTORS = (0.5, 2.0, 4.0)
_MEMORY_FACTORS = (0.75, 1.5, 2.0)
_NETWORK_FACTORS = (0.5, 2.0, 4.0)
_CARRIED = 10  # plans that are carried over
_METHODS = {
    "search": "Each line is a search of its own, made for this report: the fastest plan of that question.",
    "predict": "Each line carries the listed plans over to that question and predicts them; a search of "
    "that question may find a faster one.",
}
_SUBJECTS = ("GPUs", "memory", "network", "batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changed:
    """A changed question with the profile that prices it."""

    subject: str
    change: str
    problem: Problem
    profile: Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The best plan of a changed question."""

    configuration: Configuration
    prediction: Prediction

    @property
    def rate(self) -> float:
        """Tokens per second of all GPUs."""
        return self.prediction.tokens_per_s_per_gpu * self.configuration.num_gpus


def what_ifs(
    problem: Problem, profile: Profile, answer: Answer, *, method: Method, budget_s: float = inf
) -> WhatIfs | None:
    """The grid, or None where it is not wanted or the question has no single cluster and batch.

    Args:
        problem: what was asked.
        profile: what prices it.
        answer: with at least one plan.
        method: how changed questions are answered.
        budget_s: seconds for all of them; those that have no time left are named as not computed.
    """
    if method == "none" or not answer.plans or not _is_plain(problem):
        return None
    until = time.monotonic() + budget_s
    best = answer.plans[0]
    asked = _Found(configuration=best.config, prediction=best.prediction)
    found: list[tuple[_Changed, _Found | Literal["late"] | None]] = []
    for change in _changes(problem, profile):
        if time.monotonic() > until:
            found.append((change, "late"))
        else:
            found.append((change, _answered(change, answer, method)))
    found.sort(key=lambda pair: _SUBJECTS.index(pair[0].subject))  # stable: factors keep their order
    rates = [one.rate for _, one in found if isinstance(one, _Found)]
    most = max([asked.rate, *rates])
    rows = [
        replace(_row("as asked", _now(problem), asked, asked, most), is_asked=True),
        *(_row(change.subject, change.change, one, asked, most) for change, one in found),
    ]
    return WhatIfs(rows=tuple(rows), method=_METHODS[method])


def _is_plain(problem: Problem) -> bool:
    """Whether GPUs, network and batch are one figure each that nothing else hangs on."""
    options, groups = problem.options, problem.cluster.groups
    open_parts = options.batch_sizes or options.batch_ramp or options.num_nodes or options.stage_layers
    one_group = len(groups) == 1 and groups[0].measured is None
    return one_group and not open_parts and problem.launcher != "any" and options.gpus == "all"


def _now(problem: Problem) -> str:
    """The report's own question."""
    group = problem.cluster.groups[0]
    return (
        f"{problem.cluster.num_gpus} GPUs, {figures.gib(group.gpu.memory_bytes)} GiB, "
        f"batch {problem.workload.global_batch_size}"
    )


def _changes(problem: Problem, profile: Profile) -> Iterator[_Changed]:
    """What is asked instead; halves and doubles of every subject before what goes further."""
    by_subject = [list(one(problem, profile)) for one in (_gpus, _memory, _network, _batch)]
    longest = max(map(len, by_subject))
    order = [some[at] for at in range(longest) for some in by_subject if at < len(some)]
    if order:
        yield from order


def _gpus(problem: Problem, profile: Profile) -> Iterator[_Changed]:
    """Fewer and more nodes."""
    nodes = problem.cluster.groups[0].num_nodes
    for factor in _FACTORS:
        number = round(nodes * factor)
        if number >= 1 and number != nodes:
            changed = _with_group(problem, profile, partial(_nodes, number))
            yield replace(changed, subject="GPUs", change=f"{changed.problem.cluster.num_gpus} GPUs")


def _memory(problem: Problem, profile: Profile) -> Iterator[_Changed]:
    """Less and more memory on each GPU."""
    for factor in _MEMORY_FACTORS:
        size = round(problem.cluster.groups[0].gpu.memory_bytes * factor)
        changed = _with_group(problem, profile, partial(_sized, size))
        yield replace(changed, subject="memory", change=f"{figures.gib(size)} GiB a GPU")


def _network(problem: Problem, profile: Profile) -> Iterator[_Changed]:
    """A slower and a faster network between nodes."""
    group = problem.cluster.groups[0]
    if group.num_nodes * group.gpus_per_node <= group.island_gpus:
        return
    for factor in _NETWORK_FACTORS:
        rate = group.inter_node.bytes_per_s * factor
        changed = _with_group(problem, profile, partial(_wired, rate))
        yield replace(changed, subject="network", change=f"{rate / 1e9:.3g} GB/s a GPU between nodes")


def _batch(problem: Problem, profile: Profile) -> Iterator[_Changed]:
    """Smaller and larger global batches."""
    batch = problem.workload.global_batch_size
    for factor in _FACTORS:
        size = round(batch * factor)
        if size >= 1 and size != batch:
            workload = replace(problem.workload, global_batch_size=size)
            changed = replace(problem, workload=workload)
            yield _Changed(subject="batch", change=f"batch {size}", problem=changed, profile=profile)


def _nodes(number: int, group: NodeGroup) -> NodeGroup:
    """The group with so many nodes."""
    return replace(group, num_nodes=number)


def _sized(memory_bytes: int, group: NodeGroup) -> NodeGroup:
    """The group with so much memory on each GPU."""
    return replace(group, gpu=replace(group.gpu, memory_bytes=memory_bytes))


def _wired(bytes_per_s: float, group: NodeGroup) -> NodeGroup:
    """The group with such a network between its nodes."""
    return replace(group, inter_node=replace(group.inter_node, bytes_per_s=bytes_per_s))


def _with_group(problem: Problem, profile: Profile, change: Callable[[NodeGroup], NodeGroup]) -> _Changed:
    """Another node group, in the problem and in the profile that prices it."""
    group = change(problem.cluster.groups[0])
    cluster = replace(problem.cluster, groups=(group,))
    return _Changed(
        subject="",
        change="",
        problem=replace(problem, cluster=cluster),
        profile=replace(profile, group=change(profile.group)),
    )


def _answered(changed: _Changed, answer: Answer, method: Method) -> _Found | None:
    """The best plan of a changed question; None where nothing fits."""
    try:
        if method == "search":
            best = fastest(changed.problem, changed.profile)
            return _Found(configuration=best[0], prediction=best[1]) if best else None
        return _carried_over(changed, [plan.config for plan in answer.plans[:_CARRIED]])
    except PlannerError:  # a pin or a limit that the changed question cannot hold
        return None


def _carried_over(changed: _Changed, configurations: Sequence[Configuration]) -> _Found | None:
    """The fastest of the listed plans that the changed question allows."""
    found = []
    for one in configurations:
        config = _scaled(one, changed.problem)
        if config is not None and not list(violations(changed.problem, changed.profile, config)):
            prediction = predict(changed.problem, changed.profile, config)
            found.append(_Found(configuration=config, prediction=prediction))
    return min(found, key=lambda one: one.prediction.step_time_s, default=None)


def _scaled(config: Configuration, problem: Problem) -> Configuration | None:
    """The plan with as many replicas as the GPUs hold and as many micro-batches as the batch asks for."""
    if config.stage_groups or config.replicas:
        return None
    replica = config.num_gpus // config.data_parallel_size
    replicas, left = divmod(problem.cluster.num_gpus, replica)
    if left or not replicas:
        return None
    microbatches, left = divmod(problem.workload.global_batch_size, replicas * config.micro_batch_size)
    if left or not microbatches:
        return None
    shards = config.zero_shard_size
    if shards == config.data_parallel_size * config.context_parallel_size:
        shards = replicas * config.context_parallel_size
    return replace(
        config, data_parallel_size=replicas, num_microbatches=microbatches, zero_shard_size=shards
    )


def _signed(percent: float) -> str:
    """``+98 %``, ``−4 %``, ``0 %``."""
    return f"{percent:+.0f} %".replace("-", "−") if round(percent) else "0 %"


def _row(
    subject: str, change: str, found: _Found | Literal["late"] | None, asked: _Found, most: float
) -> WhatIf:
    """One line."""
    if not isinstance(found, _Found):
        said = "not computed: the time for it was over" if found == "late" else "none of them fits"
        return WhatIf(subject=subject, change=change, found=said)
    against = 100 * (found.rate / asked.rate - 1)
    return WhatIf(
        subject=subject,
        change=change,
        found=figures.configuration_words(found.configuration),
        step=figures.seconds(found.prediction.step_time_s),
        rate=figures.count(round(found.rate)),
        against="" if found is asked else _signed(against),
        share=found.rate / most,
    )
