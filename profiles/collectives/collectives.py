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
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]

ROWS_PER_DOUBLING = 2  # of ranks or islands; a count between two rows takes the larger one's
INSIDE_ROWS = 21  # 1 to 1024 ranks of one island
ACROSS_ROWS = 41  # 1 to about a million islands
LOW, HIGH = -14, 40  # log2 of the smallest and largest part: a kilobyte over a million ranks, and 1 TiB
_MEASURED_ISLAND = 8.0  # GPUs of an island in the measured rows across islands
PARTS: FloatArray = np.exp2(np.arange(LOW, HIGH + 1, dtype=np.float64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Line rates of one GPU's links, and how many GPUs the fast one joins."""

    island_gpus: float
    nodes_per_island: float  # 1, or more where the fast link spans nodes
    fast_bytes_per_s: FloatArray | float
    network_bytes_per_s: FloatArray | float
    rail_only: bool = False  # no spine: GPUs of different local ranks meet inside an island alone

    def ring_bytes_per_s(self, in_island: FloatArray, islands: FloatArray) -> FloatArray:
        """Return bus bandwidth of a ring through all rails that the group owns in an island.

        NCCL closes one ring for each rail, so each rail carries ``1 / in_island`` of the bus bytes.
        """
        rails = in_island * self.network_bytes_per_s
        alone = np.where(in_island > 1, np.minimum(self.fast_bytes_per_s, rails), rails)
        return np.asarray(np.where(islands > 1, alone, self.fast_bytes_per_s))

    def exchange_bytes_per_s(self, in_island: FloatArray, islands: FloatArray) -> FloatArray:
        """Return bus bandwidth of an all-to-all: what leaves goes through the rank's own rail.

        The rest takes the fast link at the same time. Without a spine a message to another rail first
        takes the fast link to the GPU on that rail (Wang et al. 2023, arXiv:2307.12169, section 4.2).
        """
        size = in_island * islands
        leaving, staying = size - in_island, in_island - 1.0
        if self.rail_only:
            staying = staying + leaving * (1.0 - 1.0 / in_island)
        slower = np.maximum(leaving / self.network_bytes_per_s, staying / self.fast_bytes_per_s)
        alone = size <= 1
        return np.asarray(np.where(alone, 1.0, size - 1.0) / np.where(alone, 1.0, slower))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlowdownTable:
    """Seconds of one collective over those of its bus bytes at line rate."""

    taken_bytes: FloatArray  # flat (rows, parts): bytes that pass at line rate while a part takes its step
    rise_bytes: FloatArray  # from each to the next one

    @classmethod
    def of(cls, log2_slowdown: FloatArray) -> SlowdownTable:
        """Return the table of slowdowns (rows, parts): the inside rows, then the across rows."""
        taken_bytes = (PARTS * np.exp2(log2_slowdown)).ravel()
        return cls(taken_bytes=taken_bytes, rise_bytes=np.diff(taken_bytes))

    @classmethod
    def at_line_rate(cls) -> SlowdownTable:
        """Return a table in which nothing lies behind the line rate."""
        return cls.of(np.zeros((INSIDE_ROWS + ACROSS_ROWS, len(PARTS))))

    def at(self, row: IndexArray, part_bytes: FloatArray) -> FloatArray:
        """Return the bytes at line rate that a step of parts (n,) in the rows ``row_of`` (n,) is worth.

        Straight lines between powers of two: a step takes a fixed time and that of its bytes. Nothing is
        asked for beyond the ends, a ten-thousandth of a byte and a tebibyte.
        """
        mantissa, exponent = np.frexp(part_bytes)  # part = mantissa * 2^exponent, mantissa in [0.5, 1)
        below = np.minimum(np.maximum(exponent, LOW + 1), HIGH) + (row * len(PARTS) - LOW - 1)
        low = self.taken_bytes.take(below)
        return np.asarray(low + self.rise_bytes.take(below) * (2.0 * mantissa - 1.0))


def row_of(in_island: FloatArray, islands: FloatArray) -> IndexArray:
    """Return the row of groups of ``in_island`` ranks in each of ``islands`` islands."""
    crossing = islands > 1
    count = np.log2(np.where(crossing, islands, in_island))
    row = np.ceil(count * ROWS_PER_DOUBLING - 1e-9)
    most = crossing * (ACROSS_ROWS - INSIDE_ROWS) + (INSIDE_ROWS - 1)
    return np.asarray((np.minimum(row, most) + crossing * INSIDE_ROWS).astype(np.intp))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The links of one node group, with the shares of their line rates that collectives reach."""

    lines: Lines  # line rates times the level that the software stack reaches
    tables: Mapping[str, SlowdownTable]  # by collective
    launch_s: FloatArray | float  # of any collective
    hop_s: float = 0.0  # of a message between islands, beyond the latency that the tables count


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The layout of one pipeline stage's ranks: blocks with those of other stages in between."""

    size: FloatArray  # ranks of a block; all of the stage's where stages are outermost
    stages: FloatArray


@dataclass(frozen=True)
class Group:
    """Ranks of one collective; arrays of shape (n,). Times are computed on first use."""

    size: FloatArray
    stride: FloatArray  # among the ranks of their stage
    fabric: Fabric
    blocks: Blocks | None = None  # None: the ranks of a stage lie side by side
    world: FloatArray | None = None  # ranks of all stages; None: no group lies across the end of a node

    @cached_property
    def in_island(self) -> FloatArray:
        """Return the ranks of the group inside one island: the rails it owns there.

        Groups follow each other, so that some lie across the end of a node unless their sizes agree: 7
        ranks as 1 and 6. The slowest group counts, by its fewest ranks on a node. Of an island of several
        nodes a job takes as many as its groups fill: published runs use 64 of the 72 GPUs of a rack.
        """
        blocks = self.blocks
        if blocks is None:
            return self._together(self.size, self.stride)
        # ranks of one block, times the blocks within reach
        near = np.minimum(self.size, np.maximum(np.floor(blocks.size / self.stride), 1.0))
        step = np.maximum(self.stride * near, blocks.size) * blocks.stages
        return self._together(near, self.stride) * self._together(np.ceil(self.size / near), step)

    def _together(self, size: FloatArray, stride: FloatArray) -> FloatArray:
        """Return how many of ``size`` ranks, ``stride`` apart, share an island."""
        island = self.fabric.lines.island_gpus
        found = np.minimum(size, np.maximum(np.floor(island / stride), 1.0))
        if self.world is None or self.fabric.lines.nodes_per_island > 1.0:
            return np.asarray(found)
        period = size * stride
        whole = (island % period == 0.0) | ((island % stride == 0.0) & (period % island == 0.0))
        odd = np.flatnonzero(~whole & (stride < island) & (size > 1.0) & (self.world > island))
        if len(odd):
            groups = np.clip(self.world[odd] // period[odd], 1.0, island)
            keys = np.stack([size[odd], stride[odd], groups], axis=1).astype(np.intp)
            every, which = np.unique(keys, axis=0, return_inverse=True)
            fewest = [_fewest_together(*key, int(island)) for key in every.tolist()]
            found[odd] = np.array(fewest, dtype=np.float64)[which.ravel()]
        return np.asarray(found)

    @cached_property
    def islands(self) -> FloatArray:
        """Return the islands that the group lies on."""
        return np.ceil(self.size / self.in_island)

    def take(self, index: IndexArray) -> Group:
        """Return the groups at ``index``, in that order."""
        blocks = self.blocks
        if blocks is not None:
            blocks = Blocks(size=blocks.size.take(index), stages=blocks.stages.take(index))
        world = None if self.world is None else self.world.take(index)
        return Group(self.size.take(index), self.stride.take(index), self.fabric, blocks, world)

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
        """Return the start-up seconds of any collective; 0 for a rank alone.

        A message of a ring passes every island.
        """
        hops_s = (self.islands - 1.0) * self.fabric.hop_s if self.fabric.hop_s else 0.0
        return np.where(self.size > 1, self.fabric.launch_s + hops_s, 0.0)


@lru_cache(maxsize=65536)
def _fewest_together(size: int, stride: int, groups: int, island: int) -> int:
    """Return the fewest ranks in an island of any group among the first so many, each behind the others."""
    starts = np.add.outer(np.arange(groups) * size * stride, np.arange(stride)) % island
    ends = starts + (size - 1) * stride
    first = np.minimum(-((starts - island) // stride), size)
    last = np.where(ends < island, size, ends % island // stride + 1)
    between = island // stride if (ends >= 2 * island).any() else size
    return min(int(first.min()), int(last.min()), between)


def _ring_s(collective: str, payload_bytes: FloatArray, group: Group) -> FloatArray:
    """Return the seconds of passing a payload once round a ring.

    Rows across islands were measured on islands of up to eight GPUs. A ring of larger ones also passes
    their ranks one by one, which takes no less than the same payload takes inside one of them.
    """
    table, lines = group.fabric.tables[collective], group.fabric.lines
    seconds = table.at(group.row, payload_bytes / group.size) * group.ring_s_per_byte
    if lines.island_gpus > _MEASURED_ISLAND:
        inside = group.in_island
        row = row_of(inside, np.ones_like(inside))
        alone = table.at(row, payload_bytes / inside) * (inside - 1.0) / lines.fast_bytes_per_s
        seconds = np.maximum(seconds, alone)
    return np.asarray(seconds)


def all_gather_s(payload_bytes: FloatArray, group: Group) -> FloatArray:
    """Return the seconds of an all-gather (or a reduce-scatter) with a result of ``payload_bytes``."""
    return _ring_s("all_gather", payload_bytes, group) + group.start_s


def all_reduce_s(payload_bytes: FloatArray, group: Group) -> FloatArray:
    """Return the seconds of an all-reduce: bus bytes of a reduce-scatter and an all-gather."""
    return 2.0 * _ring_s("all_reduce", payload_bytes, group) + group.start_s


def all_to_all_s(sent_bytes: FloatArray, group: Group) -> FloatArray:
    """Return the seconds of an all-to-all: every rank sends ``sent_bytes``, its own share included."""
    taken = group.fabric.tables["all_to_all"].at(group.row, sent_bytes / group.size)
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
    network = network + fabric.hop_s
    seconds = (1.0 - crossing) * fast + crossing * network + fabric.launch_s
    return np.asarray(np.where(size > 1, seconds, 0.0))
