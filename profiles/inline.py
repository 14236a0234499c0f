"""Models and clusters in requests: reading and writing.

Pointers of every fault start at ``/model`` or ``/cluster``, as in the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.profiles.cluster import (
    HOST_FIELDS,
    MAX_GPUS_PER_NODE,
    MAX_NODES,
    ClusterSpec,
    GpuSpec,
    LinkSpec,
    NodeGroup,
)
from meshwright.profiles.collectives.measured import measured_from, measured_to_mapping
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.gpus import (
    MAX_BYTES_PER_S,
    gpu_from_mapping,
    gpu_to_mapping,
    link_from,
    link_rate,
    link_to_mapping,
)
from meshwright.profiles.library import find_cluster, find_gpu, find_model, gpu_alias_note, gpu_names
from meshwright.profiles.links import NodeLinks, links_from
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_shapes import Json, model_from_shape, model_to_mapping
from meshwright.profiles.reading import MAX_TEXT, FieldReader, shown

__all__ = ["cluster_from_mapping", "cluster_to_mapping", "model_from_mapping", "model_to_mapping"]

MAX_GROUPS = 64


def model_from_mapping(raw: object) -> ModelSpec:
    """Return a model from ``{"name": …}`` (catalog), an inline shape, or a Hugging Face config.

    Raises:
        InvalidProblemError: every fault with its pointer; unknown names list the nearest.
    """
    if not isinstance(raw, Mapping):
        raise InvalidProblemError.of("/model", "must be an object", allowed=_MODEL_FORMS)
    if set(raw) == {"name"}:
        reader = FieldReader(raw, "/model")
        name = reader.text("name")
        reader.finish()
        return find_model(name)
    from meshwright.profiles.importers.huggingface import (  # noqa: PLC0415 - only for stated models
        looks_like_config,
        model_from_config,
    )

    if looks_like_config(raw):
        stated = raw.get("name") or raw.get("_name_or_path")
        return model_from_config(raw, name=stated if isinstance(stated, str) else "custom")
    return model_from_shape(raw)


def cluster_from_mapping(raw: object) -> ClusterSpec:
    """Return a cluster from ``{"name": …, "num_nodes": …}`` (catalog) or ``{"groups": [...]}``.

    The ``gpu`` of a group is a name of the catalog, or a mapping that ``gpu_from_mapping`` reads.

    Links, islands and GPUs per node that a group leaves out are the GPU's usual node's;
    ``warnings`` of the answer names each assumption.

    Raises:
        InvalidProblemError: every fault with its pointer, such as ``/cluster/groups/0/gpu``.
    """
    if not isinstance(raw, Mapping):
        raise InvalidProblemError.of("/cluster", "must be an object", allowed=_CLUSTER_FORMS)
    return _inline_cluster(raw) if "groups" in raw else _catalog_cluster(raw)


def cluster_to_mapping(cluster: ClusterSpec) -> dict[str, Json]:
    """Return the mapping that ``cluster_from_mapping`` reads back; links and counts are all written out."""
    raw: dict[str, Json] = {"name": cluster.name, "groups": [_group_to_mapping(g) for g in cluster.groups]}
    if cluster.between_groups is not None:
        raw["between_groups"] = link_to_mapping(cluster.between_groups)
    if cluster.warnings:
        raw["warnings"] = list(cluster.warnings)
    texts = {"display_name": cluster.display_name, "source": cluster.source}
    return raw | {key: text for key, text in texts.items() if text}


_MAX_HOST_BYTES = 2**50  # a pebibyte in one node
_GPU_FORMS = "a name of the catalog, or figures: memory_gib, hbm_gb_per_s, peak_tflops"
_MODEL_FORMS = 'a catalog name ({"name": ...}), a shape, or a Hugging Face config'
_CLUSTER_FORMS = 'a catalog name ({"name": ..., "num_nodes": ...}) or {"groups": [...]}'


def _catalog_cluster(raw: Mapping[str, object]) -> ClusterSpec:
    reader = FieldReader(raw, "/cluster")
    name = reader.text("name")
    num_nodes = reader.optional_integer("num_nodes", high=MAX_NODES)
    measured = measured_from(reader.child("measured"))
    links = links_from(reader.child("links"))
    reader.refuse_unknown()
    reader.finish()
    cluster = find_cluster(name, num_nodes=num_nodes)
    if measured is None and links is None:
        return cluster
    for group in cluster.groups:
        _require_as_many(links, group.num_nodes, "/cluster")
    return replace(
        cluster, groups=tuple(replace(group, measured=measured, links=links) for group in cluster.groups)
    )


def _require_as_many(links: NodeLinks | None, num_nodes: int, pointer: str) -> None:
    stated = None if links is None else links.stated_nodes
    if stated not in (None, num_nodes):
        message = f"states {stated} nodes; the group has {num_nodes}"
        raise InvalidProblemError.of(f"{pointer}/links", message, allowed=f"{num_nodes} nodes")


def _inline_cluster(raw: Mapping[str, object]) -> ClusterSpec:
    reader = FieldReader(raw, "/cluster")
    warnings, usual = reader.texts("warnings") if reader.has("warnings") else [], dict[str, list[str]]()
    groups = [_group(child, warnings, usual) for child in reader.children("groups", high=MAX_GROUPS)]
    if usual:
        each = "; ".join(f"{name}: {', '.join(words)}" for name, words in usual.items())
        warnings.append(
            "cluster.groups: values not given come from each GPU's usual node "
            f"(links per GPU and direction). {each}"
        )
    between = link_from(reader.child("between_groups"))
    texts = {key: reader.text(key, default="") for key in ("name", "display_name", "source")}
    reader.refuse_unknown()
    reader.finish()
    return ClusterSpec(
        name=texts["name"] or "custom",
        groups=tuple(group for group in groups if group is not None),
        between_groups=between,
        display_name=texts["display_name"] or ("" if texts["name"] else _display_name(groups)),
        source=texts["source"],
        warnings=tuple(warnings),
    )


def _display_name(groups: list[NodeGroup | None]) -> str:
    """Return ``node of 8 H100 SXM 80 GB``; several are counted: ``2 × (8 H100 …) + 4 × (8 A100 …)``."""
    found = [group for group in groups if group is not None]
    names = [f"{group.gpus_per_node} {group.gpu.display_name}" for group in found]
    if len(found) == 1:
        return f"node of {names[0]}"
    return " + ".join(f"{group.num_nodes} × ({name})" for group, name in zip(found, names, strict=True))[
        :MAX_TEXT
    ]


def _group(reader: FieldReader, warnings: list[str], usual: dict[str, list[str]]) -> NodeGroup | None:
    stated = reader.value("gpu")
    slug = ""
    if isinstance(stated, str) or stated is None:
        slug = reader.text("gpu")
    elif not isinstance(stated, Mapping):
        reader.fault("gpu", f"{shown(stated)} is neither a name nor an object", allowed=_GPU_FORMS)
    num_nodes = reader.integer("num_nodes", high=MAX_NODES)
    gpus_per_node = reader.optional_integer("gpus_per_node", high=MAX_GPUS_PER_NODE)
    island_gpus = reader.optional_integer("island_gpus")
    links = {
        key: link_from(reader.child(key), network=key == "inter_node")
        for key in ("intra_node", "inter_node")
    }
    host: dict[str, Any] = {}
    for name in HOST_FIELDS:
        if reader.value(name) is None:
            continue
        if name.endswith("_per_s"):
            host[name] = reader.number(name, low=1, high=MAX_BYTES_PER_S)
        else:
            host[name] = reader.integer(name, low=0 if name == "nvme_bytes" else 1, high=_MAX_HOST_BYTES)
    measured = measured_from(reader.child("measured"))
    between = links_from(reader.child("links"))
    reader.refuse_unknown()
    if reader.faults:
        return None
    _require_as_many(between, num_nodes, reader.pointer)
    at = f"{reader.pointer}/gpu"
    if isinstance(stated, Mapping):
        gpu = gpu_from_mapping(stated, at, warnings)
    else:
        gpu = find_gpu(slug, pointer=at)
        if note := gpu_alias_note(slug):
            warnings.append(f"{reader.pointer.lstrip('/').replace('/', '.')}.gpu: {slug}: {note}")
        _assume(usual, gpu, {"gpus_per_node": gpus_per_node, **links})
    per_node = gpus_per_node or gpu.gpus_per_node
    # of a rack where the GPU's fast link spans nodes that size, else of the node
    spans = gpu.island_gpus > gpu.gpus_per_node and gpu.island_gpus % per_node == 0
    try:
        return NodeGroup(
            gpu=gpu,
            num_nodes=num_nodes,
            gpus_per_node=per_node,
            island_gpus=island_gpus or (gpu.island_gpus if spans else per_node),
            intra_node=links["intra_node"] or gpu.intra_node,
            inter_node=links["inter_node"] or gpu.inter_node,
            measured=measured,
            links=between,
            **host,
        )
    except InvalidProblemError as error:
        moved = [
            replace(fault, pointer=fault.pointer.replace("/cluster", reader.pointer, 1))
            for fault in error.errors
        ]
        raise InvalidProblemError(moved) from error


def _assume(usual: dict[str, list[str]], gpu: GpuSpec, given: Mapping[str, int | LinkSpec | None]) -> None:
    """Note what a group takes from the usual node of its GPU, by the GPU's name."""
    for name, value in given.items():
        if value is None:
            assumed = getattr(gpu, name)
            words = f"{name} {link_rate(assumed) if isinstance(assumed, LinkSpec) else assumed}"
            own = usual.setdefault(gpu.display_name, [])
            own += [] if words in own else [words]


def _group_to_mapping(group: NodeGroup) -> dict[str, Json]:
    raw: dict[str, Json] = {
        "gpu": group.gpu.slug if group.gpu.slug in gpu_names() else gpu_to_mapping(group.gpu),
        "num_nodes": group.num_nodes,
        "gpus_per_node": group.gpus_per_node,
        "island_gpus": group.island_gpus,
        "intra_node": link_to_mapping(group.intra_node),
        "inter_node": link_to_mapping(group.inter_node),
    }
    stated = {name: getattr(group, name) for name in HOST_FIELDS}
    raw |= {name: value for name, value in stated.items() if value is not None}
    if group.measured is not None:
        raw["measured"] = measured_to_mapping(group.measured)
    if group.links is not None:
        raw["links"] = group.links.to_mapping()
    return raw
