"""The options that describe a problem, shared by every command that takes one.

``read_request`` is both the list of options (its signature) and what becomes of them (its result: a raw
request, the file first, options over it).
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from meshwright.profiles.capabilities import launcher_names
from meshwright.profiles.documents import shown, shown_path
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.frameworks import framework_names
from meshwright.profiles.library import cluster_names, gpu_names, model_names
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.sequences import BATCHINGS
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
from meshwright.solver.space.expressions import ExpressionError
from meshwright.solver.space.request_rules import constraint_of

# --------------------------------------------------------------------------------------------------
# What a shell offers for the value of an option: names of the catalog.


def _names_from(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    def beginning(incomplete: str) -> list[str]:
        return [name for name in dict.fromkeys(names()) if name.startswith(incomplete)]

    return beginning


complete_model, complete_cluster, complete_gpu = map(_names_from, (model_names, cluster_names, gpu_names))
complete_stack = _names_from(framework_names)
complete_launcher = _names_from(lambda: (*launcher_names(), "any", "none"))


Request = dict[str, object]
PROFILE_HELP = (
    "Calibration (calibrate --out), or measured profile (profile, import); one for each GPU type."
)
SWEEP_HELP = "Search every combination: num_nodes=8,16; global_batch_size, cluster, tp, …"
_STACKS = "An older software stack to price the launcher as: megatron-lm-2021, fsdp1, …"
_SIZES = "tensor_parallel_size, pipeline_parallel_size, … or tp, pp, …"


def read_request(  # noqa: PLR0913 - the signature is the list of options
    problem: Annotated[Path | None, typer.Argument(help="Problem file (JSON or YAML).")] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            help="Catalog name, or a Hugging Face config.json (./PATH).",
            autocompletion=complete_model,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="Catalog name, or a cluster file.", autocompletion=complete_cluster),
    ] = None,
    num_nodes: Annotated[
        str | None,
        typer.Option(
            metavar="N|N,N|LOW:HIGH", help="Number of nodes; a list or range lets the search choose."
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="GPU type, instead of --cluster.", autocompletion=complete_gpu),
    ] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs of one node.")] = None,
    global_batch_size: Annotated[
        str | None, typer.Option(metavar="N|N,N|LOW:HIGH", help="Sequences per optimizer step.")
    ] = None,
    seq_length: Annotated[int | None, typer.Option(help="Tokens per sequence.")] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|pN=N,…", help="Document lengths: percentiles (p50=900,p100=8192) or a file."
        ),
    ] = None,
    batching: Annotated[
        str | None, typer.Option(help="How documents become sequences: " + ", ".join(BATCHINGS) + ".")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="bf16, fp16, fp8, mxfp8 or nvfp4.")] = None,
    optimizer: Annotated[str | None, typer.Option(help=", ".join(OPTIMIZERS))] = None,
    lora_rank: Annotated[
        int | None, typer.Option(help="LoRA rank; 0 trains the full model [default].")
    ] = None,
    lora_target: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Modules that LoRA adapts, e.g. q_proj or linear_qkv."),
    ] = None,
    base_precision: Annotated[
        str | None,
        typer.Option(
            help="Storage type of the frozen weights: bf16, fp32, int8, nf4 or nf4-double (QLoRA)."
        ),
    ] = None,
    trained_module: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Modules trained in full next to LoRA: embed_tokens, lm_head, norm."
        ),
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(
            help="megatron-lm, torchtitan, …, any or none [default: the first that can express the model].",
            autocompletion=complete_launcher,
        ),
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option(help=_STACKS, autocompletion=complete_stack),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Number of plans to rank.")] = None,
    diverse: Annotated[
        bool | None,
        typer.Option(
            help="The best plan of each mesh first (default), or layouts that differ in ZeRO stage and "
            "micro-batch alone as well."
        ),
    ] = None,
    time_limit_s: Annotated[float | None, typer.Option(help="Seconds the search may take.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed; the same seed gives the same answer [default: 0].")
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(help="step_time, tokens_per_s_per_gpu, gpu_hours_per_token or energy_per_token."),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="all|fewest", help="Use all GPUs, or the fewest that fit a plan.")
    ] = None,
    reserve_nodes: Annotated[int | None, typer.Option(help="Number of nodes kept spare.")] = None,
    total_tokens: Annotated[
        float | None, typer.Option(help="Tokens in the whole training run, e.g. 15e12.")
    ] = None,
    deadline_days: Annotated[
        float | None, typer.Option(help="Finish --total-tokens within this many days.")
    ] = None,
    gpu_hour_price: Annotated[
        float | None, typer.Option(help="Price of one GPU-hour, to report cost.")
    ] = None,
    pareto: Annotated[
        bool | None, typer.Option("--pareto", help="Also report the Pareto front of step time and memory.")
    ] = None,
    baseline: Annotated[Path | None, typer.Option(help="File of your configuration, to rank it.")] = None,
    certify: Annotated[str | None, typer.Option(help="none, cp-sat or cp-sat-all.")] = None,
    max_oom_probability: Annotated[
        float | None,
        typer.Option(help="Highest acceptable probability of running out of memory [default: 0.01]."),
    ] = None,
    pin: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help=_SIZES)] = None,
    bound: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=LOW:HIGH", help="Lower and upper bound, inclusive: mbs=1:4."),
    ] = None,
    forbid: Annotated[list[str] | None, typer.Option(metavar="NAME=V[,V]", help="Values to avoid.")] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Search offload, fp8, an optimizer or a switch too; switches: all, also those that need a "
            "package; none: no switch [default: those that a stock launcher runs].",
        ),
    ] = None,
    constraint: Annotated[
        list[str] | None, typer.Option(metavar="EXPRESSION", help="Must hold: 'tp * cp <= 8'.")
    ] = None,
) -> Request:
    """The raw request of a problem file with the options that override it."""
    request = dict(read_problem_file(problem)) if problem else {}
    if model is not None:
        request["model"] = model_part(model)
    if cluster is not None or gpu is not None:
        request["cluster"] = _cluster_part(cluster, gpu)
    nodes = counts_of("--num-nodes", num_nodes)
    _override(request, "cluster", {"num_nodes": nodes, "gpus_per_node": gpus_per_node})
    workload: dict[str, object] = {
        "global_batch_size": counts_of("--global-batch-size", global_batch_size),
        "seq_length": seq_length,
        "lengths": _lengths_part(request, lengths, batching),
        "precision": precision,
        "optimizer": optimizer,
        "lora_rank": lora_rank,
        "lora_targets": lora_target,
        "base_precision": base_precision,
        "trained_modules": trained_module,
        "total_tokens": total_tokens,
    }
    if total_tokens is not None and math.isfinite(total_tokens):
        workload["total_tokens"] = round(total_tokens)
    _override(request, "workload", workload)
    if lora_target and not _object(request, "workload").get("lora_rank"):
        message = "names what adapters are put on, and there are none"
        raise InvalidProblemError.of("--lora-target", message, allowed="with a --lora-rank above 0")
    if launcher is not None:
        request["launcher"] = launcher
    if stack is not None:
        request["stack"] = stack
    limits = {
        "top_k": top_k,
        "diverse": diverse,
        "time_limit_s": time_limit_s,
        "seed": seed,
        "certify": certify,
        "max_out_of_memory_probability": max_oom_probability,
        "objective": objective,
        "gpus": gpus,
        "reserve_nodes": reserve_nodes,
        "deadline_days": deadline_days,
        "gpu_hour_price": gpu_hour_price,
        "allow": allow,
        "pareto": pareto,
        "baseline": None if baseline is None else _own_configuration(baseline),
    }
    _override(request, "search", limits)
    _extend(request, "pin", values_of("--pin", pin or ()))
    _extend(request, "bounds", bounds_of("--bound", bound or ()))
    _extend(request, "forbid", prohibitions_of("--forbid", forbid or ()))
    _append_constraints(request, constraint or ())
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


# What lists plans next to the best one; commands that show no ranking leave it out.
OF_A_RANKING = frozenset({"top_k", "diverse", "pareto", "baseline"})
# What only a search can apply.
OF_A_SEARCH = OF_A_RANKING | {
    "time_limit_s", "seed", "objective", "gpus", "total_tokens", "deadline_days", "gpu_hour_price",
    "certify", "pin", "bound", "forbid", "allow", "constraint",
}  # fmt: skip


def with_request(command: Callable[..., None], *, left_out: Collection[str] = ()) -> Callable[..., None]:
    """Give ``command`` the options of ``read_request`` as well, but for those ``left_out``.

    The first parameter of ``command`` is ``request``. The result also holds the names of these options.
    """
    every = inspect.signature(read_request, eval_str=True).parameters
    shared = {name: one for name, one in every.items() if name not in left_out}
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    parameters = [one.replace(kind=one.KEYWORD_ONLY) for one in (*shared.values(), *own)]

    @functools.wraps(command)
    def run(**given: object) -> None:
        request = read_request(**{name: given.pop(name) for name in shared})  # type: ignore[arg-type]
        command(request, **given)

    del run.__wrapped__  # Typer would look through it and see the parameters of ``command`` alone
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.of_the_problem = frozenset(shared)  # type: ignore[attr-defined]
    return run


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
