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


def plot(
    figure: Annotated[Figure, typer.Argument(help="What to draw.")],
    plan_id: Annotated[str | None, typer.Argument(help="Id that plan printed; a prefix will do.")] = None,
    *,
    source: Annotated[Path | None, typer.Option("--from", help="answer.json, or plan --json.")] = None,
    rank: Annotated[int, typer.Option(help="Which plan of --from.")] = 1,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    form: Annotated[
        Literal["svg", "png", "pdf", "perfetto"],
        typer.Option("--format", help="perfetto: the timeline as trace events (JSON)."),
    ] = "svg",
    out: Annotated[Path | None, typer.Option(help="File to write; default: FIGURE.FORMAT here.")] = None,
) -> None:
    """Draw one figure of an answer: Pareto plot, memory, waterfall, timeline or roofline."""
    if (plan_id is None) == (source is None):
        raise typer.BadParameter("give a plan id, or --from with an answer's file")
    if form == "perfetto" and figure != "timeline":
        raise typer.BadParameter("--format perfetto is for timelines")
    wanted = Wanted(name=plan_id or "", source=source, rank=rank, profile=profile)
    run_plot(figure, wanted, form=form, out=out)


# --------------------------------------------------------------------------------------------------
# Draws one figure of a kept answer into a file.


Format = Literal["svg", "png", "pdf", "perfetto"]


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
