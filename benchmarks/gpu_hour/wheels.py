"""Wheels that a machine without a network needs next to torch: packed here, unpacked there.

Wheels are zip archives whose packages lie at the top, so that unpacking one into a folder on ``sys.path``
installs it. Nothing but the standard library is used: this runs before there is anything else.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_BYTES = 48 * 2**20  # of the whole folder
PYTHONS = ("3.11", "3.12")
# What the planner and the measuring import that is not torch; versions are those of constraints.txt.
NEEDED = ("numpy", "PyYAML")
# Megatron-Core, without which its runs are reported as not run: its newest release for each Python.
MEGATRON = {"3.11": ("megatron-core==0.16.1",), "3.12": ("megatron-core==0.19.2",)}
OPTIONAL = ("einops==0.8.2", "packaging")  # what it needs of others
# TRL's trainer, PEFT and Liger's kernels, with what is small of their needs. transformers, tokenizers,
# pandas and pyarrow are the machine's own; without them the trainers are reported as not run.
TRAINERS = (
    "trl==1.16.0", "peft==0.21.2", "accelerate==1.15.0", "liger-kernel==0.8.5", "datasets==5.2.0",
    "dill==0.4.1", "multiprocess==0.70.19",
)  # fmt: skip
MODULES = ("numpy", "yaml")
# manylinux tags of x86-64 Linux with a C library no newer than Ubuntu 22.04's.
_PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)
_NAME = re.compile(r"-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl$")


class PackError(Exception):
    """The wheels cannot be packed or do not suffice; the message is for the user."""


def pack(folder: Path) -> int:
    """Download the wheels of every Python into a folder; their size in bytes.

    Raises:
        PackError: pip fails, or the wheels are larger than ``MOST_BYTES``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    pinned = [_pinned(name) for name in (*NEEDED, *OPTIONAL)]
    for python in PYTHONS:
        _download([*pinned, *MEGATRON[python], *TRAINERS], python, folder)
    size = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    if size > MOST_BYTES:
        raise PackError(f"{folder}: {size / 2**20:.1f} MiB of wheels, allowed are {MOST_BYTES / 2**20:.0f}")
    return size


def _pinned(name: str) -> str:
    """``numpy==2.4.6`` as constraints.txt has it."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next((line for line in lines if line.lower().startswith(f"{name.lower()}==")), name)


def _download(packages: list[str], python: str, folder: Path) -> None:
    """Have pip fetch wheels for a Python that need not be this one."""
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    command += ["--only-binary=:all:", "--python-version", python, *platforms, "--dest", str(folder)]
    command += packages
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise PackError(f"pip download for Python {python}: {lines[-1] if lines else done.stderr[-500:]}")


def fits(wheel: str, version: tuple[int, int]) -> bool:
    """Whether a wheel of this file name runs under a CPython version, on x86-64 Linux."""
    found = _NAME.search(wheel)
    if found is None:
        return False
    python, abi = found["python"], found["abi"]
    own = f"cp{version[0]}{version[1]}"
    if abi == "none":
        return any(tag in {"py3", own, own.replace("cp", "py")} for tag in python.split("."))
    if abi == "abi3":
        return python.startswith("cp3") and int(python.removeprefix("cp3")) <= version[1]
    return own in python.split(".")


def unpacked(folder: Path, target: Path) -> Path | None:
    """The folder to put on ``sys.path``: the wheels that fit this Python, unpacked once; None without any.

    Raises:
        PackError: a wheel is broken.
    """
    version = (sys.version_info.major, sys.version_info.minor)
    wheels = sorted(one for one in folder.glob("*.whl") if fits(one.name, version))
    if not wheels:
        return None
    into = target / f"python{version[0]}.{version[1]}"
    done = into / ".unpacked"
    names = "\n".join(wheel.name for wheel in wheels)
    if done.is_file() and done.read_text(encoding="utf-8") == names:
        return into
    for wheel in wheels:
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(into)  # our own wheels, whose names have no way out of the folder
        except (zipfile.BadZipFile, OSError) as fault:
            raise PackError(f"{wheel.name}: {fault}; pack it again") from None
    done.write_text(names, encoding="utf-8")
    return into
