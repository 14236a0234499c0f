"""The costs of a command's problem, with warnings on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from meshwright.profiles.errors import faults_as
from meshwright.profiles.profile import Profile
from meshwright.service.cli.terminal import say_warnings
from meshwright.service.requests.costs import costs_of
from meshwright.solver.problem import Problem


def profile_for(problem: Problem, path: Path | Sequence[Path] | None) -> Profile:
    """Return the profile of a problem, corrected by the given files, else by the one that it names.

    Raises:
        InvalidProblemError: a file cannot be read, is not a calibration or measured profile, or holds for
            another GPU.
    """
    with faults_as(lambda fault: replace(fault, pointer="--profile")):
        profile, warnings = costs_of(problem, path or None)
    say_warnings(warnings)
    return profile
