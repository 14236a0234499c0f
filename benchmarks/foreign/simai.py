"""Reads SimAI's ratio tables (github.com/aliyun/SimAI): share of a link's rate by size and nodes.

The columns ``Multi …`` of those files (several collectives at a time) have no fixed meaning and are
left out; empty cells were not measured.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.foreign.records import BandwidthShares
from meshwright.profiles.importers.foreign_file import MAX_PAYLOAD_BYTES, ForeignFile
from meshwright.profiles.reading import shown

_NODES = re.compile(r"(\d{1,6}) ?Node\b.*")


def read_simai(path: Path | str) -> BandwidthShares:
    """Shares by payload and number of nodes.

    Raises:
        ProfileError: another header, a broken row, or a share outside 0 to 1.
    """
    file = ForeignFile.open(path)
    lines = [(number, line.strip()) for number, line in file.lines() if line.strip()]
    if not lines:
        raise file.fault("", "is empty")
    header = lines[0][1].split(",")
    columns = {at: match for at, name in enumerate(header) if (match := _NODES.fullmatch(name.strip()))}
    nodes = [file.whole(match[1], "line 1") for match in columns.values()]
    if header[0] != "Size" or not nodes or nodes != sorted(set(nodes)):
        raise file.fault("line 1", "expected the columns Size, 1 Node…, 2Node…, 4Node…")
    sizes: list[int] = []
    shares: list[tuple[float | None, ...]] = []
    for number, line in lines[1:]:
        where, cells = f"line {number}", line.split(",")
        if len(cells) != len(header):
            raise file.fault(where, f"expected {len(header)} columns, found {len(cells)}")
        sizes.append(file.whole(cells[0], f"{where}, Size", high=MAX_PAYLOAD_BYTES))
        if sizes[-1] <= max(sizes[:-1], default=0):
            raise file.fault(f"{where}, Size", "sizes must grow")
        row = [
            file.positive(cells[at], f"{where}, {shown(header[at])}", high=1.0) if cells[at] else None
            for at in columns
        ]
        shares.append(tuple(row))
    if not sizes:
        raise file.fault("", "has no rows")
    return BandwidthShares(payload_bytes=tuple(sizes), num_nodes=tuple(nodes), shares=tuple(shares))
