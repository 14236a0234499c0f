"""Patterns of one row: what a stage may be, without its place in the pipeline.

A pattern is (option, layers of each kind, role). A stage that is the k-th from the end keeps min(m, k)
micro-batches in flight, so a pattern fits at the places up to its ``deepest``. Times are whole
microseconds, rounded down, so that what is proved of patterns is no more than what plans take.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from meshwright.solver.configuration import FloatArray, IntArray
from meshwright.solver.cost.stages import LayerLayout
from meshwright.solver.search.mixed.rows import MixedRows, Transfers

US = 1e6
ANYWHERE = 1 << 20  # places: a pattern fits wherever the pipeline has a stage
Role = Literal["middle", "entry", "last", "last entry", "first"]
ROLES: tuple[Role, ...] = ("middle", "entry", "last", "last entry", "first")
ENTERS: tuple[Role, ...] = ("entry", "last entry")
ENDS: tuple[Role, ...] = ("last", "last entry")
_ROUNDING = 1.0 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Patterns:
    """Patterns of a row, (N,) each."""

    option: IntArray  # among ``MixedRows.options``
    role: IntArray  # among ROLES
    counts: IntArray  # (N, K) layers of each kind
    time_us: IntArray  # of one micro-batch
    slowest_us: IntArray  # (m - 1) times that, and the tail
    deepest: IntArray  # the last place from the end where it fits, from 1; or ANYWHERE

    def __len__(self) -> int:
        """Return the number of patterns."""
        return len(self.option)

    def has_role(self, *roles: Role) -> IntArray:
        """Return the patterns of some roles."""
        return np.flatnonzero(np.isin(self.role, [ROLES.index(one) for one in roles]))


@lru_cache(maxsize=64)
def _windows(cumulative: bytes, layers: int, kinds: int) -> IntArray:
    """Return what consecutive layers hold of each kind, each once, by their number, (W, K)."""
    sums = np.frombuffer(cumulative, dtype=np.int64).reshape(layers + 1, kinds)
    found = [np.unique(sums[size:] - sums[: layers + 1 - size], axis=0) for size in range(1, layers + 1)]
    return np.concatenate(found)


def windows_of(layout: LayerLayout) -> IntArray:
    """Return what consecutive layers of a model hold of each kind, each once, (W, K)."""
    sums = np.ascontiguousarray(layout.cumulative, dtype=np.int64)
    return _windows(sums.tobytes(), layout.num_layers, layout.num_kinds)


def patterns_of(rows: MixedRows, row: int, most_us: float, range_at: int = 0) -> Patterns:
    """Return the patterns of a row that end within a time.

    Args:
        rows: the priced rows.
        row: one of them.
        most_us: of ``slowest_us``.
        range_at: 0: priced for any number of stages; else for those of ``RANGES[range_at - 1]``.
    """
    sums, found = rows.layout.cumulative, list[Patterns]()
    transfers = rows.transfers_of(row, range_at)
    held: dict[Role, IntArray] = dict.fromkeys(ROLES, windows_of(rows.layout))
    held["first"] = sums[1:-1]
    held |= dict.fromkeys(ENDS, sums[-1] - sums[1:-1])
    for option in np.flatnonzero(rows.room[:, row] > 0).tolist():
        for role in ROLES:
            one = _of(rows, (option, row), role, held[role], transfers)
            kept = (one.deepest > 0) & (one.slowest_us <= most_us)
            found.append(_take(one, np.flatnonzero(kept)))
    return _joined(found)


def _of(
    rows: MixedRows, at: tuple[int, int], role: Role, counts: IntArray, transfers: Transfers
) -> Patterns:
    held, option, m = counts.astype(np.float64), at[0], int(rows.num_microbatches[at[1]])
    first, last = role == "first", role in ENDS
    scale = float(transfers.scale[option])
    own = held @ rows.layer_s[at] + first * rows.embedding_s[at] + last * rows.head_s[at]
    beside = transfers.entered_s[option] if role in ENTERS else transfers.inside_s[option]
    time = scale * own + (beside if np.isfinite(beside) else 0.0)
    tail = scale * (
        rows.rank_tail_s[at] + held @ rows.tail_s[at][:-2]
        + first * rows.tail_s[at][-2] + last * rows.tail_s[at][-1]
    )  # fmt: skip

    def bytes_of(parts: FloatArray) -> FloatArray:
        return np.asarray(held @ parts[:-2] + first * parts[-2] + last * parts[-1])

    space = (rows.head_room_bytes if last else rows.room_bytes)[at]
    free = np.asarray(space * _ROUNDING - bytes_of(rows.state_bytes[at]))
    flight = np.floor(np.clip(free / np.maximum(bytes_of(rows.kept_bytes[at]), 1.0), 0, ANYWHERE))
    deepest = np.where(flight >= m, ANYWHERE, flight).astype(np.int64)
    if role in ENTERS and not np.isfinite(transfers.entered_s[option]):
        deepest = np.zeros_like(deepest)
    return Patterns(
        option=np.full(len(counts), option),
        role=np.full(len(counts), ROLES.index(role)),
        counts=counts,
        time_us=np.floor(time * US).astype(np.int64),
        slowest_us=np.floor(((m - 1) * time + tail) * US).astype(np.int64),
        deepest=deepest,
    )


def _take(one: Patterns, index: IntArray) -> Patterns:
    return Patterns(**{name: getattr(one, name)[index] for name in Patterns.__slots__})


def _joined(parts: list[Patterns]) -> Patterns:
    return Patterns(
        **{name: np.concatenate([getattr(one, name) for one in parts]) for name in Patterns.__slots__}
    )
