"""Shares of a network's line rate that collectives reach, by the bytes of a message and by nodes.

The shares of ``catalog/collectives/network.json`` are distilled from SimAI's tables
(``profiles/importers/network_shares.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiles.catalog import CATALOG
from profiles.errors import ProfileError

FloatArray = NDArray[np.float64]

FOLDER = CATALOG / "collectives"
FORMAT = "meshwright-network-shares/1"

# All-reduces over many nodes go through two trees (NCCL, src/graph/tuning.cc): every level costs the
# network's 14 us and the node's way to its card once up and once down.
_TREE_LEVEL_S = 40e-6
_TREE_SHARE = 0.9  # of the rate of a ring of large messages
_RAILS, _RAIL_BYTES_PER_S = 8, 50e9  # of the cluster that the network's table was measured on


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
        """Share that a ring reaches; below the smallest part a step takes the same time."""
        known = np.log2(self.ring_part_bytes)
        share = np.exp2(np.interp(np.log2(part_bytes), known, np.log2(self.ring)))
        return np.asarray(share * np.minimum(part_bytes / self.ring_part_bytes[0], 1.0))

    def exchange_share(self, islands: float, sent_bytes: FloatArray) -> FloatArray:
        """Share that an all-to-all reaches; below the smallest size its start-up time stays.

        Beyond the most nodes that were measured the share of those holds.
        """
        nodes, sizes = np.log2(self.exchange_nodes), np.log2(self.exchange_bytes)
        by_node = np.array(
            [np.interp(np.log2(sent_bytes), sizes, np.log2(shares)) for shares in self.exchange]
        )
        measured = np.array([np.interp(np.log2(islands), nodes, column) for column in by_node.T])
        first, last = (
            np.exp2(np.interp(np.log2(islands), nodes, np.log2([s[i] for s in self.exchange])))
            for i in (0, -1)
        )
        smallest = self.exchange_bytes[0]
        start_up = smallest / first - smallest / last  # in bytes at line rate
        below = sent_bytes / (start_up + sent_bytes / last)
        return np.asarray(np.where(sent_bytes < smallest, below, np.exp2(measured)))


@cache
def network_shares() -> NetworkShares:
    """The measured network.

    Raises:
        ProfileError: the catalog's file is broken.
    """
    try:
        return network_shares_from_json(json.loads((FOLDER / "network.json").read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise ProfileError("catalog: collectives/network.json cannot be read") from error


def network_shares_from_json(raw: Mapping[str, Any]) -> NetworkShares:
    """The shares of one file.

    Raises:
        ProfileError: another format, or a field is missing.
    """
    if raw.get("format") != FORMAT:
        raise ProfileError(f"network shares are not of the format {FORMAT}")
    try:
        return NetworkShares(
            ring_part_bytes=tuple(raw["ring"]["part_bytes"]),
            ring=tuple(raw["ring"]["share"]),
            exchange_bytes=tuple(raw["all_to_all"]["sent_bytes"]),
            exchange_nodes=tuple(raw["all_to_all"]["num_nodes"]),
            exchange=tuple(tuple(shares) for shares in raw["all_to_all"]["share"]),
            gpus_per_node=int(raw["gpus_per_node"]),
            source=str(raw["source"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"network shares: {type(error).__name__} at {error}") from error


def tree_share(islands: float, payload_bytes: FloatArray) -> FloatArray:
    """Share of the line rate that an all-reduce through two trees reaches."""
    at_line_rate = payload_bytes / (_RAILS * _RAIL_BYTES_PER_S)
    return np.asarray(at_line_rate / (np.log2(islands) * _TREE_LEVEL_S + at_line_rate / _TREE_SHARE))
