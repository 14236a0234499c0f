"""What is offloaded fits into the memory of the hosts.

Counted for the fullest stage of an even split, as though a whole node held ranks of that stage: a limit of
the row, whatever its split, and a little on the safe side where a node holds ranks of several stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np

from profiles.cluster import NodeGroup
from profiles.host import host_of
from profiles.profile import default_profile
from profiles.units import GIB
from solver.columns import BoolArray, Columns
from solver.cost.context import ACTIVATIONS_OFFLOADED, OPTIMIZER_OFFLOADED, context_of
from solver.cost.host_memory import host_bytes
from solver.problem import Problem
from solver.rule import Rule

USABLE = 0.9  # of a host's memory; the rest is the operating system's and the data loaders' (assumed)
# What states on the host do not hang on: read by the other rule alone, so that this one is asked early.
_OF_STEPS = ("virtual_pipeline_size", "recompute", "recompute_layers", "pipeline_schedule", "rank_order")
_OF_ORDER = ("rank_order",)  # activations lie where they lie


def host_rules(problem: Problem) -> Iterator[Rule]:
    """The two limits."""
    share = host_share_bytes(problem)
    reason = f"{USABLE * share / GIB:.0f} GiB of host memory for each GPU ({USABLE:.0%} of it)"
    yield Rule(
        name="offloaded optimizer states fit the hosts",
        reason=reason,
        violated=lambda c: _too_large(problem, _aside(c, _OF_STEPS), OPTIMIZER_OFFLOADED, share),
    )
    yield Rule(
        name="offloaded activations fit the hosts as well",
        reason=reason,
        violated=lambda c: _too_large(problem, _aside(c, _OF_ORDER), ACTIVATIONS_OFFLOADED, share),
        concerns=lambda c: (c.offload & ACTIVATIONS_OFFLOADED) > 0,
    )


def host_share_bytes(problem: Problem) -> int:
    """Host memory of one GPU, of the node group that has least."""
    return min(host_of(group).memory_bytes for group in problem.cluster.groups)


def host_warnings(problem: Problem) -> tuple[str, ...]:
    """What is assumed about hosts whose memory nobody stated, where something may be offloaded."""
    if "offload" not in problem.options.allow:
        return ()
    return tuple(
        f"host memory of {group.gpu.slug} nodes is not stated: the usual node's {_node_gib(group)} GiB "
        f"are assumed ({host_of(group).source}); host_memory_bytes says otherwise"
        for group in problem.cluster.distinct_groups
        if group.host_memory_bytes is None
    )


def _node_gib(group: NodeGroup) -> str:
    """Host memory of one node."""
    return f"{host_of(group).memory_bytes * group.gpus_per_node / GIB:.0f}"


def _aside(c: Columns, names: tuple[str, ...]) -> Columns:
    """The same rows with the plain value of some variables: one chunk a rank, else the first word."""
    zero = np.zeros_like(c.offload)
    plain = {name: zero + (name == "virtual_pipeline_size") for name in names}
    return Columns(
        **{f.name: plain[f.name] if f.name in plain else getattr(c, f.name) for f in fields(Columns)}
    )


def _too_large(problem: Problem, c: Columns, bit: int, share: int) -> BoolArray:
    """Rows that offload what ``bit`` stands for, and more than the host has in all."""
    broken = np.zeros(len(c), dtype=np.bool_)
    index = np.flatnonzero(c.offload & bit)
    if len(index):
        rows = Columns(**{f.name: getattr(c, f.name)[index] for f in fields(Columns)})
        if bit == OPTIMIZER_OFFLOADED:
            rows = replace(rows, offload=rows.offload & bit)
        profile = default_profile(problem.cluster, problem.launcher)
        broken[index] = host_bytes(context_of(problem, rows, profile)) > USABLE * share
    return broken
