"""``meshwright plan``: its options; the work is done in ``meshwright.service.cli.searching``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.service.cli.options import (
    IGNORE_HELP,
    PROFILE_HELP,
    RUN_HELP,
    SET_HELP,
    SWEEP_HELP,
    VAR_HELP,
    Full,
    GroupedCommand,
    HelpAll,
    Request,
    with_request,
)

FROM_CAPTURE_HELP = "Capture or launch file to read the model, batch and launcher from."


@with_request
def plan(  # noqa: PLR0913 - the signature is the list of options
    request: Request,
    *,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="The answer as JSON, alone on stdout.")
    ] = False,
    csv_output: Annotated[bool, typer.Option("--csv", help="The ranking as CSV, alone on stdout.")] = False,
    full: Full = False,
    save_dir: Annotated[
        Path | None, typer.Option(help="Write answer, report and launch files here.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a folder that contains other files.")
    ] = False,
    sweep: Annotated[list[str] | None, typer.Option(metavar="NAME=V,V", help=SWEEP_HELP)] = None,
    measure_next: Annotated[
        int,
        typer.Option(min=0, help="Suggest this many plans to measure next."),
    ] = 0,
    from_capture: Annotated[Path | None, typer.Option(help=FROM_CAPTURE_HELP)] = None,
    assign: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=SET_HELP)] = None,
    variable: Annotated[
        list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help=VAR_HELP)
    ] = None,
    ignored: Annotated[list[str] | None, typer.Option("--ignore", metavar="FLAG", help=IGNORE_HELP)] = None,
    run: Annotated[int | None, typer.Option("--run", min=1, help=RUN_HELP)] = None,
    _help_all: HelpAll = False,
) -> None:
    """Search the best parallel configurations for a model, a cluster and a batch."""
    from meshwright.service.cli.problem_options import with_sweep, without_files  # noqa: PLC0415 - not for help
    from meshwright.service.cli.searching import Form, run_plan, run_sweep, say_reading  # noqa: PLC0415 - same
    from meshwright.service.requests.parts import is_post_training  # noqa: PLC0415 - same

    if json_output and csv_output:
        raise typer.BadParameter("--json or --csv, not both")
    if is_post_training(request):
        from meshwright.service.cli.post_training import run_post_training  # noqa: PLC0415 - only for this kind

        stated = {
            "--csv": csv_output, "--full": full, "--sweep": sweep, "--measure-next": measure_next,
            "--from-capture": from_capture, "--set": assign, "--var": variable, "--ignore": ignored,
            "--run": run,
        }  # fmt: skip
        for name in (name for name, value in stated.items() if value):
            raise typer.BadParameter(f"{name} is not of kind: post_training")
        raise typer.Exit(
            run_post_training(
                request, json_output=json_output, save_dir=save_dir, force=force, calibration=profile
            )
        )
    form: Form = "json" if json_output else "csv" if csv_output else "table"
    values, variables, flags = assign or (), variable or (), ignored or ()
    if from_capture is None:
        without_files(assign=values, variables=variables, ignored=flags, run=run)
    else:
        from meshwright.service.cli.launch_files import with_files  # noqa: PLC0415 - only for a launch file

        request, found = with_files(
            request, from_capture, assign=values, variables=variables, ignored=flags, run=run
        )
        say_reading(found, form)
    if force and save_dir is None:
        raise typer.BadParameter("--force needs --save-dir")
    if with_sweep(request, sweep or ()):
        if save_dir or measure_next:
            raise typer.BadParameter("--save-dir and --measure-next can't be combined with --sweep")
        raise typer.Exit(run_sweep(request, form=form, calibration=profile))
    raise typer.Exit(
        run_plan(
            request,
            form=form,
            full=full,
            save_dir=save_dir,
            force=force,
            calibration=profile,
            measure_next=measure_next,
        )
    )


plan.command_class = GroupedCommand  # type: ignore[attr-defined]
