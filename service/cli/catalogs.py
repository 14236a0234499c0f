"""``meshwright models``, ``clusters`` and ``gpus``: the names that problems may use."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

NAMES = ("name", "gpu")  # columns of names that problems use: never cut
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")]


def models(json_output: AsJson = False) -> None:
    """List the models of the catalog."""
    from service.cli import catalog_rows  # noqa: PLC0415 - the catalog is loaded when it is needed

    _show(catalog_rows.model_rows(), json_output=json_output)


def clusters(json_output: AsJson = False) -> None:
    """List the clusters of the catalog."""
    from service.cli import catalog_rows  # noqa: PLC0415 - the same

    _show(catalog_rows.cluster_rows(), json_output=json_output)


def gpus(json_output: AsJson = False) -> None:
    """List the GPU types of the catalog."""
    from service.cli import catalog_rows  # noqa: PLC0415 - the same

    _show(catalog_rows.gpu_rows(), json_output=json_output)


def _show(rows: list[dict[str, str | int | float]], *, json_output: bool) -> None:
    """A table without lines, or JSON."""
    if json_output:
        typer.echo(json.dumps(rows, indent=1))
        return
    from rich.table import Table  # noqa: PLC0415 - the same

    from service.cli.screen import screen  # noqa: PLC0415 - the same

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, value in rows[0].items():
        longest = max(len(str(row[name])) for row in rows) if name in NAMES else None
        justify: Literal["left", "right"] = "left" if isinstance(value, str) else "right"
        table.add_column(name.replace("_", " "), justify=justify, min_width=longest)
    for row in rows:
        table.add_row(*(value if isinstance(value, str) else f"{value:g}" for value in row.values()))
    screen().print(table)
