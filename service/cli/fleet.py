"""``meshwright fleet``: several jobs on one cluster, their nodes, layouts and starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from meshwright.profiles.documents import document_text
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.options import PROFILE_HELP
from meshwright.service.cli.progress import ProgressLine, cancellable
from meshwright.service.cli.saved_plans import keep
from meshwright.service.cli.terminal import (
    CANCELLED,
    FOUND,
    print_json,
    require_above_0,
    say_error,
    say_warnings,
    screen,
)
from meshwright.service.files import ANSWER_FILE, REPORT_FILE, check_folder, save_folder
from meshwright.service.fleets.answer import fleet_document, scheduled
from meshwright.service.fleets.files import fleet_files
from meshwright.service.fleets.planning import FleetResult, answered
from meshwright.service.fleets.question import EFFORT, MAX_EFFORT
from meshwright.service.fleets.request import read_fleet
from meshwright.service.fleets.running import planned_again, read_state
from meshwright.service.jobs.answers import answer_document
from meshwright.service.report.fleet import fleet_page, left_out_lines, render_fleet
from meshwright.service.requests.documents import read_problem_file
from meshwright.solver.answer import Answer
from meshwright.solver.fleet.durations import PlannedDurations
from meshwright.solver.fleet.plan import Limits
from meshwright.solver.fleet.problem import NodeChoice
from meshwright.solver.problem import Problem


def fleet(
    file: Annotated[Path, typer.Argument(help="Fleet file: a cluster and its jobs (YAML or JSON).")],
    *,
    running: Annotated[
        Path | None,
        typer.Option(help="State of the running fleet (YAML or JSON), to replan the remaining work."),
    ] = None,
    skip_impossible: Annotated[
        bool,
        typer.Option("--skip-impossible", help="Skip jobs without a plan and schedule the others."),
    ] = False,
    effort: Annotated[
        float,
        typer.Option(
            max=MAX_EFFORT, help="CP-SAT's time limit for a hard fleet, in deterministic seconds."
        ),
    ] = EFFORT,
    seed: Annotated[int, typer.Option(min=0, help="Random seed. The same seed gives the same answer.")] = 0,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for launch files of each plan, a Slurm start list and a report."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a folder that contains other files.")
    ] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="The answer as JSON, alone on stdout.")
    ] = False,
) -> None:
    """Plan several jobs on one cluster: how many nodes each gets, with which layout, and when."""
    require_above_0("--effort", effort)
    if force and out is None:
        raise typer.BadParameter("--force needs --out")
    request = read_fleet(_with_problem_files(file), skip_impossible=skip_impossible)
    if running is not None:
        request = planned_again(request, read_state(read_problem_file(running), request))
    if out is not None:
        check_folder(out, force=force, plan_id="", option="--out")
    with cancellable() as should_stop:
        limits = Limits(effort=effort, seed=seed, ended=should_stop)
        line, number = ProgressLine(), count(1)

        def searching(job: str, choice: NodeChoice) -> None:
            line.rewrite(f"search {next(number)}: {job} on {choice.nodes} nodes")

        durations = PlannedDurations(
            jobs=request.problems, groups=request.cluster.group_named,
            profile_of=lambda problem: profile_for(problem, profile),
            should_stop=should_stop, on_search=searching,
        )  # fmt: skip
        found = answered(request, durations, limits, skip_impossible=skip_impossible)
        line.clear()
    _show(found, out=out, force=force, json_output=json_output)
    raise typer.Exit(CANCELLED if should_stop() else FOUND)


def _show(found: FleetResult, *, out: Path | None, force: bool, json_output: bool) -> None:
    document = fleet_document(found)
    for job in found.request.fleet.jobs:
        choice = found.answer.schedule[job.name].choice
        answer, problem = (
            found.durations.answer(job.name, choice),
            found.durations.problem(job.name, choice),
        )
        if isinstance(answer, Answer) and isinstance(problem, Problem):
            say_warnings(keep(answer_document(answer, problem), problem))
    for text in left_out_lines(document):
        say_error(text)
    if json_output:
        print_json(document)
    else:
        console = screen()
        console.print(render_fleet(document, width=console.width))
    if out is not None:
        _save(found, document, out, force=force)


def _save(found: FleetResult, document: Mapping[str, Any], out: Path, *, force: bool) -> None:
    from meshwright.service.report.page import render_page  # noqa: PLC0415 - only for a folder

    made = fleet_files(scheduled(found))
    files = {
        **made.files,
        ANSWER_FILE: document_text({**document, "plans": []}),
        REPORT_FILE: render_page(fleet_page(document)),
    }
    save_folder(out, files, plan_id="", force=force, option="--out")
    say_warnings(made.warnings)
    sys.stderr.write(f"wrote {len(files)} files to {out}. To queue the jobs, run: bash {out}/start.sh\n")


def _with_problem_files(file: Path) -> dict[str, object]:
    raw = dict(read_problem_file(file))
    jobs = raw.get("jobs")
    if isinstance(jobs, list):
        raw["jobs"] = [_with_problem_file(job, file.parent) for job in jobs]
    return raw


def _with_problem_file(job: object, folder: Path) -> object:
    if not isinstance(job, Mapping) or not isinstance(job.get("problem"), str):
        return job
    problem = read_problem_file(folder / job["problem"])
    return {**job, "problem": {name: value for name, value in problem.items() if name != "cluster"}}
