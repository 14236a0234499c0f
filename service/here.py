"""This machine as a cluster: its GPUs, links, hosts, host memory and drives, and the launchers installed.

Nothing is required: nvidia-smi, rocm-smi, torch, ibstat, lsblk, scontrol and kubectl are asked where they
are there. ``Machine`` is the one way to ask, so that tests answer with recorded outputs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from meshwright.profiles.cluster import MAX_NODES
from meshwright.profiles.documents import MAX_SHOWN, shown
from meshwright.profiles.errors import InvalidProblemError, ProfileError
from meshwright.profiles.importers.foreign_file import ForeignFile
from meshwright.profiles.importers.machine import (
    NVIDIA_QUERY,
    SeenGpu,
    SeenNode,
    SeenPort,
    amd_gpus,
    amd_links,
    counted,
    hostfile_nodes,
    infiniband_ports,
    kubernetes_nodes,
    listed_hosts,
    main_ports,
    memory_total,
    nvidia_gpus,
    nvme_total,
    slurm_nodes,
    torch_gpus,
)
from meshwright.profiles.importers.node_groups import fields_of_topology
from meshwright.profiles.importers.nvidia_smi_topo import topology_of
from meshwright.profiles.library import find_gpu
from meshwright.profiles.model_shapes import Json

NAME = "here"
_TIMEOUT_S = 20.0
_GBIT = 1e9 / 8
_REACHED = 0.8  # of PCI Express that pinned copies reach (profiles/cluster.py)
_TORCH = (
    "import json, torch; c = torch.cuda; print(json.dumps([[c.get_device_properties(i).name, "
    "c.get_device_properties(i).total_memory] for i in range(c.device_count())]))"
)
_PACKAGES = (
    "torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "axolotl", "llamafactory",
    "ms-swift",
    "torchtitan", "megatron-core", "megatron-bridge", "nemo-toolkit", "MaxText", "nanotron", "flash-attn",
    "bitsandbytes", "liger-kernel", "transformer-engine",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What can be asked: commands, files, the environment and the releases of packages."""

    run: Callable[[Sequence[str]], str | None]  # stdout; None: no such program, or it failed
    read: Callable[[str], str | None]
    list_folder: Callable[[str], Sequence[str]]
    environment: Mapping[str, str]
    release: Callable[[str], str | None]
    complaint: Callable[[str], str] = lambda _: ""  # of a program that fails without arguments


@dataclass(kw_only=True)
class Found:
    """The cluster of this machine, and what was seen beyond it."""

    cluster: dict[str, Json]
    seen: list[str] = field(default_factory=list)  # in words, one line each
    notes: list[str] = field(default_factory=list)  # what was assumed or left out
    launchers: dict[str, str] = field(default_factory=dict)


def this_machine() -> Machine:
    """Return the machine that runs this."""
    return Machine(
        run=_run, read=_read, list_folder=_list, environment=os.environ, release=_release,
        complaint=_complaint,
    )  # fmt: skip


def look(machine: Machine, *, hostfile: Path | None = None, num_nodes: int | None = None) -> Found | None:
    """Return the cluster of a machine; None: neither it nor a scheduler has a GPU.

    Raises:
        InvalidProblemError: a GPU type is not in the catalog, or the hostfile cannot be read.
    """
    gpus, source = _gpus(machine)
    nodes, scheduler = _scheduled(machine)
    found = Found(cluster={})
    found.launchers = {name: own for name in _PACKAGES if (own := machine.release(name)) is not None}
    if gpus:
        group = _own_group(machine, gpus, source, found)
        group["num_nodes"] = num_nodes or _num_nodes(
            _stated_nodes(machine, hostfile, found, len(gpus)), nodes, scheduler, group, found
        )
        if "inter_node" not in group and group["num_nodes"] != 1:
            usual = find_gpu(str(group["gpu"])).display_name
            found.notes.append(f"no network port with a rate: assuming the usual network of {usual}")
        groups: list[Json] = [group]
    elif nodes:
        groups = [*_scheduled_groups(nodes, scheduler, found)]
    else:
        return None
    found.cluster = {"name": NAME, "groups": groups, "source": f"meshwright here ({source or scheduler})"}
    return found


def cluster_of(machine: Machine) -> dict[str, Json]:
    """Return the cluster of a machine as a request states it.

    Raises:
        InvalidProblemError: as ``look``, or there is no GPU.
    """
    found = look(machine)
    if found is None:
        raise InvalidProblemError.of(
            "/cluster", why_none(machine), allowed="the GPUs that you mean", nearest="--gpus 8xH100"
        )
    return found.cluster


def why_none(machine: Machine) -> str:
    """Say why a machine has no GPU for a plan."""
    if machine.environment.get("CUDA_VISIBLE_DEVICES", "all").strip() in _NO_DEVICE:
        return (
            "no GPU here: CUDA_VISIBLE_DEVICES hides all (try unset CUDA_VISIBLE_DEVICES), "
            "and Slurm and Kubernetes list none"
        )
    for name in ("nvidia-smi", "rocm-smi"):
        if said := machine.complaint(name):
            return f"no GPU here: {name}: {said}"
    return "no GPU here: nvidia-smi, rocm-smi and torch find none, and Slurm and Kubernetes list none"


# --------------------------------------------------------------------------------------------------
# The node: GPUs, their links, the network, the host.


def _gpus(machine: Machine) -> tuple[list[SeenGpu], str]:
    query = ("nvidia-smi", f"--query-gpu={','.join(NVIDIA_QUERY)}", "--format=csv,noheader,nounits")
    amd = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
    asked: tuple[tuple[str, Sequence[str], Callable[[str], list[SeenGpu]]], ...] = (
        ("nvidia-smi", query, nvidia_gpus),
        ("rocm-smi", amd, amd_gpus),
        ("torch", (sys.executable, "-c", _TORCH), torch_gpus),
    )
    for name, command, parsed in asked:
        if name == "torch" and machine.release("torch") is None:
            continue
        seen = parsed(machine.run(command) or "")
        gpus = seen if name == "torch" else _visible(seen, machine.environment)  # torch sees those alone
        if gpus:
            return gpus, name
    return [], ""


def _visible(gpus: list[SeenGpu], environment: Mapping[str, str]) -> list[SeenGpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names by number; none where it is empty, else all."""
    said = environment.get("CUDA_VISIBLE_DEVICES")
    if said is not None and said.strip() in _NO_DEVICE:
        return []
    numbers = [int(word) for word in (said or "").split(",") if word.strip().isdecimal()]
    return [gpus[one] for one in numbers if one < len(gpus)] or gpus


_NO_DEVICE = ("", "-1", "NoDevFiles")  # the last is Slurm's


def _own_group(machine: Machine, gpus: list[SeenGpu], source: str, found: Found) -> dict[str, Json]:
    kinds = Counter(gpu.name for gpu in gpus)
    name, count = kinds.most_common(1)[0]
    own = [gpu for gpu in gpus if gpu.name == name]
    slug = own[0].slug
    if slug is None:
        raise InvalidProblemError.of(
            "here", f"{name} with {own[0].memory_bytes / 2**30:.0f} GiB is not in the catalog",
            allowed="a GPU of meshwright gpus, or its figures in a cluster file",
            nearest="meshwright gpus",
        )  # fmt: skip
    found.seen.append(f"{count} × {name} ({slug}), by {source}")
    found.notes += [
        f"{n} × {other} left out: a node group has one GPU type"
        for other, n in kinds.items()
        if other != name
    ]
    if any(gpu.is_cut for gpu in own):
        found.notes.append("MIG is enabled: the plan assumes whole GPUs")
    group: dict[str, Json] = {"gpu": slug, "gpus_per_node": count}
    group |= _links(machine, own, source, found)
    group |= _network(machine, count, found)
    return group | _host(machine, own, found)


def _links(machine: Machine, own: Sequence[SeenGpu], source: str, found: Found) -> dict[str, Json]:
    gpu, rate = find_gpu(str(own[0].slug)), own[0].pcie_bytes_per_s
    if len(own) == 1:
        return {}
    pcie = _link("pcie", rate, "nvidia-smi, pcie.link.*.max") if rate else None
    if source == "rocm-smi":
        kind = amd_links(machine.run(("rocm-smi", "--showtopotype")) or "")
        if kind == "pcie":
            found.seen.append("PCI Express between GPUs")
            return {"island_gpus": 1}
        return {}
    text = machine.run(("nvidia-smi", "topo", "-m")) if source == "nvidia-smi" else None
    try:
        topology = topology_of(ForeignFile.of("nvidia-smi topo -m", text or ""))
    except ProfileError:
        found.notes.append("no topology of the GPUs: assuming the usual links of their node")
        return {}
    if len(topology.gpus) != len(own):
        found.notes.append(f"nvidia-smi topo -m lists {len(topology.gpus)} GPUs, and {len(own)} are used")
        return {}
    topology = replace(
        topology,
        gpus=tuple(replace(place, pcie_bytes_per_s=rate) for place in topology.gpus),
        nic_bytes_per_s=(),
    )
    fields = dict(fields_of_topology(topology, gpu, "nvidia-smi topo -m").fields)
    fields.pop("gpus_per_node")
    usual = (gpu.intra_node.bytes_per_s, gpu.island_gpus)
    own_link = fields.pop("intra_node", None)
    if topology.island_gpus == 1 and pcie:
        fields["intra_node"] = pcie
    elif isinstance(own_link, dict) and (own_link["bytes_per_s"], topology.island_gpus) != usual:
        fields["intra_node"] = own_link
    links = max(place.nvlinks for place in topology.gpus)
    words = (
        f"{links} NVLinks a GPU, islands of {topology.island_gpus}" if links else "PCI Express between GPUs"
    )
    found.seen.append(words)
    return fields


def _network(machine: Machine, gpus: int, found: Found) -> dict[str, Json]:
    fast = infiniband_ports(machine.run(("ibstat",)) or "") or _sysfs_infiniband(machine)
    ports = main_ports([*fast, *_sysfs_ethernet(machine)])
    if not ports:
        return {}
    rate, kind = ports[0].gbit_per_s, ports[0].kind
    found.seen.append(f"{len(ports)} × {rate:g} Gbit/s {kind}")
    each = len(ports) * rate * _GBIT / gpus
    return {"inter_node": _link(kind, each, f"{len(ports)} ports of {rate:g} Gbit/s")}


def _link(kind: str, bytes_per_s: float, source: str) -> Json:
    """Return a link whose latency is its kind's."""
    return {"kind": kind, "bytes_per_s": bytes_per_s, "source": source}


def _sysfs_infiniband(machine: Machine) -> Iterator[SeenPort]:
    """Yield the active ports that the kernel lists, where ibstat is missing."""
    for device in machine.list_folder("/sys/class/infiniband"):
        folder = f"/sys/class/infiniband/{device}/ports/1"
        state, rate = machine.read(f"{folder}/state") or "", (machine.read(f"{folder}/rate") or "").split()
        layer = (machine.read(f"{folder}/link_layer") or "").strip()
        if "ACTIVE" in state and rate and rate[0].isdecimal():
            kind = "infiniband" if layer == "InfiniBand" else "roce"
            yield SeenPort(device=device, kind=kind, gbit_per_s=float(rate[0]))


def _sysfs_ethernet(machine: Machine) -> Iterator[SeenPort]:
    """Yield Ethernet cards that are up; bridges and tunnels have no device."""
    for device in machine.list_folder("/sys/class/net"):
        folder = f"/sys/class/net/{device}"
        speed, state = (machine.read(f"{folder}/{name}") or "" for name in ("speed", "operstate"))
        is_card = bool(machine.list_folder(f"{folder}/device"))
        if is_card and speed.strip().isdecimal() and state.strip() == "up":
            yield SeenPort(device=device, kind="ethernet", gbit_per_s=int(speed) / 1000)


def _host(machine: Machine, own: Sequence[SeenGpu], found: Found) -> dict[str, Json]:
    fields = dict[str, Json]()
    if memory := memory_total(machine.read("/proc/meminfo") or ""):
        limit = (machine.read("/sys/fs/cgroup/memory.max") or "").strip()  # of a container
        limited = limit.isdecimal() and int(limit) < memory
        fields["host_memory_bytes"] = memory = int(limit) if limited else memory
        found.seen.append(f"{memory / 2**30:.0f} GiB of host memory" + ", the container's limit" * limited)
    if own[0].pcie_bytes_per_s:
        fields["host_link_bytes_per_s"] = _REACHED * own[0].pcie_bytes_per_s
    text = machine.run(("lsblk", "--json", "--bytes", "--nodeps", "--output", "NAME,SIZE,TYPE"))
    if text is not None and (drives := nvme_total(text)):
        fields["nvme_bytes"] = drives
        found.seen.append(f"{drives / 1e12:.1f} TB of NVMe drives")
    return fields


# --------------------------------------------------------------------------------------------------
# The hosts: a hostfile, the job that runs this, or what a scheduler lists.


def _scheduled(machine: Machine) -> tuple[list[SeenNode], str]:
    job = machine.environment.get("SLURM_JOB_NODELIST")
    nodes = slurm_nodes(
        machine.run(("scontrol", "show", "node", "--oneliner", *([job] if job else []))) or ""
    )
    if nodes:
        return nodes, "Slurm"
    nodes = kubernetes_nodes(machine.run(("kubectl", "get", "nodes", "--output", "json")) or "")
    return nodes, "Kubernetes" if nodes else ""


def _num_nodes(
    stated: tuple[int, str] | None,
    nodes: Sequence[SeenNode],
    scheduler: str,
    group: Mapping[str, Any],
    found: Found,
) -> int:
    """Return how many nodes like this one there are: what is stated, else what the scheduler lists."""
    if stated is not None:
        number, why = stated
        found.seen.append(f"{number} nodes, by {why}")
        return min(number, MAX_NODES)
    own = (group["gpu"], group["gpus_per_node"])
    alike = [one for one in nodes if one.is_up and (one.gpu or own[0], one.gpus) == own]
    _note_gone(nodes, scheduler, found)
    if alike:
        found.seen.append(f"{len(alike)} nodes like this one in {scheduler}")
        return len(alike)
    found.seen.append("1 node: no hostfile, job or scheduler lists more")
    return 1


def _note_gone(nodes: Sequence[SeenNode], scheduler: str, found: Found) -> None:
    gone = sum(not one.is_up for one in nodes)
    if gone:
        found.notes.append(f"{gone} nodes are down or drained in {scheduler}: not counted")


def _stated_nodes(
    machine: Machine, hostfile: Path | None, found: Found, gpus: int
) -> tuple[int, str] | None:
    """Return the number of nodes of a hostfile, of the Slurm job, or of torchrun."""
    environment = machine.environment
    if hostfile is not None:
        text = machine.read(str(hostfile))
        if text is None:
            raise InvalidProblemError.of("--hostfile", f"{hostfile} cannot be read", allowed="a text file")
        hosts = hostfile_nodes(text)
        if not hosts:
            raise InvalidProblemError.of(
                "--hostfile", f"{hostfile} names no host", allowed="lines of HOST slots=N"
            )
        other = next(((host, slots) for host, slots in hosts if slots not in (None, gpus)), None)
        if other is not None:
            host, slots = other
            taken = f"all are taken for nodes of {gpus} GPUs, as this one is"
            found.notes.append(f"{shown(host)} has {slots} slots in {shown(hostfile.name)}: {taken}")
        return len({host for host, _ in hosts}), str(hostfile)
    if job := environment.get("SLURM_JOB_NODELIST"):
        try:
            return listed_hosts(job), "the Slurm job"
        except ProfileError:
            pass
    world, local = environment.get("WORLD_SIZE", ""), environment.get("LOCAL_WORLD_SIZE", "")
    if world.isdecimal() and local.isdecimal() and int(local):
        return max(int(world) // int(local), 1), "torchrun"
    return None


def _scheduled_groups(nodes: Sequence[SeenNode], scheduler: str, found: Found) -> Iterator[Json]:
    """Yield a node group for each kind of node: this machine has no GPU itself."""
    unknown = sorted({one.reported or "GPUs without a type" for one in nodes if not one.gpu})
    if unknown:
        found.notes.append(f"{scheduler} lists {', '.join(unknown)}, which the catalog lacks: left out")
    _note_gone(nodes, scheduler, found)
    known = [one for one in nodes if one.gpu and one.is_up]
    if not known:
        raise InvalidProblemError.of(
            "here", f"{scheduler} lists no node that is up with a GPU of the catalog",
            allowed="a GPU of meshwright gpus", nearest="meshwright gpus",
        )  # fmt: skip
    for (gpu, each), alike in counted(known):
        found.seen.append(f"{len(alike)} nodes of {each} × {gpu}, by {scheduler}")
        memory = {one.memory_bytes for one in alike}
        group: dict[str, Json] = {"gpu": gpu, "num_nodes": len(alike), "gpus_per_node": each}
        least = min((size for size in memory if size is not None), default=None)
        yield group if least is None else {**group, "host_memory_bytes": least}


# --------------------------------------------------------------------------------------------------
# Asking this machine.


def _run(command: Sequence[str]) -> str | None:
    program = shutil.which(command[0])
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - tools of the machine, with fixed arguments
            [program, *command[1:]], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
            errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 or done.stdout.startswith("CA '") else None


def _complaint(name: str) -> str:
    """Return the first line of a program that fails, or that it does not answer; else empty text."""
    program = shutil.which(name)
    if program is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - as above
            [program], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, errors="replace"
        )
    except OSError as fault:
        return fault.strerror or "cannot be run"
    except subprocess.TimeoutExpired:
        return f"did not answer in {_TIMEOUT_S:g} s"
    lines = f"{done.stdout}{done.stderr}".strip().splitlines() if done.returncode else []
    return f"{shown(lines[0][:MAX_SHOWN])}{shown(lines[0][MAX_SHOWN : 2 * MAX_SHOWN])}" if lines else ""


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(errors="replace")
    except (OSError, ValueError):  # the speed of a card that is down cannot be read
        return None


def _list(path: str) -> Sequence[str]:
    try:
        return sorted(os.listdir(path))  # noqa: PTH208 - names alone
    except OSError:
        return ()


def _release(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
