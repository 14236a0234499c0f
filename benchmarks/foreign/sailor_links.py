"""Sailor's links between GPUs as fields of a node group."""

from __future__ import annotations

from benchmarks.foreign.records import LinkCurve, LinkTable
from benchmarks.foreign.sailor import CATALOG_NAMES
from meshwright.profiles.cluster import GpuSpec
from meshwright.profiles.collectives.measured import MeasuredCurve, MeasuredLink, measured_to_mapping
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.importers.node_groups import GroupFields, link_fields
from meshwright.profiles.model_shapes import Json
from meshwright.profiles.units import MB

_LINK_PAYLOADS = tuple(int(4**power * MB) for power in range(6))  # 1 MB to 1 GB, where Sailor measured


def fields_of_links(table: LinkTable, gpu: GpuSpec, source: str) -> GroupFields:
    """Links between GPUs of one type: inside a node, each GPU's share of those between two, and curves.

    Sailor times a link between as many GPUs on each side as take part at once, so the largest number is
    the node's own. Of links between zones those inside one zone are taken.
    """
    fields: dict[str, Json] = {}
    curves: list[MeasuredCurve] = []
    for scope, usual in (("intra_node", gpu.intra_node), ("inter_node", gpu.inter_node)):
        mine = [link for link in table.links if link.scope == scope and _joins(link, gpu)]
        if mine:
            widest = max(mine, key=lambda link: link.sender.num_gpus)
            sharers = widest.sender.num_gpus if scope == "inter_node" else 1
            kind = "vpc" if scope == "inter_node" else usual.kind
            fields[scope] = link_fields(kind, widest.peak_bytes_per_s / sharers, usual.latency_s, source)
            curves += _curve(widest, num_nodes=2 if scope == "inter_node" else 1)
    if not fields:
        raise InvalidProblemError.of("--gpu", f"{source} has no link between two {gpu.slug}")
    others = len(table.links) - len(fields)
    if curves:
        fields["measured"] = measured_to_mapping(MeasuredLink(curves=tuple(curves), source=source))
    notes = (f"{others} links of other GPU types, fewer GPUs or other zones are ignored",) if others else ()
    return GroupFields(fields=fields, notes=notes)


def _curve(link: LinkCurve, num_nodes: int) -> list[MeasuredCurve]:
    """A link as the bus bandwidth of an all-reduce over it, where it was measured; none of one rank."""
    ranks = link.sender.num_gpus * num_nodes
    if ranks == 1:
        return []
    rates = tuple(float(round(link.bytes_per_s(size))) for size in _LINK_PAYLOADS)
    return [
        MeasuredCurve(
            collective="all_reduce",
            num_nodes=num_nodes,
            num_ranks=ranks,
            payload_bytes=_LINK_PAYLOADS,
            bus_bytes_per_s=rates,
        )
    ]


def _joins(link: LinkCurve, gpu: GpuSpec) -> bool:
    """Whether a link joins equal numbers of this GPU type inside a zone."""
    alike = (link.sender.gpu, link.sender.num_gpus, link.sender.zone) == (
        link.receiver.gpu,
        link.receiver.num_gpus,
        link.receiver.zone,
    )
    return alike and CATALOG_NAMES.get(link.sender.gpu, link.sender.gpu.lower()) == gpu.slug
