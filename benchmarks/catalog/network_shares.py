"""Distils SimAI's tables (github.com/aliyun/SimAI, Apache-2.0) into the catalog's network shares.

    python -m benchmarks.catalog.network_shares --ring nic_ratio.csv --all-to-all ata_ratio.csv \
        --out profiles/catalog/collectives/network.json

A ring passes on one rank's part of the payload at a time. So the shares of all numbers of nodes fall
on one curve over the bytes of that part (``payload / ranks``), and the curve is their median.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.foreign.records import BandwidthShares
from benchmarks.foreign.simai import read_simai
from meshwright.profiles.collectives.tables import FORMAT
from meshwright.profiles.errors import ProfileError

GPUS_PER_NODE = 8  # of SimAI's columns: "2Node-16GPU"
_SOURCE = (
    "SimAI (github.com/aliyun/SimAI, Apache-2.0), nic_ratio.csv and ata_ratio.csv: share of the line "
    "rate of the NICs that collectives reach, nodes of 8 GPUs with a 400 Gbit/s NIC each"
)


def ring_points(shares: BandwidthShares) -> dict[float, list[float]]:
    """Shares of two nodes and more, by the bytes of one rank's part."""
    points: dict[float, list[float]] = defaultdict(list)
    for payload, row in zip(shares.payload_bytes, shares.shares, strict=True):
        for nodes, share in zip(shares.num_nodes, row, strict=True):
            if nodes > 1 and share is not None:
                points[payload / (nodes * GPUS_PER_NODE)].append(share)
    return points


def ring_curve(points: Mapping[float, list[float]]) -> dict[float, float]:
    """The median share of each part; a larger part is never worse."""
    curve, best = {}, 0.0
    for part in sorted(points):
        best = max(best, median(points[part]))
        curve[part] = float(f"{best:.4g}")
    return curve


def exchange_rows(shares: BandwidthShares) -> dict[int, list[float]]:
    """All-to-all: shares by number of nodes from two on, where every payload was measured."""
    columns = dict(zip(shares.num_nodes, zip(*shares.shares, strict=True), strict=True))
    return {
        nodes: [share for share in column if share is not None]
        for nodes, column in columns.items()
        if nodes > 1 and all(share is not None for share in column)
    }


def network_json(ring: BandwidthShares, exchange: BandwidthShares) -> dict[str, Any]:
    """The catalog's file."""
    curve, rows = ring_curve(ring_points(ring)), exchange_rows(exchange)
    return {
        "format": FORMAT,
        "source": _SOURCE,
        "units": "shares of the line rate of all NICs of a node; bytes",
        "gpus_per_node": GPUS_PER_NODE,
        "ring": {"part_bytes": list(curve), "share": list(curve.values())},
        "all_to_all": {
            "sent_bytes": list(exchange.payload_bytes),
            "num_nodes": list(rows),
            "share": list(rows.values()),
        },
    }


def main() -> None:
    """Write the catalog's file."""
    parser = argparse.ArgumentParser(description="Distil SimAI's tables into the catalog.")
    for name in ("--ring", "--all-to-all", "--out"):
        parser.add_argument(name, type=Path, required=True)
    given = parser.parse_args()
    try:
        content = network_json(read_simai(given.ring), read_simai(given.all_to_all))
        lines = json.dumps(content, indent=1).replace("\n   ", " ").replace("\n  ]", "]")
        given.out.write_text(lines + "\n", encoding="utf-8")
    except ProfileError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"{given.out.name[:64]}: {error.strerror or 'cannot be written'}")


if __name__ == "__main__":
    main()
