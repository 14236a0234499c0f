"""Requests from the options that describe a problem: the raw request, launch files, configurations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from meshwright.service.requests.documents import read_lengths_file, read_problem_file
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


def without_files(
    *, assign: Sequence[str], variables: Sequence[str], ignored: Sequence[str], run: int | None
) -> None:
    """Refuse options about a launch file where none is given.

    Raises:
        InvalidProblemError: one of them is given.
    """
    given = {"--set": assign, "--var": variables, "--ignore": ignored, "--run": run}
    for name in (name for name, value in given.items() if value):
        instead = "--pin, which states the sizes that are searched" if name == "--set" else None
        message = "is about a launch file, and --from-capture names none"
        raise InvalidProblemError.of(name, message, allowed=instead)


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
