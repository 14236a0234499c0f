"""Prices one configuration in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from service.cli.calibrating import profile_for
from service.cli.exits import FOUND
from service.cli.own import Asked, own_of
from service.cli.problem_options import Request
from service.cli.screen import screen
from service.library import predict
from service.priced_ramp import ramp_notes
from service.report.comparison import reading_lines


def run_predict(
    request: Request,
    asked: Asked,
    *,
    as_json: bool,
    calibration: Sequence[Path] | None = None,
) -> int:
    """Price the user's own configuration; the exit code.

    Raises:
        InvalidProblemError: the problem or the configuration is wrong.
    """
    own = own_of(request, asked)
    problem = own.problem
    profile = profile_for(problem, calibration)
    found = predict(problem, own.configuration, profile=profile)
    notes = [*own.notes, *ramp_notes(own, profile), *found.notes]
    if as_json:
        document = {**found.to_json(), "notes": notes, "unread": list(own.unread)}
        sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")
    else:
        console = screen()
        console.print(found.render(console.width))
        console.print(reading_lines(notes, own.unread, width=console.width))
    return FOUND
