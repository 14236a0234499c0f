"""Records of other planners' profiles, in our own names and units: bytes, seconds, bytes per second.

``None`` always means that the file does not state a value; it is never a zero or a default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.profiles.measurements import CollectiveTables
from meshwright.profiles.units import GB, MB


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBandwidth:
    """One average bus bandwidth of one kind of group, with no sizes."""

    collective: str  # all_reduce, point_to_point
    num_ranks: int
    consecutive: bool | None  # neighbours; False: strided over nodes
    bus_bytes_per_s: float


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
    update_s: float | None = None  # optimizer step


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
class GalvatronCollectives(CollectiveTables):
    """Collectives of one of Galvatron's files: tables by size, or averages of groups."""

    averages: tuple[GroupBandwidth, ...] = ()
    compute_slowdown: float | None = None  # of compute that overlaps communication
