"""The launchers whose files can be read, and which of them a file belongs to.

The form and the names of a file decide; ``launcher`` forces one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace

from profiles.errors import FieldError, InvalidProblemError, UnknownNameError
from service.json_input import shown
from service.launchers.reading.accelerate import AccelerateReader
from service.launchers.reading.base import (
    MAX_BYTES,
    MAX_FILES,
    WHOLE_FILE,
    LaunchFile,
    Reader,
    Source,
    Told,
    refused,
)
from service.launchers.reading.commands import READ, files_named, script_of, world_of
from service.launchers.reading.deepspeed import DeepSpeedReader
from service.launchers.reading.documents import DOCUMENTS, document_of
from service.launchers.reading.llama_factory import LlamaFactoryReader
from service.launchers.reading.megatron_bridge import MegatronBridgeReader
from service.launchers.reading.megatron_lm import MegatronLmReader
from service.launchers.reading.ms_swift import MsSwiftReader
from service.launchers.reading.nanotron import NanotronReader
from service.launchers.reading.shell import Word
from service.launchers.reading.torchtitan import TorchtitanReader
from service.launchers.rules import near_divisors

# In the order in which a file is tried: names that only one launcher has go first.
_READERS: Mapping[str, Reader] = {
    reader.name: reader
    for reader in (
        TorchtitanReader(), NanotronReader(), DeepSpeedReader(), AccelerateReader(), LlamaFactoryReader(),
        MegatronBridgeReader(), MsSwiftReader(), MegatronLmReader(),
    )
}  # fmt: skip
_KINDS = (
    "a Megatron-LM, Megatron-Bridge or ms-swift command, DeepSpeed JSON, torchtitan TOML or Python, "
    "accelerate, nanotron or LLaMA-Factory YAML"
)


def reader_names() -> tuple[str, ...]:
    """Launchers whose files can be read, sorted."""
    return tuple(sorted(_READERS))


def read_launch_files(source: Source, told: Told | None = None, launcher: str | None = None) -> LaunchFile:
    """The run that a launch file starts.

    Args:
        source: the file, with what stands beside it.
        told: what is known beside the files.
        launcher: whose file it is; None: found out by its names.

    Raises:
        UnknownNameError: no such launcher.
        InvalidProblemError: what cannot be read, contradicts itself, or is said nowhere.
    """
    told = told or Told()
    if launcher is not None and launcher not in _READERS:
        raise UnknownNameError.among("/launcher", launcher, reader_names())
    _require_bounded(source)
    found, reader = _recognised(source, launcher)
    launch = reader.read(found, told)
    _require_agreement(launch, told)
    _require_divided(launch)
    _require_one_start(found, told)
    return launch


def launcher_of(source: Source, only: str | None = None) -> str | None:
    """Whose file it is, of all launchers or of ``only`` one; None: nobody's."""
    names = _READERS if only is None else (only,)
    return next((name for name in names if _READERS[name].recognises(source)), None)


def _recognised(source: Source, launcher: str | None) -> tuple[Source, Reader]:
    """The file to read, which may be one that the given script names, and its reader."""
    for candidate in _candidates(source):
        name = launcher_of(candidate, launcher)
        if name is not None:
            return candidate, _READERS[name]
    _require_readable(source)
    if launcher is not None and source.suffix not in DOCUMENTS:
        return source, _READERS[launcher]  # it says what is missing
    names = f"no names of {launcher}" if launcher is not None else "no launcher's names"
    raise refused(f"{shown(source.name)}: {names} are in it", allowed=None if launcher else _KINDS)


def _candidates(source: Source) -> Iterator[Source]:
    """The file itself, those that it names, and those that were given with it."""
    yield source
    files = {**source.files, source.name: source.text}
    for word in _named(source):
        text = source.other(word.text)
        if text is not None:
            yield Source(name=word.text, text=text, files=files, include=source.include)
    yield from (source.at(name) for name in sorted(source.files))


def _named(source: Source) -> list[Word]:
    """Other files that a script starts its program with, each once, with the line that names it."""
    if not source.is_script:
        return []
    try:
        words = list(files_named(script_of(source, Told())))
    except InvalidProblemError:
        return []  # its own reader says so
    found = {word.text: word for word in reversed(words) if word.text != source.name}
    return list(reversed(found.values()))[:MAX_FILES]


def _require_readable(source: Source) -> None:
    """Refuse a file that nobody recognises for what is wrong with it, or with those that it names.

    Raises:
        InvalidProblemError: a form that is broken, or a file that is named and is not there.
    """
    for candidate in _candidates(source):
        if candidate.suffix in DOCUMENTS:
            document_of(candidate)
    faults = [
        FieldError(
            pointer=WHOLE_FILE,
            message=f"line {word.line} of {shown(source.name)}: {shown(word.text)} is not beside it",
            allowed="give that file too, or its folder",
        )
        for word in _named(source)
        if word.text.endswith(READ) and source.other(word.text) is None
    ]
    if faults:
        raise InvalidProblemError(faults)


def _require_bounded(source: Source) -> None:
    """Refuse more files, or more text, than any launcher has."""
    if len(source.files) > MAX_FILES:
        raise refused(f"{len(source.files)} files are given", allowed=f"at most {MAX_FILES}")
    for name, text in {**source.files, source.name: source.text}.items():
        if len(text) > MAX_BYTES:
            raise refused(f"{name[:64]}: the file is too big", allowed=f"{MAX_BYTES} characters")


def _require_agreement(found: LaunchFile, told: Told) -> None:
    """Refuse what is told otherwise than the files say it."""
    said = {**asdict(found.configuration), **asdict(found.workload)}
    faults = [
        FieldError(pointer=f"/{name}", message=f"{value} is told, but the files say {said[name]}"[:200])
        for name, value in told.values.items()
        if name in said and said[name] != value
    ]
    if faults:
        raise InvalidProblemError(faults)


def _require_divided(found: LaunchFile) -> None:
    """Refuse heads that tensor ranks do not divide, and ranks that are not those which are started."""
    config, heads = found.configuration, found.model.num_attention_heads
    tp, started = config.tensor_parallel_size, (found.num_nodes or 0) * (found.gpus_per_node or 0)
    if heads % tp:
        message = f"{tp} does not divide {heads} attention heads"
        raise InvalidProblemError.of(
            "tensor_parallel_size",
            message,
            allowed=f"divisors of {heads}",
            nearest=near_divisors(tp, heads),
        )
    if started and started != config.num_gpus:
        message = (
            f"{found.num_nodes} nodes of {found.gpus_per_node} processes are {started}, but tp {tp} × "
            f"cp {config.context_parallel_size} × pp {config.pipeline_parallel_size} × "
            f"dp {config.data_parallel_size} is {config.num_gpus}"
        )
        raise InvalidProblemError.of("world size", message, allowed=f"{config.num_gpus} processes")


def _require_one_start(source: Source, told: Told) -> None:
    """Refuse a script and one that starts it which start other numbers of processes."""
    scripts = source.scripts()
    for script in scripts:
        names = {word.text for word in _named(script)}
        for other in scripts:
            if other.name in names:
                _require_same_world(script, other, told)


def _require_same_world(script: Source, other: Source, told: Told) -> None:
    """Refuse two scripts that belong together and say different nodes or processes."""
    worlds = [world_of(one.text, script_of(one, told)) for one in (script, other)]
    said = [(world.num_nodes, world.gpus_per_node) for world in worlds if world.num_gpus]
    if len(set(said)) > 1:
        first, second = (f"{nodes} nodes of {each} processes" for nodes, each in said)
        raise InvalidProblemError.of(
            "world size",
            f"{shown(script.name)} starts {first}, {shown(other.name)}, which it runs, {second}",
            allowed=first,
        )


def renamed(found: LaunchFile, name: str) -> LaunchFile:
    """The same run with a name for a model that only sizes describe."""
    if found.model.name != "launch file":
        return found
    return replace(found, model=replace(found.model, name=name))
