"""Reads what nccl-tests (and rccl-tests) print: ``all_reduce_perf`` and its sisters.

A file may hold several tables, of several programs, between lines of NCCL, MPI and Slurm. Format:
github.com/NVIDIA/nccl-tests, ``src/util.cu``: times in µs, bandwidths in units of 1e9 bytes a second,
``algbw`` = size / time (``doc/PERFORMANCE.md``); that identity is checked in every row, so that a
file with other units is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.profiles.importers.foreign_file import (
    MAX_BYTES_PER_S,
    MAX_PAYLOAD_BYTES,
    MAX_SECONDS,
    ForeignFile,
)
from meshwright.profiles.measurements import CollectiveTable, CollectiveTables
from meshwright.profiles.units import GB, MICROSECOND_S

_PREFIX = re.compile(r"^\s*(\[\d+,\d+\]<std(?:out|err)>:|\d+:(?=\s))\s?")  # mpirun --tag-output, srun -l
_PROGRAM = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce|gather|scatter|sendrecv)_perf\b"
)
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s.*\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]")
_HEADER = re.compile(r"^#\s+size\s+count\s+type\s")
_UNITS = re.compile(r"^#\s+\((?P<size>\w+)\)\s+\(elements\)\s+\((?P<time>\w+)\)\s+\((?P<rate>[^)]+)\)")
_NAMES = {"alltoall": "all_to_all", "sendrecv": "point_to_point"}
_MISSING = "N/A"
_ROUNDING = 0.05  # of a time printed with three digits or two
_SMALLEST = 0.01  # GB/s: bandwidths are printed with two decimals


@dataclass(slots=True)
class _Column:
    """The samples of one half of a table: out of place, or in place."""

    payload_bytes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    bus_bytes_per_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _LogReader:
    file: ForeignFile
    program: str | None = None
    hosts: dict[int, str] = field(default_factory=dict)
    header: tuple[str, ...] = ()
    halves: tuple[_Column, _Column] = field(default_factory=lambda: (_Column(), _Column()))
    tables: list[CollectiveTable] = field(default_factory=list)

    def line(self, where: str, text: str) -> None:
        """Take in one line."""
        words = text.split()
        if _HEADER.match(text):
            self.finish()
            self.header = self._columns(where, words)
        elif self.header and words and words[0].isdecimal() and words[0].isascii():
            self._row(where, words)
        elif text.startswith("#"):
            self._comment(where, text)
        else:
            self._name_program(text)

    def finish(self) -> None:
        """Close the table that is open, if any."""
        if self.header and not any(half.payload_bytes for half in self.halves):
            raise self.file.fault("", "a table has no rows; was the test cut off?")
        self.tables += [
            self._table(half, in_place=in_place)
            for in_place, half in zip((False, True), self.halves, strict=True)
            if half.payload_bytes
        ]
        self.header, self.halves = (), (_Column(), _Column())

    def _comment(self, where: str, text: str) -> None:
        rank, units = _RANK.match(text), _UNITS.match(text)
        if rank:
            if int(rank[1]) == 0:
                self.hosts.clear()
            self.hosts[int(rank[1])] = rank[2]
        elif units and (units["size"], units["time"], units["rate"]) != ("B", "us", "GB/s"):
            raise self.file.fault(where, "expected the units (B), (us) and (GB/s)")
        else:
            self._name_program(text)

    def _name_program(self, text: str) -> None:
        """Remember the test that a command line or a banner names; a new one starts a new log."""
        program = _PROGRAM.search(text)
        if program:
            self.finish()
            self.program = _NAMES.get(program[1], program[1])

    def _columns(self, where: str, words: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the columns; two groups of time, algbw, busbw and number of errors."""
        names = tuple(word.lstrip("#") for word in words if word.lstrip("#"))
        groups = [names[i : i + 3] for i, name in enumerate(names) if name == "time"]
        if groups != [("time", "algbw", "busbw")] * 2:
            raise self.file.fault(where, "expected two groups of columns time, algbw, busbw")
        return names

    def _row(self, where: str, words: Sequence[str]) -> None:
        if len(words) != len(self.header):
            raise self.file.fault(where, f"expected {len(self.header)} columns, found {len(words)}")
        size = self.file.whole(words[0], f"{where}, size", low=0, high=MAX_PAYLOAD_BYTES)
        starts = [i for i, name in enumerate(self.header) if name == "time"]
        for column, start, end in zip(self.halves, starts, [starts[1], len(words)], strict=True):
            if size and words[start] != _MISSING:
                self._sample(
                    column, size, dict(zip(self.header[start:end], words[start:end], strict=True)), where
                )

    def _sample(self, column: _Column, size: int, cells: Mapping[str, str], where: str) -> None:
        """Read one measurement, checked against the row's own bandwidth."""
        seconds = self.file.positive(cells["time"], f"{where}, time", high=MAX_SECONDS / MICROSECOND_S)
        seconds *= MICROSECOND_S
        rate, bus = (
            self.file.number(cells[name], f"{where}, {name}", high=MAX_BYTES_PER_S / GB)
            for name in ("algbw", "busbw")
        )
        expected = size / seconds / GB
        if abs(rate - expected) > _SMALLEST + _ROUNDING * expected:
            raise self.file.fault(
                where, f"algbw is not size / time in GB/s (expected about {expected:.4g})"
            )
        if bus > 2.0 * rate + 2 * _SMALLEST:
            raise self.file.fault(f"{where}, busbw", "more than twice algbw")
        if column.payload_bytes and size <= column.payload_bytes[-1]:
            raise self.file.fault(f"{where}, size", "sizes must grow inside one table")
        column.payload_bytes.append(size)
        column.seconds.append(seconds)
        column.bus_bytes_per_s.append(bus * GB)

    def _table(self, half: _Column, *, in_place: bool) -> CollectiveTable:
        if self.program is None:
            raise self.file.fault("", "expected a line that names the test, e.g. all_reduce_perf")
        return CollectiveTable(
            collective=self.program,
            num_ranks=len(self.hosts) or None,
            num_nodes=len(set(self.hosts.values())) or None,
            in_place=in_place,
            payload_bytes=tuple(half.payload_bytes),
            seconds=tuple(half.seconds),
            bus_bytes_per_s=tuple(half.bus_bytes_per_s),
            hosts=tuple(dict.fromkeys(host for _, host in sorted(self.hosts.items()))),
        )


def looks_like(file: ForeignFile) -> bool:
    """Return whether the text holds a table of nccl-tests."""
    return any(_HEADER.match(_PREFIX.sub("", line).strip()) for _, line in file.lines())


def read_nccl_tests(path: Path | str) -> CollectiveTables:
    """Return all tables of a log, out of place and in place.

    Raises:
        ProfileError: no table, a broken row, other units, or no line that names the test.
    """
    file = ForeignFile.open(path)
    reader = _LogReader(file)
    for number, line in file.lines():
        reader.line(f"line {number}", _PREFIX.sub("", line).strip())
    reader.finish()
    if not reader.tables:
        raise file.fault("", 'expected a table of nccl-tests ("# size count type redop root time …")')
    return CollectiveTables(tables=tuple(reader.tables))
