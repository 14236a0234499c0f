"""What a cluster is: GPU types, links, node groups, and which link a group of ranks crosses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from profiles.errors import InvalidProblemError
from profiles.measured_link import MeasuredLink

MAX_NODES = 1_000_000
MAX_GPUS_PER_NODE = 1024
MAX_GPUS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @property
    def peak_bf16_flops(self) -> float:
        """Dense bf16 peak (fp16 where the GPU has no bf16): the denominator of MFU."""
        return self.peak_flops.get("bf16") or self.peak_flops["fp16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """One kind of link, as one GPU sees it in one direction."""

    kind: str  # nvlink, nvswitch, pcie, infinity-fabric, infiniband, roce, efa, ethernet, …
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
    measured: MeasuredLink | None = None  # collectives timed on these very nodes

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
        for name in ("host_link_bytes_per_s", "host_memory_bytes"):
            stated = getattr(self, name)
            if stated is not None and not 0 < stated < math.inf:
                raise InvalidProblemError.of(f"/cluster/{name}", "must be positive")
        island, node = self.island_gpus, self.gpus_per_node
        if island < 1 or (node % island and island % node):
            raise InvalidProblemError.of(
                "/cluster/island_gpus",
                f"{island} neither divides nor is a multiple of gpus_per_node = {node}",
                nearest=str(node),
            )

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole group."""
        return self.num_nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
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
            InvalidProblemError: there is no node group, or more than a million GPUs.
        """
        if not self.groups:
            raise InvalidProblemError.of("/cluster/groups", "a cluster needs at least one node group")
        if self.num_gpus > MAX_GPUS:
            pointer = "/cluster/num_nodes" if len(self.groups) == 1 else "/cluster/groups"
            raise InvalidProblemError.of(
                pointer, f"{self.num_gpus} GPUs are too many", allowed=f"{MAX_GPUS} GPUs in all"
            )

    @property
    def num_gpus(self) -> int:
        """GPUs of all groups."""
        return sum(group.num_gpus for group in self.groups)

    @property
    def num_nodes(self) -> int:
        """Nodes of all groups."""
        return sum(group.num_nodes for group in self.groups)

    @property
    def distinct_groups(self) -> tuple[NodeGroup, ...]:
        """The node groups, those that are alike and not kept apart by a link of their own as one."""
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

    @property
    def group_names(self) -> tuple[str, ...]:
        """A short name of each of ``distinct_groups``: its GPU's, numbered where two have the same."""
        slugs = [group.gpu.slug for group in self.distinct_groups]
        return tuple(
            f"{slug}-{slugs[:at].count(slug) + 1}" if slugs.count(slug) > 1 else slug
            for at, slug in enumerate(slugs)
        )

    @property
    def is_homogeneous(self) -> bool:
        """Whether all nodes are alike."""
        return len(self.distinct_groups) == 1

    @property
    def title(self) -> str:
        """The cluster in words: ``16 × DGX H100 = 128 GPUs``."""
        name = self.display_name or self.name
        total = f"{self.num_gpus} GPU{'s' if self.num_gpus > 1 else ''}"
        return f"{name} = {total}" if len(self.groups) > 1 else f"{self.num_nodes} × {name} = {total}"
