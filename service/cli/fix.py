"""``meshwright fix``: the smallest edits of a launch script that train faster, as a diff."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from meshwright.launchers.reading.base import Overrides
from meshwright.profiles.documents import shown_path
from meshwright.profiles.errors import InvalidProblemError, faults_as
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.launch_files import path_named_by, source_of, variables_of
from meshwright.service.cli.options import (
    IGNORE_HELP,
    OF_A_SEARCH,
    PROFILE_HELP,
    RUN_HELP,
    SET_HELP,
    VAR_HELP,
    Request,
    with_request,
)
from meshwright.service.cli.progress import ProgressLine, cancellable
from meshwright.service.cli.strict import StrictCommand
from meshwright.service.cli.terminal import INFEASIBLE, print_json
from meshwright.service.files import replace_texts
from meshwright.service.fixing.fixes import MOST, Fixes, FixSet, fixes_of, verified
from meshwright.service.fixing.lines import fix_lines
from meshwright.service.requests.assignments import values_of

_IN_PLACE = "--in-place"
_BACKUP = "--backup"


def fix_command(  # noqa: PLR0913 - one parameter for each option
    request: Request,
    script: Annotated[
        list[Path] | None,
        typer.Argument(metavar="SCRIPT...", help="Launch file, with files that it refers to; or a folder."),
    ] = None,
    *,
    edits: Annotated[
        int | None,
        typer.Option(
            "--edits",
            min=1,
            max=MOST,
            metavar="N",
            help="Take the set with N edits. [default: the recommended set]",
        ),
    ] = None,
    in_place: Annotated[
        bool,
        typer.Option(
            _IN_PLACE,
            help="Write the files instead of printing a diff. --in-place=.bak keeps the old ones.",
        ),
    ] = False,
    backup: Annotated[str | None, typer.Option(_BACKUP, hidden=True)] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare",
            metavar="BASE HEAD",
            help="Price a change instead: two files, folders or revisions of git. Prints Markdown.",
        ),
    ] = None,
    fail_above: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT", help="With --compare: exit with 4 if a step takes this much longer: 2%."
        ),
    ] = None,
    assign: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=SET_HELP)] = None,
    variable: Annotated[
        list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help=VAR_HELP)
    ] = None,
    ignored: Annotated[list[str] | None, typer.Option("--ignore", metavar="FLAG", help=IGNORE_HELP)] = None,
    run: Annotated[int | None, typer.Option("--run", min=1, help=RUN_HELP)] = None,
    search: Annotated[
        bool, typer.Option("--search/--no-search", help="Search the best plan, to know what is possible.")
    ] = True,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Let the launcher's own code build each set (needs verify --install)."
        ),
    ] = False,
    base_precision: Annotated[
        Literal["bf16", "fp32"] | None,
        typer.Option(
            help="Let edits load LoRA's frozen weights in this type instead of the file's (numerics)."
        ),
    ] = None,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    json_output: Annotated[bool, typer.Option("--json", help="All sets as JSON on stdout.")] = False,
) -> None:
    """Print the smallest edits of your launch script that make a step shorter, as one diff."""
    stated: dict[str, Any] = {
        "variables": variables_of(variable or ()),
        "values": values_of("--set", assign or ()),
        "ignored": ignored or (),
        "run": run,
    }
    if compare is not None:
        from meshwright.service.cli.fix_compare import compare_changes  # noqa: PLC0415 - in pull requests alone

        _refuse_beside(
            "--compare", script=script, edits=edits, in_place=in_place, base_precision=base_precision
        )
        raise typer.Exit(
            compare_changes(
                request, compare, stated, profile=profile, fail_above=fail_above, as_json=json_output
            )
        )
    _refuse_beside("--fail-above", fail_above=fail_above)
    if json_output:
        _refuse_beside("--json", edits=edits, in_place=in_place)
    if "/" in (backup or ""):
        raise InvalidProblemError.of(
            _IN_PLACE, "the ending of a backup has no /", allowed=f"{_IN_PLACE}=.bak"
        )
    if not script:
        raise InvalidProblemError.of(
            "SCRIPT",
            "give the launch script to change",
            allowed="meshwright fix train.sh --cluster dgx-h100",
        )
    with faults_as(lambda fault: replace(fault, pointer="SCRIPT")):
        source = source_of(script)
    line = ProgressLine()
    with cancellable() as should_stop:
        found = fixes_of(
            source,
            request,
            **stated,
            costs=lambda problem: profile_for(problem, profile),
            searched=search,
            base_precision=base_precision,
            on_progress=line.show,
            should_stop=should_stop,
        )
    line.clear()
    if verify:
        overrides = Overrides(variables=stated["variables"], ignored=tuple(stated["ignored"]), run=run)
        found = verified(found, overrides)
    chosen = _chosen(found, edits)
    code = 0 if chosen is not None or found.fits else INFEASIBLE
    if json_output:
        print_json(found.to_json())
        raise typer.Exit(code)
    for text in fix_lines(found, chosen, _width(), given=[str(path) for path in script]):
        sys.stderr.write(f"{text}\n")
    if chosen is None:
        raise typer.Exit(code)
    paths = {name: _path_of(name, script, source.text) for name in chosen.files}
    if in_place:
        _write(chosen, paths, backup or "")
    else:
        sys.stdout.write(found.diff(chosen, {name: _shown(path) for name, path in paths.items()}))


class FixCommand(StrictCommand):
    """A command whose ``--in-place`` may name the ending of a backup."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - Typer's own types
        """Read ``--in-place=.bak`` as a switch and the ending."""
        words = list[str]()
        for at, word in enumerate(args):
            if word == "--":
                words += args[at:]
                break
            name, equals, ending = word.partition("=")
            words += [_IN_PLACE, f"{_BACKUP}={ending}"] if equals and name == _IN_PLACE else [word]
        rest: list[str] = super().parse_args(ctx, words)
        return rest


# What files state themselves, and what limits a search.
_OF_FILES = (
    "freeze", "lora_rank", "lora_target", "base_precision", "trained_layers", "trained_module",
    "reserve_nodes", "sample", "reference", "framework_options",
)  # fmt: skip
fix_options = with_request(fix_command, left_out={*OF_A_SEARCH, *_OF_FILES}, problem=False)
fix_options.command_class = FixCommand  # type: ignore[attr-defined]


def _refuse_beside(option: str, **given: object) -> None:
    for name, value in given.items():
        if value:
            shown = "SCRIPT" if name == "script" else f"--{name.replace('_', '-')}"
            why = "needs --compare" if shown == option else f"does not go with {option}"
            raise InvalidProblemError.of(shown, why)


def _chosen(found: Fixes, number: int | None) -> FixSet | None:
    if number is None:
        return found.recommended
    chosen = found.of_number(number)
    if chosen is None and not found.sets and not found.fits:
        raise InvalidProblemError.of(
            "--edits", f"no set of {number} edits lets the run fit into memory", allowed=_allowed(found)
        )
    if chosen is None:
        numbers = ", ".join(str(one.number) for one in found.sets)
        raise InvalidProblemError.of(
            "--edits",
            f"no set of {number} edits saves 2 % more than a smaller one",
            allowed=numbers or "none: no edit saves 2 %",
        )
    return chosen


def _allowed(found: Fixes) -> str:
    """Return what to write where no set fits: the risk of the closest one, or another run."""
    if found.closest is None:
        return "none: no edits let it fit. Give it more GPUs, or fewer tokens a micro-batch"
    closest = f"{found.closest.number} edit{'s' * (found.closest.number > 1)}"
    return f"{closest}, with --max-oom-probability {found.accepted:g}"


def _path_of(name: str, given: list[Path], text: str) -> Path:
    """Return the path of a file that was read by its base name."""
    own = next((path for path in given if path.name == name), None)
    if own is not None:
        return own
    if given[0].is_dir():
        return given[0] / name
    return path_named_by(given[0], text, name) or given[0].parent / name


def _shown(path: Path) -> str:
    relative = os.path.relpath(path)
    return path.as_posix() if relative.startswith("..") else Path(relative).as_posix()


def _write(chosen: FixSet, paths: dict[str, Path], backup: str) -> None:
    texts = {paths[name]: text for name, text in chosen.files.items()}
    try:
        replace_texts(texts, backup=backup)
    except OSError as fault:
        where = shown_path(Path(str(fault.filename or next(iter(texts)))))
        reason = fault.strerror or "cannot be written"
        raise InvalidProblemError.of(_IN_PLACE, f"{where}: {reason}; no file was changed") from None
    for path in texts:
        kept = f" (the old one is {path.name}{backup})" if backup else ""
        sys.stderr.write(f"wrote {shown_path(path)}{kept}\n")


def _width() -> int:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() else min(shutil.get_terminal_size((100, 24)).columns, 120)
