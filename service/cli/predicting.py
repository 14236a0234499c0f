"""Prices one configuration in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from service.cli.assignments import settings_of
from service.cli.calibrating import named_profile, profile_for
from service.cli.exits import FOUND
from service.cli.problem_options import Request
from service.cli.screen import screen
from service.configurations import broken_rules, completed
from service.problem_file import read_problem_file
from service.report.terminal import render_prediction
from service.request import parse_problem
from solver.predict import predict


def run_predict(
    request: Request,
    *,
    config: Path | None,
    assign: Sequence[str],
    as_json: bool,
    calibration: Sequence[Path] | None = None,
) -> int:
    """Price the configuration of a file with ``NAME=VALUE`` over it; the exit code.

    Raises:
        InvalidProblemError: the problem or the configuration is wrong.
    """
    problem = parse_problem(request)
    raw = {**(read_problem_file(config) if config else {}), **settings_of("--set", assign)}
    configuration = completed(raw, problem)
    profile = profile_for(problem, calibration or named_profile(problem))
    prediction = predict(problem, profile, configuration)
    broken = broken_rules(problem, configuration)
    if as_json:
        document = {
            "config": asdict(configuration),
            "prediction": asdict(prediction),
            "breaks": broken,
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
            )
        )
    return FOUND
