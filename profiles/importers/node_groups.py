"""Fields of a node group that foreign files state: topologies of a node, trees of switches, logs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from meshwright.profiles.cluster import GpuSpec, LinkSpec
from meshwright.profiles.collectives.measured import (
    COLLECTIVES,
    MAX_CURVES,
    MAX_POINTS,
    MeasuredCurve,
    MeasuredLink,
    measured_to_mapping,
)
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.measurements import (
    CollectiveTable,
    CollectiveTables,
    NodeTopology,
    SwitchTree,
)
from meshwright.profiles.model_shapes import Json
from meshwright.profiles.reading import shown
from meshwright.profiles.units import GB

# --------------------------------------------------------------------------------------------------
# Which GPUs links join into islands.


def connected(count: int, pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Return the groups of the members 0 … count − 1 that the pairs join, each sorted, by first member."""
    leader = list(range(count))

    def first(member: int) -> int:
        while leader[member] != member:
            member = leader[member]
        return member

    for one, other in pairs:
        low, high = sorted((first(one), first(other)))
        leader[high] = low
    groups: dict[int, list[int]] = {}
    for member in range(count):
        groups.setdefault(first(member), []).append(member)
    return tuple(tuple(group) for group in groups.values())


# --------------------------------------------------------------------------------------------------
# Links of a cluster from foreign files of collectives.


def measured_link(tables: CollectiveTables, *, source: str) -> MeasuredLink:
    """Return a cluster's links from a log of nccl-tests (or any other file of collectives).

    Out-of-place times where there are any; tables without ranks, of other collectives, and of GPUs
    that share a node unevenly are left out, and points with a bandwidth that the file rounds to 0.

    Raises:
        InvalidProblemError: no table is left.
    """
    curves: dict[tuple[str, int, int], MeasuredCurve] = {}
    for table in sorted(tables.tables, key=lambda table: table.in_place):
        curve = _curve_of_table(table)
        if curve is not None:
            curves.setdefault(curve.place, curve)
    if not curves:
        raise InvalidProblemError.of(
            "/curves", "no collective with its numbers of ranks and nodes", allowed=", ".join(COLLECTIVES)
        )
    return MeasuredLink(curves=tuple(curves.values())[:MAX_CURVES], source=source)


def _curve_of_table(table: CollectiveTable) -> MeasuredCurve | None:
    ranks, nodes = table.num_ranks, table.num_nodes
    points = [
        (size, rate)
        for size, rate in zip(table.payload_bytes, table.bus_bytes_per_s, strict=True)
        if 0 < rate < math.inf
    ]
    if table.collective not in COLLECTIVES or not ranks or not nodes or not points:
        return None
    if ranks == 1 or ranks % nodes:
        return None
    kept = points[-MAX_POINTS:]
    return MeasuredCurve(
        collective=table.collective,
        num_nodes=nodes,
        num_ranks=ranks,
        payload_bytes=tuple(size for size, _ in kept),
        bus_bytes_per_s=tuple(rate for _, rate in kept),
    )


_PAIR = 2
_PAIRS_NAMED = 4  # of those without a run, in the note
_POINT_TO_POINT = "point_to_point"
_SMALL_BYTES = 1024  # at 10 GB/s they pass in a tenth of a microsecond
_OF_PAIRS: Mapping[str, str] = {  # collectives that state the bandwidth of a pair, and their programs
    _POINT_TO_POINT: "sendrecv_perf", "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf", "all_reduce": "all_reduce_perf",
}  # fmt: skip

# One NVLink in one direction (NVIDIA's white papers: V100, A100 and H100 25 GB/s, Blackwell 50 GB/s).
_NVLINK_BYTES_PER_S: Mapping[str, float] = {
    "volta": 25.0 * GB, "ampere": 25.0 * GB, "hopper": 25.0 * GB, "blackwell": 50.0 * GB,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFields:
    """The fields of a node group in a file, under the names of a request, and notes on the rest."""

    fields: Mapping[str, Json]
    notes: tuple[str, ...] = ()


def fields_of_topology(topology: NodeTopology, gpu: GpuSpec, source: str) -> GroupFields:
    """Return GPUs, islands and links of one node."""
    fields: dict[str, Json] = {"gpus_per_node": len(topology.gpus), "island_gpus": topology.island_gpus}
    notes = []
    if topology.num_hosts > 1:
        fields["gpus_per_node"] = len(topology.gpus) // topology.num_hosts
        notes.append(
            f"the dump covers {topology.num_hosts} hosts: assuming an equal number of GPUs on each"
        )
    if topology.island_gpus > 1:
        links = min(place.nvlinks for place in topology.gpus)
        one = _NVLINK_BYTES_PER_S.get(gpu.architecture)
        if links and one:
            fields["intra_node"] = link_fields("nvlink", links * one, gpu.intra_node.latency_s, source)
    else:
        slots = [place.pcie_bytes_per_s for place in topology.gpus]
        if all(slots):
            slowest = min(slot for slot in slots if slot)
            fields["intra_node"] = link_fields("pcie", slowest, gpu.intra_node.latency_s, source)
    if "intra_node" not in fields:
        notes.append("no speed for the links between GPUs: assuming the GPU's usual link")
    rates = [rate for rate in topology.nic_bytes_per_s if rate]
    if rates and len(rates) == len(topology.nic_bytes_per_s):
        total = sum(rates) / max(len(topology.gpus), 1)
        fields["inter_node"] = link_fields(gpu.inter_node.kind, total, gpu.inter_node.latency_s, source)
    else:
        cards = f"{len(topology.nic_bytes_per_s)} network cards"
        notes.append(f"{cards} without a rate: assuming the GPU's usual network")
    return GroupFields(fields=fields, notes=tuple(notes))


def fields_of_switches(tree: SwitchTree) -> GroupFields:
    """Return the number of nodes; levels of switches are not priced."""
    levels = {len(tree.path(node)) for switch in tree.switches for node in switch.nodes}
    leaves = sum(bool(switch.nodes) for switch in tree.switches)
    note = (
        f"{leaves} leaf switches in {max(levels, default=0)} levels are ignored: all nodes count "
        "as equally distant"
    )
    return GroupFields(fields={"num_nodes": tree.num_nodes}, notes=(note,))


def fields_of_collectives(
    tables: CollectiveTables,
    before: MeasuredLink | None,
    source: str,
    *,
    network: LinkSpec,
) -> GroupFields:
    """Return measured collectives in addition to those of the group; equal ones are replaced.

    Runs of several pairs of nodes are a matrix of links; pairs without a run have the ``network``.

    Raises:
        InvalidProblemError: none of the collectives is one that is priced, or a run states no link.
    """
    pairs = _pairs_of(tables)
    if len(pairs) > 1:
        return _fields_of_pairs(pairs, source, network)
    measured = measured_link(tables, source=source)
    both = measured if before is None else before.with_curves(measured.curves, source=source)
    new = {f"{curve.collective} over {curve.num_nodes} nodes" for curve in measured.curves}
    return GroupFields(
        fields={"measured": measured_to_mapping(both)},
        notes=(f"{', '.join(sorted(new))}: measured bandwidths correct the catalog's",),
    )


Pair = tuple[str, str]


def _pairs_of(tables: CollectiveTables) -> Mapping[Pair, Sequence[CollectiveTable]]:
    """Return the tables of every pair of hosts, by the hosts' names, sorted."""
    found = dict[Pair, list[CollectiveTable]]()
    for table in tables.tables:
        if len(table.hosts) == _PAIR:
            one, other = sorted(table.hosts)
            found.setdefault((one, other), []).append(table)
    return found


def _fields_of_pairs(
    pairs: Mapping[Pair, Sequence[CollectiveTable]], source: str, network: LinkSpec
) -> GroupFields:
    """Return hosts and bandwidth of every pair, from runs of pairs and, where one has none, the network.

    The bandwidth is that of a pair's largest payload, of the slower one of several runs with it.
    """
    hosts = sorted({host for pair in pairs for host in pair})
    every: Iterable[Pair] = combinations(hosts, 2)
    missing = [pair for pair in every if pair not in pairs]
    rates = {pair: min(map(_pair_bytes_per_s, _largest(tables))) for pair, tables in pairs.items()}
    low, high = min(rates.values()) / GB, max(rates.values()) / GB
    usual = network.payload_bytes_per_s
    links: dict[str, Json] = {
        "hosts": list[Json](hosts),
        "bytes_per_s": _matrix(hosts, {**rates, **dict.fromkeys(missing, usual)}),
        "measured": True,
    }
    words = f"links of {len(hosts)} nodes: {low:.4g} to {high:.4g} GB/s for one GPU, as measured"
    late = _latencies_s(pairs, network.latency_s)
    if late:
        links["latency_s"] = _matrix(hosts, {**late, **dict.fromkeys(missing, network.latency_s)})
        words += f", and latencies of {min(late.values()) * 1e6:.3g} to {max(late.values()) * 1e6:.3g} µs"
    links["source"] = source
    notes = [f"{words}. Plans include an order of these hosts"]
    if missing:
        some = ", ".join(f"{shown(one)} with {shown(other)}" for one, other in missing[:_PAIRS_NAMED])
        more = f" and {len(missing) - _PAIRS_NAMED} more" if len(missing) > _PAIRS_NAMED else ""
        notes.append(f"no run of {some}{more}: assumed the network's {usual / GB:.4g} GB/s")
    return GroupFields(fields={"num_nodes": len(hosts), "links": links}, notes=tuple(notes))


def _largest(tables: Sequence[CollectiveTable]) -> list[CollectiveTable]:
    """Return the tables with the largest payload: runs of small messages alone state latencies."""
    most = max(one.payload_bytes[-1] for one in tables)
    return [one for one in tables if one.payload_bytes[-1] == most]


def _matrix(hosts: Sequence[str], values: Mapping[Pair, float]) -> list[Json]:
    return [
        list[Json](0.0 if one == other else values[min(one, other), max(one, other)] for other in hosts)
        for one in hosts
    ]


def _latencies_s(pairs: Mapping[Pair, Sequence[CollectiveTable]], hop_s: float) -> Mapping[Pair, float]:
    """Return the latency of every pair: the usual one of the fastest pair, and what others take longer.

    A small message takes its hop and the launch of its kernel, which is the same for all pairs. Empty
    where a pair has no small ``sendrecv_perf`` message.
    """
    took_s = dict[Pair, float]()
    for pair, tables in pairs.items():
        small = [
            one.seconds[0]
            for one in tables
            if one.collective == _POINT_TO_POINT and one.payload_bytes[0] <= _SMALL_BYTES
        ]
        if not small:
            return {}
        took_s[pair] = min(small)
    least_s = min(took_s.values())
    return {pair: hop_s + seconds - least_s for pair, seconds in took_s.items()}


def _pair_bytes_per_s(table: CollectiveTable) -> float:
    """Return the bandwidth of one GPU between the nodes of a pair.

    ``sendrecv_perf`` sends from each rank to the next, so that one pair of GPUs crosses the nodes each
    way. A ring collective closes one ring through each GPU of a node (``Lines.ring_bytes_per_s``), and
    its bus bandwidth is that of all of them.
    """
    names, ranks = " with ".join(map(shown, table.hosts)), table.num_ranks or 0
    if table.collective not in _OF_PAIRS or ranks % _PAIR:
        raise InvalidProblemError.of(
            "/links/bytes_per_s", f"{names}: {table.collective} of {ranks} ranks gives no link of a GPU",
            allowed=f"{', '.join(_OF_PAIRS.values())}, with the same number of ranks on both hosts",
        )  # fmt: skip
    rails = 1 if table.collective == _POINT_TO_POINT else ranks // _PAIR
    rate = table.bus_bytes_per_s[-1] / rails
    if rate <= 0.0:
        raise InvalidProblemError.of(
            "/links/bytes_per_s",
            f"{names}: the bandwidth of the largest payload is printed as 0",
            allowed="larger payloads (-e)",
        )
    return rate


def link_fields(kind: str, bytes_per_s: float, latency_s: float, source: str) -> Json:
    """Return a link as a request writes it."""
    return {"kind": kind, "bytes_per_s": bytes_per_s, "latency_s": latency_s, "source": source}
