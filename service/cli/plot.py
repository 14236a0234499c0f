"""``meshwright plot``: an answer as one picture, in a format by its suffix."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.options import PROFILE_HELP
from meshwright.service.cli.saved_plans import chosen_plan
from meshwright.service.cli.terminal import say_warnings
from meshwright.service.report.plot import SUFFIXES
from meshwright.service.report.plot import plot as drawn
from meshwright.service.reporting import drawn_timelines, settled_for


def plot(
    plan_id: Annotated[
        str | None, typer.Argument(help="Plan id (or its first characters), or a rank.")
    ] = None,
    *,
    source: Annotated[Path | None, typer.Option("--from", help="Answer file, e.g. answer.json.")] = None,
    rank: Annotated[int, typer.Option(help="Rank of the plan in --from.")] = 1,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    out: Annotated[Path, typer.Option(help="File to write: .png, .pdf or .svg.")] = Path("plan.svg"),
) -> None:
    """Draw a plan as one picture: its step, the memory of its stages, its pipeline, and the ranking."""
    if out.suffix.lower() not in SUFFIXES:
        raise InvalidProblemError.of("--out", f'unknown suffix "{out.suffix}"', allowed=", ".join(SUFFIXES))
    kept = chosen_plan(plan_id, source, rank)
    plan = kept.plan
    settled, costs = settled_for(plan, kept.problem, profile_for(kept.problem, profile))
    timelines, note = drawn_timelines(plan, settled, costs)
    say_warnings([note] if note else [])
    try:
        drawn(kept.answer, kept.problem, plan, out, timelines)
    except ImportError:
        raise InvalidProblemError.of("plot", "needs matplotlib: pip install '.[plot]'") from None
    except OSError as fault:
        raise InvalidProblemError.of("--out", fault.strerror or "cannot be written") from None
    sys.stdout.write(f"wrote {out}\n")
