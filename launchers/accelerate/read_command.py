"""Sharding set by ``accelerate launch``: by its YAML, and by options that override it.

Names and precedence: accelerate 1.15.0, commands/launch.py (_validate_launch_command).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from meshwright.launchers.accelerate import read as accelerate
from meshwright.launchers.flags import flag_names, flags_of
from meshwright.launchers.reading.base import Source, refused
from meshwright.launchers.reading.documents import LocatedValue, Values
from meshwright.launchers.reading.fields import Fields, meant
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError
from meshwright.shell.values import Word, unknown_fault, unknown_in


@dataclass(frozen=True, slots=True)
class Shares:
    """Accelerate's file with the options of ``accelerate launch``, which override it."""

    source: Source  # with the script next to it
    values: Values
    fields: Fields

    @classmethod
    def of(cls, source: Source, values: Values) -> Self:
        """Return the file of ``source`` with these values."""
        return cls(source, values, Fields(source.name, values, programs=("accelerate",)))

    def kind(self) -> str:
        """Return the sharding engine."""
        return self.fields.choice(accelerate.ENGINE, "MULTI_GPU")


def shares_of(words: Sequence[Word], source: Source) -> Shares | None:
    """Return the sharding of ``accelerate launch``, from its file or options; None if it sets none.

    Args:
        words: words of the command before its program.
        source: the script, with the files given with it.

    Raises:
        InvalidProblemError: a named file is missing, or an option is not read.
    """
    if not any(word.text.rpartition("/")[2] in ("accelerate", "trl") for word in words):
        return None
    _require_one_engine(words, source.name)
    path, options = None, dict(_options(words, source.name))
    for at, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if name in ("--config_file", "--config-file", _BUILT_IN):
            following = words[at + 1].text if at + 1 < len(words) else ""
            path = Word(value if equals else following, word.line)
    if path is None:
        return (
            Shares.of(source, {accelerate.ENGINE: LocatedValue("MULTI_GPU", 0), **options})
            if options
            else None
        )
    if path.text in _TRLS:
        built_in = {name: LocatedValue(value, path.line) for name, value in _TRLS[path.text].items()}
        return Shares.of(source, {"num_processes": LocatedValue(8, path.line), **built_in, **options})
    text = source.other(path.text)
    if text is None or not path.text.endswith((".yaml", ".yml", ".json")):
        raise refused(
            f"line {path.line} of {shown(source.name)}: {shown(path.text)} is not next to it",
            allowed="give accelerate's YAML too, or its folder; or meshwright capture -- bash …",
        )
    base = path.text.replace("\\", "/").rsplit("/", 1)[-1]
    file = replace(source, name=base, text=text, files={**source.files, source.name: source.text})
    return Shares.of(file, accelerate.values_of_file(file) | options)


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
    for script, words in starts:
        if (found := shares_of(words, script)) is not None:
            return found
    mesh = next((one for one in files if accelerate.ACCELERATE_READER.recognises(one)), None)
    return None if mesh is None else Shares.of(mesh, accelerate.values_of_file(mesh))


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
    values: dict[str, LocatedValue] = {accelerate.ENGINE: LocatedValue(engine, 0)}
    for name, text in said.items():
        if not name.startswith(_BEGINNINGS[engine]):
            continue
        if (unknown := unknown_in(text)) is not None:
            raise InvalidProblemError([unknown_fault(name, unknown, 0)])
        key = name.removeprefix("ACCELERATE_DEEPSPEED_").lower()
        place = accelerate.PLUGIN_FILE if key == "config_file" else f"{accelerate.AT}{key}"
        values[f"fsdp_config.{key}" if engine == "FSDP" else place] = LocatedValue(text, 0)
    return Shares.of(source, values)


# TRL's own option next to accelerate's (trl/accelerate_configs; each for 8 processes).
_BUILT_IN = "--accelerate_config"
_TRLS: Mapping[str, Mapping[str, object]] = {
    "single_gpu": {accelerate.ENGINE: "NO", "num_processes": 1},
    "multi_gpu": {accelerate.ENGINE: "MULTI_GPU"},
    **{
        f"zero{stage}": {accelerate.ENGINE: "DEEPSPEED", f"{accelerate.AT}zero_stage": stage}
        for stage in (1, 2, 3)
    },
    "fsdp1": {accelerate.ENGINE: "FSDP", "fsdp_config.fsdp_version": 1},
    "fsdp2": {accelerate.ENGINE: "FSDP", "fsdp_config.fsdp_version": 2},
}

_ON = ("1", "true", "yes", "on", "y", "t")
_USED = {"ACCELERATE_USE_DEEPSPEED": "DEEPSPEED", "ACCELERATE_USE_FSDP": "FSDP"}
_BEGINNINGS = {"DEEPSPEED": "ACCELERATE_DEEPSPEED_", "FSDP": "FSDP_"}

# Options of ``accelerate launch`` by their place in its file (commands/launch.py).
_ENGINES = {"use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP", "multi_gpu": "MULTI_GPU"}
_OF_ALL = ("num_processes", "num_machines", "mixed_precision", "main_process_ip", "dynamo_backend")
_OF_TRAINERS = ("gradient_accumulation_steps", "gradient_clipping")  # the trainer's values override these


def _require_one_engine(words: Sequence[Word], script: str) -> None:
    """Refuse several sharding engines at once, as accelerate does."""
    options = [word for word in words if word.text.startswith("--")]
    said = {word.text.removeprefix("--").replace("-", "_"): word for word in options}
    engines = [said[name] for name in _ENGINES if name in said]
    if len(engines) > 1:
        where = f"line {engines[0].line} of {shown(script)}"
        raise refused(f"{where}: {engines[0].text} contradicts {engines[1].text}", allowed="one of them")


def _options(words: Sequence[Word], script: str) -> Iterator[tuple[str, LocatedValue]]:
    """Yield the options that set the sharding, by their names in accelerate's file."""
    own = next((at for at, word in enumerate(words) if word.text == "launch"), len(words))
    options = flags_of("accelerate")
    for at, word in enumerate(words):
        name, equals, value = word.text.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not word.text.startswith("--"):
            continue
        if name in _ENGINES:
            yield accelerate.ENGINE, LocatedValue(_ENGINES[name], word.line)
            continue
        key, row, where = _key_of(name), options.get(name), f"line {word.line} of {shown(script)}"
        following = words[at + 1] if at + 1 < len(words) else Word("--", 0)
        said = value if equals else "true" if following.text.startswith("--") else following.text
        if key is not None:
            yield key, LocatedValue(said, word.line)
        elif row is not None and row.refuses("on" if row.kind == "switch" else said):  # it takes no value
            why = f"--{shown(name)} cannot be read: {row.why}"
            raise refused(f"{where}: {why}", allowed="the command without it")
        elif row is None and at > own and name:
            near = meant(name, options)
            raise refused(
                f"{where}: --{shown(name)} is not an option of accelerate launch",
                allowed=f"--{near}" if near else "its options (accelerate launch --help)",
            )


def _key_of(name: str) -> str | None:
    """Return the place of an option in accelerate's file; None if it has no effect."""
    if name in _OF_ALL:
        return name
    keys = (f"fsdp_config.{name}", f"parallelism_config.{name}", f"{accelerate.AT}{name}")
    return next(
        (key for key in keys if key in flag_names("accelerate") and name not in _OF_TRAINERS),
        None,
    )
