"""Slowdown of collectives relative to the line rate: tables by message size and placement of the ranks.

A table holds ``log2(seconds * line rate / bus bytes)`` by the bytes of one rank's part of the payload.
Rings pass parts of that size on, so one axis carries the start-up of small messages and the loss with
every doubling of nodes alike. A row is a placement of the ranks: so many in one island, or so many
islands. Inside an island the rows are NCCL's measured times (``catalog/operators``), across islands
SimAI's shares (``catalog/collectives/network.json``); a cluster's own measurements correct both.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from math import log2
from statistics import median
from typing import Any

import numpy as np

from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.collectives.collectives import (
    ACROSS_ROWS,
    HIGH,
    INSIDE_ROWS,
    LOW,
    PARTS,
    ROWS_PER_DOUBLING,
    FloatArray,
    Lines,
    SlowdownTable,
    row_of,
)
from meshwright.profiles.collectives.measured import MeasuredCurve, MeasuredLink
from meshwright.profiles.operators.tables import ANY, OperatorTable, load_operator_tables

# --------------------------------------------------------------------------------------------------
# Shares of a network's line rate that collectives reach, by the bytes of a message and by nodes.
#
# The shares of ``catalog/collectives/network.json`` are distilled from SimAI's tables
# (``benchmarks/catalog/network_shares.py``).


FOLDER = CATALOG / "collectives"
FORMAT = "meshwright-network-shares/1"

# All-reduces over many nodes go through two trees (NCCL, src/graph/tuning.cc): every level costs the
# network's 14 us and the node's way to its card once up and once down.
_TREE_LEVEL_S = 40e-6
_TREE_SHARE = 0.9  # of the rate of a ring of large messages
_RAILS, _RAIL_BYTES_PER_S = 8, 50e9  # of the cluster that the network's table was measured on

# Of the networks of the open runs, to which the rates that software stacks reach are fitted with the shares
# as they are: 50 Gbit/s a GPU (Jean Zay's V100).
SLOWEST_BYTES_PER_S = 6.25e9

_ISLANDS: FloatArray = np.maximum(2.0 ** (np.arange(ACROSS_ROWS) / ROWS_PER_DOUBLING), 2.0)  # of each row


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkShares:
    """Shares of a network's line rate, as ``catalog/collectives/network.json`` holds them."""

    ring_part_bytes: tuple[float, ...]
    ring: tuple[float, ...]  # by the bytes of one rank's part
    exchange_bytes: tuple[float, ...]
    exchange_nodes: tuple[int, ...]
    exchange: tuple[tuple[float, ...], ...]  # all-to-all: by number of nodes, by bytes of one rank
    gpus_per_node: int
    source: str

    def ring_share(self, part_bytes: FloatArray) -> FloatArray:
        """Return the share that a ring reaches; below the smallest part a step takes the same time."""
        known = np.log2(self.ring_part_bytes)
        share = np.exp2(np.interp(np.log2(part_bytes), known, np.log2(self.ring)))
        return np.asarray(share * np.minimum(part_bytes / self.ring_part_bytes[0], 1.0))

    def exchange_share(self, islands: FloatArray, sent_bytes: FloatArray) -> FloatArray:
        """Return the shares that all-to-alls over k numbers of islands reach, by n sizes, (k, n).

        Below the smallest size their start-up time stays. Beyond the most nodes that were measured the
        share of those holds.
        """
        nodes, sizes, over = (np.log2(one) for one in (self.exchange_nodes, self.exchange_bytes, islands))
        of_sizes = [np.interp(np.log2(sent_bytes), sizes, np.log2(shares)) for shares in self.exchange]
        measured = np.stack([np.interp(over, nodes, own) for own in np.transpose(of_sizes)], axis=1)
        of_ends = (np.log2([shares[at] for shares in self.exchange]) for at in (0, -1))
        first, last = (np.exp2(np.interp(over, nodes, own))[:, None] for own in of_ends)
        smallest = self.exchange_bytes[0]
        start_up = smallest / first - smallest / last  # in bytes at line rate
        below = sent_bytes / (start_up + sent_bytes / last)
        return np.asarray(np.where(sent_bytes < smallest, below, np.exp2(measured)))


@cache
def network_shares() -> NetworkShares:
    """Return the measured network."""
    return network_shares_from_json(json.loads((FOLDER / "network.json").read_text("utf-8")))


def network_shares_from_json(raw: Mapping[str, Any]) -> NetworkShares:
    """Return the shares of one file, as ``benchmarks.catalog.network_shares`` writes it."""
    return NetworkShares(
        ring_part_bytes=tuple(raw["ring"]["part_bytes"]),
        ring=tuple(raw["ring"]["share"]),
        exchange_bytes=tuple(raw["all_to_all"]["sent_bytes"]),
        exchange_nodes=tuple(raw["all_to_all"]["num_nodes"]),
        exchange=tuple(tuple(shares) for shares in raw["all_to_all"]["share"]),
        gpus_per_node=raw["gpus_per_node"],
        source=raw["source"],
    )


def tree_share(islands: float, payload_bytes: FloatArray) -> FloatArray:
    """Return the share of the line rate that an all-reduce through two trees reaches."""
    at_line_rate = payload_bytes / (_RAILS * _RAIL_BYTES_PER_S)
    return np.asarray(at_line_rate / (np.log2(islands) * _TREE_LEVEL_S + at_line_rate / _TREE_SHARE))


_Point = tuple[float, float]  # log2 of the bytes of a part, log2 of the slowdown

KINDS = ("all_gather", "all_reduce", "all_to_all")  # a reduce-scatter is an all-gather backwards
_NEAREST = {  # the collective with measurements that replace missing ones
    "all_gather": ("all_gather", "reduce_scatter", "all_reduce"),
    "all_reduce": ("all_reduce", "all_gather", "reduce_scatter"),
    "all_to_all": ("all_to_all", "all_gather", "reduce_scatter", "all_reduce"),
}


@lru_cache(maxsize=256)  # 80 KB each: a service prices whatever bandwidths it is asked about
def slowdown_tables(
    gpu_tables: str,
    lines: Lines,
    measured: MeasuredLink | None,
    beside: frozenset[tuple[str, float]] = frozenset(),
) -> Mapping[str, SlowdownTable]:
    """Return the tables of all collectives.

    Args:
        gpu_tables: the GPU type with the measured collectives that hold inside an island.
        lines: line rates, which measured bandwidths are held against.
        measured: measurements on the cluster itself.
        beside: GPU types of other nodes in the same mesh, and the line rate inside their islands: each
            entry is that of the slowest.

    Raises:
        ProfileError: the GPU type was not measured.
    """
    found = {}
    for kind in KINDS:
        inside = _inside(load_operator_tables(gpu_tables).find(kind, ANY))
        for like, line in beside:
            other = _inside(load_operator_tables(like).find(kind, ANY))
            inside = np.maximum(inside, other + np.log2(lines.fast_bytes_per_s / line))
        table = np.concatenate([inside, _across(kind, network_shares(), lines)])
        if measured is not None:
            curves = measured.of_collective(*_NEAREST[kind])
            table = _corrected(table, kind, curves, lines)
        found[kind] = SlowdownTable.of(table)
    return found


def _inside(table: OperatorTable) -> FloatArray:
    """Return the rows of 1 to 1024 ranks.

    More ranks than were measured lose as much as the most of them do: in a ring on equal parts (their
    number is the number of steps), in an all-to-all on equal payloads (its messages travel at once).
    """
    axis = table.grid.axes[0]
    least, most = 2.0**axis.low, 2.0 ** (axis.low + (axis.count - 1) * axis.step)
    rows = []
    for index in range(INSIDE_ROWS):
        meant = max(2.0 ** (index / ROWS_PER_DOUBLING), least)
        ranks = np.full_like(PARTS, min(meant, most))
        payload = PARTS * (meant if table.operator == "all_to_all" else ranks)
        roof = table.roof_s(ranks, payload)
        at_line_rate = roof - table.roof.fixed_s
        rows.append(np.log2(table.slowdown(ranks, payload) * roof / at_line_rate))
    return np.array(rows)


def _across(kind: str, shares: NetworkShares, lines: Lines) -> FloatArray:
    """Return the rows of 1 to about a million islands.

    A step's start-up is a time: on a network slower than all of the open runs' a part loses as little as a
    larger one on the network that the shares were measured on. It takes at least as long as on the slowest
    of the open runs.
    """
    line = float(lines.network_bytes_per_s)
    rows = _rows_across(kind, shares, PARTS)
    if line >= SLOWEST_BYTES_PER_S:
        return rows
    own = _rows_across(kind, shares, PARTS * (_RAIL_BYTES_PER_S / line))
    return np.asarray(np.maximum(own, rows + np.log2(line / SLOWEST_BYTES_PER_S)))


def _rows_across(kind: str, shares: NetworkShares, parts: FloatArray) -> FloatArray:
    if kind == "all_to_all":  # more islands never take less time, so noise is levelled
        sent, times = _exchange_times(shares)
        islands = zip(_ISLANDS, times, strict=True)
        return np.array([
            np.interp(np.log2(parts * k * shares.gpus_per_node), np.log2(sent), row)
            - np.log2(1.0 - 1.0 / k)
            for k, row in islands
        ])  # fmt: skip
    ring = shares.ring_share(parts)
    if kind == "all_gather":
        return np.tile(-np.log2(ring), (ACROSS_ROWS, 1))
    payloads = (parts * count * shares.gpus_per_node for count in _ISLANDS)
    trees = [tree_share(count, payload) for count, payload in zip(_ISLANDS, payloads, strict=True)]
    return np.asarray(-np.log2(np.maximum(ring, trees)))


@lru_cache(maxsize=2)  # the same on every network
def _exchange_times(shares: NetworkShares) -> tuple[FloatArray, FloatArray]:
    """Return bytes that a rank sends, and log2 of the times of an all-to-all of them over the islands."""
    sent = np.exp2(np.arange(LOW, 2 * HIGH, dtype=np.float64))
    times = (1.0 - 1.0 / _ISLANDS)[:, None] / shares.exchange_share(_ISLANDS, sent)
    return sent, np.log2(np.maximum.accumulate(times, axis=0))


def _corrected(table: FloatArray, kind: str, curves: tuple[MeasuredCurve, ...], lines: Lines) -> FloatArray:
    """Return the table moved onto what was measured; neither side of the island corrects the other.

    Between measured counts the correction is interpolated, beyond them the nearest is kept. Over a
    network all steps of a ring are alike, so whatever number of nodes a ring was measured on, it
    corrects all of them, each by its own size of parts.
    """
    points: dict[int, list[_Point]] = defaultdict(list)
    for curve in sorted(curves, key=lambda curve: curve.num_ranks):
        row, found = _points(curve, lines)
        if kind != "all_reduce" and curve.collective != "all_to_all":
            row = min(row, INSIDE_ROWS)
        points[row] += found
    moved = table.copy()
    for start, stop in ((0, INSIDE_ROWS), (INSIDE_ROWS, INSIDE_ROWS + ACROSS_ROWS)):
        known = [row for row in sorted(points) if start <= row < stop]
        if known:
            stacked = np.array([_offset(table[row], points[row]) for row in known])
            for part in range(len(PARTS)):
                moved[start:stop, part] += np.interp(range(start, stop), known, stacked[:, part])
    return moved


def _points(curve: MeasuredCurve, lines: Lines) -> tuple[int, list[_Point]]:
    ranks = float(curve.num_ranks)
    together = ranks / curve.num_nodes * lines.nodes_per_island
    in_island = np.array([min(together, ranks, lines.island_gpus)])
    islands = np.ceil(ranks / in_island)
    exchange = curve.collective == "all_to_all"
    line = lines.exchange_bytes_per_s if exchange else lines.ring_bytes_per_s
    rate = float(line(in_island, islands)[0])
    pairs = zip(curve.payload_bytes, curve.bus_bytes_per_s, strict=True)
    return int(row_of(in_island, islands)[0]), [
        (log2(size / ranks), log2(rate / bus)) for size, bus in pairs
    ]


def _offset(row: FloatArray, points: list[_Point]) -> FloatArray:
    """Return by how much points lie above one row of a table, at each of its parts.

    Points of equal parts count as their median. Smaller parts than were measured are as far off as the
    smallest; what larger ones lose is the time that the largest lost, however large they are.
    """
    of_part: dict[float, list[float]] = defaultdict(list)
    for part, behind in points:
        of_part[round(part, 3)].append(behind)
    parts = sorted(of_part)
    typical = np.array([median(of_part[part]) for part in parts])
    nodes = np.log2(PARTS)
    offset = np.interp(nodes, parts, typical - np.interp(parts, nodes, row))
    lost = max(float(2.0 ** typical[-1] - np.exp2(np.interp(parts[-1], nodes, row))), 0.0)
    larger = np.log2(1.0 + lost * 2.0 ** (parts[-1] - nodes) / np.exp2(row))
    return np.where((nodes > parts[-1]) & (lost > 0.0), larger, offset)
