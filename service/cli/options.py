"""The options that describe a problem, shared by every command that takes one.

They are made from the rows of ``meshwright.service.requests.fields``; ``read_request`` makes a raw request
of them, the file first, options over it. Help must come at once: nothing here loads the solver.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from meshwright.service.cli.defaults import PROFILE, REMEMBERED, Defaults, say_defaults, variable
from meshwright.service.cli.strict import StrictCommand
from meshwright.service.requests.fields import (
    CLUSTER,
    COMMON,
    MODEL,
    OPTIONS,
    SEARCH,
    SIZES,
    WHOLE_RUN,
    Option,
    options_of,
)

# --------------------------------------------------------------------------------------------------
# What a shell offers for the value of an option: names of the catalog.


def completion_of(name: str) -> Callable[[str], list[str]] | None:
    """Return the completion of a request's option by names of the catalog."""
    option = OPTIONS[name].option
    return None if option is None else _completion(option)


def _completion(option: Option) -> Callable[[str], list[str]] | None:
    if not option.completes:
        return None
    module, _, function = option.completes.partition(":")

    def beginning(incomplete: str) -> list[str]:
        names = getattr(import_module(f"meshwright.profiles.{module}"), function)()
        return [name for name in dict.fromkeys((*names, *option.more)) if name.startswith(incomplete)]

    return beginning


Request = dict[str, object]
PROFILE_HELP = (
    "Calibration (calibrate --out) or measured profile (profile, import). Repeat it for each GPU type."
)
SWEEP_HELP = "Search every combination: num_nodes=8,16; global_batch_size, cluster, tp, …"
SET_HELP = (
    "Set a value of your run: a size (tp=8), or a value that your script leaves out "
    "(vocab_size=128256). To constrain a search, use --pin."
)
FROM_ARGS_HELP = "Launch file to read, or a folder. Repeat it for files that the launch file refers to."
VAR_HELP = "Set a shell variable for the script (1=… is its first argument)."
IGNORE_HELP = "Ignore this flag of the launch file."
RUN_HELP = "Number of the run, if the launch file starts several (the error lists them)."


def read_request(
    problem: str | Path | None = None,
    *,
    has_files: bool = False,
    searches: bool = True,
    stored: bool = False,
    defaults: Defaults | None = None,
    **given: object,
) -> Request:
    """Return the raw request of a problem file, or a model, with the options over it; None: not given.

    ``has_files``: launch files are read as well. ``searches``: the command searches. ``stored``: a service
    may know the model. ``defaults``: of the person who asks; None: none count.
    """
    unknown = given.keys() - OPTIONS
    if unknown:
        raise TypeError(f"no options: {', '.join(sorted(unknown))}")
    with _loading():
        from meshwright.service.cli.problem_options import request_of  # noqa: PLC0415 - help loads no solver

    stated = {name: value for name, value in given.items() if value is not None}
    return request_of(
        problem, stated, has_files=has_files, searches=searches, stored=stored, defaults=defaults
    )


_FOR_ONE_COMMAND = {
    "OPENBLAS_NUM_THREADS": "1",  # products are small here, and a pool of threads takes time to start
    "PYDANTIC_DISABLE_PLUGINS": "__all__",  # looking for them reads every installed package
}


@contextmanager
def _loading() -> Iterator[None]:
    """Load NumPy and pydantic as one short command needs them; what it starts later sees none of it."""
    added = {name: value for name, value in _FOR_ONE_COMMAND.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


# Options that only commands that show a ranking take, and those that only a search can apply.
OF_A_RANKING = options_of("rankings")
OF_A_SEARCH = OF_A_RANKING | options_of("searches")


def option_parameter(name: str, option: Option, default: object = None) -> inspect.Parameter:
    """Return a parameter of a command that is this option."""
    kind: Any = list[str] if option.repeats else option.kind
    names = (f"--{name.replace('_', '-')}",) if option.switch else ()
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=typer.Option(
            default, *names, help=option.help, metavar=option.metavar, autocompletion=_completion(option)
        ),
        annotation=kind | None if default is None else kind,
    )


_PROBLEM = inspect.Parameter(
    "problem",
    inspect.Parameter.KEYWORD_ONLY,
    default=typer.Argument(
        None,
        metavar="MODEL|FILE",
        help="Model (as for --model), or a problem file (JSON or YAML; - is stdin) that options override.",
        autocompletion=completion_of("model"),
    ),
    annotation=str | None,
)


# The groups of a long command's help, the common options first: the others are behind --help-all. Options
# of a request come first in each, in the order of their rows; then those of the command itself, with their
# defaults.
_OWN: Mapping[str, Mapping[str, str]] = {
    COMMON: {
        "save_dir": "nothing is written",
        "json_output": "a table",
        "full": "the twelve lines that decide",
    },
    MODEL: {},
    CLUSTER: {"profile": "the catalog's"},
    SEARCH: {"sweep": "none"},
    SIZES: {},
    WHOLE_RUN: {},
    "From a launch file": {
        "from_capture": "none", "assign": "none", "variable": "none", "ignored": "none",
        "run": "the only one",
    },
    "Output": {"csv_output": "a table", "force": "refuse", "measure_next": "0"},
}  # fmt: skip
GROUPS: Mapping[str, tuple[str, ...]] = {
    title: (*(name for name, row in OPTIONS.items() if row.option and row.option.group == title), *own)
    for title, own in _OWN.items()
}
DEFAULTS: Mapping[str, str] = {
    **{name: row.default_words for name, row in OPTIONS.items()},
    **{name: words for own in _OWN.values() for name, words in own.items()},
}


class GroupedCommand(StrictCommand):
    """A command with help in groups and every default: the common options, or all for ``--help-all``."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - Typer's own types
        """Write the options by group."""
        found = ((str(one.name), one.get_help_record(ctx)) for one in self.get_params(ctx))
        records = {name: record for name, record in found if record is not None}
        known = {name for names in GROUPS.values() for name in names}
        groups = dict(GROUPS) if ctx.meta.get(_ALL) else dict([next(iter(GROUPS.items()))])
        arguments = {str(one.name) for one in self.get_params(ctx) if one.param_type_name == "argument"}
        groups = {"Arguments": tuple(name for name in records if name in arguments), **groups}
        groups["Help"] = tuple(name for name in records if name not in known | arguments)
        for title, names in groups.items():
            if not any(name in records for name in names):
                continue
            with formatter.section(title):
                formatter.write_dl(
                    [_with_default(name, *records[name]) for name in names if name in records]
                )


def _with_default(name: str, option: str, words: str) -> tuple[str, str]:
    default = DEFAULTS.get(name)
    if default is None:
        return option, words
    shown = default if default.startswith("required") else f"default: {default}"
    of_a_person = f" [env: {variable(name)}]" if name in REMEMBERED else ""
    return option, f"{words.partition('  [default')[0].removesuffix('.')} [{shown}]{of_a_person}."


_ALL = "meshwright.help_all"


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        ctx.meta[_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


Full = Annotated[
    bool,
    typer.Option("--full", help="The whole answer: every column, where the time goes, what was searched."),
]
HelpAll = Annotated[
    bool,
    typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show every option and exit."),
]


def with_request(
    command: Callable[..., None],
    *,
    left_out: Collection[str] = (),
    searches: bool = True,
    stored: bool = False,
    problem: bool = True,
) -> Callable[..., None]:
    """Give ``command`` the options of a request as well, but for those ``left_out``.

    ``searches`` and ``stored``: as of ``read_request``. ``problem``: a model or a problem file may
    come first; else the command takes launch files.
    The first parameter of ``command`` is ``request``. The result also holds the names of these options.
    """
    shared = [
        option_parameter(name, row.option)
        for name, row in OPTIONS.items()
        if row.option and name not in left_out
    ]
    shared = [_PROBLEM, *shared] if problem else shared
    names = frozenset(one.name for one in shared)

    def asked(own: dict[str, Any], **given: Any) -> tuple[Request, Defaults]:  # noqa: ANN401 - of options
        defaults = Defaults(names)
        with defaults.named():
            request = read_request(
                **given,
                has_files=not problem or bool(own.get("from_args") or own.get("from_capture")),
                searches=searches,
                stored=stored,
                defaults=None if own.get("plan") else defaults,
            )
            if PROFILE in own and not own[PROFILE]:
                own[PROFILE] = defaults.profile
        say_defaults(defaults)
        return request, defaults

    @functools.wraps(command)
    def answered(question: tuple[Request, Defaults], **own: Any) -> None:  # noqa: ANN401 - the command's own
        request, defaults = question
        with defaults.named():
            command(request, **own)

    run = with_parameters(answered, shared, asked)
    run.of_the_problem = names  # type: ignore[attr-defined]
    return run


def with_parameters(
    command: Callable[..., None], more: Sequence[inspect.Parameter], made: Callable[..., object]
) -> Callable[..., None]:
    """Give ``command`` parameters ahead of its own; its first one gets what ``made`` makes of them.

    ``made`` also gets the command's own ones, as its first argument.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    parameters = [one.replace(kind=one.KEYWORD_ONLY) for one in (*more, *own)]

    @functools.wraps(command)
    def run(**given: object) -> None:
        asked = {one.name: given.pop(one.name) for one in more}
        command(made(given, **asked), **given)

    del run.__wrapped__  # Typer would look through it and see the parameters of ``command`` alone
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
