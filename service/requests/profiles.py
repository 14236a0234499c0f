"""Profiles from users: a calibration, or measurements of a machine; and what they change."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from meshwright.profiles.calibration import FORMAT as CALIBRATION
from meshwright.profiles.calibration import Calibration, read_calibration
from meshwright.profiles.capabilities import launchers_of
from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.documents import without_version
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.measured.profile import FORMAT as MEASURED
from meshwright.profiles.measured.profile import MeasuredProfile
from meshwright.profiles.measured.read import measured_profile_from_json
from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.calibration.timed import with_measured
from meshwright.solver.cost.residuals import NUM_FEATURES
from meshwright.solver.problem import Problem

LATEST = "latest"  # the calibration that the service has learnt of the problem's cluster; the default
CATALOG = "catalog"  # none of them
_TAKEN = f"{LATEST}:"  # before the id of the one that LATEST was when a problem was asked
GivenProfile: TypeAlias = Calibration | MeasuredProfile


def taken(profile_id: str) -> str:
    """Return how a problem names the calibration that the service chose, not the user."""
    return f"{_TAKEN}{profile_id}"


def is_named(profile: str | None) -> bool:
    """Return whether a client chose the profile that a problem names; else it is the service's choice."""
    return profile is not None and profile != LATEST and not profile.startswith(_TAKEN)


def stored_id(profile: str) -> str:
    """Return the id of the stored profile that a problem names."""
    return profile.removeprefix(_TAKEN)


def read_given(document: Mapping[str, object]) -> GivenProfile:
    """Return the calibration or measured profile of a JSON document.

    Raises:
        InvalidProblemError: neither, or broken; pointers start at the document.
    """
    document = without_version(document)
    named = document.get("format")
    if named == MEASURED:
        return measured_profile_from_json(document)
    if named != CALIBRATION:
        raise InvalidProblemError.of("/format", "is not a profile", allowed=f"{CALIBRATION}, {MEASURED}")
    calibration = read_calibration(document)
    if not calibration.fits_features(NUM_FEATURES):
        raise InvalidProblemError.of("/residual", "was written by another version: calibrate again")
    return calibration


def named_file(problem: Problem) -> tuple[str | None, tuple[str, ...]]:
    """Return the profile file that a problem names; none, with a note, where only a service has it."""
    named = problem.profile
    if named in {None, LATEST, CATALOG}:
        return None, ()
    if re.fullmatch(f"({_TAKEN})?[0-9a-f]{{32}}", str(named)) and not Path(str(named)).exists():
        message = f"the service's profile {stored_id(str(named))} is not here"
        return None, (f"{message}: the catalog's costs are used instead",)
    return named, ()


def profile_with(problem: Problem, given: Sequence[GivenProfile]) -> tuple[Profile, tuple[str, ...]]:
    """Return the profile of a problem with what was given, and what to know about it.

    Of several measured profiles the one of the GPU that sets the pace counts.

    Raises:
        InvalidProblemError: nothing given holds for the problem's GPU, or two things at once.
    """
    profile = default_profile(problem.cluster, problem.priced_as)
    if not given:
        return profile, ()
    if problem.places_stages:
        return _by_group(problem, profile, given)
    slug = profile.group.gpu.slug
    others = {group.gpu.slug for group in problem.cluster.groups} - {slug}
    warnings = [
        f"{gpu} was measured, but every stage runs at the speed of {slug}"
        for gpu in map(_gpu, given)
        if gpu in others
    ]
    fitting = [one for one in given if _gpu(one) not in others]
    if len(fitting) > 1:
        raise InvalidProblemError.of("/profile", f"several profiles for {slug}: give one")
    if not fitting:
        raise InvalidProblemError.of("/profile", f"none was measured on {slug}, which sets the pace")
    one = fitting[0]
    if isinstance(one, Calibration):
        profile = _of_stack(problem, profile, one)
        one.require_stack(profile)
        return one.applied(profile), (*warnings, *one.mismatches(profile))
    if one.machine.gpu is None and one.machine.kind != "cpu":
        warnings.append(f"measured on {one.machine.device}, taken for {slug}")
    if one.subject.dtype == "fp32":
        warnings.append("layers were timed in fp32. A plan in 16 bits may be faster")
    return with_measured(problem, profile, one), tuple(warnings)


def _of_stack(problem: Problem, profile: Profile, calibration: Calibration) -> Profile:
    """Return, for any launcher, the profile of the first one on the calibration's stack."""
    for launcher in launchers_of(problem.launcher) if problem.priced_as == "any" else ():
        one = default_profile(problem.cluster, launcher)
        if one.framework.stack == calibration.stack:
            return one
    return profile


def _by_group(
    problem: Problem, profile: Profile, given: Sequence[GivenProfile]
) -> tuple[Profile, tuple[str, ...]]:
    left, warnings, groups = list(given), list[str](), list[Profile]()
    for group in problem.cluster.distinct_groups:
        mine = [one for one in given if _gpu(one) == group.gpu.slug]
        own, noted = profile_with(
            replace(problem, cluster=ClusterSpec(name=group.gpu.slug, groups=(group,))), mine
        )
        left = [one for one in left if one not in mine]
        groups.append(own)
        warnings += noted
    if left:
        raise InvalidProblemError.of("/profile", f"no node group has {_gpu(left[0]) or 'its GPU'}")
    corrected = replace(
        profile,
        by_group=tuple(groups),
        uncalibrated=profile,
        learnt_from=tuple(name for one in groups for name in one.learnt_from),
    )
    return corrected, tuple(warnings)


def _gpu(one: GivenProfile) -> str | None:
    """Return the machine of the measurements; None: not known."""
    return one.gpu if isinstance(one, Calibration) else one.machine.gpu
