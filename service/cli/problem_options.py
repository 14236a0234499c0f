"""Requests from the options that describe a problem: the raw request, launch files, configurations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from meshwright.profiles.documents import pointer, shown, shown_path
from meshwright.profiles.errors import InvalidProblemError, faults_as
from meshwright.profiles.gpus import NAME
from meshwright.profiles.importers.text_encoders import ENCODERS
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
from meshwright.service.requests.documents import read_lengths_file, read_model_file, read_problem_file
from meshwright.service.requests.fields import OPTIONS
from meshwright.service.requests.parts import named_parts
from meshwright.solver.space.expressions import ExpressionError
from meshwright.solver.space.request_rules import constraint_of

Request = dict[str, object]


def request_of(problem: Path | None, given: Mapping[str, Any], *, has_files: bool = False) -> Request:
    """Return the raw request of a problem file with the given options over it.

    A GPU type alone means one node of it, unless launch files (``has_files``) state the number, or a file
    a cluster: how many of its nodes are meant is not guessed.
    """
    if "cluster" in given and "gpu" in given:
        raise InvalidProblemError.of("--gpu", "give --cluster or --gpu, not both")
    request = dict(named_parts(read_problem_file(problem))) if problem else {}
    if "gpu" in given and "cluster" not in request and not has_files:
        given = {"num_nodes": "1", **given}
    for name, row in OPTIONS.items():
        if name in given:
            read = _READERS.get(row.path)
            value = given[name] if read is None else read(f"--{name.replace('_', '-')}", given[name])
            _PUT.get(row.path, _put)(request, row.path, value)
    if given.get("lora_target") and not _object(request, "workload").get("lora_rank"):
        raise InvalidProblemError.of(
            "--lora-target",
            "names what adapters are put on, and there are none",
            allowed="with a --lora-rank above 0",
        )
    return request


def _put(request: Request, path: str, value: object) -> None:
    *sections, name = path.split(".")
    part = request
    for section in sections:
        inner = dict(_object(part, section))
        part[section] = inner
        part = inner
    part[name] = value


def _put_in(request: Request, path: str, value: object) -> None:
    section, _, name = path.partition(".")
    if value:
        _put(request, path, {**_object(_object(request, section), name), **cast("Request", value)})


def _put_gpu(request: Request, path: str, value: object) -> None:
    del path
    request["cluster"] = {"groups": value}


def _put_nodes(request: Request, path: str, value: object) -> None:
    """Put counts into the cluster, or into the group of an inline one."""
    name = path.rpartition(".")[2]
    part = _object(request, "cluster")
    groups = part.get("groups")
    if name == "gpus_per_node" and "groups" not in part and "name" in part:
        raise InvalidProblemError.of(
            "--gpus-per-node",
            f'belongs to --gpu; the nodes of "{shown(str(part["name"]))}" are as the catalog has them',
        )
    if isinstance(groups, list):
        if len(groups) != 1 or not isinstance(groups[0], dict):
            raise InvalidProblemError.of("/cluster/groups", "several groups: give their sizes in the file")
        request["cluster"] = {**part, "groups": [{**groups[0], name: value}]}
    else:
        _put(request, path, value)


def _append(request: Request, path: str, value: object) -> None:
    section, _, name = path.partition(".")
    given = _object(request, section).get(name, [])
    if not isinstance(given, list):
        raise InvalidProblemError.of(pointer(section, name), "must be a list")
    _put(request, path, [*given, *cast("list[object]", value)])


def _percentiles_of(option: str, given: str) -> dict[str, object]:
    percentiles = dict[str, object]()
    for part in given.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if not value.isdecimal() or len(value) > MAX_DIGITS:
            raise InvalidProblemError.of(
                option, f"{shown(part)} is not a percentile", allowed="p0 to p100, as in p50=900"
            )
        if name in percentiles:
            raise InvalidProblemError.of(option, f"{shown(name)} is given more than once")
        percentiles[name] = int(value)
    return percentiles


def _image_tokens_of(option: str, given: str) -> object:
    if given.isdecimal() and len(given) <= MAX_DIGITS:
        return int(given)
    return _percentiles_of(option, given)


def _lengths_of(option: str, given: str) -> dict[str, object]:
    if "=" in given:
        return {"percentiles": _percentiles_of(option, given)}
    allowed = "p50=900,p100=8192, or a file"  # of the whole file: it may be meant for percentiles
    with faults_as(lambda one: one if one.pointer else replace(one, pointer="--lengths", allowed=allowed)):
        return dict(read_lengths_file(Path(given)))


def _own_configuration(path: Path) -> object:
    own = read_problem_file(path)
    return own.get("config", own)


def without_files(
    *, assign: Sequence[str], variables: Sequence[str], ignored: Sequence[str], run: int | None
) -> None:
    """Refuse options about a launch file where none is given.

    Raises:
        InvalidProblemError: one of them is given.
    """
    given = {"--set": assign, "--var": variables, "--ignore": ignored, "--run": run}
    for name in (name for name, value in given.items() if value):
        raise InvalidProblemError.of(
            name,
            "is about a launch file, and --from-capture names none",
            allowed="--pin, which states the sizes that are searched" if name == "--set" else None,
        )


def with_sweep(request: Request, texts: Sequence[str]) -> bool:
    """Add axes to those of the file; whether the request is a sweep."""
    given = prohibitions_of("--sweep", texts)
    if given:
        request["sweep"] = {**_object(request, "sweep"), **given}
    return request.get("sweep") is not None


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")  # OWNER/NAME on the Hugging Face hub


def model_part(name_or_path: str) -> dict[str, object]:
    """A catalog name or hub id, or the content of a ``config.json`` (or of the folder that holds it).

    A pipeline's folder of diffusers has a transformer in a folder of its own, and text encoders next to it.
    A catalog name always means the catalog's model, whatever the current directory holds; a file or folder
    of that name is given as ``./NAME``.
    """
    path = Path(name_or_path)
    if name_or_path.lower() in model_names():
        return {"name": name_or_path}
    if name_or_path and (path / "model_index.json").is_file():
        return _pipeline(path)
    if name_or_path and path.is_dir():
        path = path / "config.json"
    is_name = _HUB_ID.fullmatch(name_or_path) or "/" not in name_or_path
    if is_name and path.suffix != ".json" and not path.is_file():
        return {"name": name_or_path}
    config = dict(read_model_file(path))
    if not config:
        raise InvalidProblemError.of("--model", f"{shown_path(path)} holds no model")
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return config if config.get("_name_or_path") else {"name": name, **config}


def _pipeline(folder: Path) -> dict[str, object]:
    encoders = {key: folder / key / "config.json" for key in ENCODERS}
    return {
        "name": folder.resolve().name,
        **read_model_file(folder / "transformer" / "config.json"),
        **{key: dict(read_model_file(path)) for key, path in encoders.items() if path.is_file()},
    }


def gpu_part(gpu: str) -> object:
    """Return a GPU's name, or the figures of its file, which is called after the file if it has no name."""
    if not _is_file(gpu):
        return gpu
    name = Path(gpu).stem
    return {**({"name": name} if NAME.fullmatch(name) else {}), **read_problem_file(Path(gpu))}


def _is_file(given: str) -> bool:
    return Path(given).suffix.lower() in {".yaml", ".yml", ".json"}


def _constraint(text: str) -> str:
    written_out = long_names(text)
    try:
        constraint_of(written_out)
    except ExpressionError as fault:
        word = re.match(r"\w+", text[typed_at(text, fault.at) - 1 :])
        nearest = fault.nearest or (near_short_name(word.group()) if word else None)
        raise InvalidProblemError.of(
            "--constraint",
            f"character {typed_at(text, fault.at)}: {fault.reason}",
            allowed=None if nearest else fault.allowed,
            nearest=nearest,
        ) from fault
    return written_out


def _object(parent: Mapping[str, object], name: str) -> dict[str, object]:
    value = parent.get(name, {})
    if not isinstance(value, dict):
        raise InvalidProblemError.of(f"/{name}", "must be an object")
    return value


# How the words of an option become the value of its field, and where it is not put in place of the file's.
_READERS: Mapping[str, Callable[[str, Any], object]] = {
    "model": lambda _, given: model_part(given),
    "cluster": lambda _, given: (
        dict(read_problem_file(Path(given))) if _is_file(given) else {"name": given}
    ),
    "cluster.groups": lambda _, given: [{"gpu": gpu_part(given)}],
    "cluster.num_nodes": counts_of,
    "workload.global_batch_size": counts_of,
    "workload.image_tokens": _image_tokens_of,
    "workload.lengths": _lengths_of,
    "workload.total_tokens": lambda _, given: round(given) if math.isfinite(given) else given,
    "search.baseline": lambda _, given: _own_configuration(given),
    "search.pin": values_of,
    "search.bounds": bounds_of,
    "search.forbid": prohibitions_of,
    "search.constraints": lambda _, given: [*map(_constraint, given)],
}
_PUT: Mapping[str, Callable[[Request, str, object], None]] = {
    "cluster.groups": _put_gpu,
    "cluster.num_nodes": _put_nodes,
    "cluster.gpus_per_node": _put_nodes,
    "search.pin": _put_in,
    "search.bounds": _put_in,
    "search.forbid": _put_in,
    "search.constraints": _append,
}
