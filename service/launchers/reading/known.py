"""What stands beside a launch file: told by somebody, said by the script that starts it, or by its header.

The file itself counts first, then what is told, then scripts, then the comment on top of exported files.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from profiles.errors import InvalidProblemError
from profiles.model import ModelSpec
from service.launchers.reading.base import Source, Told
from service.launchers.reading.commands import World, script_of, world_of
from service.launchers.reading.header import Header, header_of

# Files that are exported beside the one that is read: taken where their headers name the same plan.
EXPORTED = ("launch.sh", "launch.sbatch", "deepspeed_plan.py", "torchtitan_0_2_model.py")
_NO_MODEL = "the files name no model: give --model, or the shape under model"


@dataclass(slots=True, kw_only=True)
class Known:
    """Values of a configuration and a workload that the launcher's own file may leave open."""

    source: Source
    told: Told
    header: Header
    world: World
    notes: list[str] = field(default_factory=list)

    def value(self, name: str, found: int | None = None) -> int | None:
        """A number by its glossary name: the file's, else the told one, else the header's."""
        if found is not None:
            return found
        told = self.told.values.get(name)
        if type(told) is int:
            return told
        return self.header.value(name)

    def number(self, name: str, found: int | None, default: int) -> int:
        """The same, with a default."""
        value = self.value(name, found)
        return default if value is None else value

    def required(self, name: str, found: int | None, where: str) -> int:
        """The same, where nothing may be assumed.

        Raises:
            InvalidProblemError: nobody says it.
        """
        value = self.value(name, found)
        if value is None:
            message = f"the files do not say it: {where}, or give it beside them (--set {name}=…)"
            raise InvalidProblemError.of(name, message)
        return value

    def word(self, name: str, default: str) -> str:
        """A told word."""
        told = self.told.values.get(name)
        return told if isinstance(told, str) else default

    def num_gpus(self) -> int | None:
        """All GPUs: started ones, else the header's, else the cluster's."""
        return self.world.num_gpus or self.header.value("num_gpus") or self.told.num_gpus

    def model(self) -> ModelSpec:
        """The told model, else the header's.

        Raises:
            InvalidProblemError: nobody names one.
        """
        found = self.told.model or self.header.model
        if found is None:
            raise InvalidProblemError.of("/model", _NO_MODEL)
        return found


def known_of(source: Source, told: Told) -> Known:
    """What stands beside ``source``: its header, and the scripts that start it.

    Raises:
        InvalidProblemError: a script beside it cannot be read.
    """
    header = header_of(source.text)
    files = dict(source.files)
    if header.plan_id is not None:
        for name in EXPORTED:
            text = source.other(name)
            if text is not None and header_of(text).plan_id == header.plan_id:
                files.setdefault(name, text)
    whole = Source(name=source.name, text=source.text, files=files, include=source.include)
    return Known(source=whole, told=told, header=header, world=_world(whole, told, header))


def _world(source: Source, told: Told, header: Header) -> World:
    """Nodes and GPUs by the scripts beside a file, else by its header."""
    for script in source.scripts():
        found = world_of(script.text, script_of(script, told))
        if found.num_gpus:
            return found
    return World(header.num_nodes, header.gpus_per_node)
