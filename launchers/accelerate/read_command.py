"""Accelerate's YAML with the options of ``accelerate launch``, which override it, and the environment.

Names and precedence: accelerate 1.15.0, commands/launch.py (_validate_launch_command).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

from meshwright.launchers.flags import flags_of, plain_name
from meshwright.launchers.reading.base import Overrides, Source, refused
from meshwright.launchers.reading.commands import (
    accelerates_options,
    commands_beside,
    program_of,
    short_world,
    unknown_file,
)
from meshwright.launchers.reading.documents import LocatedValue, Values, document_of, looks_like_document
from meshwright.launchers.reading.fields import Fields, meant
from meshwright.launchers.table import command_names
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError
from meshwright.shell.values import Word, unknown_fault, unknown_in

ENGINE = "distributed_type"
FSDP, MESH = "fsdp_config.", "parallelism_config.parallelism_config_"
AT = "deepspeed_config."  # accelerate's DeepSpeed plugin
PLUGIN_FILE = f"{AT}deepspeed_config_file"
PLUGIN_COUNT = f"{AT}gradient_accumulation_steps"
ADDRESS = "main_process_ip"
_OWN = (ENGINE, "num_processes", "fsdp_config", "num_machines", "compute_environment")
# Replicas on devices of other vendors (accelerate 1.15, utils/dataclasses.py DistributedType).
_REPLICAS = ("MULTI_XPU", "MULTI_NPU", "MULTI_HPU", "MULTI_MLU", "MULTI_MUSA", "MULTI_SDAA")
_STARTS = {
    "fsdp_config": ("fsdp", "fsdp_"),
    "dynamo_config": ("dynamo_", "dynamo_"),
}  # of names in sections
# Values that DeepSpeed's own file sets: accelerate refuses them in its own, and ignores the command's.
_OF_DEEPSPEEDS_FILE = (
    PLUGIN_COUNT, f"{AT}gradient_clipping", f"{AT}zero_stage", f"{AT}offload_optimizer_device",
    f"{AT}offload_param_device", f"{AT}zero3_save_16bit_model",
)  # fmt: skip


def is_accelerates(source: Source) -> bool:
    """Return whether a file is accelerate's YAML, by its names."""
    names = looks_like_document(source) if source.suffix in (".yaml", ".yml") else {}
    several = sum(any(key.split(".")[0] == name for key in names) for name in _OWN) > 1
    return several or (ENGINE in names and "mixed_precision" in names)


def values_of_file(source: Source) -> dict[str, LocatedValue]:
    """Return the values of accelerate's file, and complete names that lack a prefix (launch.py:1270)."""
    values = {_whole(name): found for name, found in document_of(source).items()}
    older = values.pop("fp16", None)  # config_args.py:116
    if older is not None and older.value is True:
        values.setdefault("mixed_precision", replace(older, value="fp16"))
    engine = values.get(ENGINE)
    if engine is not None and str(engine.value).upper() in _REPLICAS:
        values[ENGINE] = replace(engine, value="MULTI_GPU")
    return values


def _whole(name: str) -> str:
    if name == "dynamo_backend":  # config_args.py:117
        return f"dynamo_config.{name}"
    section, dot, own = name.partition(".")
    known, start = _STARTS.get(section, ("", ""))
    return f"{section}.{start}{own}" if dot and not own.startswith(known) else name


@dataclass(frozen=True, slots=True)
class Shares:
    """Accelerate's file with the options of ``accelerate launch``, which override it."""

    source: Source  # with the script next to it
    values: Values
    fields: Fields
    notes: Sequence[str] = ()  # on options that replace a value of the file, or do nothing

    @classmethod
    def of(cls, source: Source, own: Values, options: Values | None = None) -> Self:
        """Return a file's values with options in place of some of them.

        Raises:
            InvalidProblemError: the engine is unknown, or DeepSpeed's own file sets a value of the file.
        """
        options = options or {}
        fields = Fields(source.name, {**own, **options}, programs=("accelerate",))
        by_deepspeed = fields.choice(ENGINE, "NO") == "DEEPSPEED"
        doubled = _OF_DEEPSPEEDS_FILE if by_deepspeed and fields.has(PLUGIN_FILE) else ()
        for key in (*doubled, "mixed_precision") if doubled else ():
            if key in own:
                fields.fault(key, f"contradicts {PLUGIN_FILE}: accelerate takes one of them")
        fields.stop()
        idle = doubled if by_deepspeed else (PLUGIN_COUNT,)  # not passed on otherwise (utils/launch.py)
        values = {**own, **{name: one for name, one in options.items() if name not in idle}}
        world, processes = short_world(source.text), values.get("num_processes")
        if world is not None and processes is not None:  # of all nodes, each of which states its own
            values["num_processes"] = replace(processes, value=world.num_gpus)
        why = f"which does nothing {_WITHOUT_USE[by_deepspeed]}"
        notes = [
            f"line {one.line} of the command: {name} is {shown(str(one.value))}, "
            + (why if name in idle else "not the file's")
            for name, one in options.items()
            if one.line and (name in idle or (name in own and str(own[name].value) != str(one.value)))
        ]
        return cls(source, values, Fields(source.name, values, programs=("accelerate",)), notes)

    def kind(self) -> str:
        """Return the sharding engine."""
        return self.fields.choice(ENGINE, "NO")


_WITHOUT_USE = {True: f"next to {PLUGIN_FILE}", False: "without DeepSpeed"}


def starts_beside(
    source: Source, overrides: Overrides
) -> Iterator[tuple[Source, Sequence[Word], Sequence[Word]]]:
    """Yield commands of ``accelerate launch`` in scripts next to a file, split before their programs."""
    for script, words in commands_beside(source, overrides):
        launch = accelerates_options(words)
        if launch is not None:
            command = program_of(words)
            at = len(command.before) if command is not None else _end_of_options(words, launch)
            yield script, words[:at], words[at:]


def _end_of_options(words: Sequence[Word], at: int) -> int:
    """Return the index of the program: the first word that is neither an option nor its value."""
    while at < len(words) and words[at].text.startswith("-"):
        at += 1 + _takes_next(words[at])
    return at


def _takes_next(option: Word) -> bool:
    row = flags_of("accelerate").get(plain_name(option.text))
    return "=" not in option.text and (row is None or row.kind != "switch")


def shares_of(words: Sequence[Word], source: Source, usual: Source | None = None) -> Shares | None:
    """Return the sharding of ``accelerate launch``, from its file or options; None if it sets none.

    Args:
        words: words of the command before its program.
        source: the script, with the files given with it.
        usual: accelerate's file if the command names none.

    Raises:
        InvalidProblemError: a named file is missing, or an option is not read.
    """
    starts = command_names(accelerates=True)
    if accelerates_options(words) is None and not any(
        word.text.rpartition("/")[2] in starts for word in words
    ):
        return None
    said = _said(words, source.name)
    options = {key: found for name, found in said.items() if (key := _key_of(name)) is not None}
    if (engine := next((name for name in ENGINES if name in said), None)) is not None:
        options[ENGINE] = LocatedValue(ENGINES[engine], said[engine].line)
    named = said.get("accelerate_config") or said.get("config_file")
    path = "" if named is None else str(named.value)
    file, own = usual, dict[str, LocatedValue]()
    if named is not None and path in _TRLS:
        built_in = {"num_processes": 8, **_TRLS[path]}
        file, own = source, {name: LocatedValue(value, named.line) for name, value in built_in.items()}
    elif named is not None:
        file = _file_of(source, path, named.line)
    if file is None:
        _require_mesh_on(said, own, source.name)
        return Shares.of(source, {}, {ENGINE: LocatedValue("MULTI_GPU", 0), **options}) if options else None
    own = own or values_of_file(file)
    _require_mesh_on(said, own, source.name)
    return Shares.of(file, own, options)


def _file_of(source: Source, path: str, line: int) -> Source:
    if (unknown := unknown_file(path)) is not None:
        raise InvalidProblemError([unknown_fault("accelerate's YAML", unknown, line)])
    text = source.other(path)
    if text is None or not path.endswith((".yaml", ".yml", ".json")):
        raise refused(
            f"line {line} of {shown(source.name)}: {shown(path)} is not next to it",
            allowed="give accelerate's YAML too, or its folder; or meshwright capture -- bash …",
        )
    base = path.replace("\\", "/").rsplit("/", 1)[-1]
    return replace(source, name=base, text=text, files={**source.files, source.name: source.text})


def shares_beside(
    starts: Iterable[tuple[Source, Sequence[Word]]], files: Iterable[Source]
) -> Shares | None:
    """Return the sharding of commands that start a trainer, else of accelerate's file; None without either.

    Args:
        starts: scripts, each with the words before the program that it starts.
        files: the files given with the trainer's own file.

    Raises:
        InvalidProblemError: as ``shares_of``.
    """
    mesh = next((one for one in files if is_accelerates(one)), None)
    for script, words in starts:
        if (found := shares_of(words, script, mesh)) is not None:
            return found
    return None if mesh is None else Shares.of(mesh, values_of_file(mesh))


def shares_of_environment(variables: Mapping[str, tuple[str, ...]], source: Source) -> Shares | None:
    """Return the sharding in the environment of a script that ``torchrun`` starts; None without any.

    Names: utils/dataclasses.py (FullyShardedDataParallelPlugin, DeepSpeedPlugin).

    Raises:
        InvalidProblemError: a value depends on an unknown one.
    """
    said = {name: "".join(parts) for name, parts in variables.items()}
    engine = next((kind for name, kind in _USED.items() if said.get(name, "").lower() in _ON), None)
    if engine is None:
        return None
    values: dict[str, LocatedValue] = {ENGINE: LocatedValue(engine, 0)}
    for name, text in said.items():
        if not name.startswith(_BEGINNINGS[engine]):
            continue
        if (unknown := unknown_in(text)) is not None:
            raise InvalidProblemError([unknown_fault(name, unknown, 0)])
        key = name.removeprefix("ACCELERATE_DEEPSPEED_").lower()
        place = PLUGIN_FILE if key == "config_file" else f"{AT}{key}"
        values[f"fsdp_config.{key}" if engine == "FSDP" else place] = LocatedValue(text, 0)
    return Shares.of(source, {}, values)


# Files of TRL's own option ``--accelerate_config`` (trl/accelerate_configs; each for 8 processes).
_TRLS: Mapping[str, Mapping[str, object]] = {
    "single_gpu": {ENGINE: "NO", "num_processes": 1},
    "multi_gpu": {ENGINE: "MULTI_GPU"},
    **{f"zero{stage}": {ENGINE: "DEEPSPEED", f"{AT}zero_stage": stage} for stage in (1, 2, 3)},
    "fsdp1": {ENGINE: "FSDP", "fsdp_config.fsdp_version": 1},
    "fsdp2": {ENGINE: "FSDP", "fsdp_config.fsdp_version": 2},
}

_ON = ("1", "true", "yes", "on", "y", "t")
_USED = {"ACCELERATE_USE_DEEPSPEED": "DEEPSPEED", "ACCELERATE_USE_FSDP": "FSDP"}
_BEGINNINGS = {"DEEPSPEED": "ACCELERATE_DEEPSPEED_", "FSDP": "FSDP_"}

# Options that choose the sharding engine, of which accelerate takes one.
ENGINES = {"use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP", "multi_gpu": "MULTI_GPU"}
_OF_FILES = (ENGINE, "compute_environment")  # no options
_TRLS_OWN = ("gradient_accumulation_steps",)  # in its command they are the trainer's


def _said(words: Sequence[Word], script: str) -> dict[str, LocatedValue]:
    """Return the options of ``accelerate launch``, by name.

    Raises:
        InvalidProblemError: an option is refused or unknown, or two of them contradict one another.
    """
    launch = accelerates_options(words)
    rows, found = flags_of("accelerate"), dict[str, LocatedValue]()
    for word, following in pairwise((*words[launch or 0 :], Word("--", 0))):
        name, equals, value = word.text.partition("=")
        name = plain_name(name)
        if not word.text.startswith("--") or not name:
            continue
        row = None if name in _OF_FILES else rows.get(name)
        where = f"line {word.line} of {shown(script)}"
        alone = not _takes_next(word) or following.text.startswith("--")
        said = LocatedValue(value if equals else True if alone else following.text, word.line)
        if row is not None and row.refuses(said.value):
            why = f"--{shown(name)} cannot be read: {row.why}"
            raise refused(f"{where}: {why}", allowed="the command without it")
        if row is None and launch is not None:
            near = meant(name, rows)
            raise refused(
                f"{where}: --{shown(name)} is not an option of accelerate launch",
                allowed=f"--{near}" if near else "its options (accelerate launch --help)",
            )
        if launch is not None or name not in _TRLS_OWN:
            found[name] = said
    engines = [name for name in ENGINES if name in found]
    if len(engines) > 1:
        where = f"line {found[engines[0]].line} of {shown(script)}"
        raise refused(f"{where}: --{engines[0]} contradicts --{engines[1]}", allowed="one of them")
    return found


def _require_mesh_on(said: Values, own: Values, script: str) -> None:
    """Refuse a mesh that accelerate silently leaves out; the command's engine turns off the file's mesh."""
    switch = "use_parallelism_config"
    if switch in said and "use_fsdp" not in said:  # whatever the file's engine is
        raise refused(f"{shown(script)}: --{switch} without --use_fsdp", allowed=f"--use_fsdp --{switch}")
    meshes = [name for name in said if name.startswith("parallelism_config_")]
    if not any(name in said for name in ENGINES):
        in_file = any(name.startswith(MESH) for name in own)
    else:
        in_file, meshes = False, meshes + [name for name in own if name.startswith(MESH)]
    if meshes and not in_file and switch not in said:
        raise refused(
            f"{shown(script)}: {meshes[0]} does nothing without --{switch}",
            allowed=f"--use_fsdp --{switch}, or no mesh",
        )


def _key_of(name: str) -> str | None:
    """Return the place of an option in accelerate's file; None if it has no effect."""
    rows = flags_of("accelerate")
    if name in (*ENGINES, "use_parallelism_config") or not (
        name == ADDRESS or (name in rows and rows[name].sets)
    ):
        return None
    keys = (f"{section}.{name}" for section in ("fsdp_config", "parallelism_config", "deepspeed_config"))
    return next((key for key in keys if key in rows), _whole(name))
