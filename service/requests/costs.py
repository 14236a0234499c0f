"""The costs that a problem is priced with: the catalog's, or those that a user's profiles correct."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from meshwright.profiles.documents import FILE, read_json, shown_path
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.problem import Problem

if TYPE_CHECKING:  # most problems name no profile, and load nothing that reads one
    from meshwright.service.requests.profiles import GivenProfile
    from meshwright.solver.calibration.measured import TimedPrediction

ProfileSource: TypeAlias = "GivenProfile | Mapping[str, object] | str | PathLike[str]"
Profiles: TypeAlias = "Profile | ProfileSource | Sequence[ProfileSource] | None"


def costs_of(problem: Problem, given: Profiles) -> tuple[Profile, tuple[str, ...]]:
    """Return the costs that a problem is priced with, and what to know about them.

    Args:
        problem: what is asked.
        given: calibrations or measured profiles, objects, documents or files; None: what
            the problem names.

    Raises:
        InvalidProblemError: what is given cannot be read, or holds for another GPU or software stack.
    """
    if isinstance(given, Profile):
        return given, ()
    if given is None and problem.profile is None:
        return default_profile(problem.cluster, problem.priced_as), ()
    from meshwright.service.requests.profiles import named_file, profile_with  # noqa: PLC0415 - few need it

    if given is None:
        given, warnings = named_file(problem)
        if given is None:
            return default_profile(problem.cluster, problem.priced_as), warnings
    return profile_with(problem, [_read(one) for one in _several(given)])


def measured_of_question(problem: Problem, profile: Profile, given: Profiles) -> list[TimedPrediction]:
    """Return the timed runs of a problem that its calibrations carry, predicted under ``profile``.

    Args:
        problem: what is asked.
        profile: what it is priced with.
        given: calibrations or measured profiles as for ``costs_of``; None: what the problem names.
    """
    if isinstance(given, Profile) or not (given or problem.profile):
        return []
    from meshwright.profiles.calibration import Calibration  # noqa: PLC0415 - few problems need it
    from meshwright.service.requests.profiles import named_file  # noqa: PLC0415 - the same
    from meshwright.solver.calibration.measured import measured_of  # noqa: PLC0415 - the same

    sources = given or named_file(problem)[0]
    if sources is None:
        return []
    calibrations = [one for one in map(_read, _several(sources)) if isinstance(one, Calibration)]
    return measured_of(problem, profile, calibrations)


def _several(given: ProfileSource | Sequence[ProfileSource]) -> Sequence[ProfileSource]:
    return given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)


def _read(source: ProfileSource) -> GivenProfile:
    """Return a calibration or a measured profile, read where it is a file or a document."""
    from meshwright.service.requests.profiles import read_given  # noqa: PLC0415 - few problems need it

    if isinstance(source, Mapping):
        return read_given(source)
    if not isinstance(source, str | PathLike):
        return source
    path = Path(source)
    try:
        with path.open("rb") as handle:
            content = handle.read(FILE.max_bytes + 1)  # a device has no size and no end
        return read_given(read_json(content))
    except OSError as fault:
        reason = fault.strerror or "cannot be read"
        raise InvalidProblemError.of("/profile", f"{shown_path(path)}: {reason}") from None
    except InvalidProblemError as fault:
        first = fault.errors[0]
        where = f", {first.pointer}:" if first.pointer.strip("/") else ""
        raise InvalidProblemError.of(
            "/profile", f"{shown_path(path)}{where} {first.message}", allowed=first.allowed
        ) from None
