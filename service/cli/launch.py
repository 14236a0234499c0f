"""``meshwright launch``: a job asks for its plan as it starts; the work is ``meshwright_client``'s."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from meshwright.profiles.errors import InvalidProblemError, PlannerError
from meshwright.service.cli.terminal import (
    INFEASIBLE,
    require_above_0,
    say_error,
    say_warnings,
    service_packages_for,
)
from meshwright.service.requests.documents import read_problem_file

DEFAULT_URL = "http://127.0.0.1:8420"
USUAL = ("problem.yaml", "problem.yml", "problem.json")


class NotLaunchedError(PlannerError):
    """The job was not started: no plan, or no such program."""

    code = "not_launched"


def launch(
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Command that starts the training, after -- [default: launch.sh]"),
    ] = None,
    *,
    problem: Annotated[
        Path | None,
        typer.Option(help="Model, batch and launcher [default: problem.yaml or .json in this folder]"),
    ] = None,
    cluster_from: Annotated[
        str | None,
        typer.Option(help="slurm, k8s, torchelastic, or a JSON file [default: detected]"),
    ] = None,
    save_dir: Annotated[
        Path, typer.Option(help="Shared folder for the launch files, visible to all nodes.")
    ] = Path("meshwright-run"),
    limit_s: Annotated[
        float, typer.Option(min=0.1, help="Longest time to delay the job's start, in seconds.")
    ] = 120.0,
    launcher: Annotated[str | None, typer.Option(help="Another launcher than the problem's.")] = None,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Report measured step times to the service.")
    ] = True,
    url: Annotated[
        str, typer.Option(envvar="MESHWRIGHT_URL", help="Where the service listens.")
    ] = DEFAULT_URL,
) -> None:
    """Ask a service for the plan of this job, start the job with it, report what it takes.

    Node 0 asks, the others wait for its file. The plan's flags are appended to the command; {plan_flags}
    in it places them, {save_dir} and {tensor_parallel_size} (any size) are filled in.
    """
    with service_packages_for("launch"):
        import meshwright_client.choosing as client  # noqa: PLC0415 - the planner alone lacks httpx
        from meshwright.service.cli.client import refusal_of  # noqa: PLC0415 - the same
        from meshwright_client.errors import MeshwrightError, ProblemError  # noqa: PLC0415 - the same
        from meshwright_client.launching import start  # noqa: PLC0415 - the same
        from meshwright_client.nodes import detect  # noqa: PLC0415 - the same
    require_above_0("--limit-s", limit_s)
    asked = read_problem_file(problem or _usual_problem())
    try:
        nodes = detect(cluster_from)
        choice = client.choose(
            json.loads(json.dumps(asked)), nodes=nodes, save_dir=save_dir, url=url, launcher=launcher,
            limit_s=limit_s, on_all_nodes=bool(command),
        )  # fmt: skip
        if choice.source == "last answer":
            said = f"the service gave no answer ({choice.why})"
            say_warnings([f"{said}: using the last accepted plan for this question"])
        say_warnings(choice.warnings)
        low_s, high_s = choice.step_time_low_s, choice.step_time_high_s
        sys.stderr.write(
            f"plan {choice.plan_id} of job {choice.job_id}: {choice.step_time_s:.3g} s a step "
            f"({low_s:.3g} to {high_s:.3g}), {choice.profile}\n"
        )
        sys.exit(start(command or [], choice, nodes=nodes, report=report))
    except client.NoPlanError as fault:
        say_error(str(fault))
        raise typer.Exit(INFEASIBLE) from None
    except ProblemError as fault:
        raise refusal_of(fault.problem) from None
    except MeshwrightError as fault:
        raise NotLaunchedError(str(fault)) from None


def _usual_problem() -> Path:
    for name in USUAL:
        if Path(name).is_file():
            return Path(name)
    raise InvalidProblemError.of("--problem", f"no {' or '.join(USUAL)} here", allowed="a problem file")
