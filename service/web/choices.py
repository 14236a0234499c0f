"""Completions of names in forms: the catalog's models and clusters, the tenant's own, its profiles."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from meshwright.profiles.cluster import ClusterSpec, GpuSpec
from meshwright.profiles.library import (
    cluster_names,
    find_cluster,
    find_gpu,
    find_model,
    gpu_names,
    model_names,
)
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.units import GIB, TERA
from meshwright.service.api.deps import MAX_PAGE_SIZE, Service
from meshwright.service.stores.definitions import Kind

Names = list[tuple[str, str]]  # name, and what to know of it
BILLION, HUNDRED = 1e9, 100


def suggestions_of(service: Service, tenant: str) -> Mapping[str, Names]:
    """Return the lists of a form, by id."""
    profiles = service.profiles.page(tenant, page_size=MAX_PAGE_SIZE, page_token=None).items
    return {
        "models": [*_own(service, tenant, "model"), *_models()],
        "clusters": [*_own(service, tenant, "cluster"), *_clusters()],
        "gpus": [*_own(service, tenant, "gpu"), *_gpus()],
        "profiles": [(one.id, one.title) for one in profiles],
    }


def words_of_model(model: ModelSpec) -> str:
    """Return ``70.6 B parameters``, of experts how many are used."""
    total, used = model.num_parameters(), model.num_active_parameters()
    size = f"{_billions(total)} parameters"
    return size if used == total else f"{size}, {_billions(used)} active"


def words_of_cluster(cluster: ClusterSpec) -> str:
    """Return ``8 H100 SXM 80 GB per node``, each group."""
    return ", ".join(f"{group.gpus_per_node} {group.gpu.display_name} per node" for group in cluster.groups)


def words_of_gpu(gpu: GpuSpec) -> str:
    """Return ``79.6 GiB, 989.4 TFLOP/s in 16 bits``."""
    return f"{gpu.memory_bytes / GIB:.3g} GiB, {gpu.peak_bf16_flops / TERA:.4g} TFLOP/s in 16 bits"


def _billions(number: int) -> str:
    value = number / BILLION
    return f"{value:.0f} B" if value >= HUNDRED else f"{value:.3g} B"


def _own(service: Service, tenant: str, kind: Kind) -> Names:
    found = service.definitions.page(tenant, kind, after="", limit=MAX_PAGE_SIZE)
    return [(one.name, f"your own, version {one.version}") for one in found]


@cache
def _models() -> Names:
    return [(name, words_of_model(find_model(name))) for name in model_names()]


@cache
def _clusters() -> Names:
    return [(name, words_of_cluster(find_cluster(name))) for name in cluster_names()]


@cache
def _gpus() -> Names:
    return [(name, words_of_gpu(find_gpu(name))) for name in gpu_names()]
