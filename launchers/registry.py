"""The programs that plans are exported to, and with files that are read, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple

from meshwright.launchers.target import ExportBundle, target_of
from meshwright.profiles.capabilities import judged_versions
from meshwright.profiles.errors import InvalidProblemError, UnknownNameError
from meshwright.solver.answer import Plan
from meshwright.solver.problem import Problem


class _Places(NamedTuple):
    """Where a program's exporter and reader are, each loaded when it is first used; empty: it has none."""

    export: str
    read: str


# In the order in which readers try a file: names that only one launcher has go first.
_PROGRAMS: Mapping[str, _Places] = {
    "flagscale": _Places("flagscale.export:export", "flagscale.read:FLAGSCALE_READER"),
    "maxtext": _Places("maxtext.export:export", "maxtext.read:MAXTEXT_READER"),
    "torchtitan": _Places("torchtitan.export:export", "torchtitan.read:TORCHTITAN_READER"),
    "nanotron": _Places("nanotron.export:export", "nanotron.read:NANOTRON_READER"),
    "deepspeed": _Places("deepspeed.export:export", "deepspeed.read:DEEPSPEED_READER"),
    "axolotl": _Places("axolotl.export:export", "axolotl.read:AXOLOTL_READER"),
    "trl": _Places("trl.export:export", "trl.read:TRL_READER"),
    "llama-factory-accelerate": _Places(
        "llama_factory.export_trainer:export", "llama_factory.read:LLAMA_FACTORY_TRAINER_READER"
    ),
    "accelerate": _Places("accelerate.export:export", "accelerate.read:ACCELERATE_READER"),
    "llama-factory": _Places("llama_factory.export:export", "llama_factory.read:LLAMA_FACTORY_READER"),
    "megatron-bridge": _Places(
        "megatron_bridge.export:export", "megatron_bridge.read:MEGATRON_BRIDGE_READER"
    ),
    "transformers": _Places("", "transformers.read:TRAINER_READER"),
    "ms-swift": _Places("ms_swift.export:export", "ms_swift.read:MS_SWIFT_READER"),
    "megatron-lm": _Places("megatron_lm.export:export", "megatron_lm.read:MEGATRON_LM_READER"),
}
_LAUNCHERS = {name: places.export for name, places in _PROGRAMS.items() if places.export}
READERS = {name: places.read for name, places in _PROGRAMS.items() if places.read}


def named(place: str) -> Any:  # noqa: ANN401 - a class, which the caller knows
    """Return what a place such as ``trl.read:TRL_READER`` names in ``meshwright.launchers``."""
    module, name = place.split(":")
    return getattr(import_module(f"meshwright.launchers.{module}"), name)


def launcher_names() -> tuple[str, ...]:
    """Return the names that ``export`` accepts, sorted."""
    return tuple(sorted(_LAUNCHERS))


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
        launcher = next((name for name in plan.launchers if name in _LAUNCHERS), plan.launchers[0])
    if launcher not in _LAUNCHERS:
        raise UnknownNameError.among("/launcher", launcher, launcher_names())
    # of a problem for any, adapted layers go by each launcher's own names
    own = problem.under(launcher) if problem.launcher == "any" else replace(problem, launcher=launcher)
    target = target_of(plan, own)
    bundle: ExportBundle = named(_LAUNCHERS[launcher])(replace(target, version=_release(launcher, version)))
    return bundle


def _release(launcher: str, version: str | None) -> str:
    """Return the release of the names to write: ``0.3`` for 0.3.1; empty for the judged one.

    Raises:
        InvalidProblemError: the launcher has files only for other releases.
    """
    if version is None:
        return ""
    place = _LAUNCHERS[launcher].partition(":")[0]  # a relative's exporter is its relation's function
    known = getattr(import_module(f"meshwright.launchers.{place}"), "VERSIONS", ())
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
