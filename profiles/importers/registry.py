"""Every foreign format, and the one way in: ``import_profile``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from meshwright.profiles.documents import shown
from meshwright.profiles.errors import ProfileError, UnknownNameError
from meshwright.profiles.importers import (
    nccl_tests,
    nccl_topology,
    nvidia_smi_topo,
    slurm_topology,
    tracked_run,
)
from meshwright.profiles.importers.deepspeed_log import DEEPSPEED_LOG
from meshwright.profiles.importers.foreign_file import ForeignFile
from meshwright.profiles.importers.megatron_log import MEGATRON_LOG
from meshwright.profiles.importers.nanotron_log import NANOTRON_LOG
from meshwright.profiles.importers.torchtitan_log import TORCHTITAN_LOG


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFormat:
    """One format: how to recognise it by its content, and how to read it."""

    title: str
    looks_like: Callable[[ForeignFile], bool]
    read: Callable[[Path], object]


# Asked in this order: formats with an unmistakable first line before logs that hold anything.
FORMATS: Mapping[str, ForeignFormat] = {
    "nccl-topology": ForeignFormat(
        title="NCCL topology XML",
        looks_like=nccl_topology.looks_like,
        read=nccl_topology.read_nccl_topology,
    ),
    "nccl-tests": ForeignFormat(
        title="nccl-tests log", looks_like=nccl_tests.looks_like, read=nccl_tests.read_nccl_tests
    ),
    "nvidia-smi-topo": ForeignFormat(
        title="nvidia-smi topo -m",
        looks_like=nvidia_smi_topo.looks_like,
        read=nvidia_smi_topo.read_nvidia_smi_topo,
    ),
    "slurm-topology": ForeignFormat(
        title="Slurm topology.conf",
        looks_like=slurm_topology.looks_like,
        read=slurm_topology.read_slurm_topology,
    ),
    **{
        name: ForeignFormat(title=f"{program} training log", looks_like=one.looks_like, read=one.read)
        for name, program, one in (
            ("megatron-log", "Megatron-LM", MEGATRON_LOG),
            ("torchtitan-log", "torchtitan", TORCHTITAN_LOG),
            ("nanotron-log", "nanotron", NANOTRON_LOG),
            ("deepspeed-log", "DeepSpeed", DEEPSPEED_LOG),
        )
    },
    "wandb-run": ForeignFormat(
        title="W&B run", looks_like=tracked_run.is_wandb_history, read=tracked_run.read_wandb_run
    ),
    "mlflow-run": ForeignFormat(
        title="MLflow run",
        looks_like=lambda _: False,  # a folder: ``detect_format``
        read=tracked_run.read_mlflow_run,
    ),
}


def format_names() -> tuple[str, ...]:
    """Return the names of all formats, sorted."""
    return tuple(sorted(FORMATS))


def detect_format(path: Path | str) -> str:
    """Return the name of the format that a file's content has.

    Raises:
        ProfileError: the file cannot be read, or has none of the formats.
    """
    if Path(path).is_dir():
        found = tracked_run.format_of_folder(Path(path))
        if found is None:
            histories = ", ".join(tracked_run.HISTORIES)
            message = f"expected a W&B history ({histories}) or the folder metrics of an MLflow run in it"
            raise ProfileError(f"{shown(Path(path).name)}: {message}")
        return found
    file = ForeignFile.open(path)
    for name, entry in FORMATS.items():
        if entry.looks_like(file):
            return name
    raise file.fault("", f"has none of the formats {', '.join(format_names())}")


def import_profile(path: Path | str, format_name: str | None = None) -> object:
    """Read a foreign file into a class of ``meshwright.profiles.measurements`` (or of its importer).

    Raises:
        UnknownNameError: no format of that name.
        ProfileError: the file is broken; the message names file, place and what was expected.
    """
    name = format_name or detect_format(path)
    if name not in FORMATS:
        raise UnknownNameError.among("/format", name, FORMATS)
    return FORMATS[name].read(Path(path))
