"""The launchers whose files can be read, and which of them a file belongs to.

The form and the names of a file decide; ``launcher`` forces one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace

from profiles.errors import FieldError, InvalidProblemError, UnknownNameError
from service.launchers.reading.accelerate import AccelerateReader
from service.launchers.reading.base import MAX_BYTES, MAX_FILES, LaunchFile, Reader, Source, Told, refused
from service.launchers.reading.commands import files_named, script_of
from service.launchers.reading.deepspeed import DeepSpeedReader
from service.launchers.reading.documents import DOCUMENTS, document_of
from service.launchers.reading.llama_factory import LlamaFactoryReader
from service.launchers.reading.megatron_bridge import MegatronBridgeReader
from service.launchers.reading.megatron_lm import MegatronLmReader
from service.launchers.reading.ms_swift import MsSwiftReader
from service.launchers.reading.nanotron import NanotronReader
from service.launchers.reading.torchtitan import TorchtitanReader

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
    if launcher is not None and source.suffix not in DOCUMENTS:
        return source, _READERS[launcher]  # it says what is missing
    if launcher is not None:
        document_of(source)  # it says what is wrong with its form
        raise refused(f"{source.name[:64]}: no names of {launcher} are in it")
    raise refused(f"{source.name[:64]}: no launcher's names are in it", allowed=_KINDS)


def _candidates(source: Source) -> Iterator[Source]:
    """The file itself, those that it names, and those that were given with it."""
    yield source
    yield from _named(source)
    yield from (source.at(name) for name in sorted(source.files))


def _named(source: Source) -> list[Source]:
    """Files of the same folder that a script starts its program with."""
    if not source.is_script:
        return []
    try:
        names = dict.fromkeys(files_named(script_of(source, Told())))
    except InvalidProblemError:
        return []  # its own reader says so
    found = []
    for name in list(names)[:MAX_FILES]:
        text = source.other(name)
        if text is not None:
            files = {**source.files, source.name: source.text}
            found.append(Source(name=name, text=text, files=files, include=source.include))
    return found


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
        raise InvalidProblemError.of("tensor_parallel_size", message, allowed=f"divisors of {heads}")
    if started and started != config.num_gpus:
        message = f"{started} processes are started for a mesh of {config.num_gpus}"
        raise InvalidProblemError.of("data_parallel_size", message)


def renamed(found: LaunchFile, name: str) -> LaunchFile:
    """The same run with a name for a model that only sizes describe."""
    if found.model.name != "launch file":
        return found
    return replace(found, model=replace(found.model, name=name))
