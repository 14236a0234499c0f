"""FlagScale's process meshes: runs of equal pipeline stages, each on one kind of device.

FlagScale da4935ec, flagscale/train/arguments.py pre_validate_args: hetero_process_meshes holds tp,
cp, ep, dp and pp of each mesh, in the order of the pipeline. Its RankMapper (hetero/parallel_context.py)
numbers ranks by device type, in the order of hetero_device_types, then by the order of the hosts: all
ranks of a type follow one another, and so must the meshes of a type.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from meshwright.launchers.target import Target
from meshwright.solver.configuration import Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMesh:
    """Consecutive pipeline stages of one tensor-parallel size on one kind of device."""

    device: str  # type of its hosts
    group: str  # node group; empty: all nodes are alike
    tensor_parallel_size: int
    num_stages: int

    def sizes(self, config: Configuration) -> list[int]:
        """Return tp, cp, ep, dp and pp, as hetero_process_meshes lists them."""
        return [
            self.tensor_parallel_size,
            config.context_parallel_size,
            config.expert_parallel_size,
            config.data_parallel_size,
            self.num_stages,
        ]

    def num_gpus(self, config: Configuration) -> int:
        """Return the ranks of the mesh."""
        return (
            self.tensor_parallel_size
            * self.num_stages
            * config.context_parallel_size
            * config.data_parallel_size
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The hosts of one device type."""

    device: str
    gpu: str  # its display name
    slots: tuple[int, ...]  # ranks of each host


def is_heterogeneous(config: Configuration) -> bool:
    """Return whether a plan needs process meshes: stages on node groups, or counts of recomputed layers."""
    return config.is_placed or bool(config.stage_recompute_layers)


def device_of(group: str) -> str:
    """Return a node group's name as a device type: without blanks, which end a word of a hostfile."""
    return re.sub(r"\s+", "-", group) or "gpu"


def meshes_of_plan(target: Target) -> list[ProcessMesh]:
    """Return the meshes in the order of the pipeline."""
    config = target.config
    if not config.stage_groups:
        name = target.problem.cluster.group_names[0]
        size = config.tensor_parallel_size
        return [
            ProcessMesh(
                device=device_of(name),
                group="",
                tensor_parallel_size=size,
                num_stages=config.pipeline_parallel_size,
            )
        ]
    runs = groupby(config.stage_groups, key=lambda one: (one.group, one.tensor_parallel_size))
    return [
        ProcessMesh(
            device=device_of(group), group=group, tensor_parallel_size=size, num_stages=len(list(run))
        )
        for (group, size), run in runs
    ]


def hosts_of(target: Target) -> list[Hosts]:
    """Return the hosts that a plan runs on, by device type in the order of its meshes."""
    config, cluster = target.config, target.problem.cluster
    if not config.stage_groups:
        name, slots = cluster.group_names[0], (target.gpus_per_node,) * target.num_nodes
        return [Hosts(device=device_of(name), gpu=target.gpu.display_name, slots=slots)]
    found = []
    for name in dict.fromkeys(stage.group for stage in config.stage_groups):
        used = sum(stage.num_gpus for stage in config.stage_groups if stage.group == name)
        group = cluster.group_named[name]
        whole, rest = divmod(used, group.gpus_per_node)
        slots = (group.gpus_per_node,) * whole + ((rest,) if rest else ())
        found.append(Hosts(device=device_of(name), gpu=group.gpu.display_name, slots=slots))
    return found


def crosses_hosts(target: Target) -> list[ProcessMesh]:
    """Return the meshes with tensor-parallel ranks that are on two hosts."""
    found, first = [], dict[str, int]()
    for mesh in meshes_of_plan(target):
        start, tensor = first.get(mesh.device, 0), mesh.tensor_parallel_size
        first[mesh.device] = start + mesh.num_gpus(target.config)
        group = target.problem.cluster.group_named.get(mesh.group)
        per_host = max(group.gpus_per_node, group.island_gpus) if group else target.near_gpus
        starts = range(start, first[mesh.device], tensor)
        if any(at // per_host != (at + tensor - 1) // per_host for at in starts):
            found.append(mesh)
    return found


def returns_to_a_type(meshes: Sequence[ProcessMesh]) -> list[str]:
    """Return the device types with meshes that do not follow one another."""
    runs = [device for device, _ in groupby(mesh.device for mesh in meshes)]
    return sorted({device for device in runs if runs.count(device) > 1})
