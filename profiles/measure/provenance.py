"""Provenance of a measurement: device, software, time, and the state of the device."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from meshwright.profiles.library import gpu_of_device
from meshwright.profiles.measure.device import Device
from meshwright.profiles.measured.profile import Machine, Session
from meshwright.profiles.reading import MAX_TEXT

NVIDIA_SMI_TIMEOUT_S = 20.0
# Fields of `nvidia-smi --query-gpu` (--help-query-gpu lists them) that limit the speed of the device.
STATE_FIELDS = (
    "pstate",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "power.draw",
    "power.limit",
    "temperature.gpu",
)


def machine_of(device: Device) -> Machine:
    """Return the facts that must agree for measurements to share one file."""
    torch = device.torch
    if device.kind == "cpu":
        return Machine(
            kind="cpu",
            device=_host_cpu(),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            host_cpu=_host_cpu(),
            torch=str(torch.__version__),
            threads=torch.get_num_threads(),
        )
    properties = torch.cuda.get_device_properties(device.index)
    return Machine(
        kind="cuda",
        device=str(properties.name),
        memory_bytes=int(properties.total_memory),
        host_cpu=_host_cpu(),
        torch=str(torch.__version__),
        cuda=torch.version.cuda or torch.version.hip,
        driver=_nvidia_smi(device, ("driver_version",)) or None,
        gpu=gpu_of_device(str(properties.name), int(properties.total_memory)),
    )


def session_of(device: Device, command: Sequence[str]) -> Session:
    """Return this start of the command."""
    try:
        ours = version("meshwright")
    except PackageNotFoundError:
        ours = "not installed"
    return Session(
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=plain(" ".join(command)),
        meshwright=ours,
        device_state=device_state(device),
    )


def differences(ours: Machine, theirs: Machine) -> list[str]:
    """Return the facts in which two machines differ, as ``torch: 2.13.0 here, 2.12.0 there``."""
    return [
        f"{name}: {getattr(ours, name)} here, {getattr(theirs, name)} there"
        for name in Machine.__dataclass_fields__
        if name != "gpu"  # follows from the others, and older files do not have it
        if getattr(ours, name) != getattr(theirs, name)
    ]


def device_state(device: Device) -> str:
    """Return clocks, power and temperature of a GPU; the governor of a CPU; empty if unreadable."""
    if device.kind == "cuda":
        values = _nvidia_smi(device, STATE_FIELDS).split(", ")
        pairs = zip(STATE_FIELDS, values, strict=False)
        grouped = "yes" if device.grouped_product is not None else "no"
        state = [f"{name} {value}" for name, value in pairs if value]
        return plain(", ".join([*state, f"torch's grouped products {grouped}"]))
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    try:
        return plain(f"governor {governor.read_text().strip()}")
    except OSError:
        return ""


def _nvidia_smi(device: Device, fields: Sequence[str]) -> str:
    """Return one line of ``nvidia-smi`` about the device; empty if it is not available.

    The device is named by its UUID: CUDA_VISIBLE_DEVICES renumbers what torch sees, not what nvidia-smi
    sees.
    """
    program = shutil.which("nvidia-smi")
    uuid = getattr(device.torch.cuda.get_device_properties(device.index), "uuid", None)
    if program is None or uuid is None:
        return ""
    query = [
        program,
        f"--query-gpu={','.join(fields)}",
        "--format=csv,noheader",
        f"--id=GPU-{str(uuid).removeprefix('GPU-')}",
    ]
    try:
        run = subprocess.run(  # noqa: S603 - a fixed program, no foreign words
            query, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return run.stdout.strip()


def _host_cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return plain(next(names, "") or platform.processor() or platform.machine() or "unknown")


def plain(text: str) -> str:
    """Return text as a profile may hold it: printable and short."""
    return "".join(char if char.isprintable() else "?" for char in text[:MAX_TEXT])
