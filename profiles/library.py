"""Looks up GPU types, clusters and models by name in the catalog's data files.

``catalog/gpus``, ``clusters`` and ``models`` hold one YAML file per entry, named after it, so that
a look-up reads one small file; ``gpu_aliases.yaml`` and ``links.yaml`` are shared by all.
Every entry names its source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from meshwright.profiles.catalog import CATALOG, catalog_file
from meshwright.profiles.cluster import ClusterSpec, GpuSpec, LinkSpec, NodeGroup
from meshwright.profiles.collectives.measured import measured_network
from meshwright.profiles.errors import InvalidProblemError, ProfileError, UnknownNameError
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_shapes import model_from_shape
from meshwright.profiles.reading import FieldReader
from meshwright.profiles.units import GB, MIB, TERA

MAX_NAME = 100  # characters of a name that are looked at
MICROSECOND_PER_SECOND = 1e6
MEMORY_TOLERANCE = 0.12  # nominal memory against what the driver reports
_MEMORY = re.compile(r"-?(\d+)gb\b")


def gpu_names() -> tuple[str, ...]:
    """Return the slugs of all GPU types, and their other names."""
    return tuple(sorted({*_names("gpus"), *_aliases()}))


def cluster_names() -> tuple[str, ...]:
    """Return the names of all clusters."""
    return _names("clusters")


def model_names() -> tuple[str, ...]:
    """Return the names of all models."""
    return _names("models")


def gpu_alias_note(slug: str) -> str | None:
    """Return the form or memory assumed where a GPU's name leaves it open; None for a full slug."""
    entry = _aliases().get(slug.lower())
    return entry["note"] if entry else None


def find_gpu(slug: str, *, pointer: str = "/cluster/gpu") -> GpuSpec:
    """Return the GPU type of that name or alias, however it is hyphenated, with or without its memory.

    Raises:
        UnknownNameError: no such GPU; lists the nearest names.
    """
    wanted = slug[:MAX_NAME].lower()
    known = _canonical(wanted) in _names("gpus")
    canonical = _canonical(wanted) if known else _other_spelling(wanted)
    if canonical is None:
        raise UnknownNameError.among(pointer, slug[:MAX_NAME], gpu_names())
    return _gpu(canonical)


def _canonical(name: str) -> str:
    alias = _aliases().get(name)
    return alias["of"] if alias else name


def _letters_and_memory(name: str) -> tuple[str, int | None]:
    """Return a name without hyphens and memory, and the memory in GB where it states one."""
    memory = _MEMORY.search(name)
    return _MEMORY.sub("", name).replace("-", ""), int(memory[1]) if memory else None


def _other_spelling(wanted: str) -> str | None:
    """Return the one GPU that ``wanted`` can mean: the same letters, and the memory it states."""
    letters, memory_gb = _letters_and_memory(wanted)
    meant = {_canonical(name) for name in gpu_names() if _letters_and_memory(name)[0] == letters}
    if memory_gb is not None:
        near = MEMORY_TOLERANCE * memory_gb
        meant = {name for name in meant if abs(_gpu(name).memory_bytes / GB - memory_gb) <= near}
    return meant.pop() if len(meant) == 1 else None


def find_cluster(name: str, *, num_nodes: int | None = None) -> ClusterSpec:
    """Return the cluster of that name, with another number of nodes where one is given.

    Raises:
        UnknownNameError: no such cluster; lists the nearest names.
        InvalidProblemError: the number of nodes is out of range.
    """
    wanted = name[:MAX_NAME].lower()
    if wanted not in cluster_names():
        raise UnknownNameError.among("/cluster/name", name[:MAX_NAME], cluster_names())
    cluster = _cluster(wanted)
    if num_nodes is None:
        return cluster
    return replace(cluster, groups=(replace(cluster.groups[0], num_nodes=num_nodes),))


def find_model(name: str) -> ModelSpec:
    """Return the model of that name or Hugging Face hub id, e.g. ``meta-llama/Llama-3.1-8B-Instruct``.

    Raises:
        UnknownNameError: no such model; lists the nearest names.
    """
    wanted = name[:MAX_NAME].lower()
    if wanted in model_names():
        return _model(wanted)
    ids = _hub_ids()
    spellings: tuple[str, ...] = _spellings(wanted)
    if _COPIES.search(wanted):
        owners = dict.fromkeys(known.partition("/")[0] for known in ids)
        names = [spelt.partition("/")[2] for spelt in spellings]
        spellings = (*spellings, *(f"{owner}/{name}" for name in names for owner in owners))
    found = next((ids[spelt] for spelt in spellings if spelt in ids), None)
    if found is None:
        known = tuple(ids) if "/" in name else model_names()
        raise UnknownNameError.among("/model/name", name[:MAX_NAME], known)
    return _model(found)


def model_of_folder(path: str) -> ModelSpec:
    """Return the model that the last part of a path names: ``/data/hf-Qwen3-8B-bf16``.

    In addition to the words that ``find_model`` leaves out, a folder's name may contain how it was tuned,
    stored or copied, and may be hyphenated otherwise (llama2_7B). Any other word, and a version or date
    that is not listed, makes it another model's: ``Llama-3-8B-Lexi`` may have other tokens.

    Raises:
        UnknownNameError: no model has this name; lists the nearest names.
    """
    parts = [part for part in re.split(r"[/\\]", path) if part]
    cached = next((part for part in parts if part.startswith("models--")), None)  # of the hub's own cache
    last = cached.rpartition("--")[2] if cached else parts[-1] if parts else ""
    last = last.replace("___", ".")[:MAX_NAME].lower()  # as ModelScope's cache spells a dot
    by_name = _folder_names()
    for spelt in (last, _STORED.sub("", last), _TUNING.sub("", _STORED.sub("", last))):
        found = by_name.get(_hyphenated(spelt))
        if found is not None:
            return _model(found)
    raise UnknownNameError.among("/model/name", last or path[:MAX_NAME], model_names())


_STATED = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_kv_heads", "head_dim",
    "mlp_matrices",
)  # fmt: skip


def model_like(shape: ModelSpec) -> ModelSpec | None:
    """Return the model that a table names, however it is hyphenated, if the sizes match.

    A table of sizes has no biases, local layers, or norms of queries and keys.
    """
    bare = shape.name.lower().replace("-", "")
    name = next((name for name in model_names() if name.replace("-", "") == bare), None)
    if name is None:
        return None
    known = _model(name)
    alike = all(getattr(known, size) == getattr(shape, size) for size in _STATED)
    return known if alike and _experts(known) == _experts(shape) else None


def _experts(model: ModelSpec) -> tuple[int, ...]:
    moe = model.moe
    if moe is None:
        return ()
    shared = moe.shared_ffn_hidden_size
    return moe.num_experts, moe.top_k, moe.ffn_hidden_size, shared, moe.num_dense_layers


# What a fine-tuned or converted model's name adds; its architecture is the base model's.
_TUNING = re.compile(
    r"[-_](?:hf|base|pt|it|instruct|chat|thinking|awq|gptq|fp8|bf16|fp16|nvfp4|nf4|int[48]|[48]bits?|bnb|unsloth|"
    r"dequantized|linearized|aqlm-\dbit-\dx\d+)(?=[-_]|$)"
)
# Other words in a folder's name for how its weights were tuned, stored or copied.
_STORED = re.compile(
    r"^(?:hf|huggingface)[-_](?=\w)|[-_](?:sft|dpo|gguf|text|fp32|half|bak|backup|copy|local)(?=[-_]|$)"
)
# Who publishes others' models, converted or quantised, under the names that those have.
_COPIES = re.compile(
    r"^(?:unsloth|nousresearch|redhatai|neuralmagic|hugging-quants|mlx-community|modelcloud|casperhansen|"
    r"techxgenus|nvidia|llm-research|ai-modelscope|modelscope|thebloke|ista-daslab|axolotl-quants|axolotl-ai-co|"
    r"opensourcerelease|mhenrichsen)/"
)
# Versions and dates may be other models (Mistral 7B v0.3 has more tokens, Qwen3-4B-2507 more positions): a
# listed one may be left out, for the first that is listed, but one that is not listed is not guessed.
_EDITION = re.compile(r"[-_](?:v[01]\.\d|\d{4})(?=[-_]|$)")
_BOUNDARY = re.compile(r"(?<=[a-z])-(?=\d)|(?<=\d)-(?=[a-z])")


def _spellings(hub_id: str) -> tuple[str, str]:
    """Return a hub id unchanged, and without the words for how the weights were trained."""
    return hub_id.lower(), _TUNING.sub("", hub_id.lower())


def _hyphenated(name: str) -> str:
    """Return a name hyphenated in one way: llama2_7b as llama-2-7b, opt-1_3b not as opt-13b."""
    return _BOUNDARY.sub("", name.replace("_", "-"))


@cache
def _hub_ids() -> Mapping[str, str]:
    """Return the catalog's name of each hub id (``model_hub_ids.yaml``), and of its shorter spellings."""
    named = catalog_file(CATALOG / "model_hub_ids.yaml").items()
    listed = [(*_spellings(hub_id), str(name)) for name, ids in named for hub_id in ids]
    found: dict[str, str] = {}
    for spell in (
        lambda exact, _: exact,
        lambda _, plain: plain,
        lambda _, plain: _EDITION.sub("", plain),
    ):
        for exact, plain, name in listed:
            found.setdefault(spell(exact, plain), name)
    return found


@cache
def _folder_names() -> Mapping[str, str]:
    found = {_hyphenated(name): name for name in model_names()}
    for hub_id, name in _hub_ids().items():
        bare = hub_id.partition("/")[2]
        for spelt in (bare, bare.removeprefix("meta-")):
            found.setdefault(_hyphenated(spelt), name)
    return found


def usual_group(gpu: GpuSpec, num_nodes: int) -> NodeGroup:
    """Return nodes as that GPU usually comes: its own count, island and links."""
    return NodeGroup(
        gpu=gpu,
        num_nodes=num_nodes,
        gpus_per_node=gpu.gpus_per_node,
        island_gpus=gpu.island_gpus,
        intra_node=gpu.intra_node,
        inter_node=gpu.inter_node,
    )


@cache
def _names(kind: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (CATALOG / kind).glob("*.yaml")))


def _load(path: Path) -> FieldReader:
    return FieldReader(catalog_file(path), f"/{path.parent.name}/{path.stem}")


def _finish(reader: FieldReader) -> None:
    """Finish reading a catalog file; a fault in it is ours, not the user's."""
    reader.refuse_unknown()
    try:
        reader.finish()
    except InvalidProblemError as error:
        raise ProfileError(f"catalog: {error}") from error


@cache
def _aliases() -> Mapping[str, Mapping[str, str]]:
    aliases = catalog_file(CATALOG / "gpu_aliases.yaml").items()
    return {str(name): {key: str(value) for key, value in entry.items()} for name, entry in aliases}


@cache
def _links() -> FieldReader:
    return _load(CATALOG / "links.yaml")


@cache
def _link(name: str) -> LinkSpec:
    reader = _links().child(name)
    if reader is None:
        raise ProfileError(f"catalog: the link {name} has no figures")
    link = LinkSpec(
        kind=reader.text("kind"),
        bytes_per_s=reader.number("gb_per_s", low=1e-3, high=1e5) * GB,
        latency_s=reader.number("latency_us", low=0, high=1e6) / MICROSECOND_PER_SECOND,
        source=reader.text("source"),
    )
    _finish(reader)
    return link


def _named_link(reader: FieldReader, field: str) -> LinkSpec:
    named, links = reader.text(field), _links().names()
    if named not in links:
        known = ", ".join(links)
        raise ProfileError(f'catalog: {reader.pointer}/{field}: no link "{named}" in links.yaml: {known}')
    return _link(named)


@cache
def _gpu(slug: str) -> GpuSpec:
    reader = _load(CATALOG / "gpus" / f"{slug}.yaml")
    peaks = reader.child("peak_tflops") or FieldReader({}, "/peak_tflops", reader.faults)
    nearest = reader.text("nearest", default="")
    gpu = GpuSpec(
        slug=slug,
        display_name=reader.text("display_name"),
        architecture=_gpu(nearest).architecture if nearest else reader.text("architecture"),
        nearest=nearest,
        memory_bytes=reader.integer("memory_mib") * MIB,
        hbm_bytes_per_s=reader.number("hbm_gb_per_s", low=1, high=1e6) * GB,
        peak_flops={key: peaks.number(key, low=0.1, high=1e6) * TERA for key in peaks.names()},
        intra_node=_named_link(reader, "intra_node"),
        inter_node=_named_link(reader, "inter_node"),
        gpus_per_node=reader.integer("gpus_per_node"),
        island_gpus=reader.integer("island_gpus"),
        power_watts=reader.number("power_watts", low=1, high=1e5) if reader.value("power_watts") else None,
        sources=tuple(reader.texts("sources")),
    )
    _finish(reader)
    return gpu


@cache
def _cluster(name: str) -> ClusterSpec:
    reader = _load(CATALOG / "clusters" / f"{name}.yaml")
    group = usual_group(find_gpu(reader.text("gpu")), reader.integer("num_nodes"))
    if reader.has("inter_node"):
        network = _named_link(reader, "inter_node")
        measured = measured_network(network.kind, group.gpu.slug)
        group = replace(group, inter_node=network, measured=measured)
    cluster = ClusterSpec(
        name=name,
        groups=(group,),
        display_name=reader.text("display_name"),
        source=reader.text("source"),
    )
    _finish(reader)
    return cluster


@cache
def _model(name: str) -> ModelSpec:
    """Return a shape in our own field names, or the keys of a Hugging Face config under ``config``."""
    raw = catalog_file(CATALOG / "models" / f"{name}.yaml")
    try:
        if "config" not in raw:
            return model_from_shape(raw, name=name)
        from meshwright.profiles.importers.huggingface import model_from_config  # noqa: PLC0415 - few models

        texts = {key: raw[key] for key in ("display_name", "source")}
        return replace(model_from_config(raw["config"], name=name), **texts)
    except InvalidProblemError as error:
        raise ProfileError(f"catalog: {name}: {error}") from error


# --------------------------------------------------------------------------------------------------
# Which GPU type of the catalog a driver's device name means.


REPORTED_MEMORY_TOLERANCE = 0.04  # what the driver keeps of a GPU's memory, and torch does not report
_FORMS = re.compile(r"sxm|gcd|\d+gb|hbm\w+")  # words of a slug that drivers spell otherwise or leave out
_BOARDS = {"nvl", "max"}  # words of boards of their own: no other board is meant


def gpu_of_device(name: str, memory_bytes: int) -> str | None:
    """Return the slug of ``NVIDIA A100-SXM4-40GB`` and its like; None if no type, or several, fit.

    Args:
        name: as ``torch.cuda.get_device_name`` returns it.
        memory_bytes: the device's total memory, which distinguishes the sizes of one type.
    """
    named = set(re.findall(r"[a-z0-9]+", name[:200].lower()))
    fitting = [
        (abs(find_gpu(slug).memory_bytes - memory_bytes), slug)
        for slug in gpu_names()
        if gpu_alias_note(slug) is None and _fits(slug, named, memory_bytes)
    ]
    return min(fitting)[1] if fitting else None


def _fits(slug: str, named: set[str], memory_bytes: int) -> bool:
    words = {word for word in slug.split("-") if not _FORMS.fullmatch(word)}
    has_bytes = find_gpu(slug).memory_bytes
    near = abs(has_bytes - memory_bytes) <= REPORTED_MEMORY_TOLERANCE * has_bytes
    boards = {*_BOARDS, "pcie"}
    return near and words <= named and words & boards == named & boards


_MOST_GPUS = 6  # sizes of memory


def with_gpu(group: NodeGroup, gpu: GpuSpec) -> NodeGroup:
    """Return as many nodes with other GPUs and their links."""
    return replace(group, gpu=gpu, intra_node=gpu.intra_node, inter_node=gpu.inter_node)


def larger_gpus(group: NodeGroup) -> list[GpuSpec]:
    """Return the GPUs of more memory on a link of the same kind: one of each size, the smallest first."""
    every = {gpu.slug: gpu for gpu in map(find_gpu, gpu_names())}.values()
    alike = [
        gpu
        for gpu in every
        if gpu.memory_bytes > group.gpu.memory_bytes and gpu.intra_node.kind == group.intra_node.kind
    ]
    sizes = {gpu.memory_bytes: gpu for gpu in sorted(alike, key=lambda gpu: gpu.slug, reverse=True)}
    larger = [sizes[size] for size in sorted(sizes)]
    return larger[:_MOST_GPUS]
