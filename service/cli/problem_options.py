"""Requests from the options that describe a problem: the raw request, launch files, configurations."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from meshwright.profiles.documents import pointer, shown, shown_path
from meshwright.profiles.errors import FieldError, InvalidProblemError, faults_as
from meshwright.profiles.gpus import NAME
from meshwright.profiles.inline import cluster_of_words, is_counted
from meshwright.profiles.library import (
    cloud_instance,
    find_gpu,
    find_model,
    hub_id_of,
    is_cluster,
    is_gpu_name,
    model_names,
    model_of_folder,
)
from meshwright.profiles.nearest_models import another_kind
from meshwright.service.cli.defaults import Defaults
from meshwright.service.requests.assignments import (
    MAX_DIGITS,
    bounds_of,
    counts_of,
    facts_of,
    long_names,
    near_short_name,
    prohibitions_of,
    typed_at,
    values_of,
)
from meshwright.service.requests.documents import read_lengths_file, read_model_file, read_problem_file
from meshwright.service.requests.fields import OPTIONS
from meshwright.service.requests.numbers import BINARY, DECIMAL, number_of, written_out
from meshwright.service.requests.parts import is_post_training, named_parts
from meshwright.service.requests.schema import with_usual_words
from meshwright.solver.space.expressions import ExpressionError
from meshwright.solver.space.request_rules import constraint_of

Request = dict[str, object]
HERE = "here"  # the cluster that this machine is in


def request_of(
    problem: str | Path | None,
    given: Mapping[str, Any],
    *,
    has_files: bool = False,
    searches: bool = True,
    stored: bool = False,
    defaults: Defaults | None = None,
) -> Request:
    """Return the raw request of a problem file or a model, with the given options over it.

    A GPU type alone means one node of it, unless launch files (``has_files``) state the number, or a file
    a cluster: how many of its nodes are meant is not guessed. ``searches``: whether the command does.
    ``stored``: whether a service may know models by names of their own. ``defaults``: what a person takes
    for options that neither states.
    """
    file, given = _problem_or_model(problem, given, stored=stored)
    raw = _question_of(read_problem_file(file)) if file else {}
    if file is not None:
        _refuse_launch_file(file, raw)
    if is_post_training(raw):
        return _without_options(raw, given)
    request = dict(with_usual_words(named_parts(raw)))
    if defaults is not None:
        given = {**defaults.for_request(given, request, has_files=has_files), **given}
    given = _sequences(_hardware(given, searches=searches), request)
    stated = "cluster" in request or has_files or "num_gpus" in given
    if "gpu" in given and not stated:
        given = {"num_nodes": "1", **given}
    for name, row in OPTIONS.items():
        if name in given:
            read = _READERS.get(row.path, _names_of if row.option and row.option.repeats else None)
            value = given[name] if read is None else read(f"--{name.replace('_', '-')}", given[name])
            _PUT.get(row.path, _put)(request, row.path, value)
    if given.get("lora_target") and not _object(request, "workload").get("lora_rank"):
        fault = FieldError(
            pointer="--lora-target",
            message="names modules to adapt, but there are no adapters",
            allowed="together with --lora-rank above 0",
            tip="--lora-rank 16",
        )
        raise InvalidProblemError([fault])
    return dict(with_usual_words(request))


def _question_of(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the problem that a file holds: itself, or what its plans answer (``plan --json``)."""
    asked = raw.get("problem")
    return asked if isinstance(asked, Mapping) and "plans" in raw else raw


def _without_options(raw: Mapping[str, object], given: Mapping[str, Any]) -> Request:
    """Return a request of another kind, which states everything itself."""
    for name in given:
        raise InvalidProblemError.of(
            f"--{name.replace('_', '-')}",
            f"is an option of a training problem, but the file has kind: {raw['kind']}",
            allowed="the field in the file",
        )
    return dict(raw)


# --------------------------------------------------------------------------------------------------
# The argument: a problem file, or a model.


_SCRIPTS = frozenset({".sh", ".py", ".bash", ".sbatch", ".slurm", ".toml"})


def _problem_or_model(
    problem: str | Path | None, given: Mapping[str, Any], *, stored: bool
) -> tuple[Path | None, Mapping[str, Any]]:
    """Return the problem file, if the argument is one, and the options with the model, if it is one."""
    if problem is None:
        return None, given
    text = str(problem)
    if text == "-":
        return Path(text), given
    if not _is_model(text):
        return _problem_file(text), given
    if not stored and "/" not in text and not Path(text).exists():
        _require_known(text)
    if "model" in given:
        message = f"the model is given twice: {shown(text)} and --model {shown(str(given['model']))}"
        raise InvalidProblemError.of("--model", message)
    return None, {**given, "model": text}


def _require_known(name: str) -> None:
    try:
        find_model(name)
    except InvalidProblemError as fault:
        first = fault.errors[0]
        message = f"there is no such file, and no such model: {first.message}"
        allowed = first.allowed if another_kind(name) else _ARGUMENT
        nearest = f"--plan {name}" if _RANK.fullmatch(name) else first.nearest
        raise InvalidProblemError.of("argument", message, allowed=allowed, nearest=nearest) from None


_RANK = re.compile(r"[1-9]\d?")  # of a plan, as export and report take it
_ARGUMENT = "a problem file (problem.json), or a model (llama-3.1-8b, ./config.json)"


def _is_model(text: str) -> bool:
    """Return whether the argument names a model: of the catalog, of the hub, a folder, or its file."""
    path = Path(text)
    if text.lower() in model_names():
        return True
    try:
        if (path / "config.json").is_file():
            return True
        if path.exists():
            return path.name in ("config.json", "adapter_config.json") or _states_model(path)
    except (OSError, ValueError):  # a name that no file system takes
        return False
    return not path.suffix or (
        path.suffix.lower() not in _FILES | _SCRIPTS and not text.startswith(("/", "."))
    )


def _states_model(path: Path) -> bool:
    """Return whether a file of any name holds a model alone: its ``config.json``, or its shape."""
    if path.suffix.lower() not in _FILES:
        return False
    from meshwright.profiles.importers.huggingface import looks_like_config  # noqa: PLC0415 - for an odd file alone

    try:
        raw = read_model_file(path)
    except InvalidProblemError:  # said where the file is read as a problem
        return False
    is_model = looks_like_config(raw) or "hidden_size" in raw
    return is_model and not raw.keys() & _OFTEN and _launcher_of(path) is None


def _launcher_of(path: Path) -> str | None:
    """Return the launcher whose names a file has: Axolotl's state a ``model_type``, too."""
    from meshwright.launchers.reading.base import Source  # noqa: PLC0415 - for an odd file alone
    from meshwright.launchers.reading.registry import launcher_of  # noqa: PLC0415 - the same

    return launcher_of(Source(name=path.name, text=path.read_text("utf-8", "replace")))


def _problem_file(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() in _SCRIPTS:
        raise _of_launcher(path, "a script")
    if not os.path.exists(text):  # noqa: PTH110 - False for a name that no file system takes
        raise InvalidProblemError.of(
            "argument",
            f"there is no file {shown_path(path)}, and no model of that name",
            allowed=_ARGUMENT,
            nearest=_named_by(text),
        )
    return path


_PARTS = frozenset({"model", "cluster", "workload"})  # of a problem file
_OFTEN = _PARTS | {"launcher", "search", "kind"}


def _refuse_launch_file(path: Path, raw: Mapping[str, object]) -> None:
    """Refuse the file of a launcher where a problem file is expected, with the option that reads it.

    Raises:
        InvalidProblemError: the names in the file are a launcher's.
    """
    if raw.keys() <= _OFTEN or raw.keys() >= _PARTS or "kind" in raw or not path.is_file():
        return
    if (launcher := _launcher_of(path)) is not None:
        raise _of_launcher(path, f"a launch file ({launcher})")


def _of_launcher(path: Path, what: str) -> InvalidProblemError:
    runs = path.suffix.lower() == ".py" and not _is_read(path)
    fault = FieldError(
        pointer="argument",
        message=f"{shown_path(path)} is {what}, not a problem file or a model",
        allowed="meshwright plan --from-capture, explain --from-args, or fix",
        nearest=f"--from-{'capture' if runs else 'args'} {shlex.quote(shown_path(path))}",
        value=str(path),
    )
    return InvalidProblemError([fault])


def _is_read(path: Path) -> bool:
    """Return whether a Python program is read as it lies there: a trainer's, or GRPO's of TRL."""
    from meshwright.launchers.post_training.read_trl import is_recipe  # noqa: PLC0415 - for a wrong file alone
    from meshwright.launchers.reading.own_defaults import trains  # noqa: PLC0415 - the same

    text = path.read_text("utf-8", "replace") if path.is_file() else ""
    return trains(text) or is_recipe(path.name, text)


def _named_by(path: str) -> str | None:
    """Return the catalog's model that a path names, which is on another machine: /data/Qwen3-8B."""
    try:
        return model_of_folder(path).name
    except InvalidProblemError:
        return None


# --------------------------------------------------------------------------------------------------
# The hardware: one of several ways to say it.


_LIMITS = ("all", "fewest")  # what --gpus means as well: how many of the cluster's GPUs a plan uses
_COUNTS = re.compile(r"\d+(?:[,:]\d+)*")


def _hardware(given: Mapping[str, Any], *, searches: bool) -> dict[str, Any]:
    """Return the options with counted GPUs and nodes as a cluster (``nodes``).

    Raises:
        InvalidProblemError: several options state the cluster, or a word states no GPUs.
    """
    found = dict(given)
    limit = str(found.get("gpus", "")).lower()
    if limit in _LIMITS and not searches:
        message = f"{limit} limits a search, but this command predicts one configuration"
        raise InvalidProblemError.of("--gpus", message, allowed="GPUs by type: --gpus 64xH100")
    if limit in _LIMITS:
        found["gpus"] = limit
    words = dict[str, str]()
    words |= {name: str(found.pop(name)).strip() for name in ("gpus", "gpu", "nodes") if name in found}
    if (cluster := str(found.get("cluster", ""))) and not _is_file(cluster) and is_counted(cluster):
        words["cluster"] = found.pop("cluster")
    if limit in _LIMITS:
        found["gpus"] = words.pop("gpus")
    sizes = {name for name in ("gpus", "nodes") if _COUNTS.fullmatch(words.get(name, ""))}
    either = dict.fromkeys(("cluster", *words))
    ways = [one for one in either if one in words.keys() - sizes or one in found]
    if len(ways) > 1:
        names = " and ".join(f"--{name}" for name in ways)
        fault = FieldError(
            pointer=f"--{ways[-1]}",
            message=f"{names} both describe the cluster. Give one of them",
            tip=f"without --{ways[0]}",
        )
        raise InvalidProblemError([fault])
    for name, text in words.items():
        stated = _stated(name, text)
        for twice in stated.keys() & found.keys():
            message = f"--{twice.replace('_', '-')} means the same. Give one of them"
            tip = f"without --{twice.replace('_', '-')}"
            raise InvalidProblemError([FieldError(pointer=f"--{name}", message=message, tip=tip)])
        found |= stated
    for name, text in words.items():
        if name not in sizes and "nodes" in found:
            found |= _agreed(f"--{name} {text}", found["nodes"], found)
    return found


_COUNTS_OF_GPUS = {"num_gpus": "GPUs", "num_nodes": "nodes", "gpus_per_node": "GPUs a node"}


def _agreed(words: str, counted: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers that words state (``--gpus 2x4xH100``), if other options state some as well.

    Raises:
        InvalidProblemError: another option states another number, or one of several groups.
    """
    others = [name for name in _COUNTS_OF_GPUS if given.get(name) is not None]
    for name in others:
        option = f"--{name.replace('_', '-')}"
        several = "groups" in counted
        own = counted.get(name, given[name])
        if several or str(own) != str(given[name]):
            what = "several groups with their own numbers" if several else f"{own} {_COUNTS_OF_GPUS[name]}"
            fault = FieldError(
                pointer=option,
                message=f"{given[name]} contradicts {shown(words)}, which states {what}",
                tip=f"without {option}",
            )
            raise InvalidProblemError([fault])
    stated = {name: counted[name] for name in _COUNTS_OF_GPUS if others and name in counted}
    return {name: str(count) if name == "num_nodes" else count for name, count in stated.items()}


def one_of(gpus: str | None) -> str | None:
    """Return ``--gpus`` with the number of a type alone, where the question is about one card: 1xT4."""
    return f"1x{gpus}" if gpus is not None and is_gpu_name(gpus) else gpus


def _stated(name: str, text: str) -> dict[str, Any]:
    """Return what a word of ``--gpus``, ``--gpu`` or ``--nodes`` states, as other options."""
    if name == "gpus" and text.isdecimal() and len(text) <= MAX_DIGITS and not is_gpu_name(text):  # 4090
        return {"num_gpus": int(text)}
    if name == "nodes" and _COUNTS.fullmatch(text):
        return {"num_nodes": text}
    if name == "gpu" and _is_file(text):
        return {"gpu": text}
    if name == "nodes" or is_counted(text):
        count = {"nodes": "nodes", "cluster": ""}.get(name, "gpus")
        return {"nodes": cluster_of_words(text, count=count, pointer=f"--{name}")}
    if name == "gpus":
        raise _without_number(text)
    if "," in text:
        each = ",".join(f"1x{one.strip()}" for one in text.split(","))
        raise InvalidProblemError.of(
            "--gpu", f"{shown(text)} are several GPU types", nearest=f"--nodes {each}"
        )
    return {"gpu": text}


def _without_number(text: str) -> InvalidProblemError:
    """Return the error of a --gpus without a number, or of a name that is none."""
    is_node = is_cluster(text) or cloud_instance(text) is not None
    if not is_node and not is_gpu_name(text) and "," not in text:
        try:
            cluster_of_words(f"1x{text}", pointer="--gpus")
        except InvalidProblemError as unknown:
            firsts = [(one, re.split(r", | or ", one.nearest or "")[0]) for one in unknown.errors]
            return InvalidProblemError(
                replace(one, nearest=_counted_as(near) if near else None) for one, near in firsts
            )
    return InvalidProblemError.of(
        "--gpus",
        f'"{shown(text)}" has no number of GPUs',
        allowed="64xH100, 16xH100,32xA100, all or fewest",
        nearest=_counted_as(text),
    )


def _counted_as(text: str) -> str | None:
    """Return what a name without a number means for --gpus: a card, a server's node, or --cluster."""
    if not is_gpu_name(text):
        return f"--cluster {text}" if is_cluster(text) or cloud_instance(text) is not None else None
    return f"{1 if find_gpu(text).intra_node.kind.startswith('pcie') else 8}x{text}"


def _cluster_of(_option: str, given: str) -> object:
    if given == HERE:
        from meshwright.service.here import cluster_of, this_machine  # noqa: PLC0415 - it asks the machine

        return cluster_of(this_machine())
    if _is_file(given):
        return dict(read_problem_file(Path(given)))
    is_gpu = is_gpu_name(given) and not is_cluster(given)
    return {"gpu": given, "num_nodes": 1} if is_gpu else {"name": given}


# --------------------------------------------------------------------------------------------------
# The batch: in sequences, in tokens, or with the length of its sequences.


_SHAPE = re.compile(r"(\d+) ?[x×*] ?(\S+)", re.IGNORECASE)  # 8x4096
_TOKENS = re.compile(r"([\d._]+) ?([km]?)i? ?(tok(?:en)?s?)?", re.IGNORECASE)  # 4M, 512k tokens


def _in_tokens(part: str) -> re.Match[str] | None:
    """Return the number and the unit of a batch in tokens; nobody means 4M sequences."""
    match = _TOKENS.fullmatch(part.strip())
    return match if match and (match[2].lower() == "m" or match[3]) else None


def _sequences(given: dict[str, Any], request: Request) -> dict[str, Any]:
    """Return the options with the batch in sequences.

    Raises:
        InvalidProblemError: tokens are no whole sequences, or their length is missing or contradicts.
    """
    batch = given.get("global_batch_size")
    if not isinstance(batch, str):
        return given
    if (shape := _SHAPE.fullmatch(batch.strip())) is not None:
        length = written_out("seq_length", shape[2], whole=True)
        stated = given.get("seq_length", length)
        if not length.isdecimal() or len(length) > MAX_DIGITS or int(stated) != int(length):
            raise InvalidProblemError.of(
                "--global-batch-size",
                f'"{shown(batch)}" is not SEQUENCESxLENGTH'
                + (f" with --seq-length {stated}" if length.isdecimal() else ""),
                allowed="512x8192, or --global-batch-size 512 --seq-length 8192",
            )
        return {**given, "global_batch_size": shape[1], "seq_length": int(length)}
    parts = re.split(r"([,:])", batch)
    if not any(map(_in_tokens, parts)):
        return given
    length = given.get("seq_length", _object(request, "workload").get("seq_length"))
    if type(length) is not int or length < 1:
        fault = FieldError(
            pointer="--global-batch-size",
            message=f'"{shown(batch)}" is in tokens, so the sequence length is required',
            allowed="with --seq-length, or a number of sequences",
            tip="--seq-length 8192",
        )
        raise InvalidProblemError([fault])
    return {**given, "global_batch_size": "".join(_of_tokens(part, length) for part in parts)}


def _of_tokens(part: str, length: int) -> str:
    """Return sequences of a batch in tokens: 4M are 4 × 1024², or else 4 million."""
    match = _in_tokens(part)
    if match is None:
        return part
    sizes = [number_of(match[1] + match[2], units) for units in (BINARY, DECIMAL)]
    whole = [size for size in sizes if size is not None and size > 0]
    exact = next((size // length for size in whole if size % length == 0), None)
    if exact is not None:
        return str(exact)
    if not whole:
        return part
    below = max(int(whole[0] // length), 1)
    raise InvalidProblemError.of(
        "--global-batch-size",
        f"{shown(match[1] + match[2])} tokens don't fill whole sequences of {length}",
        allowed="a number of sequences",
        nearest=f"{below} or {below + 1}",
    )


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
    """Put another type into the cluster; a file's only group keeps its numbers of nodes and GPUs."""
    del path
    groups = cast("list[Mapping[str, object]]", value)
    known = _object(request, "cluster").get("groups")
    if isinstance(known, list) and len(known) == 1 and isinstance(known[0], dict):
        counts = {name: known[0][name] for name in ("num_nodes", "gpus_per_node") if name in known[0]}
        groups = [{**counts, **groups[0]}]
    request["cluster"] = {"groups": groups}


def _put_cluster(request: Request, path: str, value: object) -> None:
    del path
    request["cluster"] = value


def _put_gpus(request: Request, path: str, value: object) -> None:
    """Put a number of GPUs into the cluster, where it stands for the number of nodes."""
    _put_nodes(request, path, value)
    part: dict[str, Any] = _object(request, "cluster")
    inner = part.get("groups", [part])[0]
    inner.pop("num_nodes", None)
    each = inner.get("gpus_per_node")
    if type(each) is int and type(value) is int and value < each:  # a part of a node
        inner["gpus_per_node"] = value


def _put_nodes(request: Request, path: str, value: object) -> None:
    """Put counts into the cluster, or into the group of an inline one."""
    name = path.rpartition(".")[2]
    part = _object(request, "cluster")
    groups = part.get("groups")
    if name == "gpus_per_node" and "groups" not in part and "name" in part:
        raise InvalidProblemError.of(
            "--gpus-per-node",
            f'belongs to --gpu. The catalog defines the nodes of "{shown(str(part["name"]))}"',
        )
    if isinstance(groups, list):
        if len(groups) != 1 or not isinstance(groups[0], dict):
            raise InvalidProblemError.of("/cluster/groups", "several groups: give their sizes in the file")
        group = dict(groups[0])
        if name == "gpus_per_node" and group.get("island_gpus") == group.get(name):
            group.pop("island_gpus", None)  # the fast link joins the whole node
        request["cluster"] = {**part, "groups": [{**group, name: value}]}
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
        value = written_out("length", value, whole=True)
        if not value.isdecimal() or len(value) > MAX_DIGITS:
            raise InvalidProblemError.of(
                option, f"{shown(part)} is not a percentile", allowed="p0 to p100, as in p50=900"
            )
        if name in percentiles:
            raise InvalidProblemError.of(option, f"{shown(name)} is given more than once")
        percentiles[name] = int(value)
    return percentiles


def _image_tokens_of(option: str, given: str) -> object:
    given = written_out("length", given, whole=True)
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
            "needs a launch file: add --from-capture",
            allowed="--pin, to fix sizes of the search" if name == "--set" else None,
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
    name_or_path = hub_id_of(name_or_path)
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
    from meshwright.profiles.importers.text_encoders import ENCODERS  # noqa: PLC0415 - for a folder alone

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


_FILES = frozenset({".yaml", ".yml", ".json"})


def _is_file(given: str) -> bool:
    return Path(given).suffix.lower() in _FILES


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
def _names_of(_option: str, given: Sequence[str]) -> list[str]:
    """``--allow offload,fp8`` as ``--allow offload --allow fp8``: no name has a comma."""
    return [name.strip() for text in given for name in text.split(",")]


_READERS: Mapping[str, Callable[[str, Any], object]] = {
    "model": lambda _, given: model_part(given),
    "cluster": _cluster_of,
    "cluster.groups": lambda _, given: [{"gpu": gpu_part(given)}],
    "cluster.num_nodes": counts_of,
    "workload.global_batch_size": counts_of,
    "workload.image_tokens": _image_tokens_of,
    "workload.framework_options": facts_of,
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
    "cluster.nodes": _put_cluster,
    "cluster.num_gpus": _put_gpus,
    "cluster.num_nodes": _put_nodes,
    "cluster.gpus_per_node": _put_nodes,
    "workload.framework_options": _put_in,
    "search.pin": _put_in,
    "search.bounds": _put_in,
    "search.forbid": _put_in,
    "search.allow": _append,
    "search.constraints": _append,
}
