"""The user's own configuration: from a file, from assignments, or from the launch command that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from profiles.errors import InvalidProblemError
from profiles.inline import cluster_from_mapping, model_from_mapping, model_to_mapping
from service.cli.assignments import settings_of
from service.cli.problem_options import Request
from service.configurations import completed
from service.json_input import shown, shown_path
from service.launchers.reading.megatron_lm import MAX_BYTES, LaunchFile, read_launch_file
from service.problem_file import read_problem_file
from service.request import parse_problem
from solver.plan import Configuration
from solver.problem import Problem

LAUNCHER = "megatron-lm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Where the configuration comes from."""

    config: Path | None = None
    assign: Sequence[str] = ()
    from_args: Path | None = None
    variables: Sequence[str] = ()  # NAME=VALUE of the shell


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """The configuration with its problem, and what reading it left to say."""

    problem: Problem
    configuration: Configuration
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def own_of(request: Request, asked: Asked) -> Own:
    """The problem and the configuration of the user.

    Raises:
        InvalidProblemError: the problem, the configuration or the launch command is wrong.
    """
    if asked.from_args is None:
        problem = parse_problem(request)
        raw = {
            **(read_problem_file(asked.config) if asked.config else {}),
            **settings_of("--set", asked.assign),
        }
        return Own(problem=problem, configuration=completed(raw, problem))
    if asked.config or asked.assign:
        raise InvalidProblemError.of(
            "--from-args", "the script is the configuration: no --config, no --set"
        )
    found = _launch_file(request, asked.from_args, asked.variables)
    problem = parse_problem(_request_of(request, found))
    read = asdict(found.configuration).items()
    raw = {name: list(value) if isinstance(value, tuple) else value for name, value in read if value != ()}
    return Own(
        problem=problem,
        configuration=completed(raw, problem),
        notes=found.notes,
        unread=found.unread,
    )


def _launch_file(request: Request, path: Path, variables: Sequence[str]) -> LaunchFile:
    """The script, read; the files that it sources stand beside it."""
    if "cluster" not in request:
        message = "no flag names the GPUs: give --cluster with --num-nodes, or --gpu"
        raise InvalidProblemError.of("--from-args", message)
    if request.get("workload"):
        raise InvalidProblemError.of("--from-args", "batch, sequence and precision are the script's")
    model = model_from_mapping(request["model"]) if "model" in request else None
    cluster = request["cluster"]
    counted = isinstance(cluster, dict) and ("num_nodes" in cluster or "groups" in cluster)
    return read_launch_file(
        _text(path),
        name=path.stem[:64] or "launch file",
        num_gpus=cluster_from_mapping(cluster).num_gpus if counted else None,
        model=model,
        variables=_variables(variables),
        include=lambda name: _sourced(path.parent / name),
    )


def _variables(texts: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` of the shell."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not (name.isidentifier() and equals):
            raise InvalidProblemError.of("--var", f'"{shown(name)}" is not NAME=VALUE')
    return {name: value for name, _, value in pairs}


def _text(path: Path) -> str:
    """The text of a script."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1).decode("utf-8-sig")
    except OSError as fault:
        message = f"{shown_path(path)}: {fault.strerror or 'cannot be read'}"
        raise InvalidProblemError.of("--from-args", message) from None
    except UnicodeDecodeError:
        message = f"{shown_path(path)}: the text is not UTF-8"
        raise InvalidProblemError.of("--from-args", message) from None


def _sourced(path: Path) -> str | None:
    """The text of a file beside the script; None where it cannot be read."""
    try:
        return _text(path)
    except InvalidProblemError:
        return None


def _request_of(request: Request, found: LaunchFile) -> Request:
    """The request with the script's model, workload and number of nodes in it."""
    workload = {name: value for name, value in asdict(found.workload).items() if value != ()}
    workload["lora_targets"] = list(found.workload.lora_targets)
    complete: Request = {**request, "model": model_to_mapping(found.model), "workload": workload}
    complete.setdefault("launcher", LAUNCHER)
    cluster = request["cluster"]
    if found.num_nodes and found.gpus_per_node and isinstance(cluster, dict):
        complete["cluster"] = _sized(cluster, found.num_nodes, found.gpus_per_node)
    return complete


def _sized(cluster: dict[str, object], num_nodes: int, gpus_per_node: int) -> dict[str, object]:
    """The cluster with as many nodes as the script starts on, unless it says how many it has."""
    groups = cluster.get("groups")
    if isinstance(groups, list) and len(groups) == 1 and isinstance(groups[0], dict):
        given = {"num_nodes": num_nodes, "gpus_per_node": gpus_per_node}
        return {**cluster, "groups": [{**given, **groups[0]}]}
    return {"num_nodes": num_nodes, **cluster}


def recommended(problem: Problem) -> Problem:
    """The problem with the framework set up as its exporter would: what changes no result is free."""
    options = {
        name: value for name, value in problem.workload.framework_options.items() if name not in _FREE
    }
    return replace(problem, workload=replace(problem.workload, framework_options=options))


_FREE = {"overlap_gradients", "overlap_tensor", "overlap_transfer", "loss_fused", "attention_kernel"}
