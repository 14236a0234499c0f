"""What was measured elsewhere, in our own names and units: what the importers return.

Everything is in bytes, seconds and bytes per second. ``None`` always means that the file does not
say; it is never a zero or a default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from meshwright.profiles.units import GB, MB


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
    dtype: str | None = None
    device: str | None = None  # GPU as the log names it
    wrong_values: int = 0  # elements that the validation found wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBandwidth:
    """One average bus bandwidth of one kind of group, with no sizes."""

    collective: str  # all_reduce, point_to_point
    num_ranks: int
    consecutive: bool | None  # neighbours; False: strided over nodes
    bus_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTables:
    """All collectives of one file."""

    tables: tuple[CollectiveTable, ...] = ()
    averages: tuple[GroupBandwidth, ...] = ()
    compute_slowdown: float | None = None  # of compute that overlaps communication


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthShares:
    """Share of a link's line rate that a collective reaches, by payload and number of nodes.

    ``shares[i][j]`` belongs to ``payload_bytes[i]`` on ``num_nodes[j]`` nodes.
    """

    payload_bytes: tuple[int, ...]
    num_nodes: tuple[int, ...]
    shares: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEnd:
    """One side of a link: so many GPUs of one type in one zone."""

    gpu: str
    num_gpus: int
    zone: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCurve:
    """Bandwidth of one link as a polynomial in the logarithm of the payload."""

    scope: str  # intra_node, inter_node
    sender: LinkEnd
    receiver: LinkEnd
    coefficients: tuple[float, ...]  # highest power first; GB/s over log2(MB)
    peak_bytes_per_s: float  # largest bandwidth measured

    def bytes_per_s(self, payload_bytes: float) -> float:
        """Bandwidth for one payload, never above the peak nor below a thousandth of it.

        Source: Sailor, ``get_bw_on_config``: GB/s = polynomial(log2(bytes / 1e6)). Below 1 MB, where
        nothing was measured, the value at 1 MB holds.
        """
        x = math.log2(max(payload_bytes / MB, 1.0))
        rate = 0.0
        for coefficient in self.coefficients:
            rate = rate * x + coefficient
        return min(max(rate * GB, self.peak_bytes_per_s / 1000), self.peak_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """All links of one file."""

    links: tuple[LinkCurve, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord:
    """One layer, measured for one micro-batch on one tensor-parallel shard."""

    layer: int  # position in the model; the embedding counts where the source times it as a layer
    tensor_parallel_size: int
    micro_batch_size: int
    seq_length: int | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    forward_backward_s: float | None = None  # where the source gives the sum alone
    update_s: float | None = None  # optimizer step
    weight_bytes: int | None = None
    memory_bytes: int | None = None  # weights, gradients, states and activations together


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPass:
    """The forward pass of a model cut to a few layers."""

    num_layers: int
    micro_batch_size: int
    seq_length: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """Layer times of one model on one GPU type."""

    gpu: str | None
    model: str | None
    layers: tuple[LayerRecord, ...] = ()
    passes: tuple[ForwardPass, ...] = ()

    def layer_forward_s(self, *, micro_batch_size: int, seq_length: int) -> float | None:
        """Forward seconds of one layer from two passes of different depth; None without two.

        The difference of the deepest and the shallowest pass, over the layers between them: what
        stands before and after the layers cancels out.
        """
        passes = sorted(
            (entry.num_layers, entry.seconds)
            for entry in self.passes
            if (entry.micro_batch_size, entry.seq_length) == (micro_batch_size, seq_length)
        )
        if not passes or passes[0][0] == passes[-1][0]:
            return None
        return (passes[-1][1] - passes[0][1]) / (passes[-1][0] - passes[0][0])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Memory of one rank in one short run."""

    pipeline_parallel_size: int
    tensor_parallel_size: int
    data_parallel_size: int
    sequence_parallel: bool
    full_recompute: bool
    vocabulary_parallel: bool
    num_layers: int
    global_batch_size: int
    seq_length: int
    rank: int
    model_states_bytes: int
    activation_bytes: int
    peak_activation_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMemory:
    """Memory of one layer, or of what stands before and after the layers, by tensor-parallel size."""

    part: str  # layer, outside, outside_first_stage, outside_last_stage
    layer_type: int  # models with several kinds of layers; 0 otherwise
    seq_length: int
    weight_bytes: int | None  # of one layer, unsharded
    model_states_bytes: Mapping[int, int]  # by tensor-parallel size
    activation_bytes: Mapping[int, int]  # of one sequence, by tensor-parallel size
    recomputed_activation_bytes: int | None  # of one sequence under full recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """Memory of short runs, and of layers where the source has distilled them."""

    ranks: tuple[RankMemory, ...]
    parts: tuple[LayerMemory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """What a training run's log says: time of a step, memory, and the configuration it names.

    Warm-up steps after each start are left out; low and high are the 10th and 90th percentile.
    """

    framework: str  # megatron-lm, megatron-deepspeed, torchtitan, deepspeed, nanotron
    step_time_s: float | None  # median; None only for a run that ran out of memory
    step_time_low_s: float | None
    step_time_high_s: float | None
    num_steps: int  # optimizer steps behind the median
    num_restarts: int
    tokens_per_s_per_gpu: float | None
    flops_per_s_per_gpu: float | None  # as the framework counts them; conventions differ
    peak_allocated_bytes: int | None  # worst rank that the log shows
    peak_reserved_bytes: int | None
    num_memory_ranks: int  # ranks whose memory the log shows
    out_of_memory: bool
    configuration: Mapping[str, int] = field(default_factory=dict)  # glossary names
    words: Mapping[str, str] = field(default_factory=dict)  # precision, recompute, framework_family


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """One network card of a node."""

    name: str
    bytes_per_s: float | None = None  # line rate


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlace:
    """Where one GPU of a node sits; ``near_path`` is nvidia-smi's word for its closest cards."""

    index: int
    nvlinks: int  # NVLinks that leave the GPU; 0 without
    near_nics: tuple[str, ...]
    near_path: str | None  # PIX, PXB, PHB, NODE, SYS
    numa_node: int | None
    pcie_bytes_per_s: float | None = None  # of its slot, one direction


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTopology:
    """GPUs, NVLink islands and network cards of one node."""

    gpus: tuple[GpuPlace, ...]
    islands: tuple[tuple[int, ...], ...]  # indices of GPUs that NVLink joins
    nics: tuple[Nic, ...]
    num_hosts: int = 1  # more in a dump of a multi-node NVLink domain

    @property
    def island_gpus(self) -> int:
        """GPUs of the smallest island: what every group of that size may count on."""
        return min(len(island) for island in self.islands)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One switch (or block) with what hangs directly below it."""

    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]
    parent: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTree:
    """Switches and nodes of a cluster, as its scheduler knows them."""

    switches: tuple[Switch, ...]
    block_sizes: tuple[int, ...] = ()

    @property
    def num_nodes(self) -> int:
        """Nodes below all switches."""
        return sum(len(switch.nodes) for switch in self.switches)

    def path(self, node: str) -> tuple[str, ...]:
        """Names of the switches from a node's own up to the root; empty for an unknown node."""
        by_name = {switch.name: switch for switch in self.switches}
        at = next((switch for switch in self.switches if node in switch.nodes), None)
        names: list[str] = []
        while at is not None:
            names.append(at.name)
            at = by_name[at.parent] if at.parent else None
        return tuple(names)

    def levels_between(self, first: str, second: str) -> int | None:
        """Switch levels up to the first common switch (1: the same leaf); None when there is none."""
        above = self.path(second)
        return next((level for level, name in enumerate(self.path(first), 1) if name in above), None)
