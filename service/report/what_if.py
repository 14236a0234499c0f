"""Changed questions with their answers, as a report shows them: plain records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One changed question with its answer."""

    subject: str  # GPUs, memory, network, batch
    change: str
    found: str  # the best configuration, in words; why there is none
    step: str = ""
    rate: str = ""  # tokens per second of all GPUs
    against: str = ""  # the rate, relative to the report's
    share: float = 0.0  # the rate over the largest of all, for its bar
    is_asked: bool = False  # the question of the report itself


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatCell:
    """Two changes at once."""

    text: str  # the rate over the report's: ×1.98; a dash where nothing fits
    step: str = ""
    title: str = ""  # the configuration, or why there is none
    level: int = 0  # 0 to 6: how deep its colour is
    is_asked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatTable:
    """One subject against another."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[HeatCell, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfs:
    """All changed questions of a report."""

    rows: tuple[WhatIf, ...] = ()
    method: str  # how they were found, or why there are none
    tables: tuple[HeatTable, ...] = ()
    pair_method: str = ""
