"""``meshwright export``: launch files of a plan that was found before."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from meshwright.launchers.registry import export, launcher_of
from meshwright.launchers.schedulers import Start, scheduled
from meshwright.launchers.target import ExportBundle
from meshwright.service.cli.saved_plans import SavedPlan, chosen_plan, document_of, with_closest
from meshwright.service.cli.terminal import say_warnings, write_bytes
from meshwright.service.files import check_folder, save_export, zipped
from meshwright.service.requests.checks import check_risk


def export_command(
    plan_id: Annotated[
        str | None, typer.Argument(help="Plan id (or its first characters), or a rank.")
    ] = None,
    *,
    source: Annotated[Path | None, typer.Option("--from", help="Answer file, e.g. answer.json.")] = None,
    rank: Annotated[int, typer.Option(help="Rank of the plan in --from.")] = 1,
    launcher: Annotated[str | None, typer.Option(help="Another launcher than the problem's.")] = None,
    launcher_version: Annotated[
        str | None, typer.Option(help="Launcher release to write for, e.g. 0.3.")
    ] = None,
    save_dir: Annotated[
        Path | None, typer.Option(help="Folder to write [default: print the files]")
    ] = None,
    scheduler: Annotated[
        str, typer.Option(help="File that starts the job: slurm, pytorchjob, trainjob or skypilot.")
    ] = "slurm",
    image: Annotated[
        str | None, typer.Option(help="Container image with the launcher, for schedulers other than slurm.")
    ] = None,
    zip_file: Annotated[
        Path | None, typer.Option("--zip", help="Zip file to write, instead of --save-dir.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a folder that contains other files.")
    ] = False,
    accept_risk: Annotated[
        bool,
        typer.Option(
            "--accept-risk",
            help="Also write the closest plan, which exceeds your out-of-memory risk.",
        ),
    ] = False,
) -> None:
    """Write the launch files of a plan."""
    if zip_file is not None and save_dir is not None:
        raise typer.BadParameter("--zip or --save-dir, not both")
    if force and save_dir is None:
        raise typer.BadParameter("--force needs --save-dir")
    chosen = with_closest(chosen_plan(plan_id, source, rank))
    words = (
        f"meshwright export {plan_id or chosen.plan_id[:12]}{f' --from {source}' * (source is not None)}"
    )
    check_risk(
        chosen.plan,
        chosen.problem,
        accepted=accept_risk,
        at="--accept-risk",
        how=f"{words} --accept-risk",
    )
    start = Start(scheduler=scheduler, image=image)
    if zip_file is None:
        write_export(
            chosen,
            launcher=launcher,
            version=launcher_version,
            save_dir=save_dir,
            force=force,
            start=start,
        )
        return
    bundle = _bundle(chosen, launcher, launcher_version, start)
    write_bytes(zip_file, zipped(bundle.files), "--zip")
    sys.stdout.write(f"wrote {', '.join(bundle.files)} to {zip_file}\n")


# --------------------------------------------------------------------------------------------------
# From a kept plan to launch files.


_SLURM = Start()


def write_export(
    chosen: SavedPlan,
    *,
    launcher: str | None,
    version: str | None = None,
    save_dir: Path | None,
    force: bool,
    start: Start = _SLURM,
) -> None:
    """Write the launch files into ``save_dir``, or print them where there is none.

    Raises:
        InvalidProblemError: no launcher was named, or the folder is taken.
        RefusedExportError: the launcher cannot express the plan.
    """
    if save_dir is not None:
        check_folder(save_dir, force=force, plan_id=chosen.plan_id)
    bundle = _bundle(chosen, launcher, version, start)
    if save_dir is None:
        for file, text in bundle.files.items():
            sys.stdout.write(f"=== {file}\n{text}")
        return
    files = save_export(
        save_dir,
        bundle.files,
        document_of(chosen.plan, chosen.problem, chosen.search),
        plan_id=chosen.plan_id,
        force=force,
    )
    sys.stdout.write(f"wrote {', '.join(files)} to {save_dir}\n")


def _bundle(chosen: SavedPlan, launcher: str | None, version: str | None, start: Start) -> ExportBundle:
    """Return the launch files of a plan; their warnings are printed."""
    bundle = export(
        chosen.plan,
        chosen.problem,
        launcher_of(chosen.problem, launcher, pointer="--launcher"),
        version=version,
    )
    bundle = scheduled(bundle, chosen.plan, chosen.problem, start.scheduler, image=start.image)
    say_warnings(bundle.warnings)
    return bundle
