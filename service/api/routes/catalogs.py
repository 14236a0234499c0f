"""What this service knows by name: models, clusters, GPU types."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter

from profiles.library import cluster_names, find_cluster, find_gpu, find_model, gpu_names, model_names
from service.api.deps import READS
from service.api.problems import declared
from service.api.schemas import CatalogView

router = APIRouter(prefix="/v1", tags=["catalogs"], responses=declared(401, 403, 422, 503))


@router.get("/models", dependencies=[READS], summary="Models by name")
def list_models() -> CatalogView:
    """Every model of the catalog with its shape."""
    return CatalogView(items=[{**asdict(find_model(name)), "name": name} for name in model_names()])


@router.get("/clusters", dependencies=[READS], summary="Clusters by name")
def list_clusters() -> CatalogView:
    """Every cluster of the catalog with its node groups and links."""
    return CatalogView(items=[{**asdict(find_cluster(name)), "name": name} for name in cluster_names()])


@router.get("/gpus", dependencies=[READS], summary="GPU types by slug")
def list_gpus() -> CatalogView:
    """Every GPU type of the catalog with its memory, peaks and usual links; ``name`` may be an alias."""
    return CatalogView(items=[{**asdict(find_gpu(name)), "name": name} for name in gpu_names()])
