"""The types that all readers of launch files take and return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.model import ModelSpec
from meshwright.shell.manifests import holds_manifest
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Workload

MAX_BYTES = 1_000_000  # of a launch script; ``documents`` bounds files of a fixed form
MAX_FILES = 32
MAX_LISTED = 32  # notes and unread names of one file
_SCRIPTS = (
    "", ".sh", ".bash", ".zsh", ".ksh", ".sbatch", ".slurm", ".job", ".sub", ".pbs", ".qsub", ".lsf",
    ".bsub", ".args", ".txt",
)  # fmt: skip
WHOLE_FILE = "launch file"  # field of a fault without a single name
Include = Callable[[str], str | None]
Place = tuple[str, int]  # a name in a file and its line; 0: not there
Options = dict[str, str | int | float | bool]  # framework options, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A launch file and the files given with it; no other file is ever read."""

    name: str  # base name
    text: str
    files: Mapping[str, str] = field(default_factory=dict)  # given with it, by base name
    include: Include = lambda _: None  # reads a file of the same folder that the text names, by base name
    variables: Mapping[str, str] = field(default_factory=dict)  # supplied shell variables
    environment: Mapping[str, str] = field(default_factory=dict)  # of the script that starts this one
    folder: str = ""  # that the file lies in, as far as it is known

    @property
    def suffix(self) -> str:
        """The file extension in lower case, such as ``.yaml``; manifests of schedulers count as scripts."""
        stem, dot, end = self.name.rpartition(".")
        found = f"{dot}{end}".lower() if stem and end else ""
        return ".sh" if found in (".yaml", ".yml") and holds_manifest(self.text) else found

    @property
    def is_script(self) -> bool:
        """Return whether it may be a shell script or a list of flags."""
        return self.suffix in _SCRIPTS

    def other(self, name: str) -> str | None:
        """Return the text of another file of the same folder by its base name; None if it is missing."""
        base = name.replace("\\", "/").rsplit("/", 1)[-1]
        found = self.files.get(base)
        return found if found is not None else self.include(base) if base else None

    def scripts(self) -> list[Source]:
        """Return the shell scripts among the given files, itself first."""
        others = [self.at(name) for name in sorted(self.files) if name != self.name]
        return [one for one in (self, *others) if one.is_script]

    def at(self, name: str) -> Source:
        """Return another given file as a source with the same files."""
        return replace(self, name=name, text=self.other(name) or "", environment={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Values that the user supplies in addition to the files."""

    model: ModelSpec | None = None
    num_gpus: int | None = None  # of the cluster
    variables: Mapping[str, str] = field(default_factory=dict)  # of the shell
    values: Mapping[str, int | str | bool] = field(default_factory=dict)  # of configuration and workload
    ignored: tuple[str, ...] = ()  # flags to ignore, as the file spells them
    run: int | None = None  # index of the run, if a script starts several, from 1

    def ignores(self, name: str) -> bool:
        """Return whether a name is to be ignored (``--ignore``), with or without its dashes."""
        return name.lstrip("-") in [one.lstrip("-") for one in self.ignored]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFile:
    """The contents of a launch file, without a cluster, because no file names its GPUs."""

    launcher: str
    model: ModelSpec
    workload: Workload
    configuration: Configuration
    num_nodes: int | None  # None: not in the files
    gpus_per_node: int | None
    idle_gpus: int = 0  # of the last node
    notes: tuple[str, ...]  # costly defaults, flags without effect, repeated flags
    unread: tuple[str, ...]  # names that may matter but are unknown
    batch_ramp: tuple[tuple[int, int], ...] = ()  # (batch, until this many tokens) before the workload's
    places: Mapping[str, Place] = field(default_factory=dict)  # where the files set some of the sizes
    images_stated: bool = False  # the files say how many images a sequence has, which may be none
    packed: str = ""  # the option by which each sequence holds several documents, each attending to itself

    @property
    def started_gpus(self) -> int:
        """The GPUs that start a rank; 0 if the files don't say."""
        each = self.gpus_per_node or 0
        return self.num_nodes * each - self.idle_gpus if self.num_nodes and each else 0

    def launched_one_by_one(self) -> LaunchFile:
        """Return the run with blocking kernel launches."""
        options = dict(sorted({**self.workload.framework_options, "launch_blocking": True}.items()))
        return replace(self, workload=replace(self.workload, framework_options=options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reader of one launcher's files."""

    name: str  # the launcher's id
    recognises: Callable[[Source], bool]  # whether the form and names of a file are the launcher's
    read: Callable[[Source, Overrides], LaunchFile]  # InvalidProblemError: a fault, with line and field


def refused(message: str, *, allowed: str | None = None) -> InvalidProblemError:
    """Return a fault of the whole file."""
    return InvalidProblemError.of(WHOLE_FILE, message, allowed=allowed)
