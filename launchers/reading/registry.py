"""The launchers with readers, and the choice of the reader for a file.

The form and the names of a file select the launcher; ``launcher`` forces one.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import chain, pairwise

from meshwright.launchers.reading.base import (
    MAX_BYTES,
    MAX_FILES,
    MAX_LISTED,
    WHOLE_FILE,
    LaunchFile,
    Overrides,
    Reader,
    Source,
    refused,
)
from meshwright.launchers.reading.captured import is_capture, source_of_capture
from meshwright.launchers.reading.commands import (
    HANDLERS,
    World,
    commands_of,
    files_named,
    options_of,
    other_gpus_note,
    other_use,
    program_of,
    readable_script,
    require_job,
    require_options,
    script_of,
    size_of_job,
    unknown_file,
    world_of,
)
from meshwright.launchers.reading.documents import (
    DOCUMENTS,
    document_of,
    looks_like_document,
    repeated_keys,
)
from meshwright.launchers.reading.foreign import foreign, require_start
from meshwright.launchers.reading.known import started_as_exported, with_exported
from meshwright.launchers.reading.own_defaults import trains
from meshwright.launchers.reading.python_values import looks_like_module, module_values
from meshwright.launchers.registry import launcher_names, named
from meshwright.launchers.rules import near_divisors, near_multiples
from meshwright.launchers.table import launchers, over_trl
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import FieldError, InvalidProblemError, UnknownNameError
from meshwright.shell.manifests import manifest_of
from meshwright.shell.values import Script, Word, unknown_fault, unknown_in, unknown_value, why_unknown

_MAKEFILES = ("makefile", "gnumakefile")
_BLOCKING = re.compile(r"^\s*(?:export\s+)?CUDA_LAUNCH_BLOCKING=1\b", re.MULTILINE)
_KINDS = (
    "a Megatron-LM, Megatron-Bridge or ms-swift command, DeepSpeed JSON, torchtitan TOML or Python, "
    "accelerate, nanotron, MaxText, LLaMA-Factory, Axolotl or TRL YAML, arguments of transformers' Trainer"
)


@cache
def _reader(name: str) -> Reader:
    found = named(launchers()[name].read)
    reader: Reader = found(name) if callable(found) else found
    return reader


def reader_names() -> tuple[str, ...]:
    """Return the launchers with readers, sorted."""
    return tuple(sorted(launchers()))


def read_launch_files(
    source: Source, overrides: Overrides | None = None, launcher: str | None = None
) -> LaunchFile:
    """Return the run that a launch file starts.

    Args:
        source: the file, with the files given with it.
        overrides: values that the user supplies.
        launcher: launcher of the file; None: recognised by its names.

    Raises:
        UnknownNameError: the launcher is unknown.
        InvalidProblemError: a value cannot be read, contradicts another, or is missing.
    """
    overrides = overrides or Overrides()
    if launcher is not None and launcher not in launchers():
        raise UnknownNameError.among("/launcher", launcher, reader_names())
    if is_capture(source.text):
        source = source_of_capture(source)
    _require_bounded(source)
    if source.name.lower() in _MAKEFILES or source.suffix == ".mk":
        raise refused(
            f"{shown(source.name)} is a Makefile. Meshwright can't read it",
            allowed="what it runs, saved as a script: make -n TARGET > train.sh",
        )
    start = _start_of_program(source, overrides)
    if start:
        files = {**source.files, source.name: source.text}
        source = replace(source, name=_STARTED, text=f"{start} {shlex.quote(source.name)}\n", files=files)
    source = started_as_exported(with_exported(replace(source, variables=overrides.variables)))
    source = _from_its_script(_with_written(source, overrides))
    _require_readable(source)
    found, reader = _recognised(source, launcher)
    if not found.is_script and overrides.run not in (None, 1):
        raise InvalidProblemError.of(
            "--run", f"{overrides.run}: {shown(found.name)} is one run", allowed="1, or none"
        )
    for script in found.scripts() if overrides.num_gpus is None else ():
        require_job(script.text, script.name)
    try:
        launch = reader.read(found, overrides)
    except InvalidProblemError as fault:
        several = [] if _starts_program(source) else [*_starts_that_differ(source)]
        raise InvalidProblemError(several or [_located(found, one) for one in fault.errors]) from None
    for script in found.scripts():
        require_options(script_of(script, overrides), script.name)
    launch = _on_supplied_gpus(launch, overrides)
    _require_divided(launch)
    _require_one_start(found, overrides)
    _require_headers(source, overrides)
    _require_one_training(source, found, launch, overrides)
    again = [f"{said}: the last one counts" for said in repeated_keys(found)]
    again += [f"no script starts the program: taken as {source.text.strip()}"] if start else []
    return _with_environment(replace(launch, notes=(*launch.notes, *again)[:MAX_LISTED]), found)


def _starts_program(source: Source) -> bool:
    """Return whether a script starts a program itself, next to other scripts that may prepare it."""
    return any(command.program for command in commands_of(readable_script(source)))


def _starts_that_differ(source: Source) -> Iterator[FieldError]:
    """Yield the fault of a script that starts another one several times, each time with other arguments."""
    script = readable_script(source)
    started = dict[str, dict[tuple[str, ...], int]]()
    for words in script.commands:
        at = next((at for at, word in enumerate(words[:2]) if word.text.endswith(".sh")), None)
        if at is not None and words[0].text not in HANDLERS:
            arguments = tuple(word.text for word in words[at + 1 :])
            started.setdefault(words[at].text, {}).setdefault(arguments, words[0].line)
    for name, runs in started.items():
        if len(runs) > 1:
            lines = ", ".join(map(str, list(dict.fromkeys(runs.values()))[:8]))
            message = (
                f"{shown(source.name)} starts {shown(name)} {len(runs)} times with different arguments "
                f"(lines {lines})"
            )
            step = f"one of them: meshwright capture -- bash {name} …"
            yield FieldError(pointer=WHOLE_FILE, message=message, allowed=step)


_STARTED = "command"  # the name of what starts a program that is given alone


def _start_of_program(source: Source, overrides: Overrides) -> str:
    """Return what starts a trainer's program that comes without a script, on all GPUs; empty for others."""
    alone = source.suffix == ".py" and not source.scripts() and not looks_like_module(source)
    if not alone or not trains(source.text):
        return ""
    gpus = overrides.num_gpus or 1
    return "python" if gpus == 1 else f"accelerate launch --num_processes {gpus}"


def source_of_folder(files: Mapping[str, str]) -> Source:
    """Return the files of a folder as one source, beginning with the script that starts the run.

    A script comes before the files it names. If no script starts a run, the first file by name counts.
    """
    name = min(files)
    whole = Source(name=name, text=files[name], files=files)
    reached = {script.name: list(_reached(script)) for script in whole.scripts()}
    named = {each.name for others in reached.values() for each in others[1:]}
    starts = [one[0] for one in reached.values() if any(map(launcher_of, one))]
    return next((one for one in starts if one.name not in named), next(iter(starts), whole))


def _with_written(source: Source, overrides: Overrides) -> Source:
    """Return the source with the files that its scripts write, which replace older ones by their names."""
    written: dict[str, str] = {}
    for script in source.scripts():
        texts = readable_script(script, overrides).files
        written |= {name: text for name, text in texts.items() if name.endswith(DOCUMENTS)}
        manifest = manifest_of(script.text)
        written |= manifest.files if manifest is not None else {}
    return replace(source, files={**source.files, **written}) if written else source


def _from_its_script(source: Source) -> Source:
    """Return the only script that names a document, which may override it; else the document."""
    if source.is_script:
        return source
    starts = [one for one in source.scripts() if source.name in {word.text for word in _named(one)}]
    return starts[0] if len(starts) == 1 else source


def _with_environment(launch: LaunchFile, source: Source) -> LaunchFile:
    """Apply the scripts' environment to the run: blocking kernel launches run one by one."""
    blocking = any(_BLOCKING.search(script.text) for script in source.scripts())
    stated = "launch_blocking" in launch.workload.framework_options
    return launch.launched_one_by_one() if blocking and not stated else launch


def launcher_of(source: Source, only: str | None = None) -> str | None:
    """Return the launcher of a file, of all or ``only`` one; None without a match."""
    names = launchers() if only is None else (only,)
    return next((name for name in names if _reader(name).recognises(source)), None)


def _recognised(source: Source, launcher: str | None) -> tuple[Source, Reader]:
    """Return the file to read, possibly one that the given script names, and its reader."""
    reached: list[Source] = []
    for first in chain(_kept(reached, _reached(source)), map(source.at, sorted(source.files))):
        if (known := launcher_of(first, launcher)) is not None:
            candidate, name = first, known
            if known in _SHARING and source.is_script and launcher is None:
                candidate, name = _arguments_of(source) or (first, known)
            if source.is_script and candidate.name != source.name:
                if candidate.name not in [one.name for one in reached]:
                    _require_known_files(source)
                require_start(list(_scripts(source)), candidate)
            if source.is_script and launcher is None:
                _require_one_launcher(source)
            others = list(foreign(candidate)) if candidate.suffix in DOCUMENTS else []
            if others:
                raise InvalidProblemError(others)
            return candidate, _reader(name)
    missing = list(_missing(reached))
    if launcher is not None and source.suffix not in DOCUMENTS and not missing:
        return source, _reader(launcher)  # the reader reports the missing parts
    named = [fault for one in reached or [source] for fault in foreign(one)][:MAX_LISTED]
    if named:
        raise InvalidProblemError([*missing, *named])
    names = f"options of {launcher}" if launcher is not None else "launcher options"
    own, allowed = _of_its_own(source)
    message = f"{shown(source.name)}: no {names} found{own}"
    raise InvalidProblemError(missing or [FieldError(pointer=WHOLE_FILE, message=message, allowed=allowed)])


def _require_one_launcher(source: Source) -> None:
    """Refuse a script with trainings of several launchers, of which one would be read in silence."""
    starts = [one for one in commands_of(readable_script(source)) if one.program and not other_use(one)]
    if len(starts) < 2:  # noqa: PLR2004
        return
    found = dict[str, int]()
    for one in starts:
        words = [*one.before, Word(one.program, one.words[0].line if one.words else 0), *one.words]
        text = shlex.join(word.text for word in words)
        name = launcher_of(replace(source, name="command.sh", text=text, files={}, environment={}))
        if name is not None:
            found.setdefault(name, one.words[0].line if one.words else 0)
    if len(found) > 1:
        listed = ", ".join(f"{name} (line {line})" for name, line in found.items())
        choices = [f"--launcher {name}" for name in found if name in launcher_names()]
        raise refused(
            f"{shown(source.name)} starts trainings of {len(found)} launchers: {listed}",
            allowed=" or ".join([*choices, "a script with one of them"]),
        )


_SHARING = ("accelerate", "deepspeed")  # their files state how ranks share a model, and no model


def _arguments_of(script: Source) -> tuple[Source, str] | None:
    """Return the file of a Trainer's arguments that a script names; None without one."""
    known = ((one, launcher_of(one)) for one in _reached(script))
    trainers = ("transformers", *(one.name for one in over_trl()))
    return next(((one, name) for one, name in known if name in trainers), None)


def _of_its_own(source: Source) -> tuple[str, str]:
    """Return which program a script starts, and what is allowed instead."""
    first = next((one for one in commands_of(readable_script(source)) if one.program and one.before), None)
    if first is None:
        return "", _KINDS
    program = f": line {first.before[0].line} starts {shown(first.program.rpartition('/')[2])}"
    unknown = next((word.unknown for word in first.words if word.unknown is not None), None)
    if unknown is None:
        return f"{program}, which has its own options", _KINDS
    why, allowed = why_unknown(unknown)
    return f"{program}; {why}", allowed


def _scripts(source: Source) -> Iterator[tuple[str, Script]]:
    for one in _reached(source):
        with suppress(InvalidProblemError):
            if one.is_script:
                yield one.name, script_of(one, Overrides())


def _kept(kept: list[Source], files: Iterable[Source]) -> Iterator[Source]:
    for one in files:
        kept.append(one)
        yield one


def _reached(source: Source) -> Iterator[Source]:
    """Yield the file itself, the files that it names, the files that these name, and so on; each once."""
    files, seen, queue = {**source.files, source.name: source.text}, {source.name}, [source]
    while queue and len(seen) <= MAX_FILES:
        one = queue.pop(0)
        yield one
        for word in _named(one):
            text = None if word.text in seen else _text_of(one, word.text)
            seen.add(word.text)
            if text is not None:
                found = replace(source, name=word.text, text=text, files=files, environment={})
                queue.append(replace(found, environment=_handed(one, found)))


def _handed(starter: Source, started: Source) -> dict[str, str]:
    """Return the exported variables and the numbered arguments that a script passes to one that it starts.

    A value that differs between several starts is unknown; all are if the starter cannot be read,
    which its own reader reports.
    """
    if not (starter.is_script and started.is_script):
        return {}
    script = readable_script(starter)
    starts = []
    for words, at, shared in _starts(script, started.name):
        given = {name: " ".join(value) for name, value in sorted(shared.items())}
        texts = [word.text for word in words[:at]]
        for option, value in options_of(texts):
            names = value.split(",")
            if option == "--export" and "ALL" not in names:  # srun(1), sbatch(1): these alone
                given = {name: given[name] for name in names if name in given}
            if option in ("--export", "-x"):  # mpirun's
                given |= dict(name.split("=", 1) for name in names if "=" in name)
            elif option.isidentifier() and "env" in texts:
                given[option] = value
        arguments = [word.text for word in words[at + 1 :]]
        starts.append(given | {str(place): text for place, text in enumerate(arguments, start=1)})
    names = sorted({name for one in starts for name in one})
    values = {name: {one.get(name) for one in starts} for name in names}
    return {name: unknown_value(name) if len(some) > 1 else str(*some) for name, some in values.items()}


def _starts(
    script: Script, name: str
) -> Iterator[tuple[Sequence[Word], int, Mapping[str, tuple[str, ...]]]]:
    """Yield the commands that start a script: their words, the place of its name, variables passed on."""
    for number, (words, environment) in enumerate(zip(script.commands, script.environments, strict=True)):
        at = next((at for at, word in enumerate(words) if word.text.rpartition("/")[2] == name), None)
        python = any(word.text.endswith(".py") for word in words[:at])
        if at is not None and words[0].text not in HANDLERS and not python:
            own = any(word.text == "sbatch" for word in words[:at])  # a job has variables of its own
            kept = {*script.passed, *(one for one, before in script.exported.items() if before <= number)}
            kept |= {one for one in environment if one.startswith("SLURM_") and not own}
            yield words, at, {one: value for one, value in environment.items() if one in kept}


def _require_one_training(source: Source, found: Source, launch: LaunchFile, overrides: Overrides) -> None:
    if not source.is_script or found.name == source.name:
        return
    script = script_of(source, Overrides())
    for other in _reached(source):
        start = next(_starts(script, other.name), None)
        name = launcher_of(other) if start and other.is_script and other.name != found.name else None
        if start is None or name is None or next(_starts(script, found.name), None) is None:
            continue
        with suppress(InvalidProblemError):
            second = _reader(name).read(other, overrides)
            model = replace(second.model, name=launch.model.name)
            same = (launch.configuration, launch.workload, launch.model)
            if (second.configuration, second.workload, model) != same:
                line, first = start[0][0].line, shown(found.name)
                twice = f"line {line} of {shown(source.name)} starts {shown(other.name)}, too, which trains"
                break
    else:
        return
    raise refused(f"{twice} otherwise than {first}", allowed=f"{first} alone, or {shown(other.name)}")


def _require_headers(source: Source, overrides: Overrides) -> None:
    """Refuse a script that sbatch runs on other nodes than its header sets."""
    if not source.is_script or overrides.num_gpus is not None:
        return
    script = script_of(source, Overrides())
    for other in _reached(source):
        for words, at, _ in _starts(script, other.name) if other.is_script else ():
            texts, own = [word.text for word in words[:at]], {"--nodes": 1, **size_of_job(other.text)}
            said = size_of_job(f"#SBATCH {shlex.join(texts)}") if "sbatch" in texts else {}
            option = next(
                (name for name, size in said.items() if size is None or size != own.get(name)), None
            )
            if option is not None:
                where, name = f"line {words[0].line} of {shown(source.name)}", shown(other.name)
                raise refused(
                    f"{where} gives sbatch {option}, which counts before the header of {name}",
                    allowed=f"the same {option} in {name}, or --cluster with --num-nodes",
                )


def _text_of(source: Source, name: str) -> str | None:
    """Return a file of the same folder; None if it is missing or unreadable, which is reported later."""
    try:
        return source.other(name)
    except InvalidProblemError:
        return None


def _named(source: Source) -> list[Word]:
    return _others(source, files_named(readable_script(source)))


def _others(source: Source, words: Iterable[Word]) -> list[Word]:
    words = list(words)
    found = {word.text: word for word in reversed(words) if word.text != source.name}
    return list(reversed(found.values()))[:MAX_FILES]


def _missing(files: Sequence[Source]) -> Iterator[FieldError]:
    for source in files:
        if source.suffix in DOCUMENTS:
            document_of(source)
        script = script_of(source, Overrides()) if source.is_script else Script()
        for word in _others(source, files_named(script, programs=False, data=False)):
            if (unknown := unknown_in(word.text)) is not None:
                yield unknown_fault(WHOLE_FILE, unknown, word.line)
            elif source.other(word.text) is None:
                where = f"line {word.line} of {shown(source.name)}"
                yield FieldError(
                    pointer=WHOLE_FILE,
                    message=f"{where}: {shown(word.text)} is not next to it",
                    allowed="give that file too, or its folder",
                )


def _require_known_files(source: Source) -> None:
    """Refuse a training with a file known only at run time, if another one would be read for it.

    Raises:
        InvalidProblemError: there is such an argument, with its line.
    """
    for _, script in _scripts(source):
        for words in script.commands:
            command = program_of(words)
            if command is None or other_use(command):
                continue
            for before, word in pairwise((Word("", 0), *command.words)):
                option = (word if "=" in word.text else before).text.partition("=")[0]
                is_file = "config" in option or (word is command.words[0] and "=" not in word.text)
                if is_file and (unknown := unknown_file(word.text)) is not None:
                    raise InvalidProblemError([unknown_fault(option or "arguments", unknown, word.line)])


def _require_readable(source: Source) -> None:
    """Refuse an empty or malformed document that a command trains with.

    Raises:
        InvalidProblemError: the document is malformed, with its line. A list is data.
    """
    for name, script in _scripts(source):
        for word in _others(source.at(name), files_named(script, programs=False, data=False, trained=True)):
            text = source.other(word.text)
            one = Source(name=word.text, text=text or "")
            if text is not None and one.suffix in DOCUMENTS and not text.lstrip().startswith("["):
                document_of(one, by_deepspeed=True)  # the readers of others refuse comments


def _require_bounded(source: Source) -> None:
    if len(source.files) > MAX_FILES:
        raise refused(f"{len(source.files)} files are given", allowed=f"at most {MAX_FILES}")
    for name, text in {**source.files, source.name: source.text}.items():
        if len(text) > MAX_BYTES:
            raise refused(f"{name[:64]}: the file is too big", allowed=f"{MAX_BYTES} characters")


def _on_supplied_gpus(launch: LaunchFile, overrides: Overrides) -> LaunchFile:
    started = launch.started_gpus
    if not started or not overrides.num_gpus or overrides.num_gpus == started:
        return launch
    note = other_gpus_note(started, overrides.num_gpus)
    notes = launch.notes if note in launch.notes else (*launch.notes, note)
    return replace(launch, num_nodes=None, gpus_per_node=None, idle_gpus=0, notes=notes)


def _require_divided(found: LaunchFile) -> None:
    """Refuse sizes that ranks do not divide, and ranks that differ from the started processes."""
    config, heads, length = found.configuration, found.model.num_attention_heads, found.workload.seq_length
    tp, cp = config.tensor_parallel_size, config.context_parallel_size
    slices = math.lcm(2 * cp if cp > 1 else 1, cp * (tp if config.sequence_parallel else 1))
    started, idle = found.started_gpus, found.idle_gpus
    short = f", {idle} fewer on the last," if idle else ""
    rules = (
        (
            heads % tp,
            "tensor_parallel_size",
            f"{tp} does not divide {heads} attention heads",
            f"divisors of {heads}",
            near_divisors(tp, heads),
        ),
        (
            length % slices,
            "seq_length",
            f"{slices} slices (cp, and tp where it splits sequences) do not divide {length} tokens",
            f"multiples of {slices}",
            near_multiples(length, slices),
        ),
        (
            started and started != config.num_gpus,
            "world size",
            (
                f"{found.num_nodes} nodes of {found.gpus_per_node} processes{short} are {started}, but "
                f"tp {tp} × cp {cp} × pp {config.pipeline_parallel_size} × "
                f"dp {config.data_parallel_size} is {config.num_gpus}"
            ),
            f"{config.num_gpus} processes",
            str(config.num_gpus),
        ),
    )
    for broken, name, message, allowed, nearest in rules:
        if broken:
            called, line = found.places.get(name, (name, 0))
            where = f"line {line}: " if line else ""
            raise InvalidProblemError.of(called, where + message, allowed=allowed, nearest=nearest)


def _located(source: Source, fault: FieldError) -> FieldError:
    """Return a fault with the line of its name in the file, if the reader did not know it."""
    if fault.pointer == WHOLE_FILE or "line " in fault.message:
        return fault
    values = module_values(source) if looks_like_module(source) else looks_like_document(source)
    found = values.get(fault.pointer)
    if found is None or not found.line:
        return fault
    return replace(fault, message=f"line {found.line}: {fault.message}")


def _require_one_start(source: Source, overrides: Overrides) -> None:
    scripts = source.scripts()
    for script in scripts:
        names = {word.text for word in _named(script)}
        for other in (one for one in scripts if one.name in names):
            worlds = [world_of(one.text, script_of(one, overrides)) for one in (script, other)]
            said = [_said(world) for world in worlds if world.num_gpus]
            if len(set(said)) > 1:
                raise InvalidProblemError.of(
                    "world size",
                    f"{shown(script.name)} starts {said[0]}, {shown(other.name)}, which it runs, {said[1]}",
                    allowed=said[0],
                )


def _said(world: World) -> str:
    if world.num_nodes and world.gpus_per_node:
        return f"{world.num_nodes} nodes of {world.gpus_per_node} processes"
    return f"{world.processes} processes"


def renamed(found: LaunchFile, name: str) -> LaunchFile:
    """Return the run with a name for a model that only sizes describe."""
    if found.model.name != "launch file":
        return found
    return replace(found, model=replace(found.model, name=name))
