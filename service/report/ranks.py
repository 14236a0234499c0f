"""Which GPU holds which rank, and which link each axis of the mesh crosses.

Ranks are laid out tp fastest, then cp, dp, pp, as ``profiles.collectives`` prices them; expert tensor and
expert parallel ranks share out the tp * cp * dp ranks of a stage in that order.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.cluster import ClusterSpec, LinkSpec, NodeGroup
from profiles.units import GB
from service.report import figures
from solver.plan import Configuration

MOST_NODES = 16  # that are drawn
_SHOWN_RANKS = 8  # of one group in words


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisRow:
    """One axis of the mesh."""

    axis: str  # tp, cp, dp, pp, etp, ep
    name: str
    size: int
    stride: int  # GPUs from one rank of a group to the next
    crosses: str  # in words: the link that its groups cross
    is_fast: bool  # no group of it leaves its island
    group: str  # of GPU 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One GPU."""

    gpu: int
    stage: int
    label: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRow:
    """One stage of a placed plan."""

    stage: str
    group: str
    gpus: str
    nodes: str
    tensor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMap:
    """The whole map; a placed plan has rows of stages instead of nodes of GPUs."""

    axes: tuple[AxisRow, ...]
    nodes: tuple[tuple[Cell, ...], ...]
    left_out: int  # nodes that are not drawn
    placed: tuple[PlacedRow, ...]
    num_gpus: int
    gpus_per_node: int
    num_stages: int


_NAMES = {
    "tp": "tensor parallel",
    "cp": "context parallel",
    "dp": "data parallel",
    "pp": "pipeline",
    "etp": "expert tensor parallel",
    "ep": "expert parallel",
}


def rank_map(configuration: Configuration, cluster: ClusterSpec) -> RankMap:
    """The map of a configuration."""
    c = configuration
    if c.stage_groups or c.replicas:
        return _placed(c)
    group = cluster.distinct_groups[0]
    strides = _strides(c)
    sizes = _sizes(c)
    axes = [
        _axis(axis, sizes[axis], strides[axis], group)
        for axis in _NAMES
        if sizes[axis] > 1 and (axis not in ("etp", "ep") or c.expert_parallel_size > 1)
    ]
    per_node = group.gpus_per_node
    count = -(-c.num_gpus // per_node)
    nodes = [
        tuple(
            _cell(c, gpu, strides, per_node)
            for gpu in range(node * per_node, min((node + 1) * per_node, c.num_gpus))
        )
        for node in range(min(count, MOST_NODES))
    ]
    return RankMap(
        axes=tuple(axes),
        nodes=tuple(nodes),
        left_out=count - len(nodes),
        placed=(),
        num_gpus=c.num_gpus,
        gpus_per_node=per_node,
        num_stages=c.pipeline_parallel_size,
    )


def _sizes(c: Configuration) -> dict[str, int]:
    """Ranks of every axis."""
    return {
        "tp": c.tensor_parallel_size,
        "cp": c.context_parallel_size,
        "dp": c.data_parallel_size,
        "pp": c.pipeline_parallel_size,
        "etp": c.expert_tensor_parallel_size,
        "ep": c.expert_parallel_size,
    }


def _strides(c: Configuration) -> dict[str, int]:
    """GPUs between neighbours of every axis."""
    tp, cp, dp = c.tensor_parallel_size, c.context_parallel_size, c.data_parallel_size
    return {
        "tp": 1,
        "cp": tp,
        "dp": tp * cp,
        "pp": tp * cp * dp,
        "etp": 1,
        "ep": c.expert_tensor_parallel_size,
    }


def _axis(axis: str, size: int, stride: int, group: NodeGroup) -> AxisRow:
    """One axis with the link that its groups cross."""
    inside = size * stride <= group.island_gpus
    near = max(group.island_gpus // stride, 1)
    if inside:
        words = f"stays inside an island of {group.island_gpus} GPUs: {_link(group.intra_node)}"
    elif near > 1:
        islands = -(-size // near)
        words = (
            f"{near} ranks in each of {islands} islands: {_link(group.intra_node)}, then "
            f"{_link(group.inter_node)}"
        )
    else:
        words = f"every rank in another island: {_link(group.inter_node)}"
    ranks = [str(number * stride) for number in range(min(size, _SHOWN_RANKS))]
    shown = ", ".join(ranks) + (f" … {(size - 1) * stride}" if size > _SHOWN_RANKS else "")
    return AxisRow(
        axis=axis, name=_NAMES[axis], size=size, stride=stride, crosses=words, is_fast=inside, group=shown
    )


def _link(link: LinkSpec) -> str:
    """``nvswitch, 450 GB/s``."""
    return f"{link.kind} {link.bytes_per_s / GB:.0f} GB/s"


def _cell(c: Configuration, gpu: int, strides: dict[str, int], per_node: int) -> Cell:
    """One GPU with its coordinates."""
    sizes = _sizes(c)
    at = {axis: gpu // strides[axis] % sizes[axis] for axis in ("tp", "cp", "dp", "pp")}
    if c.expert_parallel_size > 1:
        at["ep"] = gpu % strides["pp"] // strides["ep"] % sizes["ep"]
    said = " ".join(f"{axis} {rank}" for axis, rank in at.items() if sizes[axis] > 1)
    title = f"GPU {gpu} (node {gpu // per_node}): {said or 'the whole model'}"
    return Cell(gpu=gpu, stage=at["pp"], label=str(at["pp"]), title=title)


def _placed(c: Configuration) -> RankMap:
    """Stages on node groups; each class of replicas one after the other."""
    rows = []
    for number, one in enumerate(c.replicas or (c,)):
        for stage, place in enumerate(one.stage_groups):
            name = f"kind {number}, stage {stage}" if c.replicas else f"stage {stage}"
            rows.append(
                PlacedRow(
                    stage=name,
                    group=place.group,
                    gpus=figures.count(place.num_gpus),
                    nodes=figures.nodes(place),
                    tensor=place.tensor_parallel_size,
                )
            )
    return RankMap(
        axes=(),
        nodes=(),
        left_out=0,
        placed=tuple(rows),
        num_gpus=c.num_gpus,
        gpus_per_node=0,
        num_stages=len(rows),
    )
