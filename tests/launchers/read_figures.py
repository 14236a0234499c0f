"""What a launch file was read as, by the names of its figures: the right side of tables of cases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from meshwright.launchers.reading.base import LaunchFile


def figures(found: LaunchFile, names: Iterable[str]) -> dict[str, object]:
    """Return the named figures, such as ``configuration.zero_stage`` or ``model.moe.top_k``.

    An option that is not stated (``workload.framework_options.bucket_bytes``) is None.
    """
    return {name: _figure(found, name) for name in names}


def _figure(found: LaunchFile, name: str) -> object:
    value: object = found
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part)
    return value
