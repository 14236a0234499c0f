"""``meshwright predict``: its options; the work is done in ``meshwright.service.cli.predict``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from meshwright.service.cli.calibrate import profile_for
from meshwright.service.cli.problem_options import PROFILE_HELP, Asked, Request, own_of, with_request
from meshwright.service.cli.terminal import FOUND, screen
from meshwright.service.library import predict
from meshwright.service.report.comparison import reading_lines
from meshwright.service.requests.launch_files import ramp_notes

SET_HELP = "Part of the configuration (tp, pp, … or full names), or what launch files leave open."
FROM_ARGS_HELP = "A launch file of any launcher (again: those beside it), or a folder of them."
VAR_HELP = "Value of a shell variable, before the script's own (1=…: its first argument)."
IGNORE_HELP = "A flag of the launch file to pass by, such as a broken one."
RUN_HELP = "Which of several runs that the launch file starts, from 1; its refusal lists them."


@with_request
def predict_command(
    request: Request,
    *,
    config: Annotated[Path | None, typer.Option(help="Configuration as a JSON or YAML file.")] = None,
    assign: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=SET_HELP)] = None,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    from_args: Annotated[list[Path] | None, typer.Option("--from-args", help=FROM_ARGS_HELP)] = None,
    variable: Annotated[
        list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help=VAR_HELP)
    ] = None,
    ignored: Annotated[list[str] | None, typer.Option("--ignore", metavar="FLAG", help=IGNORE_HELP)] = None,
    run: Annotated[int | None, typer.Option("--run", min=1, help=RUN_HELP)] = None,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Price one configuration: step time, memory by stage, risk of running out of it."""
    asked = Asked(
        config=config, assign=assign, from_args=from_args, variables=variable, ignored=ignored, run=run
    )
    raise typer.Exit(run_predict(request, asked, as_json=json_output, calibration=profile))


# --------------------------------------------------------------------------------------------------
# Prices one configuration in this process.


def run_predict(
    request: Request,
    asked: Asked,
    *,
    as_json: bool,
    calibration: Sequence[Path] | None = None,
) -> int:
    """Price the user's own configuration; the exit code.

    Raises:
        InvalidProblemError: the problem or the configuration is wrong.
    """
    own = own_of(request, asked)
    problem = own.problem
    profile = profile_for(problem, calibration)
    found = predict(problem, own.configuration, profile=profile)
    notes = [*own.notes, *ramp_notes(own, profile), *found.notes]
    if as_json:
        document = {**found.to_json(), "notes": notes, "unread": list(own.unread)}
        sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")
    else:
        console = screen()
        console.print(found.render(console.width))
        console.print(reading_lines(notes, own.unread, width=console.width))
    return FOUND
