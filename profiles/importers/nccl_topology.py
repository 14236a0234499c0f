"""Reads the topology that NCCL writes to ``NCCL_TOPO_DUMP_FILE``, and files for ``NCCL_TOPO_FILE``.

Format: github.com/NVIDIA/nccl, ``src/graph/xml.cc`` and ``topo.cc``: system > cpu > pci > … > gpu with
nvlink (targets are bus ids of GPUs or of NVSwitches), and nic > net with its speed in Mbit/s.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.profiles.importers.foreign_file import ForeignFile
from meshwright.profiles.importers.node_groups import connected
from meshwright.profiles.measurements import GpuPlace, NodeTopology

MAX_DEPTH = 64
MAX_DEVICES = 1024  # GPUs, and as many cards: far more than any NVLink domain has
MAX_XML_BYTES = 4 * 2**20
MAX_MBIT_PER_S = 10**7
ENCODED_LANE_GT = 8.0  # from 8 GT/s on, PCIe sends 128 bits in 130 (PCI-SIG base specification 3.0)

_LINK_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,2})?) GT/s(?: PCIe)?")


@dataclass(frozen=True, slots=True)
class _Found:
    """One gpu or net element with the elements above it, outermost first."""

    element: ET.Element
    above: tuple[ET.Element, ...]

    def pci(self, name: str) -> str | None:
        """Return an attribute of the closest pci element above."""
        return next((parent.get(name) for parent in reversed(self.above) if parent.tag == "pci"), None)


def _parse(file: ForeignFile) -> ET.Element:
    if len(file.text) > MAX_XML_BYTES:
        raise file.fault("", f"larger than {MAX_XML_BYTES // 2**20} MiB, too large for one node")
    if "<!DOCTYPE" in file.text or "<!ENTITY" in file.text:
        raise file.fault("", "declares a document type (NCCL never writes one)")
    try:
        root = ET.fromstring(file.text)  # noqa: S314 (documents with entities were refused above)
    except ET.ParseError as error:
        raise file.fault(f"line {error.position[0]}", "is not well-formed XML; was it cut off?") from error
    except (ValueError, LookupError) as error:
        raise file.fault("", "declares an encoding other than UTF-8") from error
    if root.tag != "system":
        raise file.fault("line 1", "expected the root element <system>")
    return root


def _find(file: ForeignFile, root: ET.Element) -> tuple[list[_Found], list[_Found]]:
    gpus: list[_Found] = []
    nets: list[_Found] = []
    stack: list[tuple[ET.Element, tuple[ET.Element, ...]]] = [(root, ())]
    while stack:
        element, above = stack.pop()
        if len(above) > MAX_DEPTH:
            raise file.fault("", f"nested deeper than {MAX_DEPTH} elements")
        if element.tag in ("gpu", "net"):
            (gpus if element.tag == "gpu" else nets).append(_Found(element, above))
        if max(len(gpus), len(nets)) > MAX_DEVICES:
            raise file.fault("", f"expected at most {MAX_DEVICES} GPUs and network cards")
        stack += [(child, (*above, element)) for child in reversed(element)]
    return gpus, nets


def _pcie_bytes_per_s(file: ForeignFile, gpu: _Found) -> float | None:
    """Return the rate of the GPU's slot: transfers a second × lanes × encoding / 8 bits."""
    speed = _LINK_SPEED.fullmatch(gpu.pci("link_speed") or "")
    width = gpu.pci("link_width")
    if speed is None or width in (None, "0", ""):
        return None
    lanes = file.whole(width, "pci link_width", high=64)
    transfers = file.positive(speed[1], "pci link_speed", high=1000.0)
    encoding = 128 / 130 if transfers >= ENCODED_LANE_GT else 8 / 10
    return transfers * 1e9 * lanes * encoding / 8


def _nvlinks(file: ForeignFile, gpu: _Found) -> tuple[int, list[str]]:
    links = list(gpu.element.iter("nvlink"))
    counts = [file.whole(link.get("count"), "nvlink count", low=0, high=1000) for link in links]
    targets = [(link.get("target") or "").lower() for link in links]
    if not all(targets):
        raise file.fault("nvlink", "expected the attribute target")
    return sum(counts), targets


def _islands(gpus: Sequence[_Found], targets: Sequence[Sequence[str]]) -> tuple[tuple[int, ...], ...]:
    """Return GPUs that reach each other directly or through NVSwitches (which form one fabric)."""
    bus_ids = {(gpu.pci("busid") or "").lower(): index for index, gpu in enumerate(gpus)}
    switched = [i for i, ends in enumerate(targets) if any(end not in bus_ids for end in ends)]
    direct = [(i, bus_ids[end]) for i, ends in enumerate(targets) for end in ends if end in bus_ids]
    return connected(len(gpus), direct + [(switched[0], other) for other in switched])


def _rate(file: ForeignFile, net: _Found) -> float | None:
    speed = net.element.get("speed")
    mbit_per_s = None if speed is None else file.whole(speed, "net speed", low=0, high=MAX_MBIT_PER_S)
    return mbit_per_s * 1e6 / 8 if mbit_per_s else None


def looks_like(file: ForeignFile) -> bool:
    """Return whether the text is such a document."""
    start = file.text.lstrip()[:2000]
    return "<system" in start and ("<cpu" in start or "<pci" in start)


def read_nccl_topology(path: Path | str) -> NodeTopology:
    """Return GPUs, NVLink islands and network cards.

    Raises:
        ProfileError: no XML, no <system>, no GPU, or an attribute out of range.
    """
    file = ForeignFile.open(path)
    root = _parse(file)
    gpus, nets = _find(file, root)
    if not gpus:
        raise file.fault("", "expected at least one <gpu> (a file for NCCL_TOPO_FILE may leave them out)")
    links = [_nvlinks(file, gpu) for gpu in gpus]
    hosts = {cpu.get("host_hash") for cpu in root.iter("cpu")}
    return NodeTopology(
        gpus=tuple(
            GpuPlace(nvlinks=count, pcie_bytes_per_s=_pcie_bytes_per_s(file, gpu))
            for gpu, (count, _) in zip(gpus, links, strict=True)
        ),
        islands=_islands(gpus, [targets for _, targets in links]),
        nic_bytes_per_s=tuple(_rate(file, net) for net in nets),
        num_hosts=len(hosts),
    )
