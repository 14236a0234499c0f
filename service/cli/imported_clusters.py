"""Cluster files: what a topology or a log of collectives says, put into a node group."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from profiles.cluster import GpuSpec
from profiles.errors import InvalidProblemError
from profiles.importers.node_groups import (
    GroupFields,
    fields_of_collectives,
    fields_of_links,
    fields_of_switches,
    fields_of_topology,
)
from profiles.inline import cluster_from_mapping
from profiles.library import find_gpu
from profiles.measured_networks import measured_from
from profiles.measurements import CollectiveTables, LinkTable, NodeTopology, SwitchTree
from profiles.reading import FieldReader
from profiles.shape import Json
from service.problem_file import read_problem_file


def cluster_text(
    found: object,
    *,
    gpu: GpuSpec | None,
    into: Path | None,
    group: int,
    num_nodes: int | None,
    name: str | None,
    source: str,
) -> tuple[str, str, tuple[str, ...]]:
    """The text of a cluster file with what a foreign file says, what that is, and notes.

    Raises:
        InvalidProblemError: the file says nothing of a cluster, the GPU or the group is missing, or the
            cluster would be impossible.
    """
    document = dict(read_problem_file(into)) if into is not None and into.exists() else {}
    groups = _groups(document, gpu, group)
    mine = groups[group]
    usual = find_gpu(str(mine.get("gpu")), pointer=f"/groups/{group}/gpu")
    said = _said(found, usual, FieldReader(mine, f"/groups/{group}"), source)
    mine.update(said.fields)
    if num_nodes is not None:
        mine["num_nodes"] = num_nodes
    mine.setdefault("num_nodes", 1)
    document = {"name": name or document.get("name") or "imported", **document, "groups": groups}
    cluster = cluster_from_mapping(document)
    written = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    read = ", ".join(f"{key} = {_words(value)}" for key, value in said.fields.items())
    assumed = tuple(warning for warning in cluster.warnings if "not given" in warning)
    return written, read, (*said.notes, *assumed)


def _groups(document: Mapping[str, object], gpu: GpuSpec | None, group: int) -> list[dict[str, Json]]:
    """The node groups of the file, or a new one of the GPU type."""
    raw = document.get("groups")
    groups = [dict(one) for one in raw if isinstance(one, dict)] if isinstance(raw, list) else []
    if group > len(groups):
        raise InvalidProblemError.of("--group", f"the file has {len(groups)} node groups")
    if group == len(groups):
        if gpu is None:
            raise InvalidProblemError.of("--gpu", "is required: the file does not name the GPU type")
        groups.append({"gpu": gpu.slug})
    elif gpu is not None:
        groups[group]["gpu"] = gpu.slug
    return groups


def _said(found: object, gpu: GpuSpec, before: FieldReader, source: str) -> GroupFields:
    """What a foreign file says of a node group that has some fields already."""
    if isinstance(found, NodeTopology):
        return fields_of_topology(found, gpu, source)
    if isinstance(found, SwitchTree):
        return fields_of_switches(found)
    if isinstance(found, LinkTable):
        return fields_of_links(found, gpu, source)
    if isinstance(found, CollectiveTables):
        return fields_of_collectives(found, measured_from(before.child("measured")), source)
    raise InvalidProblemError.of("/file", f"{source}: says nothing of a cluster, a model or a run")


def _words(value: Json) -> str:
    """A field in a few words."""
    if not isinstance(value, dict):
        return str(value)
    rate = value.get("bytes_per_s")
    return f"{value.get('kind')} {rate / 1e9:g} GB/s" if isinstance(rate, int | float) else "measured"
