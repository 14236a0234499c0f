"""Reads what the tools of a machine print about its GPUs, network, hosts and drives.

Each function takes the text of one command and raises nothing: a line that it cannot read is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.importers.foreign_file import ForeignFile
from meshwright.profiles.importers.slurm_topology import expand_hostlist
from meshwright.profiles.library import find_gpu, gpu_of_device, is_gpu_name

MIB, KIB = 2**20, 2**10
# Bytes per second of one PCI Express lane in one direction, by generation (as in catalog/links.yaml).
LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
NVIDIA_QUERY = ("name", "memory.total", "pcie.link.gen.max", "pcie.link.width.max", "mig.mode.current")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGpu:
    """One GPU as a driver reports it."""

    name: str
    memory_bytes: int
    pcie_bytes_per_s: float | None = None
    is_cut: bool = False  # by MIG

    @property
    def slug(self) -> str | None:
        """Return its type in the catalog; None: unknown there."""
        return gpu_of_device(self.name, self.memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPort:
    """One network port that is up."""

    device: str
    kind: str  # infiniband, roce, ethernet
    gbit_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    """One host as a scheduler lists it."""

    name: str
    gpu: str  # its type in the catalog; empty: unknown there
    reported: str  # the type as it is listed; empty: none is stated
    gpus: int
    memory_bytes: int | None = None
    is_up: bool = True


# --------------------------------------------------------------------------------------------------
# GPUs.


def nvidia_gpus(text: str) -> list[SeenGpu]:
    """Read ``nvidia-smi --query-gpu=… --format=csv,noheader,nounits`` with ``NVIDIA_QUERY``."""
    return [gpu for gpu in map(_nvidia_gpu, text.splitlines()) if gpu is not None]


def _nvidia_gpu(line: str) -> SeenGpu | None:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) < len(NVIDIA_QUERY) or _number(cells[1]) is None:
        return None
    lane = LANE_BYTES_PER_S.get(int(_number(cells[2]) or 0))
    width = _number(cells[3])
    return SeenGpu(
        name=cells[0],
        memory_bytes=int((_number(cells[1]) or 0) * MIB),
        pcie_bytes_per_s=lane * width if lane and width else None,
        is_cut=cells[4] == "Enabled",
    )


def amd_gpus(text: str) -> list[SeenGpu]:
    """Read ``rocm-smi --showproductname --showmeminfo vram --json``; releases differ in upper case."""
    document = _json_of(text)
    found = list[SeenGpu]()
    for card, raw in document.items():
        if not card.startswith("card") or not isinstance(raw, Mapping):
            continue
        fields = {str(key).lower(): str(value) for key, value in raw.items()}
        memory = _number(fields.get("vram total memory (b)", ""))
        names = [fields.get(key, "") for key in ("card series", "card model")]
        if memory:
            seen = [SeenGpu(name=_plain_amd(name), memory_bytes=int(memory)) for name in names if name]
            found += [next((one for one in seen if one.slug), seen[0])] if seen else []
    return found


def _plain_amd(name: str) -> str:
    """Return ``AMD Instinct MI300X`` of ``AMD Instinct MI300X OAM`` or ``… [AMD Instinct MI100]``."""
    inside = re.search(r"\[(AMD [^\]]+)\]", name)
    return re.sub(r"\s*\(MCM\)|\bOAM\b.*$", "", inside[1] if inside else name).strip()


def amd_links(text: str) -> str:
    """Read ``rocm-smi --showtopotype``: xgmi, pcie, or nothing of it."""
    words = set(text.split())
    return "xgmi" if "XGMI" in words else "pcie" if "PCIE" in words else ""


def torch_gpus(text: str) -> list[SeenGpu]:
    """Read names and bytes that torch reports, as a JSON list of pairs."""
    try:
        rows = json.loads(text)
        return [SeenGpu(name=str(name), memory_bytes=int(size)) for name, size in rows]
    except (ValueError, TypeError):
        return []


# --------------------------------------------------------------------------------------------------
# Network.


def infiniband_ports(text: str) -> list[SeenPort]:
    """Read what ibstat prints: active ports, as RoCE where the link layer is Ethernet."""
    found, device, fields = list[SeenPort](), "", dict[str, str]()
    for line in [*text.splitlines(), "Port end:"]:
        key, _, value = (part.strip() for part in line.partition(":"))
        if line.startswith("CA '") or (key.startswith("Port ") and not value):
            found += _port(device, fields)
            fields = {}
            device = line.split("'")[1] if line.startswith("CA '") else device
        else:
            fields[key] = value
    return found


def _port(device: str, fields: Mapping[str, str]) -> list[SeenPort]:
    rate = _number(fields.get("Rate", ""))
    if fields.get("State") != "Active" or not rate:
        return []
    kind = "infiniband" if fields.get("Link layer", "InfiniBand") == "InfiniBand" else "roce"
    return [SeenPort(device=device, kind=kind, gbit_per_s=rate)]


def main_ports(ports: Sequence[SeenPort]) -> list[SeenPort]:
    """Return the ports that GPUs talk over: the kind that is best for it, at its highest rate.

    Slower ports next to them carry storage and logins.
    """
    for kind in ("infiniband", "roce", "ethernet"):
        own = [port for port in ports if port.kind == kind]
        if own:
            most = max(port.gbit_per_s for port in own)
            return [port for port in own if port.gbit_per_s == most]
    return []


# --------------------------------------------------------------------------------------------------
# Hosts.

_GRES = re.compile(r"gpu(?::([A-Za-z][\w.+-]*))?:(\d+)")
_TRES = re.compile(r"gres/gpu(?::([A-Za-z][\w.+-]*))?=(\d+)")
_FIELD = re.compile(r"(?:^|\s)([A-Za-z]\w*)=(\S*)")
_GONE = re.compile(r"DOWN|DRAIN|FAIL|NOT_RESPONDING|POWERED_DOWN|FUTURE")


def slurm_nodes(text: str) -> list[SeenNode]:
    """Read ``scontrol show node``, with or without ``--oneliner``: nodes with GPUs."""
    blocks = re.split(r"(?m)(?=^NodeName=)", text)
    return [node for node in map(_slurm_node, blocks) if node is not None]


def _slurm_node(block: str) -> SeenNode | None:
    fields = dict(_FIELD.findall(block))
    kinds = _GRES.findall(fields.get("Gres", "")) or _TRES.findall(fields.get("CfgTRES", ""))
    typed = [(name, int(count)) for name, count in kinds if name] or [("", int(n)) for _, n in kinds]
    if "NodeName" not in fields or not typed or not any(count for _, count in typed):
        return None
    name, count = max(typed, key=lambda one: one[1])
    memory = _number(fields.get("RealMemory", ""))
    return SeenNode(
        name=fields["NodeName"],
        gpu=_listed_gpu(name),
        reported=name,
        gpus=count,
        memory_bytes=int(memory * MIB) if memory else None,
        is_up=not _GONE.search(fields.get("State", "")),
    )


def _listed_gpu(name: str) -> str:
    """Return the catalog's type of a name with underscores, as Slurm writes it; empty: unknown."""
    words = name.replace("_", " ")
    return find_gpu(words).slug if words and is_gpu_name(words) else ""


_OF_KUBERNETES = {"nvidia.com": "nvidia.com/gpu", "amd.com": "amd.com/gpu"}
_CUT = ("MIG", "SHARED")  # labels of GPUs that are cut, or shared between pods


def kubernetes_nodes(text: str) -> list[SeenNode]:
    """Read ``kubectl get nodes -o json``: nodes with whole GPUs."""
    items = _json_of(text).get("items", [])
    return [node for node in map(_kubernetes_node, items if isinstance(items, list) else []) if node]


def _kubernetes_node(item: Any) -> SeenNode | None:  # noqa: ANN401 - JSON
    try:
        meta, status = item["metadata"], item["status"]
        labels, capacity = meta.get("labels", {}), status["capacity"]
        counts = {maker: int(capacity.get(name, 0)) for maker, name in _OF_KUBERNETES.items()}
        maker, count = max(counts.items(), key=lambda one: one[1])
        reported = str(labels.get(f"{maker}/gpu.product") or labels.get(f"{maker}/gpu.product-name") or "")
        ready = [one["status"] for one in status.get("conditions", []) if one["type"] == "Ready"]
        memory = _quantity(str(capacity.get("memory", "")))
        name, of_gpu = str(meta["name"]), _number(str(labels.get(f"{maker}/gpu.memory", "")))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    if not count or any(word in reported.upper().split("-") for word in _CUT):
        return None
    plain = re.sub(r"[-_]", " ", reported)
    slug = gpu_of_device(plain, int(of_gpu * MIB)) if of_gpu else None
    is_up = not item.get("spec", {}).get("unschedulable") and "False" not in ready
    return SeenNode(
        name=name, gpu=slug or _listed_gpu(plain), reported=reported, gpus=count, memory_bytes=memory,
        is_up=is_up,
    )  # fmt: skip


_UNITS = {"": 1, "Ki": KIB, "Mi": MIB, "Gi": 2**30, "Ti": 2**40, "K": 10**3, "M": 10**6, "G": 10**9}


def _quantity(text: str) -> int | None:
    match = re.fullmatch(r"(\d+)([KMGT]i?)?", text)
    return int(match[1]) * _UNITS[match[2] or ""] if match and (match[2] or "") in _UNITS else None


def hostfile_nodes(text: str) -> list[tuple[str, int | None]]:
    """Read a hostfile of DeepSpeed or MPI: host names, each with its slots where they are stated.

    Raises:
        InvalidProblemError: slots are no number above 0, with the line.
    """
    found = list[tuple[str, int | None]]()
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        host, _, colon = words[0].partition(":") if words[0].count(":") == 1 else (words[0], "", "")
        slots = next((word.partition("=")[2] for word in words if word.startswith("slots=")), colon)
        if slots and not (slots.isdecimal() and int(slots)):
            raise InvalidProblemError.of(
                "--hostfile", f"line {number}: {shown(slots)} is no number of slots", allowed="HOST slots=8"
            )
        found.append((host, int(slots) if slots else None))
    return found


def listed_hosts(nodelist: str) -> int:
    """Return how many hosts ``node[01-04],login`` names.

    Raises:
        ProfileError: it is no list of hosts.
    """
    return len(expand_hostlist(ForeignFile.of("SLURM_JOB_NODELIST", nodelist), nodelist, ""))


# --------------------------------------------------------------------------------------------------
# Host memory and drives.


def memory_total(text: str) -> int | None:
    """Read ``/proc/meminfo``."""
    match = re.search(r"(?m)^MemTotal:\s+(\d+) kB", text)
    return int(match[1]) * KIB if match else None


def nvme_total(text: str) -> int:
    """Read ``lsblk --json --bytes --nodeps --output NAME,SIZE,TYPE``: bytes of all NVMe drives."""
    devices = _json_of(text).get("blockdevices", [])
    sizes = (
        int(one.get("size") or 0)
        for one in (devices if isinstance(devices, list) else [])
        if str(one.get("name", "")).startswith("nvme") and one.get("type") == "disk"
    )
    return sum(sizes)


def _json_of(text: str) -> Mapping[str, Any]:
    """Return the JSON object in a text, behind warnings that a tool prints first."""
    start = text.find("{")
    try:
        document = json.loads(text[start:]) if start >= 0 else {}
    except ValueError:
        return {}
    return document if isinstance(document, Mapping) else {}


def _number(text: str) -> float | None:
    match = re.match(r"\d+(?:\.\d+)?", text.strip())
    return float(match[0]) if match else None


def counted(nodes: Sequence[SeenNode]) -> Iterator[tuple[tuple[str, int], list[SeenNode]]]:
    """Yield nodes that are alike: GPU type and number, and the nodes."""
    kinds = dict[tuple[str, int], list[SeenNode]]()
    for node in nodes:
        kinds.setdefault((node.gpu, node.gpus), []).append(node)
    yield from kinds.items()
