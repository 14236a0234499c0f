"""Advice on the model's shape in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from service.cli.calibrating import profile_for
from service.cli.exits import FOUND, INFEASIBLE, NO_PLAN, say_error
from service.cli.problem_options import Request
from service.cli.screen import screen
from service.report.shapes import render_shapes
from service.request import parse_problem
from solver.why.shapes import shape_advice


def run_shapes(
    request: Request,
    *,
    tolerance: float,
    most: int,
    as_json: bool,
    calibration: Sequence[Path] | None = None,
) -> int:
    """Print the shapes; the exit code.

    Raises:
        InvalidProblemError: the request is wrong.
    """
    problem = parse_problem(request)
    profile = profile_for(problem, calibration)
    advice = shape_advice(problem, profile, tolerance=tolerance, most=most)
    if advice is None:
        say_error("the model has no plan here as it is: meshwright plan says why")
        return INFEASIBLE
    if advice == "unknown":
        say_error("the model has too many configurations here to look at all of them: pin some variables")
        return NO_PLAN
    if as_json:
        sys.stdout.write(json.dumps(asdict(advice), indent=1, allow_nan=False) + "\n")
        return FOUND
    console = screen()
    console.print(render_shapes(advice, problem, width=console.width))
    return FOUND
