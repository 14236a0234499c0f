"""Draws one figure of a kept answer into a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Literal

from profiles.documents import shown_path
from profiles.errors import InvalidProblemError
from service.cli.kept import plan_of
from service.cli.reporting import Wanted, kept_answer, profile_of, timeline_of, write_file
from service.report.plots import Subject, draw
from service.reporting import details_of

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
