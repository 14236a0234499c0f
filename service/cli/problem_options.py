"""Requests from the options that describe a problem: the raw request, launch files, configurations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

from meshwright.profiles.documents import shown, shown_path
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import model_names
from meshwright.service.cli.assignments import (
    MAX_DIGITS,
    bounds_of,
    counts_of,
    long_names,
    near_short_name,
    prohibitions_of,
    typed_at,
    values_of,
)
from meshwright.service.launchers.reading.base import MAX_BYTES, MAX_FILES, LaunchFile, Source
from meshwright.service.launchers.reading.registry import source_of_folder
from meshwright.service.requests.configuration import assumed_values, completed
from meshwright.service.requests.documents import read_lengths_file, read_problem_file
from meshwright.service.requests.launch_files import FewerRanksError, Own, own_of_files, request_of_files
from meshwright.service.requests.parse import parse_problem
from meshwright.service.requests.parts import named_parts
from meshwright.solver.space.expressions import ExpressionError
from meshwright.solver.space.request_rules import constraint_of

Request = dict[str, object]


def request_of(o: SimpleNamespace) -> Request:
    """Return the raw request of a problem file with the options ``o`` over it; None: not given."""
    request = dict(named_parts(read_problem_file(o.problem))) if o.problem else {}
    if o.model is not None:
        request["model"] = model_part(o.model)
    if o.cluster is not None or o.gpu is not None:
        request["cluster"] = _cluster_part(o.cluster, o.gpu)
    nodes = counts_of("--num-nodes", o.num_nodes)
    _override(request, "cluster", {"num_nodes": nodes, "gpus_per_node": o.gpus_per_node})
    workload: dict[str, object] = {
        "global_batch_size": counts_of("--global-batch-size", o.global_batch_size),
        "seq_length": o.seq_length,
        "lengths": _lengths_part(request, o.lengths, o.batching),
        "precision": o.precision,
        "optimizer": o.optimizer,
        "lora_rank": o.lora_rank,
        "lora_targets": o.lora_target,
        "base_precision": o.base_precision,
        "trained_modules": o.trained_module,
        "total_tokens": o.total_tokens,
    }
    if o.total_tokens is not None and math.isfinite(o.total_tokens):
        workload["total_tokens"] = round(o.total_tokens)
    _override(request, "workload", workload)
    if o.lora_target and not _object(request, "workload").get("lora_rank"):
        message = "names what adapters are put on, and there are none"
        raise InvalidProblemError.of("--lora-target", message, allowed="with a --lora-rank above 0")
    if o.launcher is not None:
        request["launcher"] = o.launcher
    if o.stack is not None:
        request["stack"] = o.stack
    limits = {
        "top_k": o.top_k,
        "diverse": o.diverse,
        "time_limit_s": o.time_limit_s,
        "seed": o.seed,
        "certify": o.certify,
        "max_out_of_memory_probability": o.max_oom_probability,
        "objective": o.objective,
        "gpus": o.gpus,
        "reserve_nodes": o.reserve_nodes,
        "deadline_days": o.deadline_days,
        "gpu_hour_price": o.gpu_hour_price,
        "allow": o.allow,
        "pareto": o.pareto,
        "baseline": None if o.baseline is None else _own_configuration(o.baseline),
    }
    _override(request, "search", limits)
    _extend(request, "pin", values_of("--pin", o.pin or ()))
    _extend(request, "bounds", bounds_of("--bound", o.bound or ()))
    _extend(request, "forbid", prohibitions_of("--forbid", o.forbid or ()))
    _append_constraints(request, o.constraint or ())
    return request


def _lengths_part(request: Request, given: str | None, batching: str | None) -> dict[str, object] | None:
    """Lengths of documents over those of the problem file: ``p50=900,p100=8192``, or a file."""
    if given is None and batching is None:
        return None
    found = dict(_object(_object(request, "workload"), "lengths")) if given is None else _lengths_of(given)
    return found if batching is None else {**found, "batching": batching}


def _lengths_of(given: str) -> dict[str, object]:
    if "=" in given:
        percentiles = dict[str, object]()
        for part in given.split(","):
            name, _, value = (word.strip() for word in part.partition("="))
            if not value.isdecimal() or len(value) > MAX_DIGITS:
                raise InvalidProblemError.of(
                    "--lengths", f"{shown(part)} is not a percentile", allowed="p0 to p100, as in p50=900"
                )
            if name in percentiles:
                raise InvalidProblemError.of("--lengths", f"{shown(name)} is given more than once")
            percentiles[name] = int(value)
        return {"percentiles": percentiles}
    try:
        return dict(read_lengths_file(Path(given)))
    except InvalidProblemError as fault:  # of the whole file: what was given may be meant for percentiles
        allowed = "p50=900,p100=8192, or a file"
        raise InvalidProblemError(
            one if one.pointer else replace(one, pointer="--lengths", allowed=allowed)
            for one in fault.errors
        ) from None


def _own_configuration(path: Path) -> object:
    own = read_problem_file(path)
    return own.get("config", own)


def with_sweep(request: Request, texts: Sequence[str]) -> bool:
    """Add axes to those of the file; whether the request is a sweep."""
    given = prohibitions_of("--sweep", texts)
    if given:
        request["sweep"] = {**_object(request, "sweep"), **given}
    return request.get("sweep") is not None


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")  # OWNER/NAME on the Hugging Face hub


def model_part(name_or_path: str) -> dict[str, object]:
    """A catalog name or hub id, or the content of a ``config.json`` (or of the folder that holds it).

    A catalog name always means the catalog's model, whatever the current directory holds; a file or folder
    of that name is given as ``./NAME``.
    """
    path = Path(name_or_path)
    if name_or_path.lower() in model_names():
        return {"name": name_or_path}
    if name_or_path and path.is_dir():
        path = path / "config.json"
    is_name = _HUB_ID.fullmatch(name_or_path) or "/" not in name_or_path
    if is_name and path.suffix != ".json" and not path.is_file():
        return {"name": name_or_path}
    config = dict(read_problem_file(path))
    if not config:
        raise InvalidProblemError.of("--model", f"{shown_path(path)} holds no model")
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return config if config.get("_name_or_path") else {"name": name, **config}


def _cluster_part(cluster: str | None, gpu: str | None) -> dict[str, object]:
    if cluster is not None and gpu is not None:
        raise InvalidProblemError.of("--gpu", "give --cluster or --gpu, not both")
    if cluster is None:
        return {"groups": [{"gpu": gpu}]}
    is_file = Path(cluster).suffix.lower() in {".yaml", ".yml", ".json"}
    return dict(read_problem_file(Path(cluster))) if is_file else {"name": cluster}


def _override(request: Request, section: str, values: Mapping[str, object]) -> None:
    """Put the given options over a part of the request; counts of nodes go into an inline group."""
    given = {name: value for name, value in values.items() if value is not None}
    if not given:
        return
    part = _object(request, section)
    groups = part.get("groups")
    if "gpus_per_node" in given and "groups" not in part and "name" in part:
        message = f'belongs to --gpu; the nodes of "{shown(str(part["name"]))}" are as the catalog has them'
        raise InvalidProblemError.of("--gpus-per-node", message)
    if section == "cluster" and isinstance(groups, list):
        if len(groups) != 1 or not isinstance(groups[0], dict):
            raise InvalidProblemError.of("/cluster/groups", "several groups: give their sizes in the file")
        request[section] = {**part, "groups": [{**groups[0], **given}]}
    else:
        request[section] = {**part, **given}


def _extend(request: Request, name: str, values: Mapping[str, object]) -> None:
    if values:
        search = _object(request, "search")
        request["search"] = {**search, name: {**_object(search, name), **values}}


def _append_constraints(request: Request, texts: Sequence[str]) -> None:
    if texts:
        search = _object(request, "search")
        given = search.get("constraints", [])
        if not isinstance(given, list):
            raise InvalidProblemError.of("/search/constraints", "must be a list")
        request["search"] = {**search, "constraints": [*given, *map(_constraint, texts)]}


def _constraint(text: str) -> str:
    written_out = long_names(text)
    try:
        constraint_of(written_out)
    except ExpressionError as fault:
        message = f"character {typed_at(text, fault.at)}: {fault.reason}"
        word = re.match(r"\w+", text[typed_at(text, fault.at) - 1 :])
        nearest = fault.nearest or (near_short_name(word.group()) if word else None)
        raise InvalidProblemError.of("--constraint", message, nearest=nearest) from fault
    return written_out


def _object(parent: Mapping[str, object], name: str) -> dict[str, object]:
    value = parent.get(name, {})
    if not isinstance(value, dict):
        raise InvalidProblemError.of(f"/{name}", "must be an object")
    return value


# --------------------------------------------------------------------------------------------------
# Launch files of the command line: one, several, or a folder of them.


_KINDS = (
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
        include=lambda name: _named_by(first, files[first.name], name),
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
        message = f"line {_line(data, fault.start)}: the text is not UTF-8"
        raise _unreadable(path, message, allowed="UTF-8 text") from None


def _line(data: bytes, place: int) -> int:
    return data.count(b"\n", 0, place) + 1


def _unreadable(path: Path, message: str, *, allowed: str | None = None) -> InvalidProblemError:
    return InvalidProblemError.of("--from-args", f"{shown_path(path)}: {message}", allowed=allowed)


def _folder(folder: Path) -> Source:
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in _KINDS and path.is_file())
    except OSError as fault:
        raise _unreadable(folder, fault.strerror or "cannot be read") from None
    paths = [path for path in paths if path.name not in _OURS and not path.name.startswith(".")]
    if not 0 < len(paths) <= MAX_FILES:
        message = f"{shown_path(folder)} holds {len(paths)} files that may be launch files"
        raise InvalidProblemError.of("--from-args", message, allowed=f"1 to {MAX_FILES}; or name the files")
    files = {path.name: text_of(path) for path in paths}
    return source_of_folder(files)


_ABOVE = 3  # folders that a script may be started from: its own, and those around it


def _named_by(script: Path, text: str, name: str) -> str | None:
    """A file next to a script, or the one that it names by a path, seen from the folders around it.

    ``configs/zero3.json`` of ``scripts/train.sh`` stands in ``scripts/configs`` or in ``configs``. Paths
    that begin at the root, or at a variable, count from where their folders are found; a name may hold
    variables, too. Of several paths to files of that name none is taken, unless they lead to the same text.
    """
    found = _beside(script.parent / name)
    if found is not None or not name:
        return found
    said = (path.rpartition("/") for path in _PATHS.findall(re.sub(r"(?m)^\s*#.*$", "", text)))
    paths = dict.fromkeys(f"{folder}/{name}" for folder, _, last in said if _fits(last, name))
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
    return around.pop() if len(around) == 1 else None


_VARIABLE = r"\$(?:\w+|\{\w+\})"
_PATHS = re.compile(rf"(?<![\w./-])(?:{_VARIABLE})?([\w./-]*/(?:[\w.-]|{_VARIABLE})+(?![\w./${{-]))")


def _fits(said: str, name: str) -> bool:
    """Whether a name with variables in it, ``$MODEL.sh``, may be one without."""
    return re.fullmatch(".*".join(map(re.escape, re.split(_VARIABLE, said))), name) is not None


def _beside(path: Path) -> str | None:
    try:
        there = path.is_file()
    except (OSError, ValueError):  # a name that no file system takes, or with NUL in it
        return None
    return text_of(path) if there else None


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
            raise InvalidProblemError.of(name, "is about a launch file, and --from-args names none")
        problem = parse_problem(request)
        raw = {
            **problem.options.pin,
            **(read_problem_file(asked.config) if asked.config else {}),
            **settings,
        }
        own = completed(raw, problem)
        return Own(problem=problem, configuration=own, assumed=assumed_values(raw, own))
    if asked.config:
        raise InvalidProblemError.of("--from-args", "the launch file is the configuration: no --config")
    variables = _variables(asked.variables or ())
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


def with_files(
    request: Request, file: Path | None, *, assign: Sequence[str], variables: Sequence[str],
    ignored: Sequence[str], run: int | None,
) -> tuple[Request, LaunchFile | None]:  # fmt: skip
    """The request with the model, the batch and the launcher of a launch file, where one is given, and it.

    Raises:
        InvalidProblemError: as ``own_of``; options about a launch file without one.
    """
    if file is None:
        beside = {"--set": assign, "--var": variables, "--ignore": ignored, "--run": run}
        for name in (name for name, given in beside.items() if given):
            instead = "--pin, which says the sizes that are searched" if name == "--set" else None
            message = "is about a launch file, and --from-capture names none"
            raise InvalidProblemError.of(name, message, allowed=instead)
        return request, None
    with _options_of_fewer_ranks():
        return request_of_files(
            request,
            source_of([file]),
            variables=_variables(variables),
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
        options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in fault.group.items())
        message = fault.errors[0].message
        raise InvalidProblemError.of("/cluster", message, allowed=options) from fault


def _variables(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not ((name.isidentifier() or name.isdecimal()) and equals):
            raise InvalidProblemError.of("--var", f'"{shown(name)}" is not NAME=VALUE')
    return {name: value for name, _, value in pairs}
