"""Exporters and readers of post-training launchers, by name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from meshwright.launchers.target import ExportBundle
from meshwright.profiles.errors import FieldError, RefusedExportError, UnknownNameError
from meshwright.solver.post_training.problem import PLACES, PostTraining, RolePlan

_MODULES = {"nemo-rl": "nemo_rl", "verl": "verl", "slime": "slime", "trl": "trl"}


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
    faults = list(_lacking(asked, plan, name))
    if faults:
        raise RefusedExportError(faults)
    module: Any = import_module(f"meshwright.launchers.post_training.{_MODULES[name]}")
    bundle: ExportBundle = module.export(asked, plan)
    return bundle


def _lacking(asked: PostTraining, plan: RolePlan, name: str) -> Iterator[FieldError]:
    """Yield what a plan has and a launcher lacks: it may have been made for another one."""
    places, role = PLACES[name], "turn" if plan.reward is not None and not plan.reward.gpus else "own"
    rows: dict[str, tuple[str, tuple[str, ...]]] = {
        "/rollout/engine": (asked.engine, places.engines),
        "/rollout/precision": (asked.precision, places.able("precisions", asked.engine)),
        "/training/trainer": (asked.trainer, places.able("trainers", asked.engine)),
        "/asynchrony/mode": (plan.mode, places.able("modes", asked.engine)),
    }
    if plan.reward is not None:
        rows["/reward"] = (role, places.reward)
    if plan.critic is not None:
        rows["/algorithm/name"] = ("own" if plan.critic.gpus else "turn", places.critic)
    for pointer, (value, able) in rows.items():
        if value not in able:
            others = ", ".join(one for one in _MODULES if one != name)
            yield FieldError(
                pointer=pointer, message=f"the plan has {value}, and {name} {' or '.join(able) or 'none'}",
                allowed=f"a plan of a request with launcher: {name}, or {others}",
                nearest=f"launcher: {name}",
            )  # fmt: skip
