"""``meshwright predict``: its options; the work is done in ``service.cli.predicting``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.problem_options import PROFILE_HELP, Request, with_request

SET_HELP = "Part of the configuration (tp, pp, … or full names), or what launch files leave open."
FROM_ARGS_HELP = "A launch file of any launcher (again: those beside it), or a folder of them."
VAR_HELP = "Value of a shell variable that the script expects."


@with_request
def predict(
    request: Request,
    *,
    config: Annotated[Path | None, typer.Option(help="Configuration as a JSON or YAML file.")] = None,
    assign: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=SET_HELP)] = None,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    from_args: Annotated[list[Path] | None, typer.Option("--from-args", help=FROM_ARGS_HELP)] = None,
    variable: Annotated[
        list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help=VAR_HELP)
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Price one configuration: step time, memory by stage, risk of running out of it."""
    from service.cli.own import Asked  # noqa: PLC0415 - the solver is loaded when it is needed
    from service.cli.predicting import run_predict  # noqa: PLC0415

    asked = Asked(config=config, assign=assign or [], from_args=from_args or [], variables=variable or [])
    raise typer.Exit(run_predict(request, asked, as_json=json_output, calibration=profile))
