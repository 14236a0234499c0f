"""The user's own configuration: from a file, from assignments, or from the launch files that run it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profiles.documents import shown
from profiles.errors import InvalidProblemError
from service.cli.assignments import settings_of
from service.cli.launch_paths import source_of
from service.cli.problem_options import Request
from service.configurations import completed
from service.launch_input import Own, own_of_files
from service.problem_file import read_problem_file
from service.request import parse_problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Where the configuration comes from."""

    config: Path | None = None
    assign: Sequence[str] = ()
    from_args: Sequence[Path] = ()  # launch files, or one folder of them
    variables: Sequence[str] = ()  # NAME=VALUE of the shell


def own_of(request: Request, asked: Asked) -> Own:
    """The problem and the configuration of the user.

    Raises:
        InvalidProblemError: the problem, the configuration or the launch command is wrong.
    """
    settings = settings_of("--set", asked.assign)
    if not asked.from_args:
        problem = parse_problem(request)
        raw = {**(read_problem_file(asked.config) if asked.config else {}), **settings}
        return Own(problem=problem, configuration=completed(raw, problem))
    if asked.config:
        raise InvalidProblemError.of("--from-args", "the launch file is the configuration: no --config")
    variables = _variables(asked.variables)
    return own_of_files(request, source_of(asked.from_args), variables=variables, values=settings)


def _variables(texts: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` of the shell."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not (name.isidentifier() and equals):
            raise InvalidProblemError.of("--var", f'"{shown(name)}" is not NAME=VALUE')
    return {name: value for name, _, value in pairs}
