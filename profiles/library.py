"""Looks up GPU types, clusters and models by name in the catalog's data files.

``catalog/gpus``, ``clusters`` and ``models`` hold one YAML file per entry, named after it, so that
a look-up reads one small file; ``gpu_aliases.yaml`` and ``links.yaml`` are shared by all.
Every entry names its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast

from meshwright.profiles.catalog import CATALOG, catalog_file
from meshwright.profiles.cluster import ClusterSpec, GpuSpec, LinkSpec, NodeGroup
from meshwright.profiles.collectives.measured import measured_network
from meshwright.profiles.errors import (
    FieldError,
    InvalidProblemError,
    ProfileError,
    UnknownNameError,
    shown_name,
)
from meshwright.profiles.gpu_words import (
    APPLE,
    CPU,
    LAPTOP,
    OLDER,
    Words,
    holds,
    maker_of,
    may_be_misspelt,
    sized,
    spaced,
    unspaced,
    words_of,
)
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_shapes import model_from_shape
from meshwright.profiles.reading import FieldReader
from meshwright.profiles.stored import StoredAs, stored_in_name
from meshwright.profiles.units import GB, GIB, MIB, TERA

MAX_NAME = 100  # characters of a name that are looked at
MICROSECOND_PER_SECOND = 1e6
_BITS = 8  # of a byte


def gpu_names() -> tuple[str, ...]:
    """Return the slugs of all GPU types, and their other names."""
    return tuple(sorted({*_names("gpus"), *_aliases()}))


def cluster_names() -> tuple[str, ...]:
    """Return the names of all clusters."""
    return _names("clusters")


def model_names() -> tuple[str, ...]:
    """Return the names of all models."""
    return _names("models")


def gpu_alias_note(name: str) -> str | None:
    """Return the form or memory assumed where a GPU's name leaves it open; None for a full name."""
    meant = _meant(name[:MAX_NAME])
    return meant[1] if meant else None


def find_gpu(name: str, *, pointer: str = "/cluster/gpu") -> GpuSpec:
    """Return the GPU type of that name, as the catalog, drivers, torch, clouds or people write it.

    Case, spaces, hyphens and the maker say nothing (``profiles/gpu_words.py``). A form or a memory that is
    stated is the card's: ``H100 40GB`` names no card.

    Raises:
        UnknownNameError: no such GPU, or several; lists those of that type, or of a name spelt alike.
    """
    meant = _meant(name[:MAX_NAME])
    if meant is None:
        raise _unknown_gpu(name[:MAX_NAME], pointer)
    return _gpu(meant[0])


def short_gpu_name(slug: str, display_name: str) -> str:
    """Return ``H100`` or ``A100 40 GB``: as few words as ``find_gpu`` needs to mean this type."""
    first = display_name.partition(" ")[0]
    meant = _meant(first[:MAX_NAME])
    return first if meant is not None and meant[0] == slug else display_name.replace(" SXM", "")


def is_gpu_name(name: str) -> bool:
    """Return whether ``find_gpu`` knows that name."""
    return _meant(name[:MAX_NAME]) is not None


@lru_cache(maxsize=1024)  # names of requests, which never end
def _meant(name: str) -> tuple[str, str | None] | None:
    """Return the GPU type that a name means, and what was assumed; None: none, or several."""
    hyphenated = spaced(name).replace(" ", "-")
    if hyphenated in _names("gpus"):
        return hyphenated, None
    if hyphenated in _aliases():
        return _aliases()[hyphenated]["of"], _aliases()[hyphenated].get("note")
    if (reported := _reported().get(unspaced(name))) is not None:
        return reported, None
    words = words_of(name)
    found = None if words is None else _chosen(words, _fitting(words))
    with_unit = None if found else sized(name)
    if with_unit is None:
        return found
    words = words_of(with_unit[0])
    found = None if words is None else _chosen(words, _fitting(words))
    return found and (found[0], "; ".join(filter(None, (found[1], f"{with_unit[1]} is its memory in GB"))))


@cache
def _reported() -> Mapping[str, str]:
    return {unspaced(name): str(slug) for name, slug in catalog_file(CATALOG / "gpu_reported.yaml").items()}


@cache
def _types() -> Mapping[str, tuple[str, ...]]:
    """Return the GPU types by each spelling of their type: 4090 and RTX 4090."""
    found: dict[str, dict[str, None]] = {}
    for name in gpu_names():
        words, slug = words_of(name), _aliases()[name]["of"] if name in _aliases() else name
        for spelt in words.types if words else ():
            found.setdefault(spelt, {})[slug] = None
    return {spelt: tuple(slugs) for spelt, slugs in found.items()}


def _of_type(words: Words) -> tuple[str, ...]:
    """Return the GPU types of that type and maker, whatever their form and memory."""
    slugs = _types().get(words.type, ())
    return tuple(slug for slug in slugs if words.makers <= {maker_of(slug)})


def _fitting(words: Words) -> tuple[str, ...]:
    """Return the GPU types that have the stated form and memory."""
    stated = [slug for slug in _of_type(words) if _is_as_stated(slug, words)]
    exact = [slug for slug in stated if words.memory_gb is not None and _named_gb(slug) == words.memory_gb]
    return tuple(exact or stated)


def _named_gb(slug: str) -> float | None:
    words = words_of(slug)
    return words.memory_gb if words else None


def _is_as_stated(slug: str, words: Words) -> bool:
    gpu = _gpu(slug)
    kind = str(catalog_file(CATALOG / "gpus" / f"{slug}.yaml").get("memory_kind", "")).lower()
    return (
        words.form in ("", _form(slug))
        and (
            words.memory_gb in (None, _named_gb(slug))
            or holds(gpu.memory_bytes / GIB, words.memory_gb or 0.0)
        )
        and (not words.memory_kind or not kind or words.memory_kind == kind)
    )


def _form(slug: str) -> str:
    """Return the form of a GPU type: as its name states it, else by the link of its usual node."""
    words = words_of(slug)
    return (words.form if words else "") or ("pcie" if _gpu(slug).intra_node.kind == "pcie" else "sxm")


def _chosen(words: Words, fitting: tuple[str, ...]) -> tuple[str, str | None] | None:
    """Return the one GPU type that fits; of several, the usual one of its type, or of the usual form."""
    if len(fitting) <= 1:
        return (fitting[0], None) if fitting else None
    usual = _usual(words)
    alike = [slug for slug in fitting if usual and _form(slug) == _form(usual)]
    slug = usual if usual in fitting else alike[0] if len(alike) == 1 else None
    return None if slug is None else (slug, _assumption(slug, fitting))


def _usual(words: Words) -> str | None:
    """Return what the bare type means: an alias (a100), or the GPU type of that very name (rtx-3080)."""
    bare = {
        _canonical(name)
        for name in gpu_names()
        if (one := words_of(name)) is not None
        and words.type in one.types
        and not (one.form or one.memory_gb or one.memory_kind)
    }
    return bare.pop() if len(bare) == 1 else None


def _canonical(name: str) -> str:
    alias = _aliases().get(name)
    return alias["of"] if alias else name


def _assumption(slug: str, fitting: Iterable[str]) -> str:
    """Return what distinguishes a GPU type from the others that its name may mean."""
    form = _form(slug).upper().replace("PCIE", "PCIe")
    size = f"{_named_gb(slug) or _gpu(slug).memory_bytes / GIB:.0f} GB"
    unlike = [
        f"assuming {form}" if len({_form(one) for one in fitting}) > 1 else "",
        f"assuming {size}" if len({_named_gb(one) for one in fitting}) > 1 else "",
    ]
    return "; ".join(filter(None, unlike))


_OWN_CHIP = "a GPU of the catalog (meshwright gpus), or your chip's data sheet (--gpu chip.yaml)"


def _unknown_gpu(name: str, pointer: str) -> UnknownNameError:
    """Return what is wrong with a GPU's name; a card of another memory is never offered."""
    shown, words = shown_name(name), words_of(name)
    known = _of_type(words) if words else ()
    allowed: str | None = _OWN_CHIP
    nearest = None
    if APPLE.fullmatch(spaced(name)):
        why = "Apple GPUs are not supported"
    elif CPU.fullmatch(spaced(name)):
        why = "CPUs are not supported"
    elif LAPTOP.fullmatch(spaced(name)):
        why = "The catalog has cards, and a laptop's GPU has less memory and a lower clock"
    elif OLDER.fullmatch(" ".join(word for word in spaced(name).split() if word != "nvidia")):
        why = "The catalog begins with Volta and Turing: older GPUs have no tensor cores"
    elif words is not None and known:
        fitting = sorted(_fitting(words))
        allowed = ", ".join(fitting or sorted(known))
        kinds = " or ".join(_gpu(slug).display_name for slug in fitting)
        why = f"It may be {kinds}" if fitting else _no_such_form(words, known)
    elif unspaced(name) in {unspaced(cluster) for cluster in cluster_names()}:
        gpu = (
            _cluster(next(one for one in cluster_names() if unspaced(one) == unspaced(name))).groups[0].gpu
        )
        why, allowed, nearest = "It is a cluster, not a GPU type", None, gpu.slug
    else:
        near = _misspelt(words) if words else []
        why = f"Did you mean {' or '.join(near)}?" if near else "No GPU of the catalog has this name"
        allowed, nearest = (None, " or ".join(near)) if near else (_OWN_CHIP, None)
    message = f'unknown "{shown}". {why}'
    return UnknownNameError(
        [FieldError(pointer=pointer, message=message, allowed=allowed, nearest=nearest)]
    )


def _no_such_form(words: Words, known: Iterable[str]) -> str:
    """Return what no card of a type has, and what its cards have."""
    names = ", ".join(sorted(_gpu(slug).display_name for slug in known))
    if words.memory_gb is None:
        return f"The catalog has {names}"
    sizes = sorted({round(_named_gb(slug) or _gpu(slug).memory_bytes / GIB) for slug in known})
    has = f"{names} ({', '.join(map(str, sizes))} GB)"
    return f"No such card has {words.memory_gb:g} GB. The catalog has {has}"


def _misspelt(words: Words) -> list[str]:
    """Return the GPU types that a misspelt name may mean, of the memory that it states."""
    near = (replace(words, type=one) for one in _types() if may_be_misspelt(words.type, one))
    return sorted({chosen[0] for one in near if (chosen := _chosen(one, _fitting(one))) is not None})


def find_cluster(name: str, *, num_nodes: int | None = None) -> ClusterSpec:
    """Return the cluster of that name, with another number of nodes where one is given.

    Raises:
        UnknownNameError: no such cluster; lists the nearest names.
        InvalidProblemError: the number of nodes is out of range.
    """
    cluster = _cluster_spelt(name[:MAX_NAME])
    if cluster is None:
        raise _unknown_cluster(name[:MAX_NAME])
    if num_nodes is None:
        return cluster
    return replace(cluster, groups=(replace(cluster.groups[0], num_nodes=num_nodes),))


_MOST_NEAR = 3
_NEAR_NODE = 0.75  # difflib ratio: a2-ultragpu and a2-ultragpu-8g, not Titan V and trn2.48xlarge


def unknown_node(name: str, *, pointer: str) -> UnknownNameError:
    """Return the error of a name that is no GPU type, no cluster and no cloud's node."""
    known, words = (
        {_instance_key(one): one for one in (*cluster_names(), *instance_names())},
        words_of(name),
    )
    near = [known[one] for one in get_close_matches(_instance_key(name), known, _MOST_NEAR, _NEAR_NODE)]
    if not near or (words and (_of_type(words) or _misspelt(words))):
        return _unknown_gpu(name[:MAX_NAME], pointer)
    joined = _either(near)
    message = f'unknown "{shown_name(name)}". Did you mean {joined}?'
    return UnknownNameError([FieldError(pointer=pointer, message=message, nearest=joined)])


def _either(names: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _unknown_cluster(name: str) -> UnknownNameError:
    words = words_of(name)
    if any(kind.fullmatch(spaced(name)) for kind in (APPLE, CPU)) or (words and _of_type(words)):
        return _unknown_gpu(name, "/cluster/name")
    known = {one.lower(): one for one in (*cluster_names(), *instance_names())}
    near = [known[one] for one in get_close_matches(name.lower(), known, n=_MOST_NEAR)]
    joined = _either(near)
    others = "or a cloud's instance (p5.48xlarge), or GPUs (64xH100)"
    fault = FieldError(
        pointer="/cluster/name",
        message=f'unknown "{shown_name(name)}"{f". Did you mean {joined}?" if near else ""}',
        allowed=None if near else f"{', '.join(cluster_names())}, {others}",
        nearest=joined or None,
    )
    return UnknownNameError([fault])


@dataclass(frozen=True, slots=True)
class CloudInstance:
    """A node by the name that a cloud gives it."""

    name: str
    cloud: str
    source: str
    cluster: str = ""  # of the catalog; else the fields below
    gpu: str = ""
    gpus_per_node: int = 0
    network: str = ""  # kind of the link to other nodes
    network_bytes_per_s: float = 0.0  # of the node


def cloud_instance(name: str) -> CloudInstance | None:
    """Return the cloud's node of that name, in any case: ``p5.48xlarge``, ``Standard_ND96isr_H100_v5``."""
    return _instances().get(_instance_key(name[:MAX_NAME]))


def instance_names() -> tuple[str, ...]:
    """Return the names of the clouds' nodes that are known."""
    return tuple(one.name for one in _instances().values())


def _instance_key(name: str) -> str:
    return spaced(name).removeprefix("standard ").removeprefix("ml.").replace(" ", "")  # Azure, SageMaker


@cache
def _instances() -> Mapping[str, CloudInstance]:
    found: dict[str, CloudInstance] = {}
    for cloud, family in catalog_file(CATALOG / "cloud_instances.yaml").items():
        for name, node in family["instances"].items():
            network = node.get("network", {"kind": "", "gbit_per_s": 0})
            found[_instance_key(name)] = CloudInstance(
                name=str(name),
                cloud=str(cloud),
                source=str(family["source"]),
                cluster=str(node.get("cluster", "")),
                gpu=str(node.get("gpu", "")),
                gpus_per_node=int(node.get("gpus_per_node", 0)),
                network=str(network["kind"]),
                network_bytes_per_s=float(network["gbit_per_s"]) * GB / _BITS,
            )
    return found


def is_cluster(name: str) -> bool:
    """Return whether a cluster of the catalog has that name, in any case."""
    return _cluster_spelt(name[:MAX_NAME]) is not None


def _cluster_spelt(name: str) -> ClusterSpec | None:
    """Return the cluster of that name in any case, with spaces or hyphens."""
    found = _unspaced_clusters().get(unspaced(name))
    return None if found is None else _cluster(found)


@cache
def _unspaced_clusters() -> dict[str, str]:
    return {unspaced(one): one for one in cluster_names()}


def find_model(name: str) -> ModelSpec:
    """Return the model of that name, title or hub id, e.g. ``meta-llama/Llama-3.1-8B-Instruct``.

    The catalog's own name is of 16-bit weights; a hub id states what its weights are quantised to.

    Raises:
        UnknownNameError: no such model; lists the nearest names.
    """
    wanted = hub_id_of(name)[:MAX_NAME].lower()
    if wanted in model_names():
        return _model(wanted)
    found = _of_hub_id(wanted) if "/" in wanted else _of_folder(wanted) or _of_title(wanted)
    if found is None:
        raise unknown_model(hub_id_of(name)[:MAX_NAME])
    return _stored_model(found, wanted)


def hub_id_of(name: str) -> str:
    """Return the hub id of a page on the Hugging Face hub (``hf.co/Qwen/Qwen3-8B``), or the name."""
    page = _PAGE.fullmatch(name.strip())
    return page[1] if page else name


def catalog_name(hub_id: str) -> str | None:
    """Return the catalog's name of a model on the Hugging Face hub; None: it is not in the catalog."""
    return _of_hub_id(hub_id.lower())


def _of_hub_id(wanted: str) -> str | None:
    ids, wanted = _hub_ids(), _QUANTS.sub("", wanted)
    spellings: tuple[str, ...] = _spellings(wanted)
    if _COPIES.search(wanted):
        owners = dict.fromkeys(known.partition("/")[0] for known in ids)
        names = [spelt.partition("/")[2] for spelt in spellings]
        spellings = (*spellings, *(f"{owner}/{name}" for name in names for owner in owners))
    return next((ids[spelt] for spelt in spellings if spelt in ids), None)


def _stored_model(name: str, wanted: str) -> ModelSpec:
    model = _model(name)
    stored = stored_in_name(wanted, _published(name))
    return replace(model, stored_as=stored) if stored else model


def unknown_model(name: str) -> UnknownNameError:
    """Return the error of an unknown model: near names of its kind, and that its config will do."""
    from meshwright.profiles.nearest_models import (  # noqa: PLC0415 - errors alone
        another_kind,
        is_pipeline,
        kind_words,
        nearest_models,
    )

    known = tuple(_hub_ids()) if "/" in name else (*model_names(), *_folder_names())
    kind = another_kind(name)
    near = [] if kind else nearest_models(name, known, find_model)
    message, tip = f'unknown "{shown_name(name)}"', ""
    if near:
        message += f". Did you mean {' or '.join(filter(None, (', '.join(near[:-1]), near[-1])))}?"
    if kind:
        message += f". Its name is that of {kind}: Meshwright plans decoder-only transformers"
        shape = ", or the encoder's sizes as a shape with causal: false (docs/howto/own-model.md)"
        allowed = f"a name of the catalog (meshwright models){shape if kind == 'an encoder' else ''}"
        return UnknownNameError([FieldError(pointer="/model/name", message=message, allowed=allowed)])
    config = "the model's config.json (--model path/to/config.json)"
    folder = "transformer/" if is_pipeline(name) else ""
    if _HUB_ID.fullmatch(name):
        config += f", from https://huggingface.co/{name}/resolve/main/{folder}config.json"
        tip = "--model ./config.json"
    elif folder:
        config = "the pipeline's folder, or its transformer/config.json (docs/howto/own-model.md)"
    if "hears" in kind_words(name):
        config += ". Audio towers are not supported, but you can plan its language model (text_config)"
    allowed = f"a name of the catalog (meshwright models), or {config}"
    fault = FieldError(
        pointer="/model/name",
        message=message,
        allowed=allowed,
        nearest=" or ".join(near) or None,
        tip="" if near else tip,
    )
    return UnknownNameError([fault])


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
    found = _of_folder(last)
    if found is None:
        raise unknown_model(last or path[:MAX_NAME])
    return _stored_model(found, last)


def _of_folder(last: str) -> str | None:
    by_name = _folder_names()
    last = _SEPARATOR.sub("-", _PART.sub("", _QUANTS.sub("", last)))
    spellings = (last, _STORED.sub("", last), _TUNING.sub("", _STORED.sub("", last)))
    return next((by_name[spelt] for spelt in map(_hyphenated, spellings) if spelt in by_name), None)


def _of_title(wanted: str) -> str | None:
    """Return the model of a title, which answers print: Mistral Large 2 123B."""
    titles = ((name, _model(name).title.lower()) for name in model_names() if " " in wanted)
    return next((name for name, title in titles if wanted in (title, title.rpartition(" (")[0])), None)


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
    r"[-_](?:hf|base|pt|it|instruct|chat|thinking|awq|gptq|gguf|fp8|bf16|fp16|nvfp4|mxfp4|nf4|int[2-8]|[2-8]bits?|"
    r"bnb|unsloth|dequantized|linearized|aqlm-(?:pv-)?\dbit-\dx\d+|(?:quantized\.)?w\d+a\d+|\d+g|g\d+|dynamic)"
    r"(?=[-_]|$)"
)
# Other words in a folder's name for how its weights were tuned, stored or copied.
_STORED = re.compile(
    r"^(?:hf|huggingface)[-_](?=\w)|[-_](?:sft|dpo|gguf|text|fp32|half|bak|backup|copy|local)(?=[-_]|$)"
)
# The end of a GGUF file's name, or Ollama's tag: Qwen3-8B-Q4_K_M.gguf, llama3.1:8b-instruct-q8_0
_QUANTS = re.compile(r"(?:[-_.:]i?q[2-8](?:_(?:[01ksml]|xx?s|nl|xl))*)?(?:\.gguf)?$")
_PAGE = re.compile(
    r"(?:(?:https?://)?(?:www\.)?(?:huggingface|hf)\.co/|hf://)([\w.-]+/[\w.:-]+?)(?:/(?:tree|blob|resolve)/.*)?/?"
)
# Who publishes others' models, converted or quantised, under the names that those have.
_COPIES = re.compile(
    r"^(?:unsloth|nousresearch|redhatai|neuralmagic|hugging-quants|mlx-community|modelcloud|casperhansen|"
    r"techxgenus|nvidia|llm-research|ai-modelscope|modelscope|thebloke|ista-daslab|axolotl-quants|axolotl-ai-co|"
    r"opensourcerelease|mhenrichsen|bartowski|lmstudio-community|quantfactory|maziyarpanahi|ggml-org)/"
)
# Versions and dates may be other models (Mistral 7B v0.3 has more tokens, Qwen3-4B-2507 more positions): a
# listed one may be left out, for the first that is listed, but one that is not listed is not guessed.
_EDITION = re.compile(r"[-_](?:v[01]\.\d|\d{4})(?=[-_]|$)")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_BOUNDARY = re.compile(r"(?<=[a-z])-(?=\d)|(?<=\d)-(?=[a-z])")
_SEPARATOR = re.compile(r"[ :_]+")
_PART = re.compile(r" \((?:text|vision)[^)]*\)$")  # of a title: Gemma 3 27B (text)


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
    for size, hub_id in _R1.items():
        if (model := _hub_ids().get(f"deepseek-ai/deepseek-r1{hub_id}")) is not None:
            found[_hyphenated(f"deepseek-r1-{size}")] = model
    return found


# Ollama's tags of DeepSeek-R1, most of which are other models (ollama.com/library/deepseek-r1). Its 8b is
# a Qwen3 since R1-0528, and was a Llama before.
_R1 = {
    "1.5b": "-distill-qwen-1.5b", "7b": "-distill-qwen-7b", "8b": "-0528-qwen3-8b", "671b": "",
    "14b": "-distill-qwen-14b", "32b": "-distill-qwen-32b", "70b": "-distill-llama-70b",
}  # fmt: skip


def usual_island(gpu: GpuSpec, gpus_per_node: int) -> int:
    """Return the GPUs that the fast link joins in nodes of that size: a rack, a node, or a part of one."""
    island = gpu.island_gpus
    if island > gpu.gpus_per_node:
        return island if island % gpus_per_node == 0 else gpus_per_node
    bridged = island < gpu.gpus_per_node and gpus_per_node % island == 0
    return island if bridged else gpus_per_node


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
    reader.value("memory_kind")  # of names alone: H100 80GB HBM3
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


def _entry(name: str) -> Mapping[str, Any]:
    return dict(catalog_file(CATALOG / "models" / f"{name}.yaml"))


def _published(name: str) -> StoredAs:
    """Return what the weights under the model's own hub id are quantised to, as its config there states."""
    return cast("StoredAs", _entry(name).get("published_as", ""))


@cache
def _model(name: str) -> ModelSpec:
    """Return a shape in our own field names, or the keys of a Hugging Face config under ``config``."""
    raw = {key: value for key, value in _entry(name).items() if key != "published_as"}
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


def gpu_of_device(name: str, memory_bytes: int) -> str | None:
    """Return the slug of ``NVIDIA A100-SXM4-40GB`` and its like; None if no type, or several, fit.

    Args:
        name: as ``torch.cuda.get_device_name`` returns it.
        memory_bytes: the device's total memory, which distinguishes the sizes of one type.
    """
    short = name[:MAX_NAME]
    reported, words = _reported().get(unspaced(short)), words_of(short)
    fitting = (reported,) if reported else _fitting(words) if words else ()
    near = tuple(slug for slug in fitting if _is_near(_gpu(slug).memory_bytes, memory_bytes))
    if len(near) == 1:
        return near[0]
    chosen = _chosen(words, near) if words else None
    return chosen[0] if chosen else None


def _is_near(has_bytes: int, reported_bytes: int) -> bool:
    return abs(has_bytes - reported_bytes) <= REPORTED_MEMORY_TOLERANCE * has_bytes


_MOST_GPUS = 6  # sizes of memory
_A_SIZE = 1.1  # cards of one nominal size differ by less: 22.5 and 24 GiB, 79.6 and 80


def with_gpu(group: NodeGroup, gpu: GpuSpec) -> NodeGroup:
    """Return as many nodes with other GPUs and their links."""
    return replace(group, gpu=gpu, intra_node=gpu.intra_node, inter_node=gpu.inter_node)


def larger_gpus(group: NodeGroup) -> list[GpuSpec]:
    """Return the maker's larger GPUs on such a link: the fastest of each size, the smallest first.

    Products and traffic count alike. Of modules, one whose boards hold as many: a B200 in place of an
    H100, and not GB200's four. Modules with links between GPUs were followed by ones with a switch.
    """

    def slot(gpu: GpuSpec, kind: str) -> tuple[str, str]:
        words = words_of(gpu.slug)
        is_module = kind == "nvlink" and (words is None or words.form != "nvl")
        return ("nvswitch" if is_module else kind), maker_of(gpu.slug)

    def rank(gpu: GpuSpec) -> tuple[bool, float]:
        is_alike = gpu.intra_node.kind == "pcie" or gpu.gpus_per_node == group.gpu.gpus_per_node
        return is_alike, gpu.peak_bf16_flops * gpu.hbm_bytes_per_s

    every = {gpu.slug: gpu for gpu in map(find_gpu, gpu_names())}.values()
    like = slot(group.gpu, group.intra_node.kind)
    alike = [gpu for gpu in every if slot(gpu, gpu.intra_node.kind) == like]
    larger, size = list[GpuSpec](), group.gpu.memory_bytes
    while beyond := [gpu for gpu in alike if gpu.memory_bytes > _A_SIZE * size]:
        size = min(gpu.memory_bytes for gpu in beyond)
        larger.append(max((gpu for gpu in beyond if gpu.memory_bytes <= _A_SIZE * size), key=rank))
    return larger[:_MOST_GPUS]
