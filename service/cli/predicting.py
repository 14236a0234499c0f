"""Prices one configuration in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from service.cli.calibrating import named_profile, profile_for
from service.cli.exits import FOUND
from service.cli.own import Asked, own_of
from service.cli.problem_options import Request
from service.cli.screen import screen
from service.configurations import broken_rules
from service.priced_ramp import ramp_notes
from service.report.comparison import reading_lines
from service.report.terminal import render_prediction
from service.request_run import places_stages
from solver.calibration.refuse import require_credible
from solver.plan import Configuration
from solver.predictions import predicted
from solver.problem import Problem
from solver.why.explained import reasons_of


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
    problem, configuration = own.problem, own.configuration
    profile = profile_for(problem, calibration or named_profile(problem))
    prediction = predicted(problem, profile, configuration)
    require_credible(problem, profile, [(configuration, prediction)])
    broken = broken_rules(problem, configuration)
    notes = [*own.notes, *ramp_notes(own, profile), *_pace(problem, configuration)]
    why = reasons_of(problem, profile, [configuration], [prediction.step_time_s])[0]
    if as_json:
        document = {
            "config": asdict(configuration),
            "prediction": asdict(prediction),
            "breaks": broken,
            "why": asdict(why),
            "notes": notes,
            "unread": list(own.unread),
            "profile": profile.version,
        }
        sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")
    else:
        console = screen()
        console.print(
            render_prediction(
                configuration,
                prediction,
                problem,
                width=console.width,
                profile=profile.title,
                broken=broken,
                why=why,
            )
        )
        console.print(reading_lines(notes, own.unread, width=console.width))
    return FOUND


def _pace(problem: Problem, configuration: Configuration) -> list[str]:
    """What a configuration without places on unlike node groups is priced as."""
    if not places_stages(problem) or configuration.is_placed:
        return []
    return ["one mesh over unlike nodes goes at the pace of the slowest; stage_groups place its stages"]
