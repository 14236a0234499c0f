"""``meshwright explain``: the user's own configuration beside the best plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.predict import FROM_ARGS_HELP, SET_HELP, VAR_HELP
from service.cli.problem_options import PROFILE_HELP, Request, with_request


@with_request
def explain(
    request: Request,
    *,
    config: Annotated[
        Path | None,
        typer.Option("--config", "--configuration", help="Configuration as a JSON or YAML file."),
    ] = None,
    assign: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=SET_HELP)] = None,
    from_args: Annotated[list[Path] | None, typer.Option("--from-args", help=FROM_ARGS_HELP)] = None,
    variable: Annotated[
        list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help=VAR_HELP)
    ] = None,
    plan: Annotated[
        str | None, typer.Option(metavar="ID", help="A plan that was found, in full, instead of yours.")
    ] = None,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Price your own configuration beside the best plan, and say what each difference buys."""
    from service.cli.explaining import run_explain, run_explain_plan  # noqa: PLC0415 - loads the solver
    from service.cli.own import Asked  # noqa: PLC0415

    if plan is not None:
        if request or config or assign or from_args or variable or profile:
            raise typer.BadParameter(
                "--plan is a whole question with its answer: nothing else goes with it"
            )
        raise typer.Exit(run_explain_plan(plan, as_json=json_output))
    asked = Asked(config=config, assign=assign or [], from_args=from_args or [], variables=variable or [])
    raise typer.Exit(run_explain(request, asked, as_json=json_output, calibration=profile))
