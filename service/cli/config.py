"""``meshwright config``: a person's defaults, and where each comes from."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from meshwright.service.cli.defaults import (
    PROFILE,
    REMEMBERED,
    Default,
    Defaults,
    config_file,
    shown_file,
    typed,
    variable,
)
from meshwright.service.cli.terminal import print_json, screen
from meshwright.service.requests.fields import OPTIONS

_BUILT_IN = "built-in"


def config(
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Show your defaults and where each comes from: the environment, your file, or built in."""
    found = Defaults().found
    path = config_file()
    if json_output:
        values = {name: _record(found.get(name)) for name in REMEMBERED}
        print_json({"file": str(path), "defaults": values})
        return
    from meshwright.service.report.formatting import plain_table  # noqa: PLC0415 - help loads no table

    rows = []
    for name in REMEMBERED:
        one = found.get(name)
        value = _built_in(name) if one is None else _words(one.value)
        rows.append((typed(name), value, _BUILT_IN if one is None else one.source, variable(name)))
    console = screen()
    console.print(plain_table(("option", "default", "from", "variable"), rows))
    if not path.is_file():
        console.print(f"\nYou have no {shown_file()} yet. To begin one:", soft_wrap=True)
        folder = shlex.quote(str(path.parent))
        console.print(
            f"  mkdir -p {folder} && echo 'cluster = \"dgx-h100\"' >> {shlex.quote(str(path))}",
            soft_wrap=True,
        )


def _record(one: Default | None) -> dict[str, object]:
    return (
        {"value": None, "source": _BUILT_IN} if one is None else {"value": one.value, "source": one.source}
    )


def _built_in(name: str) -> str:
    return "the catalog's" if name == PROFILE else OPTIONS[name].default_words


def _words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
