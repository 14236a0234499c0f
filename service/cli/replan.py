"""``meshwright replan``: how a running job goes on when its cluster has changed."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.errors import FieldError, InvalidProblemError, UnknownNameError
from meshwright.service.cli.assignments import MAX_DIGITS
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.export import chosen_plan
from meshwright.service.cli.options import PROFILE_HELP
from meshwright.service.cli.saved_plans import KeptPlan, keep
from meshwright.service.cli.terminal import (
    FOUND,
    NO_PLAN,
    MissingServiceError,
    print_json,
    say_warnings,
    screen,
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
from meshwright.service.replan.finish import Replan, replanned
from meshwright.service.replan.request import (
    FORMATS,
    MAX_REPAIR_S,
    MIN_PACE,
    Changed,
    changed_job,
    read_replan_request,
)

_HOUR_S = 3600.0
_MOST_HOURS = MAX_REPAIR_S // _HOUR_S
# What the search of the running plan proved says nothing of another layout.
_UNPROVED: dict[str, Any] = {
    "status": "feasible", "certified_by": [], "bound_step_time_s": None, "gap": None, "objective_gap": None,
    "objective_excess": None, "objective": None, "certainty": None,
}  # fmt: skip


def replan(  # noqa: PLR0913 - the signature is the list of options
    plan_id: Annotated[str | None, typer.Argument(help="Plan that runs; a prefix will do.")] = None,
    *,
    source: Annotated[Path | None, typer.Option("--from", help="answer.json, or plan --json.")] = None,
    rank: Annotated[int, typer.Option(help="Which plan of --from.")] = 1,
    lost_nodes: Annotated[
        list[str] | None, typer.Option(metavar="N|GROUP=N", help="Nodes that are gone.")
    ] = None,
    slow_node: Annotated[
        list[str] | None, typer.Option(metavar="NODE=PACE", help="A node at a share of its pace: 17=.7")
    ] = None,
    num_nodes: Annotated[int | None, typer.Option(help="Nodes of the cluster from now on.")] = None,
    cluster_from: Annotated[
        str | None, typer.Option(help="slurm, k8s or torchelastic: as many nodes as this job has now.")
    ] = None,
    steps_done: Annotated[int, typer.Option(help="Steps that the run has done.")] = 0,
    steps_total: Annotated[int | None, typer.Option(help="Steps of the whole run.")] = None,
    saved_step: Annotated[int | None, typer.Option(help="Step of the last checkpoint.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder of the checkpoint: format, step and model are read.")
    ] = None,
    checkpoint_format: Annotated[str | None, typer.Option(help=", ".join(FORMATS))] = None,
    checkpoint_place: Annotated[
        str, typer.Option(metavar="shared|local", help="Shared storage, or the nodes' own.")
    ] = "shared",
    spare_nodes: Annotated[int, typer.Option(help="Idle nodes in addition to the cluster.")] = 0,
    repair_hours: Annotated[float, typer.Option(help="Until lost nodes are back.")] = 24.0,
    top_k: Annotated[int, typer.Option(help="Ways wanted.")] = 5,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    save_dir: Annotated[Path | None, typer.Option(help="Folder for launch and resume files.")] = None,
    way: Annotated[int, typer.Option(help="Rank of the way with the files that --save-dir gets.")] = 1,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a folder that holds other files.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Rank the ways to finish a running job after its cluster has changed: soonest first."""
    if not 0.0 < repair_hours <= _MOST_HOURS:
        allowed = f"above 0, to {_MOST_HOURS:.0f}"
        raise InvalidProblemError.of(
            "--repair-hours", f"{repair_hours:g} hours are not a repair time", allowed=allowed
        )
    _check_saving(save_dir, way, force=force)
    kept = chosen_plan(plan_id, source, rank)
    if cluster_from is not None:
        if num_nodes is not None or lost_nodes:
            raise typer.BadParameter(
                "--cluster-from counts the nodes: leave --num-nodes and --lost-nodes out"
            )
        num_nodes = _nodes_now(cluster_from, kept.problem.cluster)
    body: dict[str, Any] = {
        "steps_done": steps_done, "steps_total": steps_total, "saved_step": saved_step,
        "num_nodes": num_nodes, "spare_nodes": spare_nodes, "repair_s": repair_hours * _HOUR_S,
        "top_k": top_k, "lost_nodes": _lost(lost_nodes or []), "slow_nodes": _slow(slow_node or []),
        "checkpoint": {"format": checkpoint_format, "place": checkpoint_place},
    }  # fmt: skip
    if checkpoint is not None:
        seen = read_checkpoint(checkpoint)
        stated = {} if checkpoint_format is None else {"format": checkpoint_format}
        body["checkpoint"] |= {**seen.request(), **stated}
        body["saved_step"] = seen.step if saved_step is None else saved_step
    try:
        job = changed_job(read_replan_request(body), kept.problem, kept.plan)
    except InvalidProblemError as fault:
        raise type(fault)(map(_of_option, fault.errors)) from None
    found = replanned(job, profile_for(job.problem, profile))
    if save_dir is not None:
        _save(kept, found, job, way, save_dir, force=force)
    if json_output:
        document = asdict(ReplanAnswer.of(found, job, first_files(found, job)))
        print_json(document)
    else:
        sys.stdout.write("\n".join(replan_lines(found, job, width=screen().width)) + "\n")
    raise typer.Exit(FOUND if found.ways else NO_PLAN)


_OPTION_OF = {"slow_nodes": "slow-node", "repair_s": "repair-hours"}


def _of_option(fault: FieldError) -> FieldError:
    """The fault as one of the option that gives its field: ``/steps_total`` is ``--steps-total``."""
    first, *rest = fault.pointer[1:].split("/")
    if first == "checkpoint":  # what else it has is read off the folder
        first, rest = f"checkpoint_{rest[0]}" if rest[0] in ("format", "place") else first, []
    option = f"--{_OPTION_OF.get(first, first).replace('_', '-')}"
    return replace(fault, pointer=" ".join([option, *rest]))


def _check_saving(folder: Path | None, way: int, *, force: bool) -> None:
    if folder is not None:
        check_folder(folder, force=force)
    elif force or way != 1:
        raise typer.BadParameter("--way and --force are about the folder of --save-dir")


def _save(kept: KeptPlan, found: Replan, job: Changed, rank: int, folder: Path, *, force: bool) -> None:
    layout = way_of(found, rank).layout
    plan = layout.plan
    check_folder(folder, force=force, plan_id=plan.plan_id)
    bundle = files_of(found, job, rank)
    search = {**kept.search, **_UNPROVED}
    document = KeptPlan(plan=plan, problem=layout.problem, search=search).document()
    files = save_export(folder, bundle.files, document, plan_id=plan.plan_id, force=force)
    say_warnings([*bundle.warnings, *keep(document, layout.problem)])
    sys.stderr.write(f"wrote {', '.join(files)} to {folder}\n")


def _nodes_now(scheduler: str, cluster: ClusterSpec) -> int:
    """Nodes that the job of this shell has now; warns where they do not have the plan's number of GPUs.

    Raises:
        MissingExtraError: the client, which knows schedulers, is not installed.
        InvalidProblemError: the environment is not of that scheduler, or does not tell.
    """
    try:
        from meshwright_client.nodes import (  # noqa: PLC0415 - a distribution of its own
            SCHEDULERS,
            UnknownNodesError,
            detect,
        )
    except ModuleNotFoundError as fault:
        message = f"--cluster-from needs meshwright-client ({fault.name} is not installed)"
        raise MissingServiceError(message) from None
    if scheduler not in SCHEDULERS:
        raise UnknownNameError.among("--cluster-from", scheduler, SCHEDULERS)
    try:
        found = detect(scheduler)
    except UnknownNodesError as fault:
        raise InvalidProblemError.of("--cluster-from", str(fault)) from None
    if found.num_nodes is None:
        message = f"{scheduler} does not tell how many nodes there are"
        raise InvalidProblemError.of("--cluster-from", message)
    planned = {group.gpus_per_node for group in cluster.groups}
    if found.gpus_per_node is not None and found.gpus_per_node not in planned:
        each = " or ".join(map(str, sorted(planned)))
        here = f"{scheduler} reports {found.gpus_per_node} GPUs of this node"
        say_warnings([f"{here}; the plan, and so every way, is for nodes of {each}"])
    return found.num_nodes


def _lost(words: list[str]) -> int | dict[str, int] | None:
    if not words:
        return None
    named = [word.rpartition("=") for word in words]
    if any(not count.isdecimal() or len(count) > MAX_DIGITS for _, _, count in named) or (
        len(words) > 1 and not all(n for n, _, _ in named)
    ):
        message = f"{' '.join(words)[:80]!r} is not a number of nodes"
        allowed = "a number from 1, or GROUP=NUMBER of each group"
        raise InvalidProblemError.of("--lost-nodes", message, allowed=allowed)
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
            message = f"{word[:80]!r} is not NODE=PACE, such as 17=.7"
            raise InvalidProblemError.of(
                "--slow-node", message, allowed=f"a pace from {MIN_PACE:g}, below 1"
            ) from None
    return found


def _once(option: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidProblemError.of(option, f"{name} is stated twice", allowed="each of them once")
