"""Values given with a launch file: supplied, set by the script that starts it, or in its header.

The file itself counts first, then supplied values, scripts, and the comment on top of exported files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, get_args

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.commands import MARK, World, script_of, short_world, world_of
from meshwright.launchers.reading.fields import Fields
from meshwright.profiles.adapters import LORA_TARGETS, TRAINED_MODULES
from meshwright.profiles.documents import read_json, shown
from meshwright.profiles.errors import FieldError, InvalidProblemError, UnknownNameError
from meshwright.profiles.library import find_model, model_of_folder
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_shapes import model_from_shape
from meshwright.profiles.samples import SAMPLES, Reference
from meshwright.profiles.sequences import SequenceLengths, lengths_from_mapping
from meshwright.profiles.storage import BasePrecision
from meshwright.shell.values import Word
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Workload

# --------------------------------------------------------------------------------------------------
# The comment on top of exported files, for values that the launcher's own file has no place for.
#
# The inverse of ``meshwright.launchers.export``. The values of the file itself count before it.


_MAX_HEADER = 20_000  # characters
_WORLD = re.compile(r"World size (\d{1,9}): tp (\d{1,9}) \* cp (\d{1,9}) \* pp (\d{1,9}) \* dp (\d{1,9})")
_BATCHES = re.compile(r"Micro-batches: (\d{1,9}) of (\d{1,9})")
_NODES = re.compile(r"Nodes: (\d{1,9}) of (\d{1,9}) ")
_SEQUENCE = re.compile(r", (\d{1,9}) tokens a sequence")
_SHAPE = re.compile(r"(?:^# |\")Model shape: (\{.*\})", re.MULTILINE)
_IMAGES = re.compile(r"^# Images: (\{.*\})", re.MULTILINE)
_ADAPTERS = re.compile(r"^# Adapters: (\{.*\})", re.MULTILINE)
_SAMPLES = re.compile(r"^# Samples: (\{.*\})", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The contents of an exported file's comment; None and empty for nothing."""

    plan_id: str | None = None
    num_nodes: int | None = None
    gpus_per_node: int | None = None
    model: ModelSpec | None = None
    values: tuple[tuple[str, int], ...] = ()  # of configuration and workload, by glossary name
    adapters: Mapping[str, Any] = field(default_factory=dict)  # fields of a workload
    # In a sequence, and the tokens of each; None: not stated
    images: tuple[float | None, SequenceLengths | None] = (None, None)

    def value(self, name: str) -> int | None:
        """Return one of the values."""
        return dict(self.values).get(name)


@lru_cache(maxsize=16)
def header_of(text: str) -> Header:
    """Return the header of a file; an empty one without a header."""
    top = text[:_MAX_HEADER]
    mark = MARK.search(top)
    if mark is None:
        return Header()
    values: dict[str, int] = {}
    if (world := _WORLD.search(top)) is not None:
        names = ("num_gpus", "tensor_parallel_size", "context_parallel_size", "pipeline_parallel_size",
                 "data_parallel_size")  # fmt: skip
        values |= {name: int(number) for name, number in zip(names, world.groups(), strict=True)}
    if (batches := _BATCHES.search(top)) is not None:
        values |= {"num_microbatches": int(batches[1]), "micro_batch_size": int(batches[2])}
    if (sequence := _SEQUENCE.search(top)) is not None:
        values["seq_length"] = int(sequence[1])
    nodes = _NODES.search(top)
    return Header(
        plan_id=mark[1],
        num_nodes=int(nodes[1]) if nodes else None,
        gpus_per_node=int(nodes[2]) if nodes else None,
        model=_model(top),
        values=tuple(values.items()),
        adapters=_adapters(top) | _samples(top),
        images=_images(top),
    )


def _stated(pattern: re.Pattern[str], text: str) -> dict[str, Any]:
    """Return the JSON object on a line of the header; empty without one."""
    found = pattern.search(text)
    try:
        return dict(read_json(found[1])) if found else {}
    except InvalidProblemError:
        return {}


def _images(text: str) -> tuple[float | None, SequenceLengths | None]:
    said = _stated(_IMAGES, text)
    number = said.pop("images_per_sample", None)
    if number == 0:
        return 0.0, None
    try:
        tokens = lengths_from_mapping(said, ("workload", "image_tokens"))
    except (InvalidProblemError, KeyError):
        return None, None
    return (float(number), tokens) if isinstance(number, int | float) else (None, None)


def _samples(text: str) -> dict[str, Any]:
    said = _stated(_SAMPLES, text)
    known = said.get("sample") in SAMPLES and said.get("reference") in get_args(Reference)
    return {name: said[name] for name in ("sample", "reference")} if known else {}


def _adapters(text: str) -> dict[str, Any]:
    said = _stated(_ADAPTERS, text)
    rank, base = said.get("lora_rank"), said.get("base_precision")
    targets, modules = said.get("lora_targets"), said.get("trained_modules")
    if not (type(rank) is int and rank > 0 and base in get_args(BasePrecision)):
        return {}
    if not (_are_of(targets, LORA_TARGETS) and _are_of(modules, TRAINED_MODULES)):
        return {}
    return {
        "lora_rank": rank,
        "base_precision": base,
        "lora_targets": tuple(targets or ()),
        "trained_modules": tuple(modules or ()),
    }


def _are_of(said: object, names: Sequence[str]) -> bool:
    return isinstance(said, list) and all(one in names for one in said)


def _model(text: str) -> ModelSpec | None:
    found = _SHAPE.search(text)
    if found is None:
        return None
    shape = found[1]
    try:
        if '\\"' in shape:  # the header is a JSON text
            shape = json.loads(f'"{shape}"')
        return model_from_shape(read_json(shape))
    except (InvalidProblemError, ValueError):
        return None


# Files that are exported with the one that is read: used if their headers name the same plan.
_STARTS = ("launch.sh", "launch.sbatch")
_EXPORTED_NAMES = (*_STARTS, "deepspeed_plan.py", "torchtitan_0_2_model.py", "hostfile.txt")
# Placeholders for the reader's own paths: path/to/model, /your_model_path, <MODEL>.
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_PLACEHOLDER = re.compile(
    r"<.*>|(?:^|[/_. -])(?:your|path[/_-]?to|placeholder|xxx+|\.{3})(?:$|[/_. -])"
    r"|^/?models?(?:[_-]?(?:name|or|path|dir))*/?$",
    re.IGNORECASE,
)
_NO_MODEL = "the files name no model: give --model, or the shape under model"


_PLACED = ("plan.tensor_parallel_size", "workload.seq_length")  # sizes that ranks must divide


_EXAMPLES = {"seq_length": 4096, "micro_batch_size": 1, "num_microbatches": 1}  # of tips


@dataclass(slots=True, kw_only=True)
class Known:
    """Values of a configuration and a workload that the launcher's own file may omit."""

    source: Source
    overrides: Overrides
    header: Header
    world: World
    notes: list[str] = field(default_factory=list)

    def value(self, name: str, found: int | None = None) -> int | None:
        """Return a number by its glossary name: the file's, else the supplied one, else the header's."""
        if found is not None:
            return found
        supplied = self.overrides.values.get(name)
        if type(supplied) is int:
            return supplied
        return self.header.value(name)

    def number(self, name: str, found: int | None, default: int) -> int:
        """Return a number with a default."""
        value = self.value(name, found)
        return default if value is None else value

    def required(self, name: str, found: int | None, where: str) -> int:
        """Return a number without a default.

        Raises:
            InvalidProblemError: it is missing.
        """
        value = self.value(name, found)
        if value is None:
            message = f"the files don't have it: {where}, or add --set {name}=…"
            lacking = self.world.lacking if name == "num_gpus" else None
            tip = f"--set {name}={_EXAMPLES[name]}" if name in _EXAMPLES else ""
            raise InvalidProblemError(
                [FieldError(pointer=name, message=message, tip=tip), *([lacking] if lacking else [])]
            )
        return value

    def word(self, name: str, default: str) -> str:
        """Return a supplied word."""
        supplied = self.overrides.values.get(name)
        return supplied if isinstance(supplied, str) else default

    def num_gpus(self) -> int | None:
        """Return all GPUs: of the supplied cluster, else the started processes, else the header."""
        return self.overrides.num_gpus or self.world.num_gpus or self.header.value("num_gpus")

    def model(self, named: Word | None = None) -> ModelSpec:
        """Return the supplied model, else the header's, else the one that the files name.

        Raises:
            InvalidProblemError: none is named, or it is not in the catalog.
        """
        found = self.overrides.model or self.header.model
        if found is None and named is not None and not named.unknown and named.text:
            found = self._named(named)
        if found is None:
            raise InvalidProblemError.of("/model", _NO_MODEL)
        return found

    def _named(self, named: Word) -> ModelSpec:
        by = ""
        try:
            found = find_model(named.text)
        except UnknownNameError:
            found, by = self._folder(named), ", by the last part of the path"
        self.notes.append(f"the model is {found.name}: {shown(named.text)} of the files{by}")
        return found

    def launch_file(
        self,
        fields: Fields,
        launcher: str,
        model: ModelSpec,
        workload: Workload,
        configuration: Configuration,
        *,
        world: World | None = None,
        unread: tuple[str, ...] | None = None,
    ) -> LaunchFile:
        """Return the run that a file's fields describe.

        ``world`` and ``unread`` replace the ranks that the launch script starts, and the unread fields.

        Raises:
            InvalidProblemError: a value that is not read affects the run.
        """
        world = world or self.world
        return LaunchFile(
            launcher=launcher,
            model=model,
            workload=workload,
            configuration=configuration,
            num_nodes=world.num_nodes,
            gpus_per_node=world.gpus_per_node,
            idle_gpus=world.idle_gpus,
            notes=tuple(dict.fromkeys((*self.notes, *fields.notes))),
            unread=fields.unread() if unread is None else unread,
            places={field.rpartition(".")[2]: fields.place_of(field) for field in _PLACED},
        )

    @staticmethod
    def _folder(named: Word) -> ModelSpec:
        try:
            return model_of_folder(named.text)
        except UnknownNameError as fault:
            where = f"line {named.line}: " if named.line else ""
            if _PLACEHOLDER.search(named.text):
                raise InvalidProblemError.of(
                    "/model",
                    f"{where}{shown(named.text)} names your own model, but the file doesn't define it",
                    allowed="--model with a catalog name or the model's config.json",
                ) from fault
            hint = fault.errors[0].message.partition('". ')[2]
            near = f". {hint}" if hint.startswith("Did you") else ""
            fetched = f" (hf download {named.text} config.json)" if _HUB_ID.fullmatch(named.text) else ""
            raise InvalidProblemError.of(
                "/model",
                f"{where}{shown(named.text)} is not in the catalog",
                allowed=f"--model with a catalog name or the model's config.json{fetched}{near}",
            ) from fault


def named_model(name: str) -> ModelSpec | None:
    """Return the catalog's model by a hub id, or a path that ends in one; None without one."""
    for find in (find_model, model_of_folder):
        try:
            return find(name)
        except UnknownNameError:
            continue
    return None


def known_of(source: Source, overrides: Overrides) -> Known:
    """Return the values given with ``source``: its header, and the scripts that start it.

    Raises:
        InvalidProblemError: a script next to it cannot be read.
    """
    header, whole = header_of(source.text), with_exported(source)
    return Known(source=whole, overrides=overrides, header=header, world=_world(whole, overrides, header))


def with_exported(source: Source) -> Source:
    """Return a file of an exported plan with the files next to it that were exported for the same plan.

    Without the scripts that start it where a script of the user's own is given.
    """
    plan_id = header_of(source.text).plan_id
    if plan_id is None:
        return source
    names = [name for name in _EXPORTED_NAMES if name not in _STARTS or not _own_scripts(source, plan_id)]
    others = {name: source.other(name) for name in names}
    found = {
        name: text
        for name, text in others.items()
        if text is not None and header_of(text).plan_id == plan_id
    }
    return replace(source, files={**found, **source.files})


def started_as_exported(source: Source) -> Source:
    """Return the script that starts a file's exported plan, if it is given with the file; else the file."""
    plan_id, start = header_of(source.text).plan_id, _STARTS[0]
    if plan_id is None or source.name in _STARTS or _own_scripts(source, plan_id):
        return source
    return source.at(start) if header_of(source.files.get(start, "")).plan_id == plan_id else source


def _own_scripts(source: Source, plan_id: str) -> bool:
    return any(header_of(one.text).plan_id != plan_id for one in source.scripts())


def _world(source: Source, overrides: Overrides, header: Header) -> World:
    worlds = [world_of(script.text, script_of(script, overrides)) for script in source.scripts()]
    said = next((world for world in worlds if world.num_gpus), None)
    lacking = next((world.lacking for world in worlds if world.lacking is not None), None)
    stated = short_world(source.text) or World(header.num_nodes, header.gpus_per_node, lacking=lacking)
    return said or stated
