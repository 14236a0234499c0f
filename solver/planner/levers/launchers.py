"""Other launchers: which can express a request, and which of them saves most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from typing import Any

from meshwright.profiles.adapters import ALL_LINEAR
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.frameworks import framework_facts, with_options
from meshwright.profiles.profile import Profile, framework_of
from meshwright.solver.answer import Answer, Lever
from meshwright.solver.clock import WorkWatch, look
from meshwright.solver.configuration import Configuration
from meshwright.solver.planner.least_memory import may_have_room
from meshwright.solver.planner.levers.change import (
    Best,
    Change,
    Find,
    as_lever,
    levers_of_best,
    likely_if_idle,
    on_likely,
    worth_s,
)
from meshwright.solver.planner.levers.nearby import plans_near
from meshwright.solver.planner.levers.numerics import bases, of_fewer_bits, precisions
from meshwright.solver.planner.levers.searched import first_proved, groups_of, has_stages, proved_plans
from meshwright.solver.planner.levers.switches import offload
from meshwright.solver.planner.variants import Variant
from meshwright.solver.problem import Problem, for_one_plan, remembered, usable_gpus
from meshwright.solver.search.gpu_seconds import LeastPasses, least_passes
from meshwright.solver.space.enumerate import estimated_outer
from meshwright.solver.space.launcher_choice import launcher_faults, preferred
from meshwright.solver.space.launcher_rules import ON_EVERY_PLAN, constraints_of

_TARGETS = "workload.lora_targets"
_ON_ALL = "all linear layers have adapters: results"


@remembered
def launchers(problem: Problem) -> tuple[Change, ...]:
    """Return the other launchers, with what else their files change."""
    found = list[Change]()
    for other in other_launchers(problem):
        here, there = (_reduced_in(one) for one in (problem, other))
        effect, settings = "", dict[str, Any](launcher=other.launcher, **_targets_of(other))
        if other.workload.lora_targets != problem.under(other.launcher).workload.lora_targets:
            effect, settings[_TARGETS] = _ON_ALL, [*ALL_LINEAR]
        elif here != there:
            effect = f"gradients are summed in {there}, not in {here}: numerics"
        found.append(
            Change(
                kind="launcher",
                words=f"launcher {other.launcher}",
                effect=effect,
                problem=other,
                settings=settings,
            )
        )
    return tuple(found)


def _targets_of(problem: Problem) -> dict[str, list[str]]:
    """Return the setting of the layers with adapters; {}: those are what its launcher adapts anyway."""
    able, targets = launcher_capabilities(problem.launcher), problem.workload.lora_targets
    if not problem.workload.lora_rank or targets == able.default_targets(problem.model):
        return {}
    on_all = targets == able.targets_of(problem.model, ALL_LINEAR)
    return {_TARGETS: [*(ALL_LINEAR if on_all else targets)]}


def of_launchers(problem: Problem, profile: Profile, answer: Answer, *, looks: int) -> Iterator[Lever]:
    """Yield the levers of other launchers; those that change results hide none that does not."""
    launchers = of_each_stack(problem)
    for on_all in (False, True):
        some = [one for one in launchers if (one.effect == _ON_ALL) == on_all]
        yield from _of_launcher(problem, some, profile, answer, WorkWatch(looks=looks))


def _of_launcher(
    problem: Problem,
    launchers: Sequence[Change],
    profile: Profile,
    answer: Answer,
    searches: WorkWatch,
) -> Iterator[Lever]:
    """Yield the levers of some other launchers, each saving more than the one before.

    Launchers with low bounds come first, so that their plans refute later ones. One that is not searched is
    tried near the first plan and near the fastest plan before. If it saves most, it is searched last. If
    none saves, the preferred launcher is searched.
    """
    saved, best, far = 0.0, None, set[str]()
    turns, known = _in_turn(problem, launchers, profile, answer), list[Configuration]()
    for at, turn in enumerate(turns):
        look()
        change, limit_s = turn.change, worth_s(problem, turn.change, answer, saved)
        if turn.bound_s > limit_s:
            far.add(change.problem.launcher)
            continue
        plans, proved = list[Best](), False
        if (at == 0 and turn.bound_s > 0.0) or turn.has_few:
            far.add(change.problem.launcher)
            plans, proved = first_proved(
                turn.groups,
                limit_s,
                searches,
                likely=turn.likely,
                passes=turn.passes,
                by_likely=True,
            )
        if not proved:
            plans = plans_near(problem, change, profile, answer, saved=saved, known=known)
        for plan in plans[:1]:
            lever = as_lever(problem, answer, change, plan)
            saved, best, known = lever.saves, None if proved else change, [plan.config]
            yield lever
    if launchers and not saved and launchers[0].problem.launcher not in far:
        best = launchers[0]
    if best is not None:
        plans, _ = proved_plans(problem, best, profile, answer, searches)
        yield from levers_of_best(problem, answer, best, plans)


def of_launchers_without_room(problem: Problem, answer: Answer, find: Find) -> Iterator[Lever]:
    """Yield what saves under a launcher of ``without_room``; of the changes of numerics the fastest."""
    for alike in without_room(problem):
        found = list[Lever]()
        for change in alike:
            look()
            plans, _ = find(change)
            found += levers_of_best(problem, answer, change, plans)
        yield from sorted(found, key=lambda one: -one.saves)[:1]


def without_room(problem: Problem) -> Iterator[list[Change]]:
    """Yield the changes that may give room to a preferred launcher that lacks it: numerics, and offload.

    ``default_launcher`` passes it over, so that a user who asks for the change alone gets that launcher.
    """
    better = _better(problem)
    for other in of_each_stack(problem):
        name = other.problem.launcher
        if name not in better or _TARGETS in other.settings or may_have_room(other.problem):
            continue
        for alike in ((*of_fewer_bits(other.problem), *bases(other.problem)), offload(other.problem)):
            yield [_under(other, change) for change in alike]


def precisions_elsewhere(problem: Problem) -> Iterator[Change]:
    """Yield products in 8 bits under the first launcher that has them, where a request's own has none.

    A user who asks for them alone gets that launcher, if the request names none. Plans nearby are tried
    under usual switches.
    """
    if next(precisions(problem), None) is None:
        changed = ((other, change) for other in launchers(problem) for change in precisions(other.problem))
        for other, change in islice(changed, 1):
            yield replace(_under(other, change), moves_switches=False)


def _under(other: Change, change: Change) -> Change:
    """Return a change under another launcher."""
    own = change.effect.rpartition(": ")[0]
    return replace(
        change,
        words=f"{change.words} under {other.problem.launcher}",
        effect=f"{own}, and {_ON_ALL}" if other.effect == _ON_ALL else change.effect,
        settings={**other.settings, **change.settings},
    )


def of_each_stack(problem: Problem) -> list[Change]:
    """Return the launchers to try: of each framework the preferred one, or one that limits less."""
    found = dict[str, Change]()
    for one in launchers(problem):
        if one.problem.places_stages:
            continue
        stack = launcher_capabilities(one.problem.launcher).framework
        known = found.setdefault(stack, one).problem
        if _limits_as(known, one.problem) and not _limits_as(one.problem, known):
            found[stack] = one
    return [*found.values()]


def _limits_as(other: Problem, problem: Problem) -> bool:
    """Return whether another launcher has the same stack, and every limit of a request's own.

    Limits on every training are left out: they differ in words rather than in what is fast.
    """
    ables = [launcher_capabilities(one.launcher) for one in (problem, other)]
    if ables[0].framework != ables[1].framework:
        return False
    own, others = (
        {text for text, where in constraints_of(one, able).items() if where != ON_EVERY_PLAN}
        for one, able in zip((problem, other), ables, strict=True)
    )
    return own <= others


_FEW_STAGED = 2000  # candidates with stages, over all settings of switches: a search takes about 0.1 s
_FEW_BOUNDED = 5000  # candidates under each setting, where there are no stages or passes have a bound


@dataclass(frozen=True, slots=True)
class _Turn:
    """Another launcher, and what the passes of its usual candidates take at least."""

    change: Change
    groups: list[list[Variant]]
    passes: list[LeastPasses]  # of each group
    likely: list[int]  # numbers of GPUs; []: the first plan leaves none idle

    @property
    def bound_s(self) -> float:
        """Return a lower bound on the step of its usual candidates; 0: none is known."""
        return min(each.least_gpu_s for each in self.passes) / usable_gpus(self.change.problem)

    @property
    def has_few(self) -> bool:
        """Return whether so few candidates are searched whatever their bound."""
        first = self.groups[0][0].problem
        outer, staged = estimated_outer(on_likely(first, self.likely)), has_stages(first)
        if staged and outer * sum(map(len, self.groups)) <= _FEW_STAGED:
            return True
        return (self.bound_s > 0.0 or not staged) and outer <= _FEW_BOUNDED


def _in_turn(problem: Problem, changes: Sequence[Change], profile: Profile, answer: Answer) -> list[_Turn]:
    """Return the launchers, that with the lowest bound first; those without a bound come last."""
    turns = list[_Turn]()
    for change in changes:
        look()
        groups, passes = groups_of(change, profile), list[LeastPasses]()
        for first, *others in groups:
            ways = [one.problem for one in others]
            passes.append(least_passes(first.problem, first.profile, ways, wide=False))
        turns.append(_Turn(change, groups, passes, likely_if_idle(problem, change, answer)))
    return sorted(turns, key=lambda turn: turn.bound_s or inf)


def _reduced_in(problem: Problem) -> str:
    facts = framework_facts(framework_of(problem.priced_as))
    facts = with_options(facts, problem.workload.framework_options)
    return facts.reduced_gradient_dtype or facts.gradient_dtype


def other_launchers(problem: Problem) -> Iterator[Problem]:
    """Yield the question under every other launcher that can express it and may be faster.

    Of the launchers with the same stack it yields those preferred to its own, those without one of its
    limits on such a request, and those that place stages on unlike nodes. One that has no name for the
    layers with adapters has them on all linear layers.
    """
    if problem.launcher == "any":
        return
    better, options = _better(problem), for_one_plan(problem.options)
    for name in preferred(problem)[1]:
        other = replace(problem.under(name), options=options)
        places = other.places_stages and not problem.places_stages
        alike = name not in better and not places and _limits_as(other, problem)
        if name in ("none", problem.launcher) or alike:
            continue
        able_ones = (
            one for one in (other, _adapting_all(other)) if next(launcher_faults(one, name), None) is None
        )
        yield from islice(able_ones, 1)


def _better(problem: Problem) -> Sequence[str]:
    """Return the launchers that are preferred to a request's own."""
    names = preferred(problem)[1]
    return names[: names.index(problem.launcher)]


def _adapting_all(problem: Problem) -> Problem:
    """Return a request with adapters on all linear layers, if it has any, by its launcher's names."""
    work, able = problem.workload, launcher_capabilities(problem.launcher)
    if not work.lora_rank:
        return problem
    every = able.targets_of(problem.model, (*ALL_LINEAR, *work.lora_targets))  # as who adds it gets them
    return replace(problem, workload=replace(work, lora_targets=every))
