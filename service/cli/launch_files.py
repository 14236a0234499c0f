"""Launch files given to a command, and the configuration of the user's that they or other options state."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from meshwright.launchers.reading.base import MAX_BYTES, MAX_FILES, LaunchFile, Source
from meshwright.launchers.reading.registry import source_of_folder
from meshwright.profiles.documents import shown, shown_path
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli.problem_options import Request
from meshwright.service.requests.assignments import values_of
from meshwright.service.requests.configuration import assumed_values, assumption_notes, completed
from meshwright.service.requests.documents import read_problem_file
from meshwright.service.requests.launch_files import (
    OVERRIDABLE,
    FewerRanksError,
    Own,
    own_of_files,
    request_of_files,
)
from meshwright.service.requests.parse import parse_problem

KINDS = (
    "",
    ".sh",
    ".bash",
    ".sbatch",
    ".slurm",
    ".args",
    ".txt",
    ".json",
    ".yaml",
    ".yml",
    ".toml",
    ".py",
)
_TABLES = ("tokenizer.json", "vocab.json")  # of tokenizers, which have megabytes
_PIECES = ("tokenizer.model",)  # of SentencePiece: bytes, one a character
_MAX_TABLE = 40_000_000
_OURS = ("answer.json", "problem.json")  # files of a saved plan other than its launch files


def source_of(paths: Sequence[Path]) -> Source:
    """The files as one source: the first one counts, those of the same folder may be named by it.

    Raises:
        InvalidProblemError: a file cannot be read, or a folder holds none.
    """
    first = paths[0]
    if first.is_dir():
        if len(paths) > 1:
            raise InvalidProblemError.of("--from-args", "give one folder, or files")
        return _folder(first)
    files = {path.name: text_of(path) for path in paths}
    if len(files) != len(paths):
        raise InvalidProblemError.of("--from-args", "two files have the same name")
    return Source(
        name=first.name,
        text=files[first.name],
        files=files if len(files) > 1 else {},
        include=cache(
            partial(_named_by, first, files[first.name])
        ),  # edits are read back hundreds of times
        folder=str(first.resolve().parent),
    )


def text_of(path: Path) -> str:
    """The text of a file, as much as may be read of it.

    Raises:
        InvalidProblemError: it cannot be read, or is no text.
    """
    try:
        with path.open("rb") as file:
            most = _MAX_TABLE if path.name in (*_TABLES, *_PIECES) else MAX_BYTES
            data = file.read(most + 1)
        if len(data) > most:
            raise _unreadable(path, "the file is too big", allowed=f"{most} bytes")
        if path.name in _PIECES:
            return data.decode("latin-1")
        if (place := data.find(b"\0")) >= 0:
            raise _unreadable(path, f"line {_line(data, place)} contains a NUL byte", allowed="UTF-8 text")
        return data.decode("utf-8-sig")
    except OSError as fault:
        raise _unreadable(path, fault.strerror or "cannot be read") from None
    except UnicodeDecodeError as fault:
        raise _unreadable(
            path, f"line {_line(data, fault.start)}: the text is not UTF-8", allowed="UTF-8 text"
        ) from None


def _line(data: bytes, place: int) -> int:
    return data.count(b"\n", 0, place) + 1


def _unreadable(path: Path, message: str, *, allowed: str | None = None) -> InvalidProblemError:
    return InvalidProblemError.of("--from-args", f"{shown_path(path)}: {message}", allowed=allowed)


def _folder(folder: Path) -> Source:
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in KINDS and path.is_file())
    except OSError as fault:
        raise _unreadable(folder, fault.strerror or "cannot be read") from None
    paths = [path for path in paths if path.name not in _OURS and not path.name.startswith(".")]
    if not 0 < len(paths) <= MAX_FILES:
        raise InvalidProblemError.of(
            "--from-args",
            f"{shown_path(folder)} contains {len(paths)} possible launch files",
            allowed=f"1 to {MAX_FILES}; or name the files",
        )
    return source_of_folder({path.name: text_of(path) for path in paths})


_ABOVE = 3  # folders that a script may be started from: its own, and those around it


def _named_by(script: Path, text: str, name: str) -> str | None:
    """The text of a file next to a script, or of the one that it names by a path."""
    found = path_named_by(script, text, name)
    return None if found is None else text_of(found)


def path_named_by(script: Path, text: str, name: str) -> Path | None:
    """A file next to a script, or the one that it names by a path, seen from the folders around it.

    ``configs/zero3.json`` of ``scripts/train.sh`` stands in ``scripts/configs`` or in ``configs``. Paths
    that begin at the root, or at a variable, count from where their folders are found; a name may hold
    variables, too. Of several paths to files of that name none is taken, unless they lead to the same text.
    """
    found = _beside(script.parent / name)
    if found is not None or not name:
        return found
    said = (path.rpartition("/") for path in _PATHS.findall(re.sub(r"(?m)^\s*#.*$", "", text)))
    paths = dict.fromkeys(
        f"{folder}/{name}" for folder, _, last in said
        if re.fullmatch(".*".join(map(re.escape, re.split(_VARIABLE, last))), name)  # $MODEL.sh
    )  # fmt: skip
    parts = ([part for part in path.split("/") if part not in ("", ".", "..")] for path in paths)
    tails = dict.fromkeys(Path(*one) for one in parts if len(one) > 1)
    others = [
        tail for tail in tails
        if not any(tail.parts[-len(one.parts) :] == one.parts for one in tails if one != tail)
    ]  # fmt: skip
    folders = [script.parent, *script.absolute().parent.parents][:_ABOVE]
    around = {
        next((one for folder in folders if (one := _beside(folder / tail)) is not None), None)
        for tail in others
    }
    same = {None if path is None else text_of(path): path for path in around}
    return next(iter(same.values())) if len(same) == 1 else None


_VARIABLE = r"\$(?:\w+|\{\w+\})"
_PATHS = re.compile(rf"(?<![\w./-])(?:{_VARIABLE})?([\w./-]*/(?:[\w.-]|{_VARIABLE})+(?![\w./${{-]))")


def _beside(path: Path) -> Path | None:
    try:
        return path if path.is_file() else None
    except (OSError, ValueError):  # a name that no file system takes, or with NUL in it
        return None


# --------------------------------------------------------------------------------------------------
# The user's own configuration: from a file, from assignments, or from the launch files that run it.


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationOptions:
    """Where the configuration comes from, as options that may be absent say it."""

    config: Path | None = None
    assign: Sequence[str] | None = None
    from_args: Sequence[Path] | None = None  # launch files, or one folder of them
    variables: Sequence[str] | None = None  # NAME=VALUE of the shell
    ignored: Sequence[str] | None = None  # flags to ignore
    run: int | None = None  # of several that a script starts


def own_of(request: Request, asked: ConfigurationOptions) -> Own:
    """The problem and the configuration of the user.

    Raises:
        InvalidProblemError: the problem, the configuration or the launch command is wrong.
    """
    settings = values_of("--set", asked.assign or ())
    if not asked.from_args:
        beside = {"--var": asked.variables, "--ignore": asked.ignored, "--run": asked.run}
        for name in (name for name, given in beside.items() if given):
            raise InvalidProblemError.of(name, "needs a launch file: add --from-args")
        problem = parse_problem(_with_workload(request, settings))
        raw = {
            **problem.options.pin,
            **(read_problem_file(asked.config) if asked.config else {}),
            **{name: value for name, value in settings.items() if name not in OVERRIDABLE},
        }
        own = completed(raw, problem)
        assumed = assumed_values(raw, own)
        notes = tuple(assumption_notes(problem, assumed))
        return Own(problem=problem, configuration=own, assumed=assumed, notes=notes)
    if asked.config:
        raise InvalidProblemError.of(
            "--from-args", "the launch file is already the configuration: remove --config"
        )
    variables = variables_of(asked.variables or ())
    source = source_of(asked.from_args)
    with _options_of_fewer_ranks():
        return own_of_files(
            request,
            source,
            variables=variables,
            values=settings,
            ignored=asked.ignored or (),
            run=asked.run,
        )


def _with_workload(request: Request, settings: Mapping[str, object]) -> Request:
    """Return the request with the fields of the workload that ``--set`` names, over its own."""
    named = {name: value for name, value in settings.items() if name in OVERRIDABLE}
    if not named:
        return request
    given = request.get("workload")
    return {**request, "workload": {**(given if isinstance(given, dict) else {}), **named}}


def with_files(
    request: Request, file: Path, *, assign: Sequence[str], variables: Sequence[str],
    ignored: Sequence[str], run: int | None,
) -> tuple[Request, LaunchFile]:  # fmt: skip
    """Return the request with the model, the batch and the launcher of a launch file, and that file.

    Raises:
        InvalidProblemError: as ``own_of``.
    """
    with _options_of_fewer_ranks():
        return request_of_files(
            request,
            source_of([file]),
            variables=variables_of(variables),
            values=values_of("--set", assign),
            ignored=ignored,
            run=run,
        )


@contextmanager
def _options_of_fewer_ranks() -> Iterator[None]:
    try:
        yield
    except FewerRanksError as fault:
        if fault.group is None:
            raise
        raise InvalidProblemError.of(
            "/cluster",
            fault.errors[0].message,
            allowed=" ".join(f"--{name.replace('_', '-')} {value}" for name, value in fault.group.items()),
        ) from fault


def variables_of(texts: Sequence[str]) -> dict[str, str]:
    """Return variables of the shell that ``--var NAME=VALUE`` states.

    Raises:
        InvalidProblemError: a text is not NAME=VALUE.
    """
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not ((name.isidentifier() or name.isdecimal()) and equals):
            raise InvalidProblemError.of("--var", f'"{shown(name)}" is not NAME=VALUE')
    return {name: value for name, _, value in pairs}
