"""The launchers that plans can be exported to, by name."""

from __future__ import annotations

from profiles.errors import UnknownNameError
from service.launchers.base import ExportBundle, Launcher
from service.launchers.megatron_lm import MegatronLm
from service.launchers.target import Target
from solver.plan import Plan
from solver.problem import Problem

_LAUNCHERS: dict[str, Launcher] = {launcher.name: launcher for launcher in (MegatronLm(),)}


def launcher_names() -> tuple[str, ...]:
    """The names that ``export`` knows, sorted."""
    return tuple(sorted(_LAUNCHERS))


def export(plan: Plan, problem: Problem, launcher: str) -> ExportBundle:
    """The files that start ``plan`` under ``launcher``.

    Raises:
        UnknownNameError: there is no exporter of that name.
        RefusedExportError: the launcher cannot express the plan; one FieldError per fault.
    """
    if launcher not in _LAUNCHERS:
        raise UnknownNameError.among("/launcher", launcher, launcher_names())
    return _LAUNCHERS[launcher].export(Target(plan=plan, problem=problem))
