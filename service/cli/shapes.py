"""``meshwright shapes``: nearby model shapes that would run faster or split better."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.problem_options import PROFILE_HELP, Request, with_request


@with_request
def shapes(
    request: Request,
    *,
    tolerance: Annotated[
        float, typer.Option(min=0.0, max=0.5, help="Largest relative change of the parameters.")
    ] = 0.02,
    most: Annotated[int, typer.Option(min=1, max=64, help="Shapes to show.")] = 8,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Name nearby model shapes that train faster for each parameter, or split better."""
    from service.cli.shaping import run_shapes  # noqa: PLC0415 - the solver is loaded when it is needed

    raise typer.Exit(
        run_shapes(request, tolerance=tolerance, most=most, as_json=json_output, calibration=profile)
    )
