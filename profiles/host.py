"""The host beside each GPU: the link to it, its memory, and how fast its CPUs update weights.

Figures of the usual node of each architecture, one GPU's share; a node group may state its own link and
memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from profiles.cluster import NodeGroup

_REACHED = 0.8  # pinned copies over the line rate (nvbandwidth host_to_device_memcpy_ce: 25 of 31.5 GB/s)
_UPDATE_SHARE = 0.6  # of the memory's rate that CPU-Adam reaches (ZeRO-Offload, arXiv:2101.06840, table 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One GPU's share of its host."""

    link_bytes_per_s: float  # between GPU and host memory, each direction, as copies reach it
    memory_bytes: int
    memory_bytes_per_s: float  # as CPU optimizers reach it
    source: str


def _host(line_bytes_per_s: float, memory_gb: int, memory_bytes_per_s: float, source: str) -> Host:
    """A host from its data sheet."""
    return Host(
        link_bytes_per_s=_REACHED * line_bytes_per_s,
        memory_bytes=memory_gb * 10**9,
        memory_bytes_per_s=_UPDATE_SHARE * memory_bytes_per_s,
        source=source,
    )


_PCIE_3, _PCIE_4, _PCIE_5 = 15.75e9, 31.5e9, 63.0e9  # x16, each direction (PCI-SIG base specifications)
_VOLTA = _host(_PCIE_3, 64, 153.6e9 / 8, "DGX-1: 512 GB, 2 x 4 channels DDR4-2400, PCIe 3.0 x16")
_AMPERE = _host(_PCIE_4, 250, 409.6e9 / 8, "DGX A100: 2 TB, 2 x 8 channels DDR4-3200, PCIe 4.0 x16")
_HOPPER = _host(_PCIE_5, 250, 614.4e9 / 8, "DGX H100: 2 TB, 2 x 8 channels DDR5-4800, PCIe 5.0 x16")
_USUAL: Mapping[str, Host] = {
    "volta": _VOLTA, "turing": _VOLTA, "ampere": _AMPERE, "ada": _AMPERE, "cdna2": _AMPERE,
    "hopper": _HOPPER, "blackwell": _HOPPER, "cdna3": _HOPPER, "cdna4": _HOPPER,
}  # fmt: skip
_GRACE_2 = _host(
    225e9, 240, 512e9 / 2, "GB200 NVL72: NVLink-C2C 900 GB/s both ways and 480 GB for two GPUs"
)
_SUPERCHIPS: Mapping[str, Host] = {
    "gb200": _GRACE_2,
    "gb300": _GRACE_2,
    "gh200": _host(450e9, 480, 512e9, "GH200: NVLink-C2C 900 GB/s both ways and 480 GB for one GPU"),
}


def host_of(group: NodeGroup) -> Host:
    """One GPU's share of its host: what the group states, else the usual node's."""
    usual = _SUPERCHIPS.get(group.gpu.slug.split("-")[0], _USUAL.get(group.gpu.architecture, _AMPERE))
    if group.host_link_bytes_per_s is not None:
        usual = replace(usual, link_bytes_per_s=group.host_link_bytes_per_s)
    if group.host_memory_bytes is not None:
        usual = replace(usual, memory_bytes=group.host_memory_bytes // group.gpus_per_node)
    return usual
