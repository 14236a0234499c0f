"""``meshwright plan``: its options; the work is done in ``service.cli.planning``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from service.cli.problem_options import PROFILE_HELP, SWEEP_HELP, Request, with_request, with_sweep


@with_request
def plan(
    request: Request,
    *,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="The answer as JSON, alone on stdout.")
    ] = False,
    csv_output: Annotated[bool, typer.Option("--csv", help="The ranking as CSV, alone on stdout.")] = False,
    save_dir: Annotated[Path | None, typer.Option(help="Folder for answer, problem, launch files.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder of something else.")] = False,
    sweep: Annotated[list[str] | None, typer.Option(metavar="NAME=V,V", help=SWEEP_HELP)] = None,
    measure_next: Annotated[int, typer.Option(min=0, help="Name so many plans worth measuring.")] = 0,
) -> None:
    """Search the best parallel configurations for a model, a cluster and a batch."""
    from service.cli.planning import run_plan  # noqa: PLC0415 - the solver is loaded when it is needed

    if json_output and csv_output:
        raise typer.BadParameter("--json or --csv, not both")
    form: Literal["json", "csv", "table"] = "json" if json_output else "csv" if csv_output else "table"
    if with_sweep(request, sweep or ()):
        from service.cli.sweeping import run_sweep  # noqa: PLC0415 - the same

        if save_dir or measure_next:
            raise typer.BadParameter("--save-dir and --measure-next do not go with a sweep")
        raise typer.Exit(run_sweep(request, form=form, calibration=profile))
    code = run_plan(
        request,
        form=form,
        save_dir=save_dir,
        force=force,
        calibration=profile,
        measure_next=measure_next,
    )
    raise typer.Exit(code)
