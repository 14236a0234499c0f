"""Packages that a plan needs, and which of them a stock installation of its launcher lacks.

A *stock installation* is the launcher with the packages that it installs itself and Transformer Engine
2.10, the oldest release that runs everything Megatron-Core 0.19 does by default: Megatron-FSDP refuses an
older one (``distributed/fsdp/mcore_fsdp_adapter.py:153``).

``catalog/requirements.yaml`` lists the packages by the part of a plan that needs them. This module finds
what plans over Megatron-Core need; exporters of other launchers find it by the values that they write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Any

from meshwright.profiles.catalog import CATALOG, catalog_file
from meshwright.profiles.frameworks import FrameworkFacts
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.switches import EVERY_SWITCH, switches

STOCK_TRANSFORMER_ENGINE = "2.10.0"
_INSTALLED = 'from importlib.metadata import version; version("{package}")'
_RELEASE = (
    "from importlib.metadata import version; from packaging.version import Version; "
    'assert Version(version("{package}")) >= Version("{release}")'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One package that a plan needs, with the release and the reason."""

    name: str  # as people call it, with the release: ``HybridEP``, ``Transformer Engine 2.12``
    package: str  # what Python imports
    minimum: str  # oldest release that will do; empty: any
    why: str  # what of the plan needs it
    check: str  # statements for ``python -c``: they fail where the package is missing or too old
    source: str  # file and line of the launcher that refuses to start without it
    stock: bool = False  # a stock installation has it; worth a check, but not worth a mark in a table
    install: str  # how to get it
    instead: str  # what in a request does without it
    switches: tuple[str, ...] = ()  # of ``profiles.switches``: a request that allows all of them allows it


@cache
def packages() -> Mapping[str, Requirement]:
    """Return every package of the catalog by the part of a plan that needs it."""
    rows = catalog_file(CATALOG / "requirements.yaml")
    return {need: _requirement(row) for need, row in rows.items()}


def _requirement(row: Mapping[str, Any]) -> Requirement:
    package, minimum = row["package"], row.get("minimum", "")
    check = (_RELEASE if minimum else _INSTALLED).format(package=package, release=minimum)
    found: dict[str, Any] = {"minimum": minimum, "check": check}
    if package == "transformer_engine":
        found["name"] = f"Transformer Engine {minimum.removesuffix('.0')}"
        found["install"] = f'pip install "transformer_engine[pytorch]>={minimum}"'
        found["stock"] = _numbers(minimum) <= _numbers(STOCK_TRANSFORMER_ENGINE)
    return Requirement(**{**found, **row, "switches": tuple(row.get("switches", ()))})


def requirements_of(
    launcher: str,
    facts: FrameworkFacts,
    model: ModelSpec,
    *,
    overlaps: bool = True,
    offloads: bool = False,
    zero_stage: int = 0,
    weight_shards: bool = False,
) -> tuple[Requirement, ...]:
    """Return the packages that a launcher over Megatron-Core needs for a plan; none for other launchers.

    Each package appears once, by its newest release, with every reason for that.

    Args:
        launcher: Its name.
        facts: The framework's, with the options of the plan.
        model: The model to be trained.
        overlaps: Whether the plan overlaps its experts where ``facts`` ask for that.
        offloads: Whether the plan sends activations to the host.
        zero_stage: Of the plan; from 2 on Megatron-FSDP shards.
        weight_shards: Whether data-parallel ranks share weights of the plan.
    """
    if launcher not in switches()["recompute_modules"].launchers:
        return ()
    delays = bool(model.moe) and overlaps and facts.overlap_experts and facts.delay_wgrad
    mixer = model.mixer.kind if model.mixer else ""
    needs = [
        *((facts.moe_dispatcher,) if model.moe and facts.moe_dispatcher in packages() else ()),
        *(_delayed_graphs(facts, model) if delays else ()),
        *(("offload from a graph",) if offloads and _sends_from_graphs(facts, model) else ()),
        *(("Megatron-FSDP",) if zero_stage > 1 else ()),
        *(("shared weights",) if weight_shards else ()),
        *((mixer,) if mixer in packages() else ()),
        *_engines(facts, model),
        *(("delayed weight gradients",) if delays else ()),
    ]
    found = [packages()[need] for need in needs]
    by_package = attrgetter("package")
    return tuple(map(_joined, groupby(sorted(found, key=by_package), by_package)))


def _joined(group: tuple[str, Iterable[Requirement]]) -> Requirement:
    some = list(dict.fromkeys(group[1]))
    newest = max(_numbers(one.minimum) for one in some)
    kept = [one for one in some if _numbers(one.minimum) == newest]
    return replace(
        kept[0],
        why="; ".join(one.why for one in kept),
        source="; ".join(one.source for one in kept),
        instead=" and ".join(dict.fromkeys(one.instead for one in kept)),
        switches=tuple(dict.fromkeys(name for one in kept for name in one.switches)),
    )


def missing_from_stock(found: Iterable[Requirement]) -> tuple[str, ...]:
    """Return the names of the requirements that a stock installation lacks."""
    return tuple(one.name for one in found if not one.stock)


def unallowed(
    allow: Collection[str],
    launcher: str,
    facts: FrameworkFacts,
    model: ModelSpec,
    *,
    offloads: bool = False,
) -> tuple[str, ...]:
    """Return the names of what a stock installation lacks and a request does not allow (``search.allow``).

    It allows a package by the names of all switches that need it together, or all packages by ``switches``.
    """
    if EVERY_SWITCH in allow:
        return ()
    found = requirements_of(launcher, facts, model, offloads=offloads)
    return missing_from_stock(one for one in found if not {*one.switches} <= {*allow})


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".") if part)


def _delayed_graphs(facts: FrameworkFacts, model: ModelSpec) -> tuple[str, ...]:
    """Return the release of Transformer Engine for delayed weight gradients next to CUDA graphs.

    Those of attention are inside a graph of ``attn``, those of shared experts inside one of ``moe_router``
    unless the shared experts run under the exchange.
    """
    scope = facts.cuda_graph.split("+")
    if scope == ["none"]:
        return ()
    shared = bool(model.moe and model.moe.shared_ffn_hidden_size) and not facts.shared_expert_overlap
    inside = "attn" in scope or ("moe_router" in scope and shared)
    return ("delayed weight gradients in a graph" if inside else "delayed weight gradients next to graphs",)


def _sends_from_graphs(facts: FrameworkFacts, model: ModelSpec) -> bool:
    """Return whether a CUDA graph of attention, or of a dense layer, holds offloaded modules.

    The norm in front of a dense MLP is inside a graph of both; with a graph of only one of them Megatron
    does not offload it (``transformer_layer.py:1579``).
    """
    scope, sent = {*facts.cuda_graph.split("+")}, {*facts.offload_modules.split("+")}
    dense = "dense" in model.layer_kinds()
    held = {"core_attn", "attn_proj", "qkv_linear", *(("mlp_norm",) if dense and "mlp" in scope else ())}
    return "attn" in scope and bool(held & sent)


def _engines(facts: FrameworkFacts, model: ModelSpec) -> Iterator[str]:
    """Yield what an older Transformer Engine than that of stock installations lacks."""
    if facts.precision_recipe in packages():
        yield facts.precision_recipe
        if {"moe_act", "layernorm"} & {*facts.recompute_modules.split("+")}:
            yield "recomputation in 8 bits"
    if model.attention_sinks:
        yield "attention sinks"
