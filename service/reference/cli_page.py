"""docs/reference/cli.md: every command with its help, its options and its examples, from the code."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from service.cli.examples import EXAMPLES
from service.cli.main import app
from service.cli.problem_options import read_request

SHARED = tuple(name for name in inspect.signature(read_request).parameters if name != "problem")
_HEAD = """# Commands

`meshwright COMMAND --help` says the same in a terminal;
[exit codes](../troubleshooting.md#exit-codes) say how
a command ended.

`meshwright --install-completion` makes the shell complete commands, options, and the names of models,
clusters, GPUs and launchers; `--show-completion` prints what it would install.

## The problem {#the-problem}

`plan`, `predict`, `explain`, `shapes` and `jobs submit` take a [problem file](files.md#problem-file), these
options, or both: options go over the file.
"""


def cli_page() -> str:
    """The whole page."""
    root = typer.main.get_command(app)
    commands = dict(_commands(root)) if isinstance(root, TyperGroup) else {}
    lines = [_HEAD, *_table(commands["plan"], shared=True)]
    for path, command in commands.items():
        lines += _section(path, command)
    return "\n".join(lines) + "\n"


def _commands(group: TyperGroup, prefix: str = "") -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    """Every command by its path, groups before their own."""
    for name, command in group.commands.items():
        if isinstance(command, TyperCommand | TyperGroup):
            yield f"{prefix}{name}", command
        if isinstance(command, TyperGroup):
            yield from _commands(command, f"{prefix}{name} ")


def _section(path: str, command: TyperCommand | TyperGroup) -> list[str]:
    """One command."""
    depth = "##" if " " not in path else "###"
    about = inspect.cleandoc(command.help or "").splitlines()
    lines = [f"\n{depth} meshwright {path} {{#{path.replace(' ', '-')}}}", "", *about, "", "```sh"]
    lines += [*EXAMPLES[path], "```", ""]
    if isinstance(command, TyperGroup):
        return lines
    if any(parameter.name in SHARED for parameter in command.params):
        lines += ["Takes the options of [the problem](#the-problem), and:", ""]
    return lines + _table(command, shared=False)


def _table(command: TyperCommand | TyperGroup, *, shared: bool) -> list[str]:
    """Options and arguments: those that describe a problem, or the others."""
    context = command.make_context(command.name or "", [], resilient_parsing=True)
    records = [
        parameter.get_help_record(context)
        for parameter in command.params
        if (parameter.name in SHARED) is shared and parameter.name != "help"
        if not (isinstance(parameter, TyperOption) and parameter.hidden)
    ]
    return _rows([record for record in records if record is not None])


def _rows(records: Sequence[tuple[str, str]]) -> list[str]:
    """A table; nothing where there is nothing."""
    if not records:
        return []
    told = [(f"`{' '.join(name.split())}`", " ".join(about.split())) for name, about in records]
    rows = [
        f"| {name.replace('|', chr(92) + '|')} | {about.replace('|', chr(92) + '|')} |"
        for name, about in told
    ]
    return ["| | |", "|---|---|", *rows, ""]
