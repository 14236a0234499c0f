"""``meshwright demo``: the main job end to end, as ``make run`` starts it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = Path("examples/llama-3.1-70b-128xh100.json")


def demo(
    problem: Annotated[Path, typer.Argument(help="Problem file to submit.")] = EXAMPLE,
    out: Annotated[Path, typer.Option(help="Folder for records and launch files.")] = Path("out"),
) -> None:
    """Start the service, submit a job over REST, follow it, print its ranking, write launch files, stop."""
    from service.cli.main_job import run_main_job  # noqa: PLC0415 - the client is loaded when it is needed

    raise typer.Exit(run_main_job(problem, out))
