"""Every command shows examples under its help, and every example is one that the command takes."""

import shlex
from collections.abc import Iterator

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from meshwright.service.cli import options as completing
from meshwright.service.cli.examples import EXAMPLES
from meshwright.service.cli.main import app


def paths(group: TyperGroup, prefix: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        yield f"{prefix}{name}"
        if isinstance(command, TyperGroup):
            yield from paths(command, f"{prefix}{name} ")


ROOT = typer.main.get_command(app)
assert isinstance(ROOT, TyperGroup)
COMMANDS = list(paths(ROOT))


def test_the_table_of_examples_names_every_command_and_no_other() -> None:
    assert sorted(EXAMPLES) == sorted(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_of_a_command_shows_its_examples_in_lines_of_their_own(path: str) -> None:
    shown = CliRunner().invoke(app, [*path.split(), "--help"])
    assert shown.exit_code == 0
    lines = [line.strip() for line in shown.output.splitlines()]
    assert all(example in lines for example in EXAMPLES[path])


@pytest.mark.parametrize("example", [one for path in COMMANDS for one in EXAMPLES[path]])
def test_an_example_has_options_and_values_that_its_command_takes(example: str) -> None:
    words = shlex.split(example)
    words = words[words.index("meshwright") + 1 :]
    command = ROOT
    while isinstance(command, TyperGroup):
        command = command.commands[words.pop(0)]
    command.make_context("example", words)  # raises where an option or a value is wrong


def test_a_shell_is_offered_names_of_the_catalog() -> None:
    def offered(option: str, beginning: str) -> list[str]:
        complete = completing.completion_of(option)
        assert complete is not None
        return complete(beginning)

    assert offered("cluster", "dgx-h") == ["dgx-h100", "dgx-h200"]
    assert "llama-3.1-8b" in offered("model", "llama-3.1")
    assert "h100-sxm-80gb" in offered("gpu", "h100")
    assert {"megatron-lm", "any", "none"} <= set(offered("launcher", ""))
    assert offered("model", "no such") == []
    assert completing.completion_of("seq_length") is None
