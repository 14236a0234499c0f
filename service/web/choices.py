"""Completions of names in forms: the catalog's models and clusters, the tenant's own, its profiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from meshwright.profiles.model import ModelSpec
from meshwright.profiles.units import GIB, TERA
from meshwright.service.api.deps import MAX_PAGE_SIZE, Service
from meshwright.service.stores.definitions import CATALOG, KINDS, Kind

Names = list[tuple[str, str]]  # name, and what to know of it
BILLION, HUNDRED = 1e9, 100


def suggestions_of(service: Service, tenant: str) -> Mapping[str, Names]:
    """Return the lists of a form, by id."""
    profiles = service.profiles.page(tenant, page_size=MAX_PAGE_SIZE, page_token=None).items
    return {
        **{f"{kind}s": [*_own(service, tenant, kind), *_catalog(kind)] for kind in KINDS},
        "profiles": [(one.id, one.title) for one in profiles],
    }


def _words_of_model(model: ModelSpec) -> str:
    """Return ``70.6 B parameters``, of experts how many are used."""
    total, used = model.num_parameters(), model.num_active_parameters()
    size = f"{_billions(total)} parameters"
    return size if used == total else f"{size}, {_billions(used)} active"


# Facts shown with an entry of the catalog: ``8 H100 SXM 80 GB per node``, each group; ``79.6 GiB, 989.4
# TFLOP/s in 16 bits``.
_WORDS: Mapping[Kind, Callable[[Any], str]] = {
    "model": _words_of_model,
    "cluster": lambda one: ", ".join(
        f"{group.gpus_per_node} {group.gpu.display_name} per node" for group in one.groups
    ),
    "gpu": lambda one: (
        f"{one.memory_bytes / GIB:.3g} GiB, {one.peak_bf16_flops / TERA:.4g} TFLOP/s in 16 bits"
    ),
}


def _billions(number: int) -> str:
    value = number / BILLION
    return f"{value:.0f} B" if value >= HUNDRED else f"{value:.3g} B"


def _own(service: Service, tenant: str, kind: Kind) -> Names:
    found = service.definitions.page(tenant, kind, after="", limit=MAX_PAGE_SIZE)
    return [(one.name, f"your own, version {one.version}") for one in found]


@cache
def _catalog(kind: Kind) -> Names:
    names, find = CATALOG[kind]
    return [(name, _WORDS[kind](find(name))) for name in names()]
