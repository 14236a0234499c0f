"""What a request leaves open that prices depend on as a whole: launcher, precision, optimizer.

Each combination is a problem of its own with its own profile, ranked and proved by itself; the best plans
of all of them are ranked together. A layout that several launchers can run stands once, priced under the
one that runs it fastest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from profiles.capabilities import launcher_capabilities, launchers_of
from profiles.optimizers import OPTIMIZERS
from profiles.profile import Profile, default_profile, framework_of
from solver.check import violations_of_all
from solver.launcher_own import problem_faults
from solver.plan import Plan, SkippedLauncher
from solver.problem import Problem, Workload
from solver.ramp_stages import ramp_stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to settle what the request leaves open."""

    problem: Problem
    profile: Profile


def variants_of(problem: Problem, profile: Profile) -> list[Variant]:
    """Every combination that a launcher and the GPUs can run; what the request asks for comes first.

    ``profile`` prices every launcher of its framework; others are priced by the catalog's profile.
    """
    found = []
    for launcher in launchers_of(problem.launcher):
        for workload in _workloads(problem, launcher):
            one = replace(problem, launcher=launcher, workload=workload)
            found.append(Variant(problem=one, profile=profile_of_variant(one, profile)))
    return found


def searchable(variants: Sequence[Variant]) -> tuple[list[Variant], tuple[SkippedLauncher, ...]]:
    """The variants whose launcher can train the model and workload, and the launchers that have none.

    Where no launcher can, all variants are kept: the search then says why each is infeasible.
    """
    faults = [
        tuple(problem_faults(one.problem, launcher_capabilities(one.problem.launcher))) for one in variants
    ]
    kept = [one for one, found in zip(variants, faults, strict=True) if not found]
    able = {one.problem.launcher for one in kept}
    skipped: dict[str, tuple[str, ...]] = {}
    for one, found in zip(variants, faults, strict=True):
        if one.problem.launcher not in able:
            skipped.setdefault(one.problem.launcher, tuple(fault.message for fault in found))
    left_out = tuple(SkippedLauncher(launcher=name, reasons=why) for name, why in skipped.items())
    return kept or list(variants), left_out


def _workloads(problem: Problem, launcher: str) -> list[Workload]:
    """The workloads that are allowed, the request's own first."""
    workload, allow = problem.workload, problem.options.allow
    recipe = workload.framework_options.get("precision_recipe", "none")
    every_gpu = all("fp8" in group.gpu.peak_flops for group in problem.cluster.groups)
    able = every_gpu and "fp8" in launcher_capabilities(launcher).precisions
    precisions = [workload.precision]
    if "fp8" in allow and able and recipe == "none" and workload.precision != "fp8":
        precisions.append("fp8")
    optimizers = list(dict.fromkeys([workload.optimizer, *(name for name in OPTIMIZERS if name in allow)]))
    return [
        replace(workload, precision=precision, optimizer=optimizer)
        for precision in precisions
        for optimizer in optimizers
    ]


def profile_of_variant(problem: Problem, profile: Profile) -> Profile:
    """The profile that prices one variant."""
    if framework_of(problem.launcher) == profile.framework.name:
        return profile
    return default_profile(problem.cluster, problem.launcher)


def workload_of(problem: Problem, asked: Problem) -> Mapping[str, str]:
    """What a variant changed of the workload that was asked for."""
    names = ("precision", "optimizer")
    mine, theirs = problem.workload, asked.workload
    return {name: getattr(mine, name) for name in names if getattr(mine, name) != getattr(theirs, name)}


def with_launchers(variants: Sequence[Variant], plans: Sequence[tuple[Variant, Plan]]) -> list[Plan]:
    """Plans with the launchers that can run them: their own first, which prices them, then the others.

    ``plans``: each with the variant that found it. One that another launcher did not rank, or runs
    otherwise, may still be legal there and fit: the independent check says so, in every stage of a ramp.
    """
    named = [[variant.problem.launcher] for variant, _ in plans]
    for other in variants:
        asked = [
            at
            for at, (own, _) in enumerate(plans)
            if own.problem.workload == other.problem.workload
            and own.problem.launcher != other.problem.launcher
        ]
        able = _able(other, [plans[at][1] for at in asked])
        for at in (at for at, runs in zip(asked, able, strict=True) if runs):
            named[at].append(other.problem.launcher)
    return [
        replace(plan, launchers=tuple(dict.fromkeys(names)))
        for (_, plan), names in zip(plans, named, strict=True)
    ]


def _able(variant: Variant, plans: Sequence[Plan]) -> list[bool]:
    """Whether the configuration of each plan breaks no rule of a variant and fits."""
    problem, configs = variant.problem, [plan.config for plan in plans]
    faults = violations_of_all(replace(problem, options=replace(problem.options, batch_ramp=())),
                               variant.profile, configs)  # fmt: skip
    for stage in ramp_stages(problem) if problem.options.batch_ramp else ():
        here = [stage.configuration(config) for config in configs]
        found = violations_of_all(stage.problem, variant.profile, here)
        faults = [[*before, *now] for before, now in zip(faults, found, strict=True)]
    return [not fault for fault in faults]
