"""Reads vTrain's look-up tables of all-reduce (github.com/VIA-Research/vTrain): ``AR_GPU8_1M_1024M_LUT``.

A table is nccl-tests' in CSV: size(B), count, type, then time(ns) and busbw(GB/s) out of place and in
place. The number of ranks stands in the file's name only.
"""

from __future__ import annotations

import re
from pathlib import Path

from meshwright.profiles.importers.foreign_file import (
    MAX_BYTES_PER_S,
    MAX_PAYLOAD_BYTES,
    MAX_SECONDS,
    ForeignFile,
)
from meshwright.profiles.measurements import CollectiveTable, CollectiveTables
from meshwright.profiles.units import GB

_HEADER = "size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)"
_NAME = re.compile(r"AR_GPU(\d{1,6})_.*")
_NANOSECOND_S = 1e-9
_ROUNDING = 0.05
_SMALLEST = 0.02  # GB/s: two decimals


def _sample(file: ForeignFile, cells: list[str], at: int, ranks: int, where: str) -> tuple[float, float]:
    """Seconds and bus bandwidth of one half of a row: busbw = 2 (n − 1) / n × size / time."""
    size = int(cells[0])
    time = file.positive(cells[at], f"{where}, time(ns)", high=MAX_SECONDS / _NANOSECOND_S) * _NANOSECOND_S
    bus = file.positive(cells[at + 1], f"{where}, busbw(GB/s)", high=MAX_BYTES_PER_S / GB)
    expected = 2.0 * (ranks - 1) / ranks * size / time / GB
    if abs(bus - expected) > _SMALLEST + _ROUNDING * expected:
        raise file.fault(where, f"busbw is not 2 (n - 1) / n × size / time of {ranks} ranks in GB/s")
    return time, bus * GB


def read_vtrain(path: Path | str) -> CollectiveTables:
    """The all-reduce table of one node, out of place and in place.

    Raises:
        ProfileError: another header or name, a broken row, or figures that contradict each other.
    """
    file = ForeignFile.open(path)
    name = _NAME.fullmatch(Path(path).name)
    if name is None:
        raise file.fault("", "expected a name such as AR_GPU8_1M_1024M_LUT, which says how many ranks")
    ranks = file.whole(name[1], "the file's name", low=2)
    lines = [(number, line.strip()) for number, line in file.lines() if line.strip()]
    if lines[0][1] != _HEADER:
        raise file.fault("line 1", f"expected the columns {_HEADER}")
    sizes: list[int] = []
    halves: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
    for number, line in lines[1:]:
        where, cells = f"line {number}", line.split(",")
        if len(cells) != _HEADER.count(",") + 1:
            raise file.fault(where, f"expected {_HEADER.count(',') + 1} columns, found {len(cells)}")
        sizes.append(file.whole(cells[0], f"{where}, size(B)", high=MAX_PAYLOAD_BYTES))
        if sizes[-1] <= max(sizes[:-1], default=0):
            raise file.fault(f"{where}, size(B)", "sizes must grow")
        for half, at in zip(halves, (3, 5), strict=True):
            half.append(_sample(file, cells, at, ranks, where))
    if not sizes:
        raise file.fault("", "has no rows")
    tables = [
        CollectiveTable(
            collective="all_reduce",
            num_ranks=ranks,
            num_nodes=1,
            in_place=in_place,
            payload_bytes=tuple(sizes),
            seconds=tuple(time for time, _ in half),
            bus_bytes_per_s=tuple(bus for _, bus in half),
        )
        for in_place, half in zip((False, True), halves, strict=True)
    ]
    return CollectiveTables(tables=tuple(tables))
