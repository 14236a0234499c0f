"""The programs that plans are exported to, and with files that are read, by name."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from meshwright.launchers.table import launchers
from meshwright.launchers.target import ExportBundle, target_of
from meshwright.profiles.capabilities import judged_versions
from meshwright.profiles.errors import InvalidProblemError, UnknownNameError
from meshwright.solver.answer import Plan
from meshwright.solver.problem import Problem


def named(place: str) -> Any:  # noqa: ANN401 - a class, which the caller knows
    """Return what a place such as ``trl.read:TRL_READER`` names in ``meshwright.launchers``."""
    module, name = place.split(":")
    return getattr(import_module(f"meshwright.launchers.{module}"), name)


def launcher_names() -> tuple[str, ...]:
    """Return the names that ``export`` accepts, sorted."""
    return tuple(sorted(name for name, row in launchers().items() if row.export))


def launcher_of(problem: Problem, wanted: str | None, *, pointer: str = "/launcher") -> str:
    """Return the requested launcher, or else the problem's.

    Raises:
        InvalidProblemError: neither names one; ``pointer`` is the place in the error.
    """
    name = wanted or problem.launcher
    if name == "none":
        raise InvalidProblemError.of(
            pointer, "the problem names no launcher: add --launcher", allowed=", ".join(launcher_names())
        )
    return name


def export(plan: Plan, problem: Problem, launcher: str, *, version: str | None = None) -> ExportBundle:
    """Return the files that start ``plan`` under ``launcher``; for ``any``, the plan's own first one.

    Args:
        plan: plan to start.
        problem: problem that it answers.
        launcher: its name.
        version: the launcher's release, if files differ between releases; None: the newest judged one.

    Raises:
        InvalidProblemError: there are no files for that release of the launcher.
        UnknownNameError: no exporter has that name.
        RefusedExportError: the launcher cannot express the plan; one FieldError per fault.
    """
    if launcher == "any" and plan.launchers:
        launcher = next((name for name in plan.launchers if name in launcher_names()), plan.launchers[0])
    place = launchers()[launcher].export if launcher in launchers() else None
    if place is None:
        raise UnknownNameError.among("/launcher", launcher, launcher_names())
    # of a problem for any, adapted layers go by each launcher's own names
    own = problem.under(launcher) if problem.launcher == "any" else replace(problem, launcher=launcher)
    target = target_of(plan, own)
    bundle: ExportBundle = named(place)(replace(target, version=_release(launcher, place, version)))
    return bundle


def _release(launcher: str, place: str, version: str | None) -> str:
    """Return the release of the names to write: ``0.3`` for 0.3.1; empty for the judged one.

    Raises:
        InvalidProblemError: the launcher has files only for other releases.
    """
    if version is None:
        return ""
    module = place.partition(":")[0]  # a relative's exporter is its relation's function
    known = getattr(import_module(f"meshwright.launchers.{module}"), "VERSIONS", ())
    release = ".".join(version.split(".")[:2])
    if release not in known:
        judged = ", ".join(dict.fromkeys(one.version for one in judged_versions(launcher)))
        raise InvalidProblemError.of(
            "/launcher_version",
            f"{launcher} {version} is not known" if known else f"{launcher} has one kind of files",
            allowed=", ".join(known)
            or f"leave it out (its files were tested with {judged or 'no version'})",
        )
    return release
