"""The launchers by name, each with what the product says of it (``launchers.yaml``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from meshwright.launchers.templates import data


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A row of the table; its head explains the fields."""

    name: str
    tables: Sequence[str]
    beside: Sequence[str] = ()
    export: str | None
    read: str
    title: str
    choice: str
    checkpoint: str = ""
    programs: Mapping[str, str] = field(default_factory=dict)
    commands: Sequence[str] = ()
    accelerates: bool = False
    stops: Literal["", "all", "top"] = ""
    any_case: bool = False
    before: str = ""

    def kind_of(self, program: str) -> str:
        """Return the kind of training that a program of that path starts; empty for others."""
        return next((kind for one, kind in self.programs.items() if f"/{program}".endswith(f"/{one}")), "")


@cache
def launchers() -> dict[str, Launcher]:
    """Return the launchers by name, in the order in which their readers try a file."""
    found = dict[str, Launcher]()
    for name, row in data("launchers.yaml").items():
        module, title = name.replace("-", "_"), row.get("title", name)
        usual = {
            "export": f"{module}.export:export",
            "read": f"{module}.read:{module.upper()}_READER",
            "title": title,
            "choice": title,
        }
        lists = {key: tuple(value) for key, value in row.items() if isinstance(value, list)}
        found[name] = Launcher(name=name, **{**usual, **row, **lists})
    order = list(found)
    for name in (one.name for one in found.values() if one.before):
        order.remove(name)
        order.insert(order.index(found[name].before), name)
    return {name: found[name] for name in order}


def tables_of(launcher: str) -> tuple[str, ...]:
    """Return the tables of all files that a launcher's run may have, its own first."""
    row = launchers()[launcher]
    return (*row.tables, *row.beside)


def of_table(program: str) -> Launcher | None:
    """Return the launcher whose own arguments a table has; None for another program's table."""
    return next((one for one in launchers().values() if one.tables[0] == program), None)


def over_trl() -> Iterator[Launcher]:
    """Yield the launchers with TRL's arguments."""
    return (one for one in launchers().values() if "trl" in one.tables)


def command_names(*, accelerates: bool = False) -> tuple[str, ...]:
    """Return the programs with subcommands, of all launchers or of those that take accelerate's options."""
    rows = launchers().values()
    return tuple(word for one in rows if one.accelerates or not accelerates for word in one.commands)


def of_command(program: str) -> Launcher | None:
    """Return the launcher whose command takes accelerate's options, of ``trl sft``; None for others."""
    word, _, kind = program.partition(" ")
    rows = (one for one in launchers().values() if one.accelerates and kind)
    return next((one for one in rows if word in one.commands), None)
