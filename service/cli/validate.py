"""``meshwright validate``: error figures of the cost model on measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def validate(
    runs: Annotated[Path, typer.Argument(help="Measured runs, one a row (CSV).")],
    *,
    calibrate: Annotated[int, typer.Option(min=0, help="Runs of each cluster to calibrate on.")] = 0,
    choose: Annotated[str, typer.Option(help="Which ones: suggested or random.")] = "suggested",
    seed: Annotated[int, typer.Option(help="Of the random choice.")] = 0,
    per_run: Annotated[Path | None, typer.Option(help="Write every prediction to this CSV.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Predict measured runs and say how wrong the predictions are."""
    from service.cli.validating import run_validate  # noqa: PLC0415 - the solver is loaded when needed

    code = run_validate(
        runs, calibrate=calibrate, choose=choose, seed=seed, per_run=per_run, as_json=json_output
    )
    raise typer.Exit(code)
