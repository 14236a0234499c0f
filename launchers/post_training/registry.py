"""Exporters and readers of post-training launchers, by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from meshwright.launchers.target import ExportBundle
from meshwright.profiles.errors import UnknownNameError
from meshwright.solver.post_training.problem import PostTraining, RolePlan

_MODULES = {"nemo-rl": "nemo_rl", "verl": "verl", "slime": "slime"}


def launcher_names() -> tuple[str, ...]:
    """Return the names of launchers that plans of post-training are exported to."""
    return tuple(_MODULES)


def export(asked: PostTraining, plan: RolePlan, launcher: str | None = None) -> ExportBundle:
    """Return the files that start a plan.

    Raises:
        UnknownNameError: no such launcher.
        RefusedExportError: it cannot express the plan.
    """
    name = launcher or asked.launcher
    if name not in _MODULES:
        raise UnknownNameError.among("/launcher", name, _MODULES)
    module: Any = import_module(f"meshwright.launchers.post_training.{_MODULES[name]}")
    bundle: ExportBundle = module.export(asked, plan)
    return bundle
