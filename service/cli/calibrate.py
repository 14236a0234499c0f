"""``meshwright calibrate``: its options; the work is done in ``service.cli.calibrating``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def calibrate(
    runs: Annotated[Path, typer.Argument(help="Measured runs of the cluster, one a row (CSV).")],
    *,
    cluster: Annotated[str | None, typer.Option(help="Which one, when the file holds several.")] = None,
    out: Annotated[Path | None, typer.Option(help="Calibration (JSON) to write, for --profile.")] = None,
    measure_next: Annotated[
        int, typer.Option(min=0, help="Name this many rows without a time that are worth measuring.")
    ] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Learn a cluster from a few of its runs; plan and predict take the result with --profile."""
    from service.cli.calibrating import run_calibrate  # noqa: PLC0415 - the solver is loaded when needed

    code = run_calibrate(runs, cluster=cluster, out=out, measure_next=measure_next, as_json=json_output)
    raise typer.Exit(code)
