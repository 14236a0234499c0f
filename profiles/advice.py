"""What the maintainers of launchers advise against, of plans that run all the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from meshwright.profiles.catalog import CATALOG, catalog_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One row of the table: where it holds, what it says, what to try instead, and who says so."""

    launchers: tuple[str, ...]
    zero_stages: tuple[int, ...]
    bytes: bool
    says: str
    instead: str
    source: str


@cache
def _rows() -> tuple[Advice, ...]:
    return tuple(
        Advice(
            launchers=tuple(row["launchers"]),
            zero_stages=tuple(row["zero_stages"]),
            bytes=row["bytes"],
            says=row["says"],
            instead=row["instead"],
            source=row["source"],
        )
        for row in catalog_file(CATALOG / "advice.yaml")
    )


def advice_on_experts(launcher: str, zero_stage: int) -> Iterator[Advice]:
    """Yield the rows about models with experts that every rank holds or gathers whole.

    Args:
        launcher: that runs the plan.
        zero_stage: of the plan.
    """
    yield from (row for row in _rows() if launcher in row.launchers and zero_stage in row.zero_stages)
