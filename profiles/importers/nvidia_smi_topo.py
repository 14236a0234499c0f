"""Reads the matrix that ``nvidia-smi topo -m`` prints.

Legend of the tool: X self, NV# a bonded set of # NVLinks, PIX at most one PCIe bridge, PXB several
bridges, PHB a PCIe host bridge, NODE within a NUMA node, SYS across NUMA nodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from meshwright.profiles.importers.foreign_file import ForeignFile
from meshwright.profiles.importers.node_groups import connected
from meshwright.profiles.measurements import GpuPlace, NodeTopology
from meshwright.profiles.reading import shown

PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
MAX_DEVICES = 512
MAX_DIRECT_NVLINKS = 18  # of one GPU: 6 V100, 12 A100, 18 H100 and later (NVIDIA data sheets)

_CELL = re.compile(rf"X|NV[0-9]{{1,3}}|{'|'.join(PATHS)}")
_GPU = re.compile(r"GPU[0-9]{1,3}")

Matrix = Mapping[str, tuple[str, ...]]  # row → its cells, in the order of the header


def _header(file: ForeignFile) -> tuple[int, tuple[str, ...]]:
    for number, line in file.lines():
        words = line.split()
        if words and _GPU.fullmatch(words[0]) and not any(_CELL.fullmatch(word) for word in words):
            devices = tuple(words[: words.index("CPU") if "CPU" in words else len(words)])
            if len(set(devices)) != len(devices) or len(devices) > MAX_DEVICES:
                raise file.fault(f"line {number}", f"expected up to {MAX_DEVICES} different devices")
            return number, devices
    raise file.fault("", "expected a header with GPU0, GPU1, …")


def _rows(file: ForeignFile, start: int, devices: Sequence[str]) -> Matrix:
    matrix: dict[str, tuple[str, ...]] = {}
    for number, line in file.lines():
        words = line.split()
        if number <= start or not words or words[0] not in devices:
            continue
        name, cells = words[0], tuple(words[1 : len(devices) + 1])
        where = f"line {number}, row {name}"
        wrong = [cell for cell in cells if not _CELL.fullmatch(cell)]
        if wrong or len(cells) < len(devices):
            what = f"{shown(wrong[0])} is not a link" if wrong else f"found {len(cells)} cells"
            raise file.fault(where, f"{what}, expected {len(devices)} of X, NV#, {', '.join(PATHS)}")
        if name in matrix:
            raise file.fault(where, "the device has two rows")
        if cells[devices.index(name)] != "X" or cells.count("X") != 1:
            raise file.fault(where, "expected X for the device itself, and only there")
        matrix[name] = cells
    missing = [name for name in devices if name not in matrix]
    if missing:
        raise file.fault("", f"the row of {shown(missing[0])} is missing; was the output cut off?")
    return matrix


def _nvlinks(counts: Sequence[int]) -> int:
    """Return the number of NVLinks that leave a GPU, from its cells to every other GPU.

    Where links go straight to peers the counts add up; behind NVSwitch every cell names all of
    them. More than a GPU can have means a switch.
    """
    total = sum(counts)
    return total if total <= MAX_DIRECT_NVLINKS else max(counts)


def _check_symmetric(file: ForeignFile, matrix: Matrix, devices: Sequence[str]) -> None:
    for i, first in enumerate(devices):
        for j, second in enumerate(devices[:i]):
            if matrix[first][j] != matrix[second][i]:
                raise file.fault(f"row {first}", f"the link to {second} differs from {second}'s to {first}")


def looks_like(file: ForeignFile) -> bool:
    """Return whether the text holds such a matrix."""
    return any(line.split()[:2] == ["GPU0", "X"] for _, line in file.lines())


def read_nvidia_smi_topo(path: Path | str) -> NodeTopology:
    """Return GPUs, NVLink islands and the number of network cards.

    Raises:
        ProfileError: no header, a missing or broken row, or a matrix that is not symmetric.
    """
    return topology_of(ForeignFile.open(path))


def topology_of(file: ForeignFile) -> NodeTopology:
    """Return the same of text that was read already.

    Raises:
        ProfileError: as ``read_nvidia_smi_topo``.
    """
    start, devices = _header(file)
    matrix = _rows(file, start, devices)
    _check_symmetric(file, matrix, devices)
    columns = [column for column, name in enumerate(devices) if _GPU.fullmatch(name)]
    cells = [[matrix[devices[one]][other] for other in columns] for one in columns]
    links = [[int(cell[2:]) if cell.startswith("NV") else 0 for cell in row] for row in cells]
    pairs = [(one, other) for one, row in enumerate(links) for other, count in enumerate(row) if count]
    return NodeTopology(
        gpus=tuple(GpuPlace(nvlinks=_nvlinks(row)) for row in links),
        islands=connected(len(columns), pairs),
        nic_bytes_per_s=(None,) * (len(devices) - len(columns)),
    )
