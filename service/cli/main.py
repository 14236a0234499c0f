"""``meshwright``: every command of the product; calling a command imports its module."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command, get_command_from_info, get_group_from_info
from typer.models import CommandInfo, TyperInfo

from meshwright.profiles.errors import InternalError, PlannerError
from meshwright.service.cli.examples import examples_of
from meshwright.service.cli.strict import StrictCommand, convert_where_needed
from meshwright.service.cli.terminal import report as report_fault
from meshwright.service.cli.terminal import report_usage, service_packages_for, spell_plainly
from meshwright.service.requests.numbers import written_out

# name: where it is defined in service/cli, and the line that lists show
COMMANDS = {
    "plan": ("plan:plan", "Search the best parallel configurations."),
    "predict": ("predict:predict_options", "Price one configuration: step time, memory, OOM risk."),
    "memory": ("memory:memory", "Show how many GPUs training a model needs."),
    "fits": ("fits:fits", "Show whether a model trains on your GPUs, and how."),
    "explain": ("explain:explain_options", "Compare your own configuration with the best plan."),
    "fix": ("fix:fix_options", "Change your launch script so that it trains faster."),
    "capture": ("capture:capture_command", "Record what a launch command would start."),
    "compare": ("compare:compare", "Show what each difference between two plans gains."),
    "shapes": ("shapes:shapes_options", "List nearby model shapes that train faster."),
    "export": ("export:export_command", "Write the launch files of a plan."),
    "report": ("report:report", "Write an answer as one HTML file."),
    "plot": ("plot:plot", "Draw a plan as one picture (PNG, PDF or SVG)."),
    "calibrate": ("calibrate:calibrate_command", "Calibrate predictions with a few measured runs."),
    "validate": ("validate:validate_command", "Predict measured runs and report the errors."),
    "profile": ("profile:profile", "Measure this machine with PyTorch."),
    "import": ("import_file:import_file", "Convert a file of another tool."),
    "tune": ("tune:tune", "Run the best plans for a few steps and pick the fastest."),
    "verify": ("verify:verify_command", "Check a plan with the launcher's own code, without a GPU."),
    "replan": ("replan:replan_options", "Rank the ways to finish a job after its cluster changed."),
    "mcp": ("mcp:mcp", "Serve the planner to an AI assistant (MCP)."),
    "here": ("here:here", "Describe this machine's GPUs and network as a cluster file."),
    "fleet": ("fleet:fleet", "Plan several jobs on one cluster."),
    "models": ("catalogs:models", "List the models of the catalog."),
    "clusters": ("catalogs:clusters", "List the clusters of the catalog."),
    "gpus": ("catalogs:gpus", "List the GPU types of the catalog."),
    "values": ("catalogs:values", "List the values that an option takes."),
    "config": ("config:config", "Show your defaults and where each comes from."),
    "serve": ("serve:serve_command", "Run the service: API, pages, records and workers."),
    "worker": ("serve:worker", "Run one more worker process of the service."),
    "launch": ("launch:launch", "Start this job with a plan from a service."),
    "demo": ("demo:demo", "Start the service and plan one job over REST."),
    "jobs": ("jobs:app", "Submit, follow and cancel jobs of a running service."),
    "keys": ("keys:app", "Create, list and revoke keys of a service."),
    "db": ("database:app", "Upgrade, check, copy and restore the records."),
    "doctor": ("doctor:doctor", "Check a service's surroundings, and say what to do."),
}


# They need the packages of the extra ``service``; the others are the planner alone.
SERVICE_COMMANDS = frozenset({"serve", "worker", "launch", "demo", "jobs", "keys", "db", "doctor"})
# Allocations between two garbage collections: loaded modules stay, and a search makes hardly any cycles.
# Python's own 700 cost a small search .07 CPU seconds.
_ALLOCATIONS = 200_000


class _Commands(Mapping[str, Any]):
    """The commands by name, each built from its module when it is first asked for."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - Typer keeps the type of commands to itself
        if name not in self._built:
            self._built[name] = _built(name, *COMMANDS[name][0].split(":"))
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _built(name: str, module: str, definition: str) -> Any:  # noqa: ANN401 - the same
    gc.disable()  # what is loaded stays: looking through it for garbage took a third of a server's start
    try:
        with service_packages_for(name) if name in SERVICE_COMMANDS else nullcontext():
            loaded = import_module(f"meshwright.service.cli.{module}")
    finally:
        gc.freeze()  # later collections skip it, too
        gc.enable()
    if name not in SERVICE_COMMANDS:
        gc.set_threshold(_ALLOCATIONS, *gc.get_threshold()[1:])
    defined = getattr(loaded, definition)
    if isinstance(defined, typer.Typer):
        for command in defined.registered_commands:
            own = command.name or getattr(command.callback, "__name__", "")
            command.epilog = examples_of(f"{name} {own}")
            command.cls = StrictCommand if command.cls in (None, TyperCommand) else command.cls
        group = get_group_from_info(
            TyperInfo(defined, name=name, epilog=examples_of(name)),
            pretty_exceptions_short=True,
            suggest_commands=True,
            rich_markup_mode=None,
        )
        for command_built in group.commands.values():
            _take_numbers(command_built.params)
            _check_outputs(command_built.params)
        return group
    built = get_command_from_info(
        CommandInfo(
            name=name,
            cls=getattr(defined, "command_class", StrictCommand),
            callback=defined,
            epilog=examples_of(name),
        ),
        pretty_exceptions_short=True,
        rich_markup_mode=None,
    )
    _take_numbers(built.params)
    _check_outputs(built.params, name)
    return built


def _take_numbers(parameters: Iterable[Any]) -> None:
    """Let every option that is a number take it as people write it: ``8k``, ``15T``, ``5%``."""
    for one in parameters:
        kind = one.type_descriptor.annotation
        if kind in (int, float) and one.nargs == 1 and not one.multiple:
            one.process_value = partial(_number, one.process_value, one.name, kind is int)


_FOLDERS = frozenset({"save_dir"})  # options that name what a command writes
_FILES = frozenset({"out", "zip_file", "per_run", "timeline"})
_OUT_FOLDERS = frozenset({"fleet", "demo"})  # commands with a folder as --out


def _check_outputs(parameters: Iterable[Any], command: str = "") -> None:
    """Let every option that names a file or a folder to write be checked before the command begins."""
    for one in parameters:
        if one.name in _FOLDERS | _FILES and one.type_descriptor.annotation is Path:
            is_folder = one.name in _FOLDERS or command in _OUT_FOLDERS
            one.process_value = partial(_written, one.process_value, max(one.opts, key=len), is_folder)


def _written(convert: Callable[..., Any], option: str, is_folder: bool, context: Any, value: object) -> Any:  # noqa: ANN401 - Typer's own types
    path = convert(context, value)
    if isinstance(path, Path) and not context.resilient_parsing:
        from meshwright.service.files import check_written  # noqa: PLC0415 - help writes nothing

        check_written(path, option, is_folder=is_folder)
    return path


_PLAIN = re.compile(r"\d{1,18}", re.ASCII)  # a whole number as Python writes it


def _number(convert: Callable[..., Any], name: str, whole: bool, context: object, value: object) -> Any:  # noqa: ANN401
    if not isinstance(value, str):
        return convert(context, value)
    given = written_out(name, value, whole=whole)
    return convert(context, int(given) if whole and _PLAIN.fullmatch(given) else given)


class LazyGroup(TyperGroup):
    """Lists commands from the table above; calling one, or asking for its help, loads it."""

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - what Typer hands over
        super().__init__(**given)
        self.commands = _Commands()  # type: ignore[assignment]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - Typer's own types
        """Parse the options that all commands share."""
        convert_where_needed(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def format_commands(self, _ctx: object, formatter: Any) -> None:  # noqa: ANN401
        """The list of commands, without loading any."""
        limit = formatter.width - 6 - max(len(name) for name in COMMANDS)
        rows = [
            (name, TyperCommand(name, help=text).get_short_help_str(limit))
            for name, (_, text) in COMMANDS.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


app = typer.Typer(
    name="meshwright",
    cls=LazyGroup,
    help="Find the fastest parallel configuration for your training run, and how sure you can be of it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - 20 ms for this alone

        try:
            typer.echo(f"meshwright {version('meshwright')}")
        except PackageNotFoundError:
            typer.echo("meshwright (run from a checkout, not installed)")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version.")
    ] = False,
) -> None:
    """Which parallel configuration should this training run use, and how sure are we?"""


def main() -> None:
    """The console script; errors that the user can fix become one line and exit code 2."""
    spell_plainly()
    try:
        sys.exit(app(prog_name="meshwright", standalone_mode=False))
    except InternalError:
        raise  # a bug: the traceback is wanted, the exit code is 1
    except PlannerError as fault:
        sys.exit(report_fault(fault, get_command(app)))
    except TyperException as fault:
        sys.exit(report_usage(fault, get_command(app)))
    finally:
        gc.freeze()  # or Python scans all objects once more before it exits


if __name__ == "__main__":
    main()
