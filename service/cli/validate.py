"""``meshwright validate``: error figures of the cost model on measured runs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

import typer

from meshwright.service.cli.terminal import print_json, screen, write_file
from meshwright.service.report.accuracy import render_report
from meshwright.service.requests.measured_runs import read_table
from meshwright.solver.accuracy import validate
from meshwright.solver.calibration.choose import Choice


def validate_command(
    runs: Annotated[Path, typer.Argument(help="Measured runs, one per row (CSV).")],
    *,
    calibrate: Annotated[int, typer.Option(min=0, help="Runs of each cluster to calibrate on.")] = 0,
    choose: Annotated[Choice, typer.Option(help="How to choose the runs to calibrate on.")] = "suggested",
    seed: Annotated[int, typer.Option(help="Random seed of --choose random.")] = 0,
    per_run: Annotated[Path | None, typer.Option(help="CSV file to write every prediction to.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Predict measured runs and report the errors of the predictions."""
    report = validate(read_table(runs), calibrate=calibrate, choose=choose, seed=seed)
    if per_run is not None:
        text = io.StringIO()
        report.write_per_run(text)
        write_file(per_run, text.getvalue(), "--per-run")
    if json_output:
        print_json(report.to_json())
    else:
        screen().print(render_report(report))
