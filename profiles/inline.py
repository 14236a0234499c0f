"""Models and clusters in requests: reading and writing.

Pointers of every fault start at ``/model`` or ``/cluster``, as in the request.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from meshwright.profiles.cluster import (
    HOST_FIELDS,
    MAX_GPUS,
    MAX_GPUS_PER_NODE,
    MAX_NODES,
    ClusterSpec,
    GpuSpec,
    LinkSpec,
    NodeGroup,
    node_words,
)
from meshwright.profiles.collectives.measured import measured_from, measured_to_mapping
from meshwright.profiles.errors import FieldError, InvalidProblemError, faults_as, shown_name
from meshwright.profiles.gpus import (
    MAX_BYTES_PER_S,
    gpu_from_mapping,
    gpu_to_mapping,
    link_from,
    link_rate,
    link_to_mapping,
)
from meshwright.profiles.library import (
    CloudInstance,
    cloud_instance,
    find_cluster,
    find_gpu,
    find_model,
    gpu_alias_note,
    gpu_names,
    is_cluster,
    is_gpu_name,
    unknown_node,
    usual_island,
)
from meshwright.profiles.links import NodeLinks, links_from
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_shapes import Json, model_from_shape, model_to_mapping
from meshwright.profiles.reading import MAX_TEXT, FieldReader, shown

__all__ = ["cluster_from_mapping", "cluster_to_mapping", "model_from_mapping", "model_to_mapping"]

MAX_GROUPS = 64
UNNAMED = "custom"  # a cluster without a name of its own


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
    """Return a cluster by name, by the GPU type of its nodes, or by its groups.

    ``{"name": …}``: a cluster of the catalog, a cloud's instance (``p5.48xlarge``), a GPU type (its usual
    node), a number of GPUs (``64xH100``), or nodes of several kinds (``2xdgx-h100,4xdgx-a100``).
    ``{"gpu": …}`` is one group. The ``gpu`` of a group is a name of the catalog, or a mapping that
    ``gpu_from_mapping`` reads. ``num_gpus`` may stand for ``num_nodes``.

    Links, islands and GPUs per node that a group leaves out are the GPU's usual node's;
    ``warnings`` of the answer names each assumption.

    Raises:
        InvalidProblemError: every fault with its pointer, such as ``/cluster/groups/0/gpu``.
    """
    if not isinstance(raw, Mapping):
        raise InvalidProblemError.of("/cluster", "must be an object", allowed=_CLUSTER_FORMS)
    if "groups" in raw:
        return _inline_cluster(raw)
    if "gpu" in raw and "name" not in raw:
        with faults_as(lambda one: replace(one, pointer=one.pointer.replace("/groups/0", "", 1))):
            return _inline_cluster({"groups": [_one_node(raw)]})
    return _named_cluster(raw)


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
_CLUSTER_FORMS = (
    'a catalog name ({"name": ..., "num_nodes": ...}), {"gpu": ..., "num_gpus": ...} or {"groups": [...]}'
)
_COUNTED = re.compile(  # 64xH100, 2 x dgx-h100, and gpu_8x_h100_sxm5, as Lambda names its nodes
    r"(?:gpu_)?([0-9]{1,9})[ _]?[x×*][ _]?(\S.*)", re.IGNORECASE
)
_NODES = re.compile(  # 2x8xH100, 16x8 H100, 4 nodes of 8xH100
    r"([0-9]{1,9}) ?(?:[x×*]|nodes?(?: of| with|,| ?[x×*])?) ?([0-9]{1,9})(?: ?[x×*] ?| )(\S.*)",
    re.IGNORECASE,
)
_SLICE = re.compile(r"(?:tpu[- ]?)?(v[0-9][a-z]*)-([0-9]{1,9})", re.IGNORECASE)  # v5litepod-16, v5p-128
# Named by their TensorCores, two of a chip; others by chips (cloud.google.com/tpu/docs).
_NAMED_BY_CORES = ("v4", "v5p")
_AND = re.compile(r",| ?\+ ?| and (?=[0-9])")
_AFTER = re.compile(r"(\S.*):([0-9]{1,9})")  # h100:8, as Slurm writes it
_LAST = re.compile(r"(\S.*?) ?[x×*] ?([0-9]{1,9})", re.IGNORECASE)  # H100x8, if the name is known
_BARE = re.compile(r"([0-9]{1,9}) ?(\S.*)")  # 8 H100 and 8h100, if the name is known


def is_counted(text: str) -> bool:
    """Return whether a text counts GPUs or nodes: ``64xH100``, ``2xdgx-h100,h100:8``."""
    return any((_nodes_of_words(part) or _counted(part)) is not None for part in _AND.split(text))


def cluster_of_words(text: str, *, count: str = "", pointer: str = "/cluster/name") -> dict[str, Json]:
    """Return the cluster that counted names state, as a request states it.

    Args:
        text: ``64xH100``, ``2xdgx-h100,4xdgx-a100``; a name without a number is one node.
        count: what the numbers count: gpus or nodes; empty: GPUs of a GPU type, nodes of a cluster.
        pointer: of the faults.

    Raises:
        InvalidProblemError: a part names neither a cluster nor a GPU type, or GPUs make no whole nodes.
    """
    parts = _AND.split(text)
    if len(parts) > MAX_GROUPS:
        raise InvalidProblemError.of(pointer, "names too many groups", allowed=f"{MAX_GROUPS} at most")
    found = [_nodes_of_words(part) or _part_of(part, count, pointer) for part in parts]
    if len(found) == 1:
        return found[0]
    with faults_as(lambda one: replace(one, pointer=pointer)):
        groups: list[Json] = [
            dict(one) if "gpu" in one else _group_to_mapping(cluster_from_mapping(one).groups[0])
            for one in found
        ]
    return {"groups": groups}


def _nodes_of_words(part: str) -> dict[str, Json] | None:
    """Return nodes of so many GPUs each; None: the words count nodes or GPUs alone, or name no GPU type."""
    found = _NODES.fullmatch(part.strip())
    if found is None or _is_known(part.strip()) or not is_gpu_name(found[3]):
        return None
    return {"gpu": found[3].strip(), "num_nodes": int(found[1]), "gpus_per_node": int(found[2])}


def _counted(part: str) -> tuple[int, str] | None:
    text = part.strip()
    if _is_known(text):
        return None
    if (found := _SLICE.fullmatch(text)) is not None and is_gpu_name(found[1]):
        chips, half = divmod(int(found[2]), 2 if found[1].lower() in _NAMED_BY_CORES else 1)
        return None if half else (chips, found[1])
    last, bare = _LAST.fullmatch(text), _BARE.fullmatch(text)
    if last is not None and _is_known(last[1]):
        return int(last[2]), last[1].strip()
    if (before := _COUNTED.fullmatch(text)) is not None:
        return int(before[1]), before[2].strip()
    if bare is not None and _is_known(bare[2]):
        return int(bare[1]), bare[2].strip()
    after = _AFTER.fullmatch(text)
    return (int(after[2]), after[1].strip()) if after else None


def _is_known(name: str) -> bool:
    return _is_node(name) or is_gpu_name(name)


def _part_of(part: str, count: str, pointer: str) -> dict[str, Json]:
    number, name = _counted(part) or (None, part.strip())
    is_gpu = not _is_node(name)
    if is_gpu and not is_gpu_name(name):
        raise unknown_node(name, pointer=pointer)
    if number is None:
        return {"gpu": name, "num_nodes": 1} if is_gpu else {"name": name, "num_nodes": 1}
    if count == "gpus" and not is_gpu:
        raise InvalidProblemError.of(
            pointer, f'"{shown_name(name)}" is a node, not a GPU type', nearest=f"--nodes {number}x{name}"
        )
    counted = "num_gpus" if is_gpu and count != "nodes" else "num_nodes"
    return {"gpu" if is_gpu else "name": name, counted: number}


def _is_node(name: str) -> bool:
    return is_cluster(name) or cloud_instance(name) is not None


def _named_cluster(raw: Mapping[str, object]) -> ClusterSpec:
    name = raw.get("name")
    if not isinstance(name, str) or is_cluster(name):
        return _catalog_cluster(raw)
    others = {key: value for key, value in raw.items() if key != "name"}
    instance = cloud_instance(name)
    if instance is not None and instance.cluster:
        return _catalog_cluster({**others, "name": instance.cluster})
    if instance is not None:
        return _cloud_cluster(instance, others)
    if is_counted(name) or len(_AND.split(name)) > 1:
        counted = cluster_of_words(name)
        for twice in others.keys() & {"num_nodes", "num_gpus"}:
            if "groups" in counted or twice in counted:
                message = f'"{shown_name(name)}" states the numbers already'
                raise InvalidProblemError.of(f"/cluster/{twice}", message)
        return cluster_from_mapping({**counted, **others})
    if is_gpu_name(name):
        return cluster_from_mapping({"gpu": name, **others})
    return _catalog_cluster(raw)


def _one_node(group: Mapping[str, object]) -> Mapping[str, object]:
    """Return a group with one node where nothing states the number."""
    return group if group.keys() & {"num_nodes", "num_gpus"} else {**group, "num_nodes": 1}


def _cloud_cluster(instance: CloudInstance, others: Mapping[str, object]) -> ClusterSpec:
    """Return nodes of a cloud; their links are its pages', so that nothing is assumed."""
    each = instance.network_bytes_per_s / instance.gpus_per_node
    group = {
        "gpu": instance.gpu,
        "inter_node": {"kind": instance.network, "bytes_per_s": each, "source": instance.source},
        **others,
    }
    with faults_as(lambda one: replace(one, pointer=one.pointer.replace("/groups/0", "", 1))):
        cluster = _inline_cluster({"groups": [_one_node(group)]}, usual_gpus=instance.gpus_per_node)
    return replace(
        cluster,
        name=instance.name,
        display_name=f"{instance.cloud} {instance.name}",
        source=instance.source,
        warnings=(),
    )


def _catalog_cluster(raw: Mapping[str, object]) -> ClusterSpec:
    reader = FieldReader(raw, "/cluster")
    name = reader.text("name")
    num_nodes = reader.optional_integer("num_nodes", high=MAX_NODES)
    num_gpus = reader.optional_integer("num_gpus", high=MAX_GPUS)
    measured = measured_from(reader.child("measured"))
    links = links_from(reader.child("links"))
    reader.refuse_unknown()
    reader.finish()
    cluster = find_cluster(name, num_nodes=num_nodes)
    if num_gpus is not None:
        cluster = _of_gpus(cluster, num_gpus, num_nodes)
    if measured is None and links is None:
        return cluster
    for group in cluster.groups:
        _require_as_many(links, group.num_nodes, "/cluster")
    return replace(
        cluster, groups=tuple(replace(group, measured=measured, links=links) for group in cluster.groups)
    )


def _of_gpus(cluster: ClusterSpec, num_gpus: int, num_nodes: int | None) -> ClusterSpec:
    """Return a catalog's cluster of so many GPUs: whole nodes, or a part of one."""
    (group,) = cluster.groups
    nodes, each = _nodes_of(num_gpus, num_nodes, None, group.gpus_per_node, "/cluster")
    if each != group.gpus_per_node:
        island = usual_island(group.gpu, each)
        group = replace(group, num_nodes=nodes, gpus_per_node=each, island_gpus=island)
        return replace(cluster, display_name=_display_name([group]), groups=(group,))
    return replace(cluster, groups=(replace(group, num_nodes=nodes),))


def _nodes_of(
    num_gpus: int, num_nodes: int | None, gpus_per_node: int | None, usual: int, pointer: str
) -> tuple[int, int]:
    """Return nodes and GPUs of each for a number of GPUs: at most a usual node is one node.

    Raises:
        InvalidProblemError: they are no whole nodes, or not the nodes that are stated.
    """
    each = gpus_per_node or (min(usual, num_gpus) if num_nodes is None else max(num_gpus // num_nodes, 1))
    if num_gpus == each * (num_nodes or num_gpus // each):
        return num_gpus // each, each
    if num_nodes is not None and gpus_per_node is not None:
        filled = num_nodes * each
        message = (
            f"num_nodes × gpus_per_node = {num_nodes} × {each} = {filled}, but there are {num_gpus} GPUs"
        )
        allowed, nearest = f"{filled}, or num_gpus alone", str(filled)
    elif num_nodes is not None:
        message = f"{num_gpus} GPUs can't be split evenly over {num_nodes} nodes"
        allowed = f"a multiple of {num_nodes}"
        in_each = num_gpus < num_nodes  # then so many of each node were meant
        nearest = str(num_gpus * num_nodes) if in_each else _multiples(num_gpus, num_nodes)
    else:
        message = f"{num_gpus} GPUs don't fill nodes of {each}"
        allowed, nearest = f"a multiple of {each}, or gpus_per_node", _multiples(num_gpus, each)
    fault = FieldError(
        pointer=f"{pointer}/num_gpus", message=message, allowed=allowed, nearest=nearest, value=num_gpus
    )
    raise InvalidProblemError([fault])


def _multiples(number: int, of: int) -> str:
    below = number // of * of
    return " or ".join(str(one) for one in (below, below + of) if one)


def _require_as_many(links: NodeLinks | None, num_nodes: int, pointer: str) -> None:
    stated = None if links is None else links.stated_nodes
    if stated not in (None, num_nodes):
        message = f"states {stated} nodes, but the group has {num_nodes}"
        raise InvalidProblemError.of(f"{pointer}/links", message, allowed=f"{num_nodes} nodes")


def _inline_cluster(raw: Mapping[str, object], usual_gpus: int | None = None) -> ClusterSpec:
    """Return the cluster of inline groups; ``usual_gpus``: of each node, instead of their type's."""
    reader = FieldReader(raw, "/cluster")
    warnings, usual = reader.texts("warnings") if reader.has("warnings") else [], dict[str, list[str]]()
    children = reader.children("groups", high=MAX_GROUPS)
    alone = len(children) == 1
    groups = [_group(child, warnings, usual, alone=alone, usual_gpus=usual_gpus) for child in children]
    if usual:
        each = "; ".join(f"{', '.join(words)} for {name}" for name, words in usual.items())
        warnings.append(f"assuming {each} (per GPU, each way). Set yours in a cluster file")
    between = link_from(reader.child("between_groups"))
    texts = {key: reader.text(key, default="") for key in ("name", "display_name", "source")}
    reader.refuse_unknown()
    reader.finish()
    return ClusterSpec(
        name=texts["name"] or UNNAMED,
        groups=tuple(group for group in groups if group is not None),
        between_groups=between,
        display_name=texts["display_name"] or ("" if texts["name"] else _display_name(groups)),
        source=texts["source"],
        warnings=tuple(warnings),
    )


def _display_name(groups: list[NodeGroup | None]) -> str:
    """Return ``node of 8 H100 SXM 80 GB``; several are counted: ``2 × (8 H100 …) + 4 × (8 A100 …)``."""
    found = [group for group in groups if group is not None]
    if len(found) == 1:
        return node_words(found[0])
    names = [f"{group.gpus_per_node} {group.gpu.display_name}" for group in found]
    return " + ".join(f"{group.num_nodes} × ({name})" for group, name in zip(found, names, strict=True))[
        :MAX_TEXT
    ]


def _group(
    reader: FieldReader,
    warnings: list[str],
    usual: dict[str, list[str]],
    *,
    alone: bool,
    usual_gpus: int | None,
) -> NodeGroup | None:
    stated = reader.value("gpu")
    slug = ""
    if isinstance(stated, str) or stated is None:
        slug = reader.text("gpu")
    elif not isinstance(stated, Mapping):
        reader.fault("gpu", f"{shown(stated)} is neither a name nor an object", allowed=_GPU_FORMS)
    num_gpus = reader.optional_integer("num_gpus", high=MAX_GPUS)
    counted = num_gpus is not None and not reader.has("num_nodes")
    stated_nodes = None if counted else reader.integer("num_nodes", high=MAX_NODES)
    gpus_per_node = reader.optional_integer("gpus_per_node", high=MAX_GPUS_PER_NODE)
    island_gpus = reader.optional_integer("island_gpus")
    links = {
        key: link_from(reader.child(key), network=key == "inter_node")
        for key in ("intra_node", "inter_node")
    }
    host = _host(reader)
    measured = measured_from(reader.child("measured"))
    between = links_from(reader.child("links"))
    reader.refuse_unknown()
    if reader.faults:
        return None
    at = f"{reader.pointer}/gpu"
    described = isinstance(stated, Mapping)
    gpu = gpu_from_mapping(stated, at, warnings) if described else find_gpu(slug, pointer=at)
    usual_gpus = usual_gpus or gpu.gpus_per_node
    num_nodes, per_node = stated_nodes or 1, gpus_per_node or usual_gpus
    if num_gpus is not None:
        num_nodes, per_node = _nodes_of(num_gpus, stated_nodes, gpus_per_node, usual_gpus, reader.pointer)
    _require_as_many(between, num_nodes, reader.pointer)
    if not described:
        if note := gpu_alias_note(slug):
            warnings.append(f"{reader.pointer.lstrip('/').replace('/', '.')}.gpu: {slug}: {note}")
        given = {"gpus_per_node": gpus_per_node if num_gpus is None else per_node, **links}
        of_one_node = alone and num_nodes == 1
        idle = ({"inter_node"} if of_one_node else set()) | ({"intra_node"} if per_node == 1 else set())
        spans = gpu.island_gpus > gpu.gpus_per_node and not of_one_node
        _assume(usual, gpu, given, without=idle - ({"intra_node"} if spans else set()))
    try:
        return NodeGroup(
            gpu=gpu,
            num_nodes=num_nodes,
            gpus_per_node=per_node,
            island_gpus=island_gpus or usual_island(gpu, per_node),
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


def _host(reader: FieldReader) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in HOST_FIELDS:
        if reader.value(name) is None:
            continue
        if name.endswith("_per_s"):
            found[name] = reader.number(name, low=1, high=MAX_BYTES_PER_S)
        else:
            found[name] = reader.integer(name, low=0 if name == "nvme_bytes" else 1, high=_MAX_HOST_BYTES)
    return found


_ASSUMED = {
    "gpus_per_node": "GPUs a node", "intra_node": "in a node", "inter_node": "between nodes"
}  # fmt: skip


def _assume(
    usual: dict[str, list[str]],
    gpu: GpuSpec,
    given: Mapping[str, int | LinkSpec | None],
    *,
    without: Collection[str],
) -> None:
    """Note what a group takes from the usual node of its GPU, by the GPU's name.

    ``without``: links that nothing crosses, as those of one GPU.
    """
    for name, value in given.items():
        if value is None and name not in without:
            assumed = getattr(gpu, name)
            rate = link_rate(assumed) if isinstance(assumed, LinkSpec) else str(assumed)
            words = "1 GPU a node" if assumed == 1 else f"{rate} {_ASSUMED[name]}"
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
