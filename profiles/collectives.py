"""Seconds of collectives, and which links a group of ranks crosses.

Ranks are laid out tp fastest, then cp, dp, pp (the order of Megatron-LM, DeepSpeed, torchtitan and
nanotron), so a group is a size and a stride. Ring volumes: Thakur, Rabenseifner and Gropp 2005
("Optimization of Collective Communication Operations in MPICH"): an all-gather or reduce-scatter
moves ``(n - 1) / n`` of the payload through each rank, an all-reduce twice that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The links of one node group with the shares that collectives reach."""

    island_gpus: float  # GPUs joined by the fast link
    fast_bytes_per_s: float  # bus bandwidth of a large collective inside an island, per GPU
    network_bytes_per_s: float  # the same across islands on two nodes, per GPU (one rail each)
    network_decay: float  # share lost with each doubling of nodes beyond two
    latency_s: float  # of one collective of eight ranks inside an island
    network_latency_s: float  # added when it crosses islands, for each doubling of islands


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks of one collective; arrays of shape (n,)."""

    size: FloatArray
    in_island: FloatArray  # ranks of the group inside one island: the rails it owns there
    islands: FloatArray

    @classmethod
    def of(cls, size: FloatArray, stride: FloatArray, fabric: Fabric) -> Group:
        """The group of ``size`` ranks that lie ``stride`` apart."""
        inside = np.minimum(size, np.maximum(np.floor(fabric.island_gpus / stride), 1.0))
        return cls(size=size, in_island=inside, islands=np.ceil(size / inside))


def latency_s(group: Group, fabric: Fabric) -> FloatArray:
    """Start-up time of one collective: grows with the logarithm of ranks and of islands; 0 alone."""
    inside = fabric.latency_s * np.log2(group.size) / 3.0
    return np.asarray(inside + fabric.network_latency_s * np.log2(group.islands))


def network_bytes_per_s(group: Group, fabric: Fabric) -> FloatArray:
    """Network bandwidth of one rail: the share falls with the number of islands, never below a fifth."""
    doublings = np.maximum(np.log2(group.islands) - 1.0, 0.0)
    return np.asarray(fabric.network_bytes_per_s * np.maximum(1.0 - fabric.network_decay * doublings, 0.2))


def all_gather_s(payload_bytes: FloatArray, group: Group, fabric: Fabric) -> FloatArray:
    """Seconds of an all-gather (or a reduce-scatter) whose whole result has ``payload_bytes``.

    Rings run through all rails that the group owns in an island, so each network link carries
    ``1 / in_island`` of the payload while the fast links carry the rest at the same time:
    ``max((g - 1) / g * B / fast, (k - 1) / k * B / (g * network))`` for g ranks in each of k islands.
    """
    g, k = group.in_island, group.islands
    fast = (g - 1.0) / g * payload_bytes / fabric.fast_bytes_per_s
    network = (k - 1.0) / k * payload_bytes / (g * network_bytes_per_s(group, fabric))
    return np.asarray(np.maximum(fast, network) + latency_s(group, fabric))


def all_reduce_s(payload_bytes: FloatArray, group: Group, fabric: Fabric) -> FloatArray:
    """Seconds of an all-reduce: a reduce-scatter and an all-gather in one collective."""
    return np.asarray(2.0 * all_gather_s(payload_bytes, group, fabric) - latency_s(group, fabric))


def all_to_all_s(sent_bytes: FloatArray, group: Group, fabric: Fabric) -> FloatArray:
    """Seconds of an all-to-all in which every rank sends ``sent_bytes``, its own share included.

    The share that leaves the island goes through the rank's own rail, the rest through the fast
    link; both run at the same time.
    """
    leaving = 1.0 - group.in_island / group.size
    staying = (group.in_island - 1.0) / group.size
    fast = sent_bytes * staying / fabric.fast_bytes_per_s
    network = sent_bytes * leaving / network_bytes_per_s(group, fabric)
    return np.asarray(np.maximum(fast, network) + latency_s(group, fabric))


def point_to_point_s(
    sent_bytes: FloatArray, stride: FloatArray, size: FloatArray, fabric: Fabric
) -> FloatArray:
    """Seconds of one message between neighbours ``stride`` ranks apart in a line of ``size`` ranks.

    Of the neighbours at most ``stride / island`` sit in different islands; none when the whole line
    fits one island.
    """
    crossing = np.where(
        size * stride > fabric.island_gpus, np.minimum(stride / fabric.island_gpus, 1.0), 0.0
    )
    fast = sent_bytes / fabric.fast_bytes_per_s + fabric.latency_s / 3.0
    network = sent_bytes / fabric.network_bytes_per_s + fabric.network_latency_s + fabric.latency_s / 3.0
    return np.asarray(np.where(size > 1, (1.0 - crossing) * fast + crossing * network, 0.0))
