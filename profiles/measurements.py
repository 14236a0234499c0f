"""Measurements from other tools, in our own names and units: the results of the importers.

Everything is in bytes, seconds and bytes per second. ``None`` always means that the file does not contain
the value; it is never a zero or a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTable:
    """Times of one collective over one group of ranks, by payload; the tuples are parallel.

    ``payload_bytes`` is what nccl-tests calls size: the whole buffer of a rank (of an all-gather the
    gathered result). Payloads grow strictly.
    """

    collective: str  # all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, …
    num_ranks: int | None
    num_nodes: int | None
    in_place: bool
    payload_bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    bus_bytes_per_s: tuple[float, ...]  # 0 where the file rounds it away
    hosts: tuple[str, ...] = ()  # of its nodes, where the file names them


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTables:
    """All collectives of one file."""

    tables: tuple[CollectiveTable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A training run from its log: step time, memory, and the configuration it names.

    Warm-up steps after each start are left out; low and high are the 10th and 90th percentile.
    """

    framework: str  # megatron-lm, megatron-deepspeed, torchtitan, deepspeed, nanotron
    step_time_s: float | None  # median; None only for a run that ran out of memory
    step_time_low_s: float | None
    step_time_high_s: float | None
    num_steps: int  # optimizer steps behind the median
    tokens_per_s_per_gpu: float | None
    flops_per_s_per_gpu: float | None  # as the framework counts them; conventions differ
    peak_allocated_bytes: int | None  # worst rank that the log shows
    peak_reserved_bytes: int | None
    num_memory_ranks: int  # ranks with memory in the log
    out_of_memory: bool
    configuration: Mapping[str, int] = field(default_factory=dict)  # glossary names
    words: Mapping[str, str] = field(default_factory=dict)  # precision, recompute, framework_family


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlace:
    """The links of one GPU of a node."""

    nvlinks: int  # NVLinks that leave the GPU; 0 without
    pcie_bytes_per_s: float | None = None  # of its slot, one direction


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTopology:
    """GPUs, NVLink islands and network cards of one node."""

    gpus: tuple[GpuPlace, ...]
    islands: tuple[tuple[int, ...], ...]  # indices of GPUs that NVLink joins
    nic_bytes_per_s: tuple[float | None, ...]  # line rate of each network card
    num_hosts: int = 1  # more in a dump of a multi-node NVLink domain

    @property
    def island_gpus(self) -> int:
        """Return the GPUs of the smallest island: what every group of that size may count on."""
        return min(len(island) for island in self.islands)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSwitch:
    """One switch (or block) with what is directly below it."""

    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]
    parent: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTree:
    """Switches and nodes of a cluster, as its scheduler knows them."""

    switches: tuple[NetworkSwitch, ...]
    block_sizes: tuple[int, ...] = ()

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes below all switches."""
        return sum(len(switch.nodes) for switch in self.switches)

    def path(self, node: str) -> tuple[str, ...]:
        """Return the names of the switches from a node's own up to the root; empty for an unknown node."""
        by_name = {switch.name: switch for switch in self.switches}
        at = next((switch for switch in self.switches if node in switch.nodes), None)
        names: list[str] = []
        while at is not None:
            names.append(at.name)
            at = by_name[at.parent] if at.parent else None
        return tuple(names)
