"""Runs that launch files start, as a problem and a configuration that can be priced."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import cast

from meshwright.launchers.reading.base import WHOLE_FILE, LaunchFile, Overrides, Source
from meshwright.launchers.reading.commands import short_world
from meshwright.launchers.reading.documents import looks_like_document
from meshwright.launchers.reading.images import of_text_alone
from meshwright.launchers.reading.registry import launcher_of, read_launch_files, reader_names, renamed
from meshwright.profiles.capabilities import launcher_capabilities, launcher_names
from meshwright.profiles.documents import pointer
from meshwright.profiles.errors import FieldError, InvalidProblemError, UnknownNameError, faults_as
from meshwright.profiles.inline import cluster_from_mapping, model_from_mapping
from meshwright.profiles.model_shapes import model_to_mapping
from meshwright.profiles.profile import Profile, framework_of
from meshwright.service.requests.configuration import assumed_values, completed
from meshwright.service.requests.parse import parse_problem, stated_sizes
from meshwright.solver.configuration import VARIABLES, Configuration
from meshwright.solver.predict import predict, where_pages_lie
from meshwright.solver.problem import Problem

Request = Mapping[str, object]
Values = Mapping[str, object]
# Fields of the workload that a request may set over the files.
OVERRIDABLE = ("seq_length", "global_batch_size", "precision", "optimizer")
# Fields of the workload that describe the data, which no launcher's own arguments state.
_OF_DATA = ("images_per_sample", "image_tokens", "lengths")


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """A user's own configuration with its problem, and notes from reading it."""

    problem: Problem
    configuration: Configuration
    planned: Problem | None = None  # with another launcher, where that of the files has no plan for it
    launcher: str | None = None  # the launcher of the files
    stated_gpus: int | None = None  # of the files' own sizes, before a cluster's number counts
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    batch_ramp: tuple[tuple[int, int], ...] = ()  # (batch, until so many tokens) before the workload's
    assumed: Mapping[str, object] = field(default_factory=dict)  # values that nothing states, by name

    @property
    def title(self) -> str:
        """Return ``yours``, or ``assumed`` where nobody stated a size of the configuration."""
        return "assumed" if self.assumed.keys() >= VARIABLES.keys() else "yours"

    @property
    def question(self) -> Problem:
        """Return what a search for a faster configuration answers, so that the user can run its plans."""
        return self.problem if self.planned is None else self.planned


def own_of_files(
    request: Request,
    source: Source,
    *,
    launcher: str | None = None,
    variables: Mapping[str, str] | None = None,
    values: Values | None = None,
    ignored: Sequence[str] = (),
    run: int | None = None,
    explained: bool = True,
) -> Own:
    """Return the problem and the configuration of launch files.

    Args:
        request: cluster, and what the files may lack: model, sequence, batch, search.
        source: the file with those it refers to.
        launcher: the launcher of the file; None: the request's launcher if it names one, else detected.
        variables: of the shell.
        values: parts of the configuration by glossary name; they count before the files.
        ignored: flags to ignore.
        run: which of several runs that a script starts, from 1.
        explained: whether a fault says that the files start fewer ranks, which takes another reading.

    Raises:
        InvalidProblemError: a value cannot be read, contradicts another, or is missing.
    """
    named = request.get("launcher")
    if launcher is None and isinstance(named, str) and named in reader_names():
        launcher = named
    own = _plain(values or {}, "configuration")
    stated = Overrides(variables=variables or {}, values=own, ignored=tuple(ignored), run=run)
    overrides = _overrides_of(request, source, stated, launcher)
    with _fewer_ranks_named(request, source, overrides, launcher) if explained else nullcontext():
        found = _as_seen(request, read_launch_files(source, overrides, launcher))
        found = renamed(found, _name_of(source))
        raw, workload, notes = _overridden(found, overrides)
        problem, planned, why = _priced(_request_of(request, found, workload), found.launcher, source)
        configuration = where_pages_lie(problem, completed(raw, problem))
    return Own(
        problem=problem,
        configuration=configuration,
        planned=planned,
        launcher=found.launcher,
        stated_gpus=found.configuration.num_gpus,
        notes=(*found.notes, *notes, *why, *_packed_notes(found, problem)),
        unread=found.unread,
        batch_ramp=found.batch_ramp,
        assumed=assumed_values(raw, configuration),
    )


def _packed_notes(found: LaunchFile, problem: Problem) -> list[str]:
    """Return a warning where sequences of several documents are priced as one document each."""
    if not found.packed or problem.workload.lengths:
        return []
    length = problem.workload.seq_length
    filled = f"{found.packed} fills each sequence with several documents"
    priced = f"it is predicted as one document of {length} tokens, with longer attention"
    return [f"{filled}; {priced}. State the documents' lengths with --lengths (p50=900,p100=8192)"]


class FewerRanksError(InvalidProblemError):
    """Launch files that can be read by themselves start fewer ranks than the cluster has GPUs.

    ``group`` is the node group that they start on, with the fields of a request; None where the cluster has
    several groups.
    """

    group: Mapping[str, int | str] | None = None


@contextmanager
def _fewer_ranks_named(
    request: Request, source: Source, overrides: Overrides, launcher: str | None = None
) -> Iterator[None]:
    try:
        yield
    except InvalidProblemError as fault:
        alone = _read_alone(source, overrides, launcher)
        ranks = alone.configuration.num_gpus if alone is not None else 0
        if alone is None or overrides.num_gpus is None or not 0 < ranks < overrides.num_gpus:
            raise
        raise _fewer_ranks(
            request, ranks, overrides.num_gpus, alone.num_nodes or 1, alone.gpus_per_node
        ) from fault


def _fewer_ranks(
    request: Request, ranks: int, gpus: int, num_nodes: int, gpus_per_node: int | None
) -> FewerRanksError:
    message = f"the file starts {ranks} process{'es' * (ranks > 1)}; the cluster has {gpus} GPUs"
    sizes = {"num_nodes": num_nodes, "gpus_per_node": gpus_per_node or ranks // num_nodes}
    cluster = request["cluster"]
    groups = cluster_from_mapping(cluster).groups
    named = isinstance(cluster, Mapping) and "groups" not in cluster
    group: dict[str, int | str] | None = {**({"gpu": groups[0].gpu.slug} if named else {}), **sizes}
    at, allowed = pointer("cluster", "groups", 0), json.dumps(sizes)[1:-1]
    if len(groups) > 1:
        at, group, allowed = pointer("cluster"), None, f"groups of {ranks} GPUs together"
    elif named:  # the nodes of a catalog's cluster have as many GPUs as the catalog states
        at, allowed = pointer("cluster"), json.dumps({"groups": [group]})
    found = FewerRanksError([FieldError(pointer=at, message=message, allowed=allowed)])
    found.group = group
    return found


def _read_alone(source: Source, overrides: Overrides, launcher: str | None) -> LaunchFile | None:
    """Return the run of launch files on the GPUs that they start on; None where they do not state them."""
    try:
        return read_launch_files(source, replace(overrides, num_gpus=None), launcher)
    except InvalidProblemError:
        return None


# What a launcher runs though it is not planned with it: faults of these leave its runs to be priced.
_BEYOND_PLANS = (
    "/workload/lora_rank", "/workload/lora_targets", "/workload/base_precision", "/workload/optimizer",
    "/workload/trained_modules", "/workload/framework_options/", "/workload/sample", "/workload/reference",
    "/workload/precision", "/workload/trained_layers",
)  # fmt: skip


def _priced(request: Request, launcher: str, source: Source) -> tuple[Problem, Problem | None, list[str]]:
    """Return the problem of a run that files start; if no plan has it, what to search instead, and why.

    It is priced without a launcher on the same stack.
    """
    try:
        return parse_problem(request), None, []
    except InvalidProblemError as fault:
        if any(not one.pointer.startswith(_BEYOND_PLANS) for one in fault.errors):
            raise
        why = [f"{one.message}: priced as the files run it" for one in fault.errors]
        adapts = all(one.pointer.startswith(_OF_ADAPTERS) for one in fault.errors)
    stack = request.get("stack") or framework_of(launcher)
    problem = parse_problem({**request, "launcher": "none", "stack": stack})
    planned = _planned(request, source) if launcher == _ENGINE and adapts else None
    if planned is not None:
        what = f"Meshwright plans no adapters under {launcher}: your run is priced as the files start it"
        why = [f"{what}. The best plan runs under {planned.launcher} without DeepSpeed"]
    return problem, planned, why


_OF_ADAPTERS = ("/workload/lora_", "/workload/base_precision", "/workload/reference")
_ENGINE = "deepspeed"  # of trainers that shard without it, too
_TRAINERS = "accelerate"  # which starts all of them


def _planned(request: Request, source: Source) -> Problem | None:
    """Return the question under the launcher of the files' trainer, without what DeepSpeed alone has."""
    workload = {**cast("Mapping[str, object]", request["workload"]), "framework_options": {}}
    for launcher in (launcher_of(source), _TRAINERS):
        with suppress(InvalidProblemError):
            if launcher in launcher_names():
                return parse_problem({**request, "launcher": launcher, "workload": workload})
    return None


# Values that follow from changed sizes: how many replicas, and the contents of each of them.
_FOLLOW = ("data_parallel_size", "num_microbatches")
_OF_REPLICAS = (
    "num_gpus", "tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "zero_stage",
)  # fmt: skip
_SPLIT = ("stage_layers", "pipeline_schedule")
_OF_STAGES = ("pipeline_parallel_size", "virtual_pipeline_size")


def _overridden(found: LaunchFile, overrides: Overrides) -> tuple[dict[str, object], Values, list[str]]:
    """Return the files' configuration with overrides, those of the workload, and the changed names.

    What follows from a changed size is left out, for ``completed`` to fill in.
    """
    read = asdict(found.configuration)
    of_workload = {name: getattr(found.workload, name) for name in OVERRIDABLE}
    changed = {
        name: old
        for name, old in {**read, **of_workload}.items()
        if name in overrides.values and overrides.values[name] != old
    }
    notes = [
        f"{name} {old} of the files is replaced by {overrides.values[name]}"[:200]
        for name, old in changed.items()
    ]
    if overrides.num_gpus is not None:
        gpus = found.configuration.claimed(overrides.num_gpus)
        if overrides.num_gpus != gpus:
            notes.append(
                f"the files run on {gpus} GPUs, but you gave {overrides.num_gpus}: the number of replicas "
                "changes"
            )
            changed["num_gpus"] = gpus
    follow: tuple[str, ...] = _FOLLOW if changed else ()
    if any(name in changed for name in _OF_REPLICAS):
        follow += ("zero_shard_size",)
    if any(name in changed for name in _OF_STAGES):
        follow += _SPLIT
    raw: dict[str, object] = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in read.items()
        if value != () and name not in follow
    }
    taken = {*of_workload, *(name for name in found.places if name not in read)}  # the model's, for one
    raw |= {name: value for name, value in overrides.values.items() if name not in taken}
    return raw, {name: overrides.values[name] for name in of_workload if name in changed}, notes


def request_of_files(
    request: Request, source: Source, *, variables: Mapping[str, str], values: Values,
    ignored: Sequence[str] = (), run: int | None = None,
) -> tuple[dict[str, object], LaunchFile]:  # fmt: skip
    """Return a request with the model, workload and launcher of launch files, for a search, and their run.

    Raises:
        InvalidProblemError: as ``own_of_files``; a value that decides nothing of a search.
    """
    own = _plain(values, "configuration")
    stated = Overrides(variables=variables, values=own, ignored=tuple(ignored), run=run)
    overrides = _overrides_of(request, source, stated)
    with _fewer_ranks_named(request, source, overrides):
        found = read_launch_files(source, overrides)
    _require_used(source, overrides, values, found)
    found = _as_seen(request, found)
    workload = {name: overrides.values[name] for name in OVERRIDABLE if name in values}
    return _completed(request, renamed(found, _name_of(source)), workload), found


def _require_used(source: Source, overrides: Overrides, values: Values, found: LaunchFile) -> None:
    sizes = asdict(found.configuration)
    known = {*OVERRIDABLE, *(found.places.keys() - sizes.keys())}
    for name in sorted(values.keys() - known):
        rest = {one: value for one, value in overrides.values.items() if one != name}
        try:
            without = read_launch_files(source, replace(overrides, values=rest))
        except InvalidProblemError:
            continue  # the files leave it open
        if (without.model, without.workload) != (found.model, found.workload):
            continue
        where = pointer("configuration", name)
        if name not in sizes:
            raise UnknownNameError.among(where, name, known | sizes.keys())
        raise InvalidProblemError.of(
            where, "is chosen by the search", allowed=f"--pin {name}={values[name]}"
        )


def _completed(request: Request, found: LaunchFile, workload: Values | None = None) -> dict[str, object]:
    """Return a request completed from launch files; values of ``workload`` take precedence."""
    given = request.get("workload")
    complete = dict(_request_of(request, found))
    if isinstance(complete["workload"], dict):
        complete["workload"] |= {**(given if isinstance(given, Mapping) else {}), **(workload or {})}
    return complete


def _name_of(source: Source) -> str:
    """Return a model's name where only sizes describe it: the file's."""
    return source.name.rpartition(".")[0][:64] or "launch file"


def _overrides_of(
    request: Request, source: Source, stated: Overrides, launcher: str | None = None
) -> Overrides:
    """Return what the request and its options state over launch files.

    Raises:
        InvalidProblemError: a value is none of a run's, or no GPUs are stated, with what the files lack.
    """
    overrides = replace(
        stated,
        model=model_from_mapping(request["model"]) if "model" in request else None,
        values={**_workload_overrides(request.get("workload")), **stated.values},
    )
    if "cluster" not in request:
        raise InvalidProblemError(_without_gpus(source, overrides, launcher))
    cluster = request["cluster"]
    groups = cluster.get("groups") if isinstance(cluster, dict) else None
    parts = [cluster, *(groups if isinstance(groups, list) else [])]
    counted = any(isinstance(one, dict) and {"num_nodes", "num_gpus"} & one.keys() for one in parts)
    num_gpus = cluster_from_mapping(cluster).num_gpus if counted else None
    own = short_world(source.text)
    if own is not None and (own.num_gpus or 0) + own.idle_gpus == num_gpus:
        num_gpus = own.num_gpus
    return replace(overrides, num_gpus=num_gpus)


_A_NODE = 8  # GPUs


def _without_gpus(source: Source, overrides: Overrides, launcher: str | None) -> list[FieldError]:
    """Return the fault of a request without GPUs, and those that its files have on any number of them."""
    every, started = list[tuple[FieldError, ...]](), 0
    for number in (None, 1, _A_NODE):
        try:
            found = read_launch_files(source, replace(overrides, num_gpus=number), launcher)
            started = found.configuration.num_gpus if number is None else started
            every.append(())
        except InvalidProblemError as fault:
            every.append(fault.errors)
    lacking = FieldError(
        pointer="/cluster",
        message="no launch file names the GPUs: give --cluster with --num-nodes, or --gpus",
        tip=f"--gpus {started}xH100" if 0 < started <= _A_NODE else "--cluster dgx-h100",
    )
    return [lacking, *(one for one in every[0] if all(one in others for others in every))]


def _workload_overrides(workload: object) -> dict[str, int | str | bool]:
    """Return sequence, batch, precision and optimizer, where files have no place for them."""
    if workload in (None, {}):
        return {}
    if not isinstance(workload, Mapping):
        raise InvalidProblemError.of("/workload", "must be an object")
    for name in workload:
        if name not in (*OVERRIDABLE, *_OF_DATA):
            raise InvalidProblemError.of(
                pointer("workload", name),
                "is set by the launch file",
                allowed=", ".join((*OVERRIDABLE, *_OF_DATA)),
            )
    return _plain({name: value for name, value in workload.items() if name not in _OF_DATA}, "workload")


def _plain(values: Values, part: str) -> dict[str, int | str | bool]:
    found: dict[str, int | str | bool] = {}
    for name, value in values.items():
        if not isinstance(value, int | str | bool):
            raise InvalidProblemError.of(
                pointer(part, name), "is set by the launch file", allowed="one number or word"
            )
        found[str(name)] = value
    return found


def _as_seen(request: Request, found: LaunchFile) -> LaunchFile:
    """Return the files' run without adapters in a tower, where the request states that it sees no image."""
    given = request.get("workload")
    blind = isinstance(given, Mapping) and given.get("images_per_sample") == 0
    return of_text_alone(found) if blind else found


def _request_of(request: Request, found: LaunchFile, values: Values | None = None) -> Request:
    """Return the request with the files' model, workload (with ``values`` over it) and number of nodes."""
    workload = {name: value for name, value in asdict(found.workload).items() if value != ()}
    workload |= values or {}
    given = request.get("workload")
    workload["image_tokens"] = stated_sizes(found.workload.image_tokens)
    if not found.images_stated:  # neither is a number of images that no file states one
        workload.pop("images_per_sample", None)
    stated = {name: given[name] for name in _OF_DATA if isinstance(given, Mapping) and name in given}
    if stated.get("images_per_sample") == 0:  # a file's limit of their size is about none
        workload.pop("image_tokens")
    workload |= stated
    lists = {name: getattr(found.workload, name) for name in ("lora_targets", "trained_modules", "frozen")}
    workload |= {name: list(values) for name, values in lists.items() if values}
    complete = {**request, "model": model_to_mapping(found.model), "workload": workload}
    complete.setdefault("launcher", found.launcher)
    if found.configuration.offload in launcher_capabilities(str(complete["launcher"])).offload[1:]:
        complete["search"] = _allowing_offload(request.get("search"))
    cluster = request["cluster"]
    if found.num_nodes and found.gpus_per_node and isinstance(cluster, dict):
        complete["cluster"] = _sized(cluster, found.num_nodes, found.gpus_per_node)
    return complete


def _allowing_offload(search: object) -> dict[str, object]:
    """Return the search of a request whose files keep something on the host: the best plan may, too."""
    stated: dict[str, object] = dict(search) if isinstance(search, Mapping) else {}
    allow = stated.get("allow", [])
    if isinstance(allow, list) and not {"offload", "none"} & {*allow}:
        stated["allow"] = [*allow, "offload"]
    return stated


def _sized(cluster: dict[str, object], num_nodes: int, gpus_per_node: int) -> dict[str, object]:
    """Return the cluster with as many nodes as the files start on, unless it states nodes itself."""
    groups = cluster.get("groups")
    if isinstance(groups, list) and len(groups) > 1:
        return cluster  # which states the nodes of each group
    if isinstance(groups, list) and len(groups) == 1 and isinstance(groups[0], dict):
        given = {"num_nodes": num_nodes}
        if "num_gpus" not in groups[0]:  # which says how many GPUs each node has
            given["gpus_per_node"] = gpus_per_node
        return {**cluster, "groups": [{**given, **groups[0]}]}
    return {"num_nodes": num_nodes, **cluster}


# --------------------------------------------------------------------------------------------------
# A launch file in a request's body: texts by name, bounded before anything is read.


MAX_TEXT = 200_000  # characters of all files: reading takes half a second for so many
MAX_FILES = 8  # in addition to the first
MAX_NAME = 128
MAX_VARIABLES = 64
_AT = "launch_file"
_NAMES = ("name", "text", "launcher", "files", "variables", "ignore", "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenLaunchFile:
    """The files, their launcher, and the variables of the shell."""

    source: Source
    launcher: str | None
    variables: Mapping[str, str]
    ignored: tuple[str, ...] = ()
    run: int | None = None


def given_launch_file(raw: Mapping[str, object]) -> GivenLaunchFile:
    """Read the launch file of a body: ``{"name": "train.sh", "text": "…"}``, with more under ``files``.

    Raises:
        InvalidProblemError: a part is missing, of a wrong kind, or too big.
    """
    for name in raw.keys() - set(_NAMES):
        raise UnknownNameError.among(pointer(_AT, name), name, list(_NAMES))
    launcher = raw.get("launcher")
    if launcher is not None and launcher not in reader_names():
        raise UnknownNameError.among(pointer(_AT, "launcher"), str(launcher), reader_names())
    files = _texts(raw, "files", MAX_FILES)
    for other in files:
        _name(other, "files", other)
    variables = _texts(raw, "variables", MAX_VARIABLES)
    text = _text(raw.get("text"), "text")
    name = _name(raw["name"], "name") if "name" in raw else name_of(text)
    if len(text) + sum(map(len, files.values())) > MAX_TEXT:
        raise InvalidProblemError.of(
            pointer(_AT, "files"), "the files are too big together", allowed=f"{MAX_TEXT} characters"
        )
    return GivenLaunchFile(
        source=Source(name=name, text=text, files={**files, name: text} if files else {}),
        launcher=str(launcher) if launcher else None,
        variables=variables,
        ignored=_ignored(raw.get("ignore", [])),
        run=_run(raw.get("run")),
    )


def name_of(text: str) -> str:
    """Return a name with the ending of a text's form: JSON, TOML, YAML or a script."""
    names = (f"launch{suffix}" for suffix in (".json", ".toml", ".yaml"))
    return next((name for name in names if looks_like_document(Source(name=name, text=text))), "train.sh")


def with_launch_file(body: Request) -> Request:
    """Return a body completed with the model, batch and launcher of its ``launch_file``, if it has one.

    Raises:
        InvalidProblemError: as ``own_of_files``, with pointers into the body.
    """
    raw = body.get(_AT)
    if raw is None:
        return body
    if not isinstance(raw, Mapping):
        raise InvalidProblemError.of(pointer(_AT), "must be an object")
    rest, given = {name: value for name, value in body.items() if name != _AT}, given_launch_file(raw)
    stated = Overrides(variables=given.variables, ignored=given.ignored, run=given.run)
    with faults_as(in_the_text):
        overrides = _overrides_of(rest, given.source, stated, given.launcher)
    with faults_as(in_the_text), _fewer_ranks_named(rest, given.source, overrides, given.launcher):
        found = read_launch_files(given.source, overrides, given.launcher)
    return _completed(rest, renamed(found, _name_of(given.source)))


def in_the_text(fault: FieldError) -> FieldError:
    """Return a fault of a name in a body's file as a fault of its text, with the name."""
    if fault.pointer.startswith("/"):
        return fault
    return replace(
        fault,
        pointer=pointer(_AT, "text"),
        message=fault.message if fault.pointer == WHOLE_FILE else f"{fault.pointer}: {fault.message}",
    )


def _ignored(value: object) -> tuple[str, ...]:
    if (
        isinstance(value, list)
        and len(value) <= MAX_VARIABLES
        and all(isinstance(one, str) for one in value)
    ):
        return tuple(one[:MAX_NAME] for one in value)
    raise InvalidProblemError.of(pointer(_AT, "ignore"), f"must be a list of at most {MAX_VARIABLES} flags")


def _run(value: object) -> int | None:
    if value is None or (type(value) is int and value > 0):
        return value
    raise InvalidProblemError.of(pointer(_AT, "run"), "must be a whole number", allowed="1 and more")


def _name(value: object, *where: str) -> str:
    if not (isinstance(value, str) and value and len(value) <= MAX_NAME and value.isprintable()):
        raise InvalidProblemError.of(
            pointer(_AT, *where), f"must be the name of a file, of at most {MAX_NAME} characters"
        )
    if "/" in value or "\\" in value:
        raise InvalidProblemError.of(pointer(_AT, *where), "must be a name without folders")
    return value


def _texts(raw: Mapping[str, object], part: str, most: int) -> dict[str, str]:
    found = raw.get(part, {})
    if not isinstance(found, Mapping) or len(found) > most:
        raise InvalidProblemError.of(pointer(_AT, part), f"must be an object of at most {most} texts")
    return {str(name): _text(text, part, str(name)) for name, text in found.items()}


def _text(value: object, *where: str) -> str:
    if not isinstance(value, str):
        raise InvalidProblemError.of(pointer(_AT, *where), "must be text")
    if len(value) > MAX_TEXT:
        raise InvalidProblemError.of(
            pointer(_AT, *where), "the text is too big", allowed=f"{MAX_TEXT} characters"
        )
    return value


# --------------------------------------------------------------------------------------------------
# What the smaller batches of a growing batch cost: the same configuration with fewer micro-batches.


def ramp_notes(own: Own, profile: Profile) -> list[str]:
    """Return the step time of every batch before the last; none where the batch does not grow."""
    if not own.batch_ramp:
        return []
    config, workload = own.configuration, own.problem.workload
    notes, start = [], 0
    for batch, end in own.batch_ramp:
        found = predict(
            replace(own.problem, workload=replace(workload, global_batch_size=batch)),
            profile,
            replace(
                config, num_microbatches=batch // (config.data_parallel_size * config.micro_batch_size)
            ),
        )
        steps = (end - start) / (batch * workload.seq_length)
        time = f"{steps:,.0f} steps of {found.step_time_s:.3g} s"
        notes.append(f"until {end:,} tokens the batch is {batch}: {time}")
        start = end
    return notes
