"""``meshwright capture``: what a launch command would start, without starting it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from meshwright.profiles.documents import document_text
from meshwright.service.cli.terminal import FOUND, say_error, say_warnings

NOTHING_STARTED = 2
_LINES = 8  # of its output that are shown where it starts nothing


def capture_command(
    command: Annotated[
        list[str], typer.Argument(help="The launch command, after --.", metavar="-- COMMAND…")
    ],
    *,
    out: Annotated[Path | None, typer.Option(help="File to write [default: stdout].")] = None,
    timeout: Annotated[
        float, typer.Option(min=1, max=60, help="Seconds that the command may take.")
    ] = 60.0,
) -> None:
    """Run a launch command with stand-ins for its launchers, and keep what it would have started.

    Your shell runs your script on this machine. The stand-ins for torchrun, python, srun, deepspeed,
    accelerate, mpirun, swift and llamafactory-cli come first in PATH: they write down how they were
    called, and train nothing. THE SCRIPT'S OTHER COMMANDS DO RUN: mkdir, cp, rm, curl, pip and all else do
    what they always do, and so does a program that is called by its absolute path. Read a script that is
    not yours before you capture it.

    The result is one JSON: exact arguments, the variables that matter (no keys or tokens), and the
    configuration files that are named. predict and explain take it with --from-args, plan with
    --from-capture, the API as the text of a launch file. At most 60 s, 10 MB and 200 processes; what still
    runs then is ended. Exit code 2: no stand-in was called.
    """
    from meshwright.service.capture import capture  # noqa: PLC0415 - processes, for this alone

    found = capture(command, max_seconds=timeout)
    if found.num_calls == 0:
        say_error(_nothing(found.last_command or " ".join(command), found.stopped, found.exit_code))
        sys.stderr.writelines(f"  {line[:200]}\n" for line in found.output.splitlines()[-_LINES:])
        raise typer.Exit(NOTHING_STARTED)
    if found.stopped:
        say_warnings([f"stopped: {found.stopped}. The capture has the calls up to then"])
    elif found.exit_code:
        say_warnings([f"the command ended with exit code {found.exit_code}"])
    text = document_text(found.document)
    if out is None:
        sys.stdout.write(text)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, "utf-8")
        calls = "call" if found.num_calls == 1 else "calls"
        sys.stderr.write(f"wrote {found.num_calls} {calls} to {out}\n")
    raise typer.Exit(FOUND)


def _nothing(last: str, stopped: str | None, exit_code: int | None) -> str:
    """Why there is nothing to keep, and what to do."""
    why = f"it was stopped ({stopped})" if stopped else f"exit code {exit_code}"
    return (
        f"no launcher was called: {why}. The last command was: {last}. Give the script its usual "
        "arguments and variables: NAME=value meshwright capture -- bash train.sh …"
    )
