"""The terminal, or the pipe, that a command prints to."""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from typer.exceptions import TyperException

from meshwright.profiles.documents import document_text, shown_path
from meshwright.profiles.errors import FieldError, InvalidProblemError, PlannerError, RefusedExportError
from meshwright.service.cli.strict import RepeatedError
from meshwright.service.files import write_whole
from meshwright.service.requests.fields import OPTIONS

if TYPE_CHECKING:  # listing the commands loads no solver
    from meshwright.service.cli.tips import Line
    from meshwright.solver.answer import Answer

PIPE_WIDTH = 160  # columns of a pipe, which has no width
_PLAIN = str.maketrans("·×–−±…│─└←→≤≥█", "*x--~.|-+<><>#")  # one for one: columns stay where they are
_UNSPELLABLE = "meshwright-plain"


class _Screen(Console):
    """A console that lets a line without blanks to break at run on: a command to paste stays whole."""

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 - Rich's own types
        super().print(*objects, **{"crop": False, **options})


def screen() -> Console:
    """stdout: as wide as the terminal or COLUMNS, else PIPE_WIDTH; colour only in a terminal."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return _Screen(
        file=sys.stdout, width=None if known else PIPE_WIDTH, highlight=False, emoji=False, markup=False
    )


def print_json(document: Mapping[str, Any] | Sequence[object]) -> None:
    """Print a document as JSON on stdout, with its schema version if it is an object."""
    if isinstance(document, Mapping):
        sys.stdout.write(document_text(document))
    else:
        sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")


def write_file(path: Path, text: str, option: str) -> None:
    """Write the file that ``option`` names.

    Raises:
        InvalidProblemError: it cannot be written.
    """
    write_bytes(path, text.encode(), option)


def write_bytes(path: Path, data: bytes, option: str) -> None:
    """Write the file that ``option`` names; errors as ``write_file``."""
    try:
        write_whole(path, data)
    except OSError as fault:
        reason = fault.strerror or "cannot be written"
        raise InvalidProblemError.of(option, f"{shown_path(path)}: {reason}") from None


def spell_plainly() -> None:
    """Let stdout and stderr of an encoding without our signs (``LC_ALL=C``) show plainer ones."""
    codecs.register_error(_UNSPELLABLE, _plainer)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors=_UNSPELLABLE)


def _plainer(fault: UnicodeError) -> tuple[str, int]:
    """ASCII in the place of what an encoding lacks; unknown signs become question marks."""
    if not isinstance(fault, UnicodeEncodeError):
        raise fault
    lacking = fault.object[fault.start : fault.end].translate(_PLAIN)
    return lacking.encode("ascii", "replace").decode("ascii"), fault.end


# --------------------------------------------------------------------------------------------------
# How a command ends: exit codes, and one clear message for what the user can fix.


FOUND = 0
BAD_INPUT = 2
INFEASIBLE = 3
NO_PLAN = 4
CANCELLED = 130
_OPTIONS = {
    "/model": "--model",
    "/cluster": "--cluster",
    "/workload": "--global-batch-size and --seq-length",
    "/workload/global_batch_size": "--global-batch-size",
    "/workload/seq_length": "--seq-length",
    "/workload/lengths": "--lengths",
}


class MissingServiceError(PlannerError):
    """A command needs the service's packages, and only the planner is installed."""

    code = "missing_extra"


@contextmanager
def service_packages_for(command: str) -> Iterator[None]:
    """Import inside this what needs the packages of the extra ``service``.

    Raises:
        MissingExtraError: one of them is not installed; it names the command, the package and the remedy.
    """
    try:
        yield
    except ModuleNotFoundError as fault:
        package = (fault.name or "").partition(".")[0]
        if package in {"", "meshwright"}:
            raise
        raise MissingServiceError(
            f"meshwright {command} needs the packages of the service ({package} is not installed): "
            "pip install '.[service]' in a checkout"
        ) from None


def require_above_0(option: str, value: float) -> None:
    """Refuse a limit that is none: a NaN is above no limit and below none.

    Raises:
        InvalidProblemError: it is no finite number above 0.
    """
    if not (isfinite(value) and value > 0):
        raise InvalidProblemError.of(option, f"{value:g} is not a limit", allowed="a finite number above 0")


def code_of(answer: Answer, *, cancelled: bool) -> int:
    """The exit code of an answer; a cancelled search with an incumbent still found something."""
    if answer.status == "infeasible":
        return INFEASIBLE
    if answer.plans:
        return FOUND
    return CANCELLED if cancelled else NO_PLAN


def say_error(message: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"error: {message}\n")


def say_warnings(warnings: Iterable[str]) -> None:
    """One line each, on stderr."""
    sys.stderr.writelines(f"warning: {warning}\n" for warning in warnings)


@contextmanager
def faults_also_as_json(*, as_json: bool) -> Iterator[None]:
    """Print the faults of the block as a JSON document on stdout too, and raise them on."""
    try:
        yield
    except InvalidProblemError as fault:
        if as_json:
            print_json({"errors": [{**asdict(one), "field": one.field} for one in fault.errors]})
        raise


def report(fault: PlannerError, commands: Any, typed: Sequence[str] | None = None) -> int:  # noqa: ANN401 - Typer's own type
    """Print what is wrong, one line a fault, and a command to paste; return the exit code.

    Args:
        fault: what is wrong.
        commands: every command, as Typer built them.
        typed: the words of the command line, by default this process's.
    """
    if not isinstance(fault, InvalidProblemError | RefusedExportError):
        say_error(str(fault))
        return BAD_INPUT
    from meshwright.service.cli.tips import Line, tips_of  # noqa: PLC0415 - only for an error

    for error in fault.errors:
        names = _OPTIONS.get(error.pointer) if error.message == "is required" else None
        say_error(error.sentence() + (f" ({names}, or a problem file)" if names else ""))
    for tip in tips_of(fault.errors, Line.of(sys.argv[1:] if typed is None else typed, commands)):
        _say_tip(tip)
    return BAD_INPUT


_PASSWORD = re.compile(r"(://[^:/@\s']*:)[^@\s']+@")  # of an address: logs keep what is printed


def _say_tip(command: str) -> None:
    shown_command = _PASSWORD.sub(r"\1***@", command)
    sys.stderr.write(f"tip: {shown_command}\n")


def report_usage(fault: TyperException, commands: Any, typed: Sequence[str] | None = None) -> int:  # noqa: ANN401 - the same
    """Print what is wrong with a command line, or the help of a group; return the exit code.

    Args:
        fault: what is wrong.
        commands: as of ``report``.
        typed: the same.
    """
    from meshwright.service.cli.tips import Line, tips_of  # noqa: PLC0415 - only for an error

    line = Line.of(sys.argv[1:] if typed is None else typed, commands)
    error = _fault_of_value(fault)
    if error is not None:
        say_error(error.sentence())
        _say_tip(tips_of([error], line)[0])
        return BAD_INPUT
    message = fault.format_message()
    if "\n" in message:
        sys.stderr.write(f"{message}\n")
        return BAD_INPUT
    plain = message.removeprefix("Invalid value: ").replace("Value error, ", "").rstrip(".")
    commands_to_paste = _tips_of_usage(fault, line)
    sentence = _of_option(fault, line) or f"{plain}{_what_is_missing(fault)}"
    if commands_to_paste[0].startswith("meshwright values "):  # not the command that is spelled like it
        sentence = sentence.partition(". Did you mean")[0]
    say_error(f"{sentence}{'' if sentence.endswith('?') else '.'}")
    for command in commands_to_paste:
        _say_tip(command)
    return BAD_INPUT


def _what_is_missing(fault: TyperException) -> str:
    """Return what the argument is that a command line lacks; empty if the fault is another."""
    param = getattr(fault, "param", None)
    lacks = fault.format_message().startswith("Missing argument") and getattr(param, "help", None)
    return f": {param.help}".rstrip(".") if param is not None and lacks else ""


def _tips_of_usage(fault: TyperException, line: Line) -> list[str]:
    from meshwright.service.cli import tips  # noqa: PLC0415 - only for an error

    if isinstance(fault, RepeatedError):
        return tips.tips_of_repeated(line, fault.option)
    if fault.format_message().startswith("No such command"):
        return [tips.tip_of_command(line)]
    return [tips.tip_of_usage(line, getattr(fault, "option_name", ""))]


def _of_option(fault: TyperException, line: Line) -> str:
    """Return what to say of an option that there is none of; empty if the fault is another."""
    if not hasattr(fault, "possibilities"):
        return ""
    from meshwright.service.cli import tips  # noqa: PLC0415 - only for an error

    wrong = str(getattr(fault, "option_name", ""))
    near = tips.near_options(wrong, fault.possibilities or ())
    here = tips.options_here(line, wrong)
    meant = f"; here it is {here}" if here else f" (possible options: {', '.join(near)})" if near else ""
    return f"No such option: {wrong}{meant}"


def _fault_of_value(fault: TyperException) -> FieldError | None:
    """Return the fault of an option's value, with what is allowed; None if the fault is another."""
    option, found = getattr(fault, "param", None), getattr(fault.__cause__, "errors", None)
    if option is None or found is None:
        return None
    from meshwright.service.requests.schema import fault_of_value  # noqa: PLC0415 - only for a fault

    known = option.type_descriptor
    command = getattr(getattr(fault, "ctx", None), "command", None)  # its own options may have such names
    shared = option.name in getattr(getattr(command, "callback", None), "of_the_problem", ())
    named = OPTIONS.get(option.name) if shared else None
    error = fault_of_value(found()[0], named.path if named else "", known.choices or ())
    low, high = known.parameter_info.min, known.parameter_info.max
    limits = (("from", low), ("up to" if low is None else "to", high))
    words = " ".join(f"{word} {limit:.12g}" for word, limit in limits if limit is not None)
    return replace(error, pointer=max(option.opts, key=len), allowed=error.allowed or words or None)
