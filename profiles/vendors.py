"""Who makes a GPU, which decides the launchers with files for it."""

from __future__ import annotations

from functools import cache

from meshwright.profiles.catalog import CATALOG, catalog_file
from meshwright.profiles.cluster import GpuSpec

_FILE = CATALOG / "vendors.yaml"


@cache
def vendor_names() -> tuple[str, ...]:
    """Return the vendors that the catalog knows."""
    return tuple(catalog_file(_FILE))


def vendor_of(gpu: GpuSpec) -> str:
    """Return the vendor of a GPU; empty where the catalog knows none, as of a CPU."""
    return _vendor(gpu.slug.lower(), gpu.architecture)


@cache
def vendor_by_name(slug: str) -> str:
    """Return the vendor whose names a GPU's begins with; empty where that says nothing."""
    table = catalog_file(_FILE)
    return next((name for name, one in table.items() if slug.startswith(tuple(one.get("names", ())))), "")


@cache
def _vendor(slug: str, architecture: str) -> str:
    table = catalog_file(_FILE)
    by_architecture = (name for name, one in table.items() if architecture in one.get("architectures", ()))
    return vendor_by_name(slug) or next(by_architecture, "")
