"""What a launcher can express; the search only proposes what the chosen launcher can run."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from profiles.errors import ProfileError, UnknownNameError

_FILE = Path(__file__).parent / "catalog" / "frameworks" / "capabilities.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The configurations that one launcher accepts."""

    launcher: str
    schedules: tuple[str, ...]
    zero_stages: tuple[int, ...]
    max_zero_stage_with_pipeline: int  # the highest ZeRO stage beside pipeline parallelism
    uneven_stages: bool  # stages may hold different numbers of layers
    recompute: tuple[str, ...]
    recompute_layer_counts: bool  # full recomputation of some layers of each chunk only
    context_parallel: bool
    expert_parallel: bool
    source: str
    expert_tensor_parallel: bool = False  # experts split otherwise than attention
    hybrid_sharding: bool = False  # shard sets smaller than the data-parallel group, from ZeRO 1 on
    offload: tuple[str, ...] = ("none",)
    experts_need_sequence_parallel: bool = False  # beside tensor parallelism
    context_parallel_modes: tuple[str, ...] = ("ring",)
    precisions: tuple[str, ...] = ("bf16", "fp16")


@cache
def _catalog() -> dict[str, Any]:
    """The capability file, parsed once."""
    loaded: dict[str, Any] = yaml.load(_FILE.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return loaded


def launcher_names() -> tuple[str, ...]:
    """Launchers whose limits are known."""
    return tuple(sorted(_catalog()))


def launchers_of(launcher: str) -> tuple[str, ...]:
    """The launchers that a request means: every one whose limits are known for ``any``."""
    return tuple(name for name in launcher_names() if name != "none") if launcher == "any" else (launcher,)


def _union(parts: list[Capabilities]) -> Capabilities:
    """What some launcher or other can run."""
    values: dict[str, Any] = {}
    for name in (field.name for field in fields(Capabilities)):
        found = [getattr(part, name) for part in parts]
        if isinstance(found[0], tuple):
            values[name] = tuple(dict.fromkeys(value for part in found for value in part))
        elif name != "experts_need_sequence_parallel" and not isinstance(found[0], str):
            values[name] = max(found)
        else:
            values[name] = found[0]
    values["experts_need_sequence_parallel"] = all(part.experts_need_sequence_parallel for part in parts)
    return Capabilities(**{**values, "launcher": "any", "source": "; ".join(part.source for part in parts)})


def launcher_capabilities(launcher: str) -> Capabilities:
    """The limits of one launcher; ``none`` has no launcher's limits, ``any`` those that all of them share.

    Raises:
        UnknownNameError: no such launcher.
        ProfileError: its entry lacks a capability or has one too many.
    """
    if launcher == "any":
        return _union([launcher_capabilities(name) for name in launchers_of(launcher)])
    if launcher not in _catalog():
        raise UnknownNameError.among("/launcher", launcher, launcher_names())
    entry: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in _catalog()[launcher].items()
    }
    try:
        return Capabilities(launcher=launcher, **entry)
    except TypeError as error:
        raise ProfileError(f"catalog/frameworks/capabilities.yaml, {launcher}: {error}") from error
