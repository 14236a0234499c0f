"""The constants' levels as the catalog holds them: value, uncertainty and source of each.

``catalog/calibration/stacks.yaml``: the global level, and one level for each software stack round it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from profiles.catalog import CATALOG

STACKS_FILE = CATALOG / "calibration" / "stacks.yaml"
SIGMAS = ("log_time_sigma", "log_memory_sigma")


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelConstant:
    """One constant at one level."""

    value: float
    log_sd: float  # posterior standard deviation of ln(constant); of what is not fitted, an estimate
    source: str  # "fitted", or where the value comes from
    identified: bool = True  # False: the runs do not narrow its prior, or it stands at a bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The global level, or what one software stack has of its own."""

    fitted_on: str
    sigmas: Mapping[str, float]  # spreads of ln(measured / predicted), uncalibrated
    constants: Mapping[str, LevelConstant]


@cache
def _levels() -> dict[str, Any]:
    """The file's content."""
    levels: dict[str, Any] = yaml.load(STACKS_FILE.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return levels


def forget_levels() -> None:
    """Read the file again at the next use: after it was changed."""
    _levels.cache_clear()


def stack_names() -> tuple[str, ...]:
    """The stacks that have a level of their own."""
    return tuple(_levels()["stacks"])


def level_of(stack: str | None) -> Level:
    """The level of one stack as it stands in the file (empty where it has none); None: the global one."""
    raw: dict[str, Any] = _levels()["global"] if stack is None else _levels()["stacks"].get(stack, {})
    return Level(
        fitted_on=str(raw.get("fitted_on", "")),
        sigmas={name: float(raw[name]) for name in SIGMAS if name in raw},
        constants={
            name: LevelConstant(
                value=float(entry["value"]),
                log_sd=float(entry["log_sd"]),
                source=str(entry["source"]),
                identified=bool(entry.get("identified", True)),
            )
            for name, entry in raw.get("constants", {}).items()
        },
    )


def level_values(stack: str | None) -> dict[str, float]:
    """Every constant and spread of a stack, filled up from the global level; None: the global level."""
    values: dict[str, float] = {}
    for level in (level_of(None), level_of(stack)):
        values |= {name: constant.value for name, constant in level.constants.items()}
        values.update(level.sigmas)
    return values
