"""``meshwright plot``: one figure of an answer, for papers and slides."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from meshwright.profiles.documents import shown_path
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli.problem_options import PROFILE_HELP
from meshwright.service.cli.report import Wanted, kept_answer, profile_of, timeline_of, write_file
from meshwright.service.cli.saved_plans import plan_of
from meshwright.service.report.plots import Subject, draw
from meshwright.service.reporting import details_of

Figure = Literal["pareto", "memory", "waterfall", "timeline", "roofline"]
Format = Literal["svg", "png", "pdf", "perfetto"]


def plot(
    figure: Annotated[Figure, typer.Argument(help="What to draw.")],
    plan_id: Annotated[str | None, typer.Argument(help="Id that plan printed; a prefix will do.")] = None,
    *,
    source: Annotated[Path | None, typer.Option("--from", help="answer.json, or plan --json.")] = None,
    rank: Annotated[int, typer.Option(help="Which plan of --from.")] = 1,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    form: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="svg, png, pdf, or perfetto, the timeline as trace events in JSON [default: the suffix of "
            "--out, else svg].",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write, e.g. memory.png [default: FIGURE.FORMAT in this folder]."),
    ] = None,
) -> None:
    """Draw one figure of an answer: Pareto plot, memory, waterfall, timeline or roofline."""
    if (plan_id is None) == (source is None):
        raise typer.BadParameter("give a plan id, or --from with an answer's file")
    form = form_of(form, out)
    if form == "perfetto" and figure != "timeline":
        raise typer.BadParameter("--format perfetto is for timelines")
    wanted = Wanted(name=plan_id or "", source=source, rank=rank, profile=profile)
    run_plot(figure, wanted, form=form, out=out)


# --------------------------------------------------------------------------------------------------
# Draws one figure of a kept answer into a file.


_OF_SUFFIX: dict[str, Format] = {".svg": "svg", ".png": "png", ".pdf": "pdf", ".json": "perfetto"}


def form_of(stated: Format | None, out: Path | None) -> Format:
    """Return the format of a file: what is stated, and otherwise what the file's suffix means.

    Raises:
        InvalidProblemError: the suffix means no format, or another one than is stated.
    """
    if out is None:
        return stated or "svg"
    meant = _OF_SUFFIX.get(out.suffix.lower())
    if meant is None and out.suffix:
        allowed = "a name that ends in " + ", ".join(_OF_SUFFIX)
        raise InvalidProblemError.of(
            "--out", f"{shown_path(out)}: {out.suffix} is not drawn", allowed=allowed
        )
    if stated is not None and meant is not None and stated != meant:
        message = f"{shown_path(out)} would hold {meant}, not {stated}"
        raise InvalidProblemError.of("--out", message, allowed=f"--format {meant}, or another suffix")
    return stated or meant or "svg"


def run_plot(figure: str, wanted: Wanted, *, form: Format, out: Path | None) -> None:
    """Draw, and say where.

    Raises:
        InvalidProblemError: there is no such answer or figure, the file cannot be written, or what draws
            is not installed.
    """
    if form == "perfetto":
        path = out or Path("timeline.json")
        write_file(path, json.dumps(timeline_of(wanted), allow_nan=False) + "\n", "--out")
        return
    kept = kept_answer(wanted)
    plan = plan_of(kept)
    details = details_of(plan, kept.problem, profile_of(kept, wanted))
    path = out or Path(f"{figure}.{form}")
    subject = Subject(answer=kept.answer, plan=plan, details=details)
    try:
        draw(figure, subject, path, form=form)
    except ImportError:
        message = "matplotlib is not installed; pip install 'meshwright[plot]'"
        raise InvalidProblemError.of("--format", message, allowed="perfetto") from None
    except OSError as fault:
        reason = fault.strerror or "cannot be written"
        raise InvalidProblemError.of("--out", f"{shown_path(path)}: {reason}") from None
    sys.stdout.write(f"wrote {path}\n")
