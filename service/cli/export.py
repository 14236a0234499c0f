"""``meshwright export``: launch files of a plan that was found before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    plan_id: Annotated[str | None, typer.Argument(help="Id that plan printed; a prefix will do.")] = None,
    *,
    source: Annotated[Path | None, typer.Option("--from", help="answer.json, or plan --json.")] = None,
    rank: Annotated[int, typer.Option(help="Which plan of --from.")] = 1,
    launcher: Annotated[str | None, typer.Option(help="Another launcher than the problem's.")] = None,
    save_dir: Annotated[
        Path | None, typer.Option(help="Folder to write; default: print the files.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder of something else.")] = False,
) -> None:
    """Write the launch files of a plan."""
    from service.cli import exporting  # noqa: PLC0415 - the launchers are loaded when they are needed

    if (plan_id is None) == (source is None):
        raise typer.BadParameter("give a plan id, or --from with an answer's file")
    chosen = exporting.chosen_plan(plan_id, source, rank)
    exporting.write_export(chosen, launcher=launcher, save_dir=save_dir, force=force)
