"""Clusters: GPU types, links, node groups, and the link that a group of ranks crosses."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property, lru_cache
from itertools import count
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.profiles.catalog import CATALOG, catalog_file
from meshwright.profiles.collectives.measured import MeasuredLink
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.links import NodeLinks
from meshwright.profiles.units import GB, GIB

FloatArray = NDArray[np.float64]

MAX_NODES = 1_000_000
MAX_GPUS_PER_NODE = 1024
MAX_GPUS = 1_000_000
# Blackwell with GDDR or LPDDR: the fastest has 1.8 TB/s, and the slowest with HBM 7.7.
BLACKWELL_12 = "blackwell-12"
_LEAST_HBM3E_BYTES_PER_S = 4e12


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """One GPU type, as its data sheet and driver describe it."""

    slug: str  # as in measured runs: h100-sxm-80gb
    display_name: str
    memory_bytes: int  # nvidia-smi / rocm-smi total; about 0.6 GiB of it stays with the driver (NVIDIA)
    hbm_bytes_per_s: float
    peak_flops: Mapping[str, float]  # dense peak by precision: bf16, fp16, fp8, fp4, tf32, fp32
    architecture: str  # volta, turing, ampere, ada, hopper, blackwell, cdna2, cdna3, cdna4
    intra_node: LinkSpec  # the link of its usual node
    inter_node: LinkSpec  # the usual network per GPU
    gpus_per_node: int = 8  # of its usual node
    island_gpus: int = 8  # GPUs joined by the fast link; 72 for an NVL72 rack
    power_watts: float | None = None
    sources: tuple[str, ...] = ()
    nearest: str = ""  # the GPU type that lends it its architecture; empty: the architecture is its own
    read_as: str = ""  # the GPU type that lends it all figures, since the catalog lacks it; empty: its own

    def __post_init__(self) -> None:
        """Refuse a GPU without memory, bandwidth or a half-precision peak.

        Raises:
            InvalidProblemError: a figure is not positive, or neither bf16 nor fp16 has a peak.
        """
        figures = (self.memory_bytes, self.hbm_bytes_per_s, *self.peak_flops.values())
        if not all(0 < figure < math.inf for figure in figures):
            raise InvalidProblemError.of("/cluster/gpu", "memory, bandwidth and peaks must be positive")
        if not {"bf16", "fp16"} & set(self.peak_flops):
            raise InvalidProblemError.of("/cluster/gpu", "peak_flops needs bf16 or fp16")

    @cached_property
    def peak_bf16_flops(self) -> float:
        """Return the dense bf16 peak (fp16 where the GPU has no bf16): the denominator of MFU."""
        return self.peak_flops.get("bf16") or self.peak_flops["fp16"]

    @cached_property
    def generation(self) -> str:
        """Return the architecture, with Blackwell of compute capability 12 apart: other 8-bit products."""
        is_apart = self.architecture == "blackwell" and self.hbm_bytes_per_s < _LEAST_HBM3E_BYTES_PER_S
        return BLACKWELL_12 if is_apart else self.architecture


# Share of the line rate left for payload, relative to InfiniBand's packets of 4096 bytes in 4122 (local
# route, base transport, two checksums: InfiniBand specification, volume 1, section 5.2). RoCE v2 puts as
# many into 4178: Ethernet's frame, preamble and gap, IPv4, UDP, base transport, checksum (annex A17). TCP
# puts 1448 into 1538 (IEEE 802.3 frames of 1500 bytes, IPv4, TCP with timestamps).
_INFINIBAND_PAYLOAD = 4096 / 4122
_PAYLOAD_SHARES = {"roce": 4096 / 4178 / _INFINIBAND_PAYLOAD, "ethernet": 1448 / 1538 / _INFINIBAND_PAYLOAD}
# One core moves 42 Gbit/s through Linux's TCP (Cai et al. 2021, "Understanding Host Network Stack
# Overheads", SIGCOMM), and one thread serves the sockets of a GPU unless NCCL_SOCKET_NTHREADS states more
# (NCCL, src/transport/net_socket.cc). RDMA needs no core.
SOCKET_BYTES_PER_S = 42e9 / 8


_NO_ETHERNET = re.compile(r"infiniband|\bib\b|\befa\b|omni-?path|slingshot")
_ETHERNET = re.compile(
    r"ethernet|spectrum-?x|\btcp\b|\bsockets?\b|\bgig-?e\b|\bg(b|ig)?e\b"
    r"|\d *g(b(it)?(/s|ps)?)? ?(e|eth|base-?\w+)\b"
)
_RDMA = re.compile(r"rdma|spectrum-?x")


@lru_cache(maxsize=256)
def transport_of(kind: str) -> str:
    """Return ``roce`` or ``ethernet`` (TCP sockets) for a network kind in free text; empty for all others.

    "RoCE v2" and "Ethernet (RDMA)" are RoCE; "tcp", "100GbE" and "25G Ethernet" are TCP sockets. A text
    that names InfiniBand next to an Ethernet card is neither.
    """
    words = kind.casefold()
    if "roce" in words:
        return "roce"
    if _NO_ETHERNET.search(words) or not _ETHERNET.search(words):
        return ""
    return "roce" if _RDMA.search(words) else "ethernet"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """One kind of link, as one GPU sees it in one direction."""

    kind: str  # nvlink, nvswitch, pcie, infinity-fabric, infiniband, roce, efa, ethernet (TCP sockets), …
    bytes_per_s: float  # line rate per GPU and direction
    latency_s: float  # one message, one hop
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse a link without speed.

        Raises:
            InvalidProblemError: bandwidth or latency is not positive.
        """
        if not 0 < self.bytes_per_s < math.inf or not 0 <= self.latency_s < math.inf:
            raise InvalidProblemError.of(
                "/cluster", f"link {self.kind[:40]}: bytes_per_s must be > 0 and latency_s >= 0"
            )

    @property
    def payload_bytes_per_s(self) -> float:
        """Return the rate that a network's transport leaves for payload, relative to InfiniBand."""
        return float(self.payload_of(self.bytes_per_s))

    def slowed(self, slowness: float) -> LinkSpec:
        """Return the link with its payload rate divided by ``slowness``."""
        return replace(self, bytes_per_s=self.payload_bytes_per_s / self._payload_share / slowness)

    def payload_of(self, line_bytes_per_s: FloatArray | float) -> FloatArray | float:
        """Return the payload rate of networks of this kind with other line rates."""
        most = SOCKET_BYTES_PER_S if transport_of(self.kind) == "ethernet" else math.inf
        return np.minimum(line_bytes_per_s * self._payload_share, most)

    @property
    def _payload_share(self) -> float:
        return _PAYLOAD_SHARES.get(transport_of(self.kind), 1.0)


# What a node group may state of its host.
HOST_FIELDS = (
    "host_link_bytes_per_s", "host_memory_bytes", "host_memory_bytes_per_s", "nvme_bytes",
    "nvme_read_bytes_per_s", "nvme_write_bytes_per_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes that are all alike."""

    gpu: GpuSpec
    num_nodes: int
    gpus_per_node: int
    island_gpus: int  # GPUs joined by the fast link: gpus_per_node, fewer (PCIe pairs) or a rack
    intra_node: LinkSpec
    inter_node: LinkSpec
    host_link_bytes_per_s: float | None = None  # GPU to host memory, each direction; None: the usual
    host_memory_bytes: int | None = None  # of one node; None: the usual node's
    host_memory_bytes_per_s: float | None = None  # of one node, read and written together; None: as above
    nvme_bytes: int | None = None  # of one node's drives; 0: it has none
    nvme_read_bytes_per_s: float | None = None  # of all drives of a node
    nvme_write_bytes_per_s: float | None = None
    measured: MeasuredLink | None = None  # collectives timed on these very nodes
    links: NodeLinks | None = None  # between the nodes, where they are not all alike

    def __post_init__(self) -> None:
        """Refuse empty groups.

        Raises:
            InvalidProblemError: a count is out of range.
        """
        limits = {"num_nodes": MAX_NODES, "gpus_per_node": MAX_GPUS_PER_NODE}
        for name, limit in limits.items():
            value = getattr(self, name)
            if not 1 <= value <= limit:
                raise InvalidProblemError.of(
                    f"/cluster/{name}", f"{value} is out of range", allowed=f"1 to {limit}"
                )
        for name in HOST_FIELDS:
            stated = getattr(self, name)
            if stated is None or (name == "nvme_bytes" and stated == 0):
                continue
            if not 0 < stated < math.inf:
                raise InvalidProblemError.of(f"/cluster/{name}", "must be positive")
        island, node = self.island_gpus, self.gpus_per_node
        if island < 1 or (node % island and island % node):
            raise InvalidProblemError.of(
                "/cluster/island_gpus",
                f"{island} neither divides nor is a multiple of gpus_per_node = {node}",
                nearest=str(node),
            )
        if self.links is not None and self.links.differ and island > node:
            raise InvalidProblemError.of(
                "/cluster/links",
                f"links between nodes differ, but islands of {island} GPUs join nodes of {node}",
                allowed="islands of at most one node",
            )

    @property
    def differs(self) -> bool:
        """Return whether the links between the nodes differ, so that their order matters."""
        return self.links is not None and self.links.differ

    @property
    def num_gpus(self) -> int:
        """Return the number of GPUs in the whole group."""
        return self.num_nodes * self.gpus_per_node

    def to_mapping(self) -> dict[str, Any]:
        """Return all fields for names and digests; what was added later only where it is stated."""
        later = (*HOST_FIELDS[2:], "links")
        fields = asdict(replace(self, links=None))
        found = {name: value for name, value in fields.items() if name not in later or value is not None}
        for lent in ("nearest", "read_as"):
            if not getattr(self.gpu, lent):
                del found["gpu"][lent]
        if self.links is not None:
            found["links"] = self.links.to_mapping()
        return found


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Node groups joined by one network."""

    name: str
    groups: tuple[NodeGroup, ...]
    between_groups: LinkSpec | None = None  # None: the slower of the two groups' networks
    display_name: str = ""
    source: str = ""
    warnings: tuple[str, ...] = field(default=())  # e.g. links that were filled in

    def __post_init__(self) -> None:
        """Refuse a cluster without groups, or larger than any that was built.

        Raises:
            InvalidProblemError: there are no node groups, or there are more than a million GPUs.
        """
        if not self.groups:
            raise InvalidProblemError.of("/cluster/groups", "a cluster needs at least one node group")
        if len(self.groups) > 1 and any(group.differs for group in self.groups):
            raise InvalidProblemError.of(
                "/cluster/groups",
                "links between nodes differ in a group, and there are several groups",
                allowed="such links with one node group only (between_groups is the link between several)",
            )
        if self.num_gpus > MAX_GPUS:
            pointer = "/cluster/num_nodes" if len(self.groups) == 1 else "/cluster/groups"
            raise InvalidProblemError.of(
                pointer, f"{self.num_gpus} GPUs are too many", allowed=f"{MAX_GPUS} GPUs in all"
            )

    def to_mapping(self) -> dict[str, Any]:
        """Return all fields for names and digests; fields added later only where they are stated."""
        groups = tuple(group.to_mapping() for group in self.groups)
        alike = replace(self, groups=tuple(replace(group, links=None) for group in self.groups))
        return {**asdict(alike), "groups": groups}

    @cached_property
    def num_gpus(self) -> int:
        """Return the number of GPUs in all groups."""
        return sum(group.num_gpus for group in self.groups)

    @cached_property
    def num_nodes(self) -> int:
        """Return the number of nodes in all groups."""
        return sum(group.num_nodes for group in self.groups)

    @property
    def usual_precision(self) -> str:
        """Return bf16, or fp16 where a GPU does not multiply in bf16: V100, T4, RTX 2080 Ti."""
        return "bf16" if all("bf16" in group.gpu.peak_flops for group in self.groups) else "fp16"

    @cached_property
    def distinct_groups(self) -> tuple[NodeGroup, ...]:
        """Return the node groups, those that are alike and not kept apart by a link of their own as one."""
        found: list[NodeGroup] = []
        for group in self.groups:
            apart = self.between_groups not in (None, group.inter_node)
            like = [at for at, one in enumerate(found) if replace(one, num_nodes=group.num_nodes) == group]
            if like and not apart:
                nodes = found[like[0]].num_nodes + group.num_nodes
                found[like[0]] = replace(group, num_nodes=nodes)
            else:
                found.append(group)
        return tuple(found)

    @cached_property
    def group_named(self) -> Mapping[str, NodeGroup]:
        """Return ``distinct_groups`` by their names."""
        return dict(zip(self.group_names, self.distinct_groups, strict=True))

    @cached_property
    def group_names(self) -> tuple[str, ...]:
        """Return a short name of each of ``distinct_groups``: its GPU's, numbered if two are equal."""
        slugs, names = [group.gpu.slug for group in self.distinct_groups], list[str]()
        for slug in slugs:
            numbered = (f"{slug}-{number}" for number in count(1))
            free = (name for name in numbered if name not in slugs and name not in names)
            names.append(next(free) if slugs.count(slug) > 1 else slug)
        return tuple(names)

    @cached_property
    def is_homogeneous(self) -> bool:
        """Return whether all nodes are alike."""
        return len(self.distinct_groups) == 1

    @property
    def differs(self) -> bool:
        """Return whether links between nodes differ, so that their order matters."""
        return len(self.groups) == 1 and self.groups[0].differs

    def in_order(self, order: Sequence[int]) -> ClusterSpec:
        """Return the cluster with its nodes in that order, where links between them differ."""
        (group,) = self.groups
        if group.links is None:
            return self
        return replace(self, groups=(replace(group, links=group.links.in_order(order)),))

    def with_even_links(self, slowness: float) -> ClusterSpec:
        """Return the cluster with one network so many times as slow between all nodes."""
        (group,) = self.groups
        link = group.inter_node.slowed(slowness)
        links = NodeLinks(rail_only=True) if group.links is not None and group.links.rail_only else None
        return replace(self, groups=(replace(group, inter_node=link, links=links),))

    @cached_property
    def title(self) -> str:
        """Return ``16 × DGX H100 = 128 GPUs``; nodes without a name: ``16 × H100 SXM 80 GB, 2 nodes``."""
        name, group = self.display_name or self.name, self.groups[0]
        if name == node_words(group):
            of_nodes = f", {self.num_nodes} nodes" if self.num_nodes > 1 else ""
            return f"{self.num_gpus} × {group.gpu.display_name}{of_nodes}"
        total = f"{self.num_gpus} GPU{'s' if self.num_gpus > 1 else ''}"
        return f"{name} = {total}" if len(self.groups) > 1 else f"{self.num_nodes} × {name} = {total}"


def node_words(group: NodeGroup) -> str:
    """Return ``node of 8 H100 SXM 80 GB``: the name of a node that has none."""
    return f"node of {group.gpus_per_node} {group.gpu.display_name}"


# --------------------------------------------------------------------------------------------------
# The host of each GPU: the link to it, its memory, how fast its CPUs update weights, its NVMe drives.
#
# ``catalog/hosts.yaml`` has those of usual nodes, one GPU's share; a node group may state its own.


_REACHED = 0.8  # pinned copies over the line rate (nvbandwidth host_to_device_memcpy_ce: 25 of 31.5 GB/s)
# Of its memory and drives; the rest is the operating system's, the data loaders' and the data's. Of the
# memory it takes at most 8 GiB for each GPU, however much there is. (Assumed.)
USABLE = 0.9
_MOST_KEPT = 8 * GIB
_UPDATE_SHARE = 0.6  # of the memory's rate that CPU-Adam reaches (ZeRO-Offload, arXiv:2101.06840, table 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One GPU's share of its host."""

    link_bytes_per_s: float  # between GPU and host memory, each direction, as copies reach it
    memory_bytes: int
    memory_bytes_per_s: float  # as CPU optimizers reach it
    nvme_bytes: int
    nvme_read_bytes_per_s: float
    nvme_write_bytes_per_s: float
    source: str

    @property
    def usable_memory_bytes(self) -> float:
        """Return the memory that training may fill."""
        return self.memory_bytes - min((1.0 - USABLE) * self.memory_bytes, float(_MOST_KEPT))

    @property
    def usable_nvme_bytes(self) -> float:
        """Return what training may fill of the drives."""
        return USABLE * self.nvme_bytes


@cache
def _usual_hosts() -> Mapping[str, Host]:
    return {
        name: Host(
            link_bytes_per_s=_REACHED * GB * row["link_gb_per_s"],
            memory_bytes=row["memory_gib"] * GIB,
            memory_bytes_per_s=_UPDATE_SHARE * GB * row["memory_gb_per_s"],
            nvme_bytes=row["nvme_gb"] * 10**9,
            nvme_read_bytes_per_s=row["nvme_read_gb_per_s"] * GB,
            nvme_write_bytes_per_s=row["nvme_write_gb_per_s"] * GB,
            source=row["source"],
        )
        for row in catalog_file(CATALOG / "hosts.yaml")
        for name in row["of"]
    }


def host_of(group: NodeGroup) -> Host:
    """Return one GPU's share of its host: what the group states, else the usual node's."""
    hosts, architecture = _usual_hosts(), group.gpu.architecture
    word = group.gpu.slug.split("-")[0]
    usual = hosts.get(f"{architecture}/{word}") or hosts[architecture]
    each, own = group.gpus_per_node, dict[str, Any]()
    if group.host_link_bytes_per_s is not None:
        own["link_bytes_per_s"] = group.host_link_bytes_per_s
    if group.host_memory_bytes is not None:
        own["memory_bytes"] = group.host_memory_bytes // each
    if group.host_memory_bytes_per_s is not None:
        own["memory_bytes_per_s"] = _UPDATE_SHARE * group.host_memory_bytes_per_s / each
    if group.nvme_bytes is not None:
        own["nvme_bytes"] = group.nvme_bytes // each
    for name in ("nvme_read_bytes_per_s", "nvme_write_bytes_per_s"):
        if getattr(group, name) is not None:
            own[name] = getattr(group, name) / each
    return replace(usual, **own)


# --------------------------------------------------------------------------------------------------
# What a GPU draws: so much while it computes, less while it waits.
#
# Power falls from busy to waiting in proportion to the busy share of the time, the linear model of Fan,
# Weber and Barroso 2007 ("Power provisioning for a warehouse-sized computer", ISCA).


# An 8 x H100 node that trains at full utilisation draws 8.4 of its rated 10.2 kW (Latif et al. 2024,
# arXiv:2412.08602); the share is taken for each GPU's own limit.
BUSY_SHARE = 0.82
# Training power falls to about a fifth of the limit where GPUs wait for one another (assumed, after the
# swings that Patel et al. 2024 show for training, arXiv:2308.12908).
WAITING_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Watts of one GPU; hosts, network and cooling are not part of it."""

    busy_w: float
    waiting_w: float


def power_of(gpu: GpuSpec, limit_w: float = 0.0) -> Power:
    """Return the power of a GPU type from the limit in its data sheet, or a lower one; 0: its own.

    Raises:
        InvalidProblemError: its power limit is not known.
    """
    if not gpu.power_watts:
        raise InvalidProblemError.of("/cluster", f"{gpu.slug} states no power_watts")
    busy_w = BUSY_SHARE * gpu.power_watts
    return Power(
        busy_w=min(busy_w, limit_w) if limit_w else busy_w, waiting_w=WAITING_SHARE * gpu.power_watts
    )


# Limits over the data sheet's: below the first the voltage falls no further, so that the clock falls with
# the power beyond waiting; the second is the lowest that is priced. Of V100 and A40 the law is within 8 %
# of the time down to half the power; at 0.4 of it 15 to 22 % off either way (Zeus, NSDI 2023,
# ml-energy/zeus a17ec338, zeus_nsdi23/trace/summary_power_*.csv).
_LEAST_VOLTAGE_SHARE, LEAST_POWER_SHARE = 0.6, 0.5
_LEAST_LEFT = 1e-3  # of the power beyond waiting, so that a limit which no request may state has a clock


def may_slow(gpu: GpuSpec, limit_w: float) -> bool:
    """Return whether a GPU type takes a power limit that is below what it draws."""
    own_w = gpu.power_watts or 0.0
    return LEAST_POWER_SHARE * own_w <= limit_w < BUSY_SHARE * own_w


def clock_share(gpu: GpuSpec, limit_w: float) -> float:
    """Return the clock of products under a power limit, over the clock without one.

    What a GPU draws beyond a waiting one grows with clock and squared voltage, and the voltage with the
    clock, so with the clock's cube (Mei et al. 2017, "A survey and measurement study of GPU DVFS",
    arXiv:1610.01784, section 2), and with the clock alone at the lowest voltage; memory has a clock of its
    own. A limit above what the GPU draws changes nothing.

    Raises:
        InvalidProblemError: its own power limit is not known.
    """
    if not limit_w:
        return 1.0
    free = power_of(gpu)
    own_w = gpu.power_watts or limit_w
    left, lowest = (
        (watts - free.waiting_w) / (free.busy_w - free.waiting_w)
        for watts in (limit_w, _LEAST_VOLTAGE_SHARE * own_w)
    )
    left = min(max(left, _LEAST_LEFT), 1.0)
    return float(max(left, lowest) ** (1.0 / 3.0) * min(left / lowest, 1.0))


# --------------------------------------------------------------------------------------------------
# How often a long run is interrupted and what that costs: goodput under checkpoints and restarts.
#
# Checkpoints every ``sqrt(2 C M)`` seconds lose least, C seconds to write one and M seconds between
# failures (Young 1974, "A first order approximation to the optimum checkpoint interval", CACM 17(9)). A
# run then takes ``1 + C / interval + (interval / 2 + restart) / M`` times as long as one without
# failures: writing, half an interval to do again, and the restart (Daly 2006, "A higher order estimate of
# the optimum checkpoint interval", FGCS 22(3), to first order).


HOUR_S = 3600.0
# 419 unexpected interruptions in 54 days of 16 384 H100 (Llama 3, arXiv:2407.21783, section 3.3.4).
GPU_HOURS_PER_INTERRUPTION = 54 * 24 * 16384 / 419
# 2 TB/s sustained to the storage of 16 384 GPUs (same paper, section 3.3.1).
CHECKPOINT_BYTES_PER_S_PER_GPU = 2e12 / 16384
RESTART_S = 600.0  # find the fault, swap a node, load and compile again: assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Interruptions of a run, and the time it takes to continue."""

    gpu_hours_per_interruption: float = GPU_HOURS_PER_INTERRUPTION
    restart_s: float = RESTART_S
    checkpoint_bytes_per_s_per_gpu: float = CHECKPOINT_BYTES_PER_S_PER_GPU

    def between_failures_s(self, num_gpus: int) -> float:
        """Return mean seconds from one interruption to the next."""
        return self.gpu_hours_per_interruption * HOUR_S / num_gpus

    def checkpoint_s(self, checkpoint_bytes: float, num_gpus: int) -> float:
        """Return seconds to write a checkpoint; every GPU writes its share."""
        return checkpoint_bytes / (self.checkpoint_bytes_per_s_per_gpu * num_gpus)

    def interval_s(self, checkpoint_bytes: float, num_gpus: int) -> float:
        """Return the seconds of work between two checkpoints that lose least."""
        wait_s = self.between_failures_s(num_gpus)
        return sqrt(2.0 * self.checkpoint_s(checkpoint_bytes, num_gpus) * wait_s)

    def slowdown(self, checkpoint_bytes: float, num_gpus: int) -> float:
        """Time of a run over the time of its steps, at least 1; 1 / slowdown is its goodput."""
        interval, wait_s = self.interval_s(checkpoint_bytes, num_gpus), self.between_failures_s(num_gpus)
        written = self.checkpoint_s(checkpoint_bytes, num_gpus) / interval if interval else 0.0
        return 1.0 + written + (interval / 2.0 + self.restart_s) / wait_s
