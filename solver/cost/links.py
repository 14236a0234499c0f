"""Paces of groups of ranks where links between nodes differ: the slowest link that each kind crosses.

A ring goes at the pace of its slowest link, and a step waits for the slowest ring of a kind (NCCL closes
one ring for each rail; Pipette, arXiv:2405.18093, section V, takes the minimum as well). In an all-to-all
a rank sends to one after the other, so that its links count with their harmonic mean. Uplinks of an
oversubscribed switch are shared by all GPUs that send through them at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.profiles.cluster import NodeGroup
from meshwright.profiles.links import KINDS, LinkPace
from meshwright.profiles.profile import Profile
from meshwright.solver.configuration import (
    ALL_TO_ALL,
    CONTEXT_MODES,
    Columns,
    Configuration,
    FloatArray,
)
from meshwright.solver.cost.context import placement_of
from meshwright.solver.problem import Problem

Indices = NDArray[np.intp]
_IN_A_V = ("zb_v", "dualpipe_v")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flows:
    """Messages of one kind of group between nodes; a node is its place among the job's node ranks."""

    kind: str
    exchange: bool  # all-to-all, else a ring or neighbours
    source: Indices  # (E,), those of one sender together
    target: Indices
    gpus: FloatArray  # that send over each at once, (E,)
    sender: Indices  # the first of every sender's, (S,)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Return the places that are joined."""
        return list(zip(self.source.tolist(), self.target.tolist(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """One level of switches with oversubscribed uplinks."""

    of: Indices  # the switch of each node, (N,)
    gpus: float  # that its uplinks carry at the network's bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """The links between N nodes against the network's own bandwidth and latency."""

    slowness: FloatArray  # network's bandwidth over the pair's, (N, N)
    extra_s: FloatArray | None  # latency beyond the network's, (N, N)
    levels: tuple[Switches, ...]

    @classmethod
    def of(cls, group: NodeGroup, nodes: int) -> LinkTable:
        """Return the table of at least ``nodes`` nodes; those that no matrix holds have the usual link."""
        links, network = group.links, group.inter_node
        size = max(group.num_nodes, nodes)
        slowness, extra_s, levels = np.ones((size, size)), None, list[Switches]()
        if links is not None and links.bytes_per_s:
            known = min(size, len(links.bytes_per_s))
            rates = links.rates[:known, :known].copy()
            payload = rates if links.measured else np.asarray(network.payload_of(rates))
            np.fill_diagonal(payload, network.payload_bytes_per_s)
            slowness[:known, :known] = network.payload_bytes_per_s / payload
        if links is not None and links.latency_s:
            known = min(size, len(links.latency_s))
            extra_s = np.zeros((size, size))
            extra_s[:known, :known] = np.maximum(links.latencies[:known, :known] - network.latency_s, 0.0)
            np.fill_diagonal(extra_s, 0.0)
        share = 1.0
        for level in links.levels if links is not None else ():
            share /= level.oversubscription
            levels.append(
                Switches(of=np.arange(size) // level.nodes, gpus=level.nodes * group.gpus_per_node * share)
            )
        return cls(slowness=slowness, extra_s=extra_s, levels=tuple(levels))

    def slowness_of(self, flows: Flows, nodes: Indices) -> tuple[FloatArray, FloatArray]:
        """Return by how much the slowest group is slower than the network, and a mean link, (k,) each.

        Args:
            flows: of one kind of group.
            nodes: the node in each place, (k, places).
        """
        source, target = nodes[:, flows.source], nodes[:, flows.target]
        each = self.slowness[source, target]
        if flows.exchange:
            counts = np.diff(np.append(flows.sender, each.shape[1]))
            each = np.add.reduceat(each, flows.sender, axis=1) / counts
        slowest, mean = each.max(axis=1), each.mean(axis=1)
        for level in self.levels:
            loads = _uplink_loads(level, flows, source, target)
            slowest = np.maximum(slowest, loads.max(axis=1))
            mean = mean + loads.mean(axis=1)
        return slowest, mean

    def pace_of(self, flows: Flows, order: Indices) -> LinkPace:
        """Return the pace of one kind of group with the nodes in one order, (places,)."""
        nodes = order[None, :]
        (slowness,), (hop_s,) = self.slowness_of(flows, nodes)[0], self.hop_s_of(flows, nodes)
        return LinkPace(share=1.0 / float(slowness), hop_s=float(hop_s))

    @property
    def of_pairs(self) -> FloatArray:
        """Return the slowness of every pair of different nodes, (N (N - 1),)."""
        return self.slowness[~np.eye(len(self.slowness), dtype=np.bool_)]

    def hop_s_of(self, flows: Flows, nodes: Indices) -> FloatArray:
        """Return the longest latency beyond the network's, (k,)."""
        if self.extra_s is None:
            return np.zeros(len(nodes))
        return np.asarray(self.extra_s[nodes[:, flows.source], nodes[:, flows.target]].max(axis=1))


def _uplink_loads(level: Switches, flows: Flows, source: Indices, target: Indices) -> FloatArray:
    """Return the GPUs that send through each switch's uplinks over what these carry, (k, switches)."""
    sends, takes = level.of[source], level.of[target]
    gpus = np.where(sends == takes, 0.0, flows.gpus)
    switches = int(level.of.max()) + 1
    rows = np.arange(len(source))[:, None] * switches
    load = np.bincount((rows + sends).ravel(), weights=gpus.ravel(), minlength=len(source) * switches)
    return np.asarray(load.reshape(len(source), switches) / level.gpus)


def flows_of(problem: Problem, config: Configuration) -> tuple[Flows, ...]:
    """Return what the groups of a mesh send between nodes, by kind; nothing for kinds inside nodes."""
    each = problem.cluster.groups[0].gpus_per_node
    c, place = config, placement_of(Columns.of([config]))
    block, stages = round(float(place.block[0])), c.pipeline_parallel_size
    own = np.arange(c.num_gpus // stages)
    first = (own // block) * block * stages + own % block
    ranks = first + np.arange(stages)[:, None] * block  # global rank of every rank of each stage
    t, stride = c.tensor_parallel_size, round(float(place.context_stride[0]))
    replicas = c.data_parallel_size * c.context_parallel_size
    all_to_all = CONTEXT_MODES.index(c.context_parallel_mode) >= ALL_TO_ALL
    found = [
        _ring("tensor", _groups(ranks, t, 1) // each),
        (_exchange if all_to_all else _ring)(
            "context", _groups(ranks, c.context_parallel_size, stride) // each
        ),
        _exchange("expert", _groups(ranks, c.expert_parallel_size, c.expert_tensor_parallel_size) // each),
        _ring("data", *(one // each for one in _replicas(problem, c, ranks, replicas))),
        _neighbours(c, ranks // each),
    ]
    return tuple(one for one in found if one is not None)


def paces_of(problem: Problem, config: Configuration) -> tuple[LinkPace, ...]:
    """Return the pace of each of ``KINDS`` in the order of nodes that the links state; empty: all alike."""
    if not problem.cluster.differs:
        return ()
    (group,) = problem.cluster.groups
    flows = flows_of(problem, config)
    places = max((int(one.source.max()) + 1 for one in flows), default=1)
    table, order = LinkTable.of(group, places), places_of(group, places)
    found = {one.kind: table.pace_of(one, order) for one in flows}
    return tuple(found.get(kind, LinkPace()) for kind in KINDS)


def places_of(group: NodeGroup, places: int) -> Indices:
    """Return the node in each place in the order that a group states, (places,)."""
    order = np.arange(max(group.num_nodes, places))
    stated = () if group.links is None else group.links.order
    order[: len(stated)] = stated
    return order


def paced(profile: Profile, paces: tuple[LinkPace, ...]) -> Profile:
    """Return the profile at these paces."""
    return replace(profile, paces=paces) if paces else profile


def _groups(ranks: Indices, size: int, stride: int) -> Indices:
    """Return the groups of ``size`` ranks, ``stride`` apart in their stage, one a row."""
    if size * stride > ranks.shape[1]:
        return ranks[:, :1]
    parts = ranks.reshape(len(ranks), -1, size, stride).swapaxes(2, 3)
    return np.asarray(parts.reshape(-1, size))


def _replicas(problem: Problem, config: Configuration, ranks: Indices, replicas: int) -> Iterator[Indices]:
    """Yield the groups that reduce gradients: of dense weights, and of experts."""
    yield _groups(ranks, replicas, config.tensor_parallel_size)
    if problem.model.moe is not None and config.expert_ranks > 1:
        yield _groups(ranks, ranks.shape[1] // config.expert_ranks, config.expert_ranks)


def _ring(kind: str, *several: Indices) -> Flows | None:
    edges = list[tuple[Indices, Indices, FloatArray]]()
    for nodes in several:
        source, target = nodes, np.roll(nodes, -1, axis=1)
        crossing = source != target
        islands = np.maximum(crossing.sum(axis=1, keepdims=True), 1)
        gpus = np.broadcast_to(nodes.shape[1] / islands, nodes.shape)
        edges.append((source[crossing], target[crossing], gpus[crossing]))
    return _joined(kind, edges)


def _neighbours(config: Configuration, nodes: Indices) -> Flows | None:
    """Return the links between the stages of a pipeline, both ways."""
    if config.pipeline_parallel_size == 1:
        return None
    pairs = [(nodes[:-1], nodes[1:])]
    if config.virtual_pipeline_size > 1 and config.pipeline_schedule not in _IN_A_V:
        pairs.append((nodes[-1:], nodes[:1]))
    edges = list[tuple[Indices, Indices, FloatArray]]()
    for one, other in pairs:
        crossing = one != other
        for source, target in ((one, other), (other, one)):
            edges.append((source[crossing], target[crossing], np.ones(int(crossing.sum()))))
    return _joined("stages", edges)


def _joined(kind: str, edges: list[tuple[Indices, Indices, FloatArray]]) -> Flows | None:
    source, target, gpus = (np.concatenate(some) for some in zip(*edges, strict=True))
    if not len(source):
        return None
    pairs, of = np.unique(np.stack([source, target], axis=1), axis=0, return_inverse=True)
    together = np.bincount(of.ravel(), weights=gpus).astype(np.float64)
    return Flows(
        kind=kind, exchange=False, source=pairs[:, 0], target=pairs[:, 1], gpus=together,
        sender=np.arange(len(pairs)),
    )  # fmt: skip


def _exchange(kind: str, nodes: Indices) -> Flows | None:
    """Return the links of all-to-alls among the nodes of each row."""
    rows, counts = np.unique(nodes, axis=0, return_counts=True)
    source, target, gpus, sender = list[int](), list[int](), list[float](), list[int]()
    for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
        some = list(dict.fromkeys(row))
        for one in some if len(some) > 1 else ():
            sender.append(len(source))
            others = [other for other in some if other != one]
            source += [one] * len(others)
            target += others
            gpus += [count * row.count(one) / len(others)] * len(others)
    if not source:
        return None
    return Flows(
        kind=kind, exchange=True, source=np.array(source), target=np.array(target),
        gpus=np.array(gpus), sender=np.array(sender),
    )  # fmt: skip
