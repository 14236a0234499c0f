"""What a launcher can express; the search only proposes what the chosen launcher can run."""

from __future__ import annotations

from dataclasses import dataclass
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


@cache
def _catalog() -> dict[str, Any]:
    """The capability file, parsed once."""
    loaded: dict[str, Any] = yaml.load(_FILE.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return loaded


def launcher_names() -> tuple[str, ...]:
    """Launchers whose limits are known."""
    return tuple(sorted(_catalog()))


def launcher_capabilities(launcher: str) -> Capabilities:
    """The limits of one launcher; ``none`` has no launcher's limits.

    Raises:
        UnknownNameError: no such launcher.
        ProfileError: its entry lacks a capability or has one too many.
    """
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
