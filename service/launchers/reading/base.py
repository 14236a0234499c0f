"""What every reader of launch files takes and gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Protocol

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.model import ModelSpec
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Workload

MAX_BYTES = 1_000_000  # of one launch script; files of a fixed form are bounded by ``documents``
MAX_FILES = 32
MAX_LISTED = 32  # notes and unread names of one file
_SCRIPTS = (
    "", ".sh", ".bash", ".zsh", ".ksh", ".sbatch", ".slurm", ".job", ".sub", ".pbs", ".qsub", ".lsf",
    ".bsub", ".args", ".txt",
)  # fmt: skip
WHOLE_FILE = "launch file"  # where a fault is that no single name has
Include = Callable[[str], str | None]
Place = tuple[str, int]  # a name in a file, and its line; 0: not there


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A launch file and those that stand beside it; nothing else is ever read."""

    name: str  # its base name
    text: str
    files: Mapping[str, str] = field(default_factory=dict)  # given together with it, by base name
    include: Include = lambda _: None  # a file of the same folder that the text names, by base name
    variables: Mapping[str, str] = field(
        default_factory=dict
    )  # told ones of the shell, for whose file it is
    environment: Mapping[str, str] = field(default_factory=dict)  # a script's, of the one that starts it

    @property
    def suffix(self) -> str:
        """``.yaml``; lower case."""
        return PurePosixPath(self.name).suffix.lower()

    @property
    def is_script(self) -> bool:
        """Whether it may be a shell script, or nothing but flags."""
        return self.suffix in _SCRIPTS

    def other(self, name: str) -> str | None:
        """The text of another file of the same folder, whatever folder the name says; None: not there."""
        base = name.replace("\\", "/").rsplit("/", 1)[-1]
        found = self.files.get(base)
        return found if found is not None else self.include(base) if base else None

    def scripts(self) -> list[Source]:
        """The shell scripts among the given files, itself first."""
        others = [self.at(name) for name in sorted(self.files) if name != self.name]
        return [one for one in (self, *others) if one.is_script]

    def at(self, name: str) -> Source:
        """Another of the given files, with the same files beside it."""
        return replace(self, name=name, text=self.other(name) or "", environment={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What somebody says beside the files, for what the files cannot tell."""

    model: ModelSpec | None = None
    num_gpus: int | None = None  # of the cluster
    variables: Mapping[str, str] = field(default_factory=dict)  # of the shell
    values: Mapping[str, int | str | bool] = field(default_factory=dict)  # of configuration and workload
    ignored: tuple[str, ...] = ()  # flags to pass by, as the file calls them
    run: int | None = None  # of several that a script starts, from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFile:
    """What a launch file says; without a cluster, whose GPUs no file names."""

    launcher: str
    model: ModelSpec
    workload: Workload
    configuration: Configuration
    num_nodes: int | None  # None: the files do not say
    gpus_per_node: int | None
    notes: tuple[str, ...]  # defaults that cost something, flags that do nothing, repeated flags
    unread: tuple[str, ...]  # names that may matter and are not understood
    batch_ramp: tuple[tuple[int, int], ...] = ()  # (batch, until so many tokens) before the workload's
    places: Mapping[str, Place] = field(default_factory=dict)  # where the files say some of the sizes


class Reader(Protocol):
    """Reads the files of one launcher."""

    @property
    def name(self) -> str:
        """The launcher's id."""

    def recognises(self, source: Source) -> bool:
        """Whether a file is one of this launcher's, by its form and the names in it; never raises."""

    def read(self, source: Source, told: Told) -> LaunchFile:
        """The run that the file starts.

        Raises:
            InvalidProblemError: what cannot be read, or contradicts itself, with line and field.
        """


def passed_by(told: Told, name: str) -> bool:
    """Whether somebody wants a name passed by (``--ignore``), with its dashes or without."""
    return name in told.ignored or name in [one.lstrip("-") for one in told.ignored]


def refused(message: str, *, allowed: str | None = None) -> InvalidProblemError:
    """A fault of the file as a whole."""
    return InvalidProblemError.of(WHOLE_FILE, message, allowed=allowed)
