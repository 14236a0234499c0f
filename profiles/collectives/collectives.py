"""Seconds of collectives, and which links a group of ranks crosses.

Ranks are laid out axis by axis, so a group is a size and a stride (``Blocks``: where other stages lie in
between). Bus bytes (Thakur, Rabenseifner and Gropp 2005,
"Optimization of Collective Communication Operations in MPICH"; nccl-tests, ``doc/PERFORMANCE.md``): an
all-gather, a reduce-scatter or an all-to-all moves ``(n - 1) / n`` of the payload through each rank, an
all-reduce twice that. ``slowdown_tables`` holds how far each collective stays behind the line rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meshwright.profiles.collectives.tables import IndexArray, Lines, SlowdownTable, row_of

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The links of one node group, with the shares of their line rates that collectives reach."""

    lines: Lines  # line rates times the level that the software stack reaches
    tables: Mapping[str, SlowdownTable]  # by collective
    launch_s: FloatArray | float  # of any collective


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The layout of one pipeline stage's ranks: blocks with those of other stages in between."""

    size: FloatArray  # ranks of a block; all of the stage's where stages are outermost
    stages: FloatArray


@dataclass(frozen=True, kw_only=True)
class Group:
    """Ranks of one collective; arrays of shape (n,). Times are computed on first use."""

    size: FloatArray
    in_island: FloatArray  # ranks of the group inside one island: the rails it owns there
    islands: FloatArray
    fabric: Fabric

    @classmethod
    def of(
        cls, size: FloatArray, stride: FloatArray, fabric: Fabric, blocks: Blocks | None = None
    ) -> Group:
        """Return the group of ``size`` ranks that lie ``stride`` apart among those of their stage.

        None for ``blocks``: the ranks of a stage lie side by side.
        """
        island = fabric.lines.island_gpus
        inside = _together(size, stride, island)
        if blocks is not None:
            inside = _together_in_blocks(size, stride, island, blocks)
        return cls(size=size, in_island=inside, islands=np.ceil(size / inside), fabric=fabric)

    def take(self, index: IndexArray) -> Group:
        """Return the groups at ``index``, in that order."""
        size, inside, islands = (one.take(index) for one in (self.size, self.in_island, self.islands))
        return Group(size=size, in_island=inside, islands=islands, fabric=self.fabric)

    @cached_property
    def row(self) -> IndexArray:
        """Return the row of the groups in the tables."""
        return row_of(self.in_island, self.islands)

    @cached_property
    def ring_s_per_byte(self) -> FloatArray:
        """Return the seconds per byte of one rank's part of a payload, at line rate; 0 for a rank alone."""
        rate = self.fabric.lines.ring_bytes_per_s(self.in_island, self.islands)
        return np.asarray((self.size - 1.0) / rate)

    @cached_property
    def exchange_s_per_byte(self) -> FloatArray:
        """Return the seconds of an all-to-all per byte of one rank's part of a payload, at line rate."""
        rate = self.fabric.lines.exchange_bytes_per_s(self.in_island, self.islands)
        return np.asarray((self.size - 1.0) / rate)

    @cached_property
    def start_s(self) -> FloatArray:
        """Return the start-up seconds of any collective; 0 for a rank alone."""
        return np.where(self.size > 1, self.fabric.launch_s, 0.0)


def _together(size: FloatArray, stride: FloatArray, island_gpus: float) -> FloatArray:
    """Return how many of ``size`` ranks, ``stride`` apart, share an island."""
    return np.asarray(np.minimum(size, np.maximum(np.floor(island_gpus / stride), 1.0)))


def _together_in_blocks(
    size: FloatArray, stride: FloatArray, island_gpus: float, blocks: Blocks
) -> FloatArray:
    """Return the same for a stage in blocks: ranks of one block, times the blocks within reach."""
    near = np.minimum(size, np.maximum(np.floor(blocks.size / stride), 1.0))
    step = np.maximum(stride * near, blocks.size) * blocks.stages
    return _together(near, stride, island_gpus) * _together(np.ceil(size / near), step, island_gpus)


def all_gather_s(payload_bytes: FloatArray, group: Group, fabric: Fabric) -> FloatArray:
    """Return the seconds of an all-gather (or a reduce-scatter) with a result of ``payload_bytes``."""
    taken = fabric.tables["all_gather"].at(group.row, payload_bytes / group.size)
    return np.asarray(taken * group.ring_s_per_byte + group.start_s)


def all_reduce_s(payload_bytes: FloatArray, group: Group, fabric: Fabric) -> FloatArray:
    """Return the seconds of an all-reduce: bus bytes of a reduce-scatter and an all-gather."""
    taken = fabric.tables["all_reduce"].at(group.row, payload_bytes / group.size)
    return np.asarray(2.0 * taken * group.ring_s_per_byte + group.start_s)


def all_to_all_s(sent_bytes: FloatArray, group: Group, fabric: Fabric) -> FloatArray:
    """Return the seconds of an all-to-all: every rank sends ``sent_bytes``, its own share included."""
    taken = fabric.tables["all_to_all"].at(group.row, sent_bytes / group.size)
    return np.asarray(taken * group.exchange_s_per_byte + group.start_s)


def point_to_point_s(
    sent_bytes: FloatArray, stride: FloatArray, size: FloatArray, fabric: Fabric
) -> FloatArray:
    """Return the seconds of one message between neighbours ``stride`` apart in a line of ``size`` ranks.

    One step of a ring of two. Of the neighbours at most ``stride / island`` sit in different islands;
    none when the whole line fits one island.
    """
    island = fabric.lines.island_gpus
    crossing = np.where(size * stride > island, np.minimum(stride / island, 1.0), 0.0)
    table, one = fabric.tables["all_gather"], np.ones_like(sent_bytes)
    fast = table.at(row_of(2.0 * one, one), sent_bytes) / fabric.lines.fast_bytes_per_s
    network = table.at(row_of(one, 2.0 * one), sent_bytes) / fabric.lines.network_bytes_per_s
    seconds = (1.0 - crossing) * fast + crossing * network + fabric.launch_s
    return np.asarray(np.where(size > 1, seconds, 0.0))
