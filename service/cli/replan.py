"""``meshwright replan``: how a running job goes on when its cluster has changed."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.errors import FieldError, InvalidProblemError, UnknownNameError
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.options import PROFILE_HELP, option_parameter, with_parameters
from meshwright.service.cli.saved_plans import SavedPlan, chosen_plan, document_of, keep
from meshwright.service.cli.terminal import (
    FOUND,
    NO_PLAN,
    print_json,
    say_warnings,
    screen,
    service_packages_for,
)
from meshwright.service.files import check_folder, save_export
from meshwright.service.replan.answer import (
    ReplanAnswer,
    files_of,
    first_files,
    replan_lines,
    way_of,
)
from meshwright.service.replan.checkpoint import read_checkpoint
from meshwright.service.replan.finish import replanned
from meshwright.service.replan.request import (
    MAX_REPAIR_S,
    MIN_PACE,
    Changed,
    CheckpointRequest,
    ReplanRequest,
    changed_job,
    read_replan_request,
)
from meshwright.service.replan.ways import Replan
from meshwright.service.requests.assignments import MAX_DIGITS
from meshwright.service.requests.fields import Option

_HOUR_S = 3600.0
_MOST_HOURS = MAX_REPAIR_S // _HOUR_S
# What the search of the running plan proved says nothing of another layout.
_UNPROVED: dict[str, Any] = {
    "status": "feasible", "certified_by": [], "bound_step_time_s": None, "gap": None, "objective_gap": None,
    "objective_excess": None, "objective": None, "certainty": None,
}  # fmt: skip


def _options() -> dict[str, tuple[tuple[str, ...], Option, object]]:
    """Return the options of the request: name, field, option, default as it is typed."""
    found = {}
    for at, part in (((), ReplanRequest), (("checkpoint",), CheckpointRequest)):
        for name, info in part.model_fields.items():
            for option in (one for one in info.metadata if isinstance(one, Option)):
                found[option.name or name] = ((*at, name), option, info.default)
    return found


def _typed(field: str, default: object) -> object:
    if isinstance(default, int | float | str):
        return default / _HOUR_S if field == "repair_s" and not isinstance(default, str) else default
    return None


_OPTIONS = _options()
_PARAMETERS = [
    option_parameter(name, option, _typed(field[-1], default))
    for name, (field, option, default) in _OPTIONS.items()
]


def _body(_own: object, **given: Any) -> dict[str, Any]:  # noqa: ANN401 - values of options
    hours = given["repair_hours"]
    if not 0.0 < hours <= _MOST_HOURS:
        raise InvalidProblemError.of(
            "--repair-hours",
            f"{hours:g} hours are not a repair time",
            allowed=f"above 0, to {_MOST_HOURS:.0f}",
        )
    given |= {
        "repair_hours": hours * _HOUR_S,
        "lost_nodes": _lost(given["lost_nodes"] or []),
        "slow_node": _slow(given["slow_node"] or []),
    }
    body: dict[str, Any] = {"checkpoint": {}}
    for name, (field, _, _) in _OPTIONS.items():
        (body if len(field) == 1 else body[field[0]])[field[-1]] = given[name]
    return body


def replan(
    body: dict[str, Any],
    *,
    plan_id: Annotated[
        str | None, typer.Argument(help="Running plan: its id (or first characters), or its rank.")
    ] = None,
    source: Annotated[Path | None, typer.Option("--from", help="Answer file, e.g. answer.json.")] = None,
    rank: Annotated[int, typer.Option(help="Rank of the plan in --from.")] = 1,
    cluster_from: Annotated[
        str | None, typer.Option(help="Take the node count from slurm, k8s or torchelastic.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Checkpoint folder, to read the format, step and model from.")
    ] = None,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    save_dir: Annotated[Path | None, typer.Option(help="Folder for launch and resume files.")] = None,
    way: Annotated[int, typer.Option(help="Rank of the option to write files for (with --save-dir).")] = 1,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a folder that contains other files.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Rank the ways to finish a running job after its cluster has changed: soonest first."""
    _check_saving(save_dir, way, force=force)
    kept = chosen_plan(plan_id, source, rank)
    if cluster_from is not None:
        if body["num_nodes"] is not None or body["lost_nodes"]:
            raise typer.BadParameter(
                "--cluster-from counts the nodes: leave out --num-nodes and --lost-nodes"
            )
        body["num_nodes"] = _nodes_now(cluster_from, kept.problem.cluster)
    if checkpoint is not None:
        seen, stated = read_checkpoint(checkpoint), body["checkpoint"]
        body["checkpoint"] = {
            **stated,
            **seen.request(),
            **({"format": stated["format"]} if stated["format"] else {}),
        }
        body["saved_step"] = seen.step if body["saved_step"] is None else body["saved_step"]
    try:
        job = changed_job(read_replan_request(body), kept.problem, kept.plan)
    except InvalidProblemError as fault:
        raise type(fault)(map(_of_option, fault.errors)) from None
    found = replanned(job, profile_for(job.problem, profile))
    if save_dir is not None:
        _save(kept, found, job, way, save_dir, force=force)
    if json_output:
        print_json(asdict(ReplanAnswer.of(found, job, first_files(found, job))))
    else:
        sys.stdout.write("\n".join(replan_lines(found, job, width=screen().width)) + "\n")
    raise typer.Exit(FOUND if found.ways else NO_PLAN)


replan_options = with_parameters(replan, _PARAMETERS, _body)


def _of_option(fault: FieldError) -> FieldError:
    """Return the fault as one of the option that gives its field: ``/steps_total`` is ``--steps-total``."""
    path = tuple(fault.pointer[1:].split("/"))
    for name, (field, _, _) in _OPTIONS.items():
        if path[: len(field)] == field:
            return replace(fault, pointer=" ".join([f"--{name.replace('_', '-')}", *path[len(field) :]]))
    return replace(fault, pointer=f"--{path[0].replace('_', '-')}")  # a checkpoint is read off its folder


def _check_saving(folder: Path | None, way: int, *, force: bool) -> None:
    if folder is not None:
        check_folder(folder, force=force)
    elif force or way != 1:
        raise typer.BadParameter("--way and --force need --save-dir")


def _save(kept: SavedPlan, found: Replan, job: Changed, rank: int, folder: Path, *, force: bool) -> None:
    layout = way_of(found, rank).layout
    plan = layout.plan
    check_folder(folder, force=force, plan_id=plan.plan_id)
    bundle = files_of(found, job, rank)
    document = document_of(plan, layout.problem, {**kept.search, **_UNPROVED})
    files = save_export(folder, bundle.files, document, plan_id=plan.plan_id, force=force)
    say_warnings([*bundle.warnings, *keep(document, layout.problem)])
    sys.stderr.write(f"wrote {', '.join(files)} to {folder}\n")


def _nodes_now(scheduler: str, cluster: ClusterSpec) -> int:
    """Nodes that the job of this shell has now; warns where they do not have the plan's number of GPUs.

    Raises:
        MissingExtraError: httpx is not installed, which the client of a service takes.
        InvalidProblemError: the environment is not of that scheduler, or does not tell.
    """
    with service_packages_for("replan --cluster-from"):
        from meshwright_client.nodes import (  # noqa: PLC0415 - the planner alone lacks httpx
            SCHEDULERS,
            UnknownNodesError,
            detect,
        )
    if scheduler not in SCHEDULERS:
        raise UnknownNameError.among("--cluster-from", scheduler, SCHEDULERS)
    try:
        found = detect(scheduler)
    except UnknownNodesError as fault:
        raise InvalidProblemError.of("--cluster-from", str(fault)) from None
    if found.num_nodes is None:
        raise InvalidProblemError.of("--cluster-from", f"{scheduler} doesn't report the number of nodes")
    planned = {group.gpus_per_node for group in cluster.groups}
    if found.gpus_per_node is not None and found.gpus_per_node not in planned:
        each = " or ".join(map(str, sorted(planned)))
        here = f"{scheduler} reports {found.gpus_per_node} GPUs of this node"
        say_warnings([f"{here}, but the plan needs nodes of {each}"])
    return found.num_nodes


def _lost(words: list[str]) -> int | dict[str, int] | None:
    if not words:
        return None
    named = [word.rpartition("=") for word in words]
    if any(not count.isdecimal() or len(count) > MAX_DIGITS for _, _, count in named) or (
        len(words) > 1 and not all(n for n, _, _ in named)
    ):
        raise InvalidProblemError.of(
            "--lost-nodes",
            f"{' '.join(words)[:80]!r} is not a number of nodes",
            allowed="a number from 1, or GROUP=NUMBER of each group",
        )
    if not named[0][0]:
        return int(named[0][2])
    _once("--lost-nodes", [name for name, _, _ in named])
    return {name: int(count) for name, _, count in named}


def _slow(words: list[str]) -> dict[str, float]:
    found = {}
    _once("--slow-node", [word.partition("=")[0] for word in words])
    for word in words:
        node, _, pace = word.partition("=")
        try:
            found[node] = float(pace)
        except ValueError:
            raise InvalidProblemError.of(
                "--slow-node",
                f"{word[:80]!r} is not NODE=PACE, such as 17=.7",
                allowed=f"a pace from {MIN_PACE:g}, below 1",
            ) from None
    return found


def _once(option: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidProblemError.of(option, f"{name} is stated twice", allowed="each of them once")
