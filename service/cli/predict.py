"""``meshwright predict``: its options; the work is done in ``service.cli.predicting``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.problem_options import PROFILE_HELP, Request, with_request

_SET_HELP = "Part of the configuration; tp, pp, … or full names."


@with_request
def predict(
    request: Request,
    config: Annotated[Path | None, typer.Option(help="Configuration as a JSON or YAML file.")] = None,
    assign: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=_SET_HELP)] = None,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Price one configuration: step time, memory by stage, risk of running out of it."""
    from service.cli.predicting import run_predict  # noqa: PLC0415 - the solver is loaded when it is needed

    raise typer.Exit(
        run_predict(request, config=config, assign=assign or [], as_json=json_output, calibration=profile)
    )
