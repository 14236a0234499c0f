"""``meshwright report``: the self-contained page of an answer that was found before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from service.cli.problem_options import PROFILE_HELP


def report(
    plan_or_job: Annotated[
        str | None, typer.Argument(help="Id that plan printed (a prefix will do), or a job's, with --url.")
    ] = None,
    *,
    source: Annotated[Path | None, typer.Option("--from", help="answer.json, or plan --json.")] = None,
    rank: Annotated[int, typer.Option(help="Which plan of --from stands first.")] = 1,
    url: Annotated[str | None, typer.Option(help="A service that has the job or the plan.")] = None,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    what_if: Annotated[
        Literal["search", "predict", "none"],
        typer.Option(help="Other hardware and batches: searched, predicted (faster), or left out."),
    ] = "search",
    out: Annotated[Path | None, typer.Option(help="File to write; default: report-ID.html here.")] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    timeline: Annotated[
        Path | None, typer.Option(help="Write the step's timeline for Perfetto here instead.")
    ] = None,
) -> None:
    """Write an answer as one HTML file to read, print or mail."""
    from service.cli import reporting  # noqa: PLC0415 - the solver is loaded when it is needed

    if (plan_or_job is None) == (source is None):
        raise typer.BadParameter("give an id, or --from with an answer's file")
    reporting.run_report(
        reporting.Wanted(
            name=plan_or_job or "", source=source, rank=rank, url=url, profile=profile, what_if=what_if
        ),
        out=out,
        open_it=open_it,
        timeline=timeline,
    )
