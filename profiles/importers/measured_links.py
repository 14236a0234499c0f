"""What foreign files of collectives say about a cluster's links."""

from __future__ import annotations

import math

from profiles.errors import InvalidProblemError
from profiles.measured_link import COLLECTIVES, MAX_CURVES, MAX_POINTS, MeasuredCurve, MeasuredLink
from profiles.measurements import CollectiveTable, CollectiveTables


def measured_link(tables: CollectiveTables, *, source: str) -> MeasuredLink:
    """What a log of nccl-tests (or any other file of collectives) says about a cluster's links.

    Out-of-place times where there are any; tables without ranks, of other collectives, and of GPUs
    that share a node unevenly are left out, and points whose bandwidth the file rounds to 0.

    Raises:
        InvalidProblemError: no table is left.
    """
    curves: dict[tuple[str, int, int], MeasuredCurve] = {}
    for table in sorted(tables.tables, key=lambda table: table.in_place):
        curve = _curve(table)
        if curve is not None:
            curves.setdefault(curve.place, curve)
    if not curves:
        raise InvalidProblemError.of(
            "/curves", "no collective with its numbers of ranks and nodes", allowed=", ".join(COLLECTIVES)
        )
    return MeasuredLink(curves=tuple(curves.values())[:MAX_CURVES], source=source)


def _curve(table: CollectiveTable) -> MeasuredCurve | None:
    """One table as a curve; None when it cannot be one."""
    ranks, nodes = table.num_ranks, table.num_nodes
    points = [
        (size, rate)
        for size, rate in zip(table.payload_bytes, table.bus_bytes_per_s, strict=True)
        if 0 < rate < math.inf
    ]
    if table.collective not in COLLECTIVES or not ranks or not nodes or not points:
        return None
    if ranks == 1 or ranks % nodes:
        return None
    kept = points[-MAX_POINTS:]
    return MeasuredCurve(
        collective=table.collective,
        num_nodes=nodes,
        num_ranks=ranks,
        payload_bytes=tuple(size for size, _ in kept),
        bus_bytes_per_s=tuple(rate for _, rate in kept),
    )
