"""Predicts measured runs and prints how wrong the predictions are."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import get_args

from profiles.documents import shown
from profiles.errors import InvalidProblemError, UnknownNameError
from service.cli.exits import FOUND
from service.cli.screen import screen
from service.files import write_text
from service.imported_runs import shape_of_plan
from service.report.accuracy import render_report
from solver.accuracy import Report, validate
from solver.calibration.choose import Choice
from solver.runs import read_runs


def run_validate(
    runs: Path, *, calibrate: int, choose: str, seed: int, per_run: Path | None, as_json: bool
) -> int:
    """Predict the runs of a file and print the figures; the exit code, 0 also with refused rows.

    Raises:
        InvalidProblemError: the file is no table of runs, or an option is wrong.
    """
    report = validate(
        read_runs(runs, shape_of_plan), calibrate=calibrate, choose=_choice(choose), seed=seed
    )
    if per_run is not None:
        _write_per_run(report, per_run)
    if as_json:
        sys.stdout.write(json.dumps(report.to_json(), indent=1) + "\n")
    else:
        screen().print(render_report(report))
    return FOUND


def _choice(word: str) -> Choice:
    """How to choose the runs to calibrate on."""
    choices: tuple[Choice, ...] = get_args(Choice)
    for choice in choices:
        if choice == word:
            return choice
    raise UnknownNameError.among("--choose", word, choices)


def _write_per_run(report: Report, path: Path) -> None:
    """Every prediction as CSV."""
    text = io.StringIO()
    report.write_per_run(text)
    try:
        write_text(path, text.getvalue())
    except OSError as fault:
        reason = fault.strerror or "cannot be written"
        raise InvalidProblemError.of("--per-run", f"{shown(str(path))}: {reason}") from None
