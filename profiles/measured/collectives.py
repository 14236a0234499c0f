"""Collectives of a measured profile as curves of the cluster's own network."""

from __future__ import annotations

from collections import defaultdict

from meshwright.profiles.collectives.measured import COLLECTIVES, MAX_CURVES, MeasuredCurve, MeasuredLink
from meshwright.profiles.measured.profile import MeasuredProfile


def link_of(profile: MeasuredProfile) -> MeasuredLink | None:
    """Bus bandwidths of the collectives that were timed; None where none of a cluster's was."""
    points: dict[tuple[str, int, int], dict[int, float]] = defaultdict(dict)
    for one in profile.measurements:
        ranks, per_node = one.shape.get("ranks", 1), one.shape.get("ranks_per_node", 1)
        known = one.group == "collectives" and one.operator in COLLECTIVES and ranks > 1
        if known and ranks % max(per_node, 1) == 0 and one.timing.median_s > 0 and one.moved_bytes > 0:
            place = one.operator, ranks // max(per_node, 1), ranks
            points[place][one.shape["payload_bytes"]] = one.moved_bytes / one.timing.median_s
    if not points:
        return None
    curves = [
        MeasuredCurve(
            collective=collective,
            num_nodes=num_nodes,
            num_ranks=num_ranks,
            payload_bytes=tuple(sorted(rates)),
            bus_bytes_per_s=tuple(rates[size] for size in sorted(rates)),
        )
        for (collective, num_nodes, num_ranks), rates in sorted(points.items())
    ]
    return MeasuredLink(curves=tuple(curves[:MAX_CURVES]), source="meshwright profile")
