"""What a shell offers for the value of an option: names of the catalog, loaded only when it asks."""

from __future__ import annotations


def model_names(incomplete: str) -> list[str]:
    """Models of the catalog that begin so."""
    from profiles.library import model_names as names  # noqa: PLC0415 - loads numpy; only a shell asks

    return _beginning(names(), incomplete)


def cluster_names(incomplete: str) -> list[str]:
    """Clusters of the catalog that begin so."""
    from profiles.library import cluster_names as names  # noqa: PLC0415 - the same

    return _beginning(names(), incomplete)


def gpu_names(incomplete: str) -> list[str]:
    """GPU types of the catalog that begin so."""
    from profiles.library import gpu_names as names  # noqa: PLC0415 - the same

    return _beginning(names(), incomplete)


def launchers(incomplete: str) -> list[str]:
    """Launchers whose limits are known, and the words for all and for none."""
    from profiles.capabilities import launcher_names  # noqa: PLC0415 - the same

    return _beginning((*launcher_names(), "any", "none"), incomplete)


def _beginning(names: tuple[str, ...], incomplete: str) -> list[str]:
    """Those of ``names`` that begin with what was typed, once each."""
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]
