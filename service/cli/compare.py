"""``meshwright compare``: two plans, term by term."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_PLAN_HELP = "Id that plan printed (a prefix will do); with --from also a rank."


def compare(
    plan_a: Annotated[str, typer.Argument(help=_PLAN_HELP)],
    plan_b: Annotated[str, typer.Argument(help=_PLAN_HELP)],
    *,
    source: Annotated[Path | None, typer.Option("--from", help="answer.json, or plan --json.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Say what each difference between two plans buys, in seconds that add up."""
    from service.cli.comparing import run_compare  # noqa: PLC0415 - the solver is loaded when it is needed

    raise typer.Exit(run_compare(plan_a, plan_b, source=source, as_json=json_output))
