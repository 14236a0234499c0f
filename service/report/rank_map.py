"""The map of ranks to GPUs, and of the mesh's axes to the links that they cross.

Ranks are numbered along the axes in the configuration's own order, fastest first; expert tensor and expert
parallel ranks share out the tp * cp * dp ranks of a stage, in the order in which the stage has them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise

from meshwright.profiles.cluster import ClusterSpec, LinkSpec, NodeGroup
from meshwright.profiles.units import GB
from meshwright.service.report import formatting as figures
from meshwright.solver.answer import Plan
from meshwright.solver.configuration import SHORT_NAMES, Configuration

MOST_NODES = 16  # that are drawn
_TRIED_GROUPS = 4096  # of an axis
_SHOWN_RANKS = 8  # of one group in words


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisRow:
    """One axis of the mesh."""

    axis: str  # tp, cp, dp, pp, etp, ep
    name: str
    size: int
    stride: int  # GPUs from one rank of a group to the next; 0 where that differs
    crosses: str  # in words: the link that its groups cross
    group: str  # of GPU 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One GPU."""

    gpu: int
    stage: int
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
    order: str  # of the axes, in words
    hosts: tuple[str, ...] = ()  # the node in each place, where links differ
    host_order: str = ""  # in words, with what the order gains


_NAMES = {
    "tp": "tensor parallel",
    "cp": "context parallel",
    "dp": "data parallel",
    "pp": "pipeline",
    "etp": "expert tensor parallel",
    "ep": "expert parallel",
}


def rank_map(plan: Plan, cluster: ClusterSpec) -> RankMap:
    """Return the map of a plan."""
    c, hosts = plan.config, plan.hosts
    if c.is_placed:
        return _placed(c)
    group = cluster.distinct_groups[0]
    mesh = _Ranks(config=c)
    axes = [
        _axis(axis, mesh, group)
        for axis in _NAMES
        if mesh.sizes[axis] > 1 and (axis not in ("etp", "ep") or c.expert_parallel_size > 1)
    ]
    per_node = group.gpus_per_node
    count = -(-c.num_gpus // per_node)
    names = tuple(map(str, range(count))) if hosts is None else figures.host_names(hosts)
    nodes = [
        tuple(
            _cell(mesh, gpu, names[node])
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
        order=c.rank_order.replace("-", ", "),
        hosts=() if hosts is None else names,
        host_order=figures.order_sentence(plan),
    )


@dataclass(frozen=True, kw_only=True)
class _Ranks:
    """Numbers of the ranks of a configuration."""

    config: Configuration

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Return the ranks of every axis."""
        return {short: getattr(self.config, name) for name, short in SHORT_NAMES.items() if short in _NAMES}

    @cached_property
    def strides(self) -> dict[str, int]:
        """Return GPUs between neighbours of every axis of the mesh."""
        found, stride, shared = dict[str, int](), 1, self.config.weight_shard_size
        for axis in self.config.rank_order.split("-"):
            found[axis] = stride
            stride *= self.sizes[axis] // (shared if axis == "dp" else 1)
            stride *= shared if axis == "tp" else 1  # data-parallel ranks that share weights
        return found

    def rank(self, axis: str, gpu: int) -> int:
        """Return the rank of a GPU on an axis."""
        if axis == "dp":
            shared = self.config.weight_shard_size
            beyond = gpu // self.strides["dp"] % (self.sizes["dp"] // shared)
            return beyond * shared + gpu // self.sizes["tp"] % shared
        if axis in self.strides:
            return gpu // self.strides[axis] % self.sizes[axis]
        stride, stages = self.strides["pp"], self.sizes["pp"]
        among_stage = gpu // (stride * stages) * stride + gpu % stride
        return among_stage // self._expert_stride(axis) % self.sizes[axis]

    def group_of_first(self, axis: str) -> list[int]:
        """Return the GPUs of GPU 0's group on an axis."""
        if axis == "dp":
            near, shared = self.sizes["tp"], self.config.weight_shard_size
            beyond = range(self.sizes["dp"] // shared)
            return [at * self.strides["dp"] + one * near for at in beyond for one in range(shared)]
        if axis in self.strides:
            return [number * self.strides[axis] for number in range(self.sizes[axis])]
        stride, stages = self.strides["pp"], self.sizes["pp"]
        among_stage = [number * self._expert_stride(axis) for number in range(self.sizes[axis])]
        return [at // stride * stride * stages + at % stride for at in among_stage]

    def _expert_stride(self, axis: str) -> int:
        return 1 if axis == "etp" else self.sizes["etp"]


def _axis(axis: str, mesh: _Ranks, group: NodeGroup) -> AxisRow:
    gpus, islands, each = _most_apart(axis, mesh, group.island_gpus)
    in_a_row = mesh.config.rank_order.endswith("pp")  # the ranks of a stage follow one another
    steps = {after - before for before, after in pairwise(gpus)}
    if islands == 1:
        words = f"stays inside an island of {group.island_gpus} GPUs: {_link(group.intra_node)}"
    elif islands < len(gpus):
        words = (
            f"{each} ranks in each of {islands} islands: {_link(group.intra_node)}, then "
            f"{_link(group.inter_node)}"
        )
    else:
        words = f"every rank in another island: {_link(group.inter_node)}"
    shown = ", ".join(map(str, gpus[:_SHOWN_RANKS]))
    return AxisRow(
        axis=axis,
        name=_NAMES[axis],
        size=len(gpus),
        stride=steps.pop() if len(steps) == 1 and (axis in mesh.strides or in_a_row) else 0,
        crosses=words,
        group=shown + (f" … {gpus[-1]}" if len(gpus) > _SHOWN_RANKS else ""),
    )


def _most_apart(axis: str, mesh: _Ranks, island_gpus: int) -> tuple[list[int], int, str]:
    """Return the GPUs of the first group on most islands, how many these are, and the GPUs on each."""
    first, best = mesh.group_of_first(axis), (0, 0)
    gpus, each = first, ""
    starts = (gpu for gpu in range(mesh.config.num_gpus) if mesh.rank(axis, gpu) == 0)
    for start in islice(starts, _TRIED_GROUPS):
        found = [start + gpu for gpu in first]
        counts = Counter(gpu // island_gpus for gpu in found).values()
        few, many = min(counts), max(counts)
        if (len(counts), -few) > best:
            best, gpus, each = (len(counts), -few), found, str(few) if few == many else f"{few} to {many}"
    return gpus, best[0], each


def _link(link: LinkSpec) -> str:
    return f"{link.kind} {link.bytes_per_s / GB:.0f} GB/s"


def _cell(mesh: _Ranks, gpu: int, node: str) -> Cell:
    said = " ".join(
        f"{axis} {mesh.rank(axis, gpu)}" for axis in ("tp", "cp", "dp", "pp", "ep") if mesh.sizes[axis] > 1
    )
    return Cell(
        gpu=gpu,
        stage=mesh.rank("pp", gpu),
        title=f"GPU {gpu} (node {node}): {said or 'the whole model'}",
    )


def _placed(c: Configuration) -> RankMap:
    """Return stages on node groups; each class of replicas one after the other."""
    rows = []
    for number, one in enumerate(c.classes):
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
        order="",
    )
