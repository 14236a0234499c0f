"""``meshwright plot``: one figure of an answer, for papers and slides."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from service.cli.problem_options import PROFILE_HELP

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
    from service.cli import plotting  # noqa: PLC0415 - the solver is loaded when it is needed
    from service.cli.reporting import Wanted  # noqa: PLC0415 - the same

    if (plan_id is None) == (source is None):
        raise typer.BadParameter("give a plan id, or --from with an answer's file")
    if form == "perfetto" and figure != "timeline":
        raise typer.BadParameter("--format perfetto is for timelines")
    wanted = Wanted(name=plan_id or "", source=source, rank=rank, profile=profile)
    plotting.run_plot(figure, wanted, form=form, out=out)
