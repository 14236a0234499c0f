"""Switches and layouts that a request must allow by name, and what limits of power save."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.frameworks import framework_facts, with_options
from meshwright.profiles.profile import Profile, framework_of
from meshwright.profiles.switches import Setting, Switch
from meshwright.solver.answer import Answer
from meshwright.solver.clock import WorkWatch
from meshwright.solver.configuration import HIERARCHICAL
from meshwright.solver.planner.levers.change import (
    Best,
    Change,
    allowing,
    within_power_budget,
    worth_s,
)
from meshwright.solver.planner.levers.nearby import plans_near
from meshwright.solver.planner.levers.searched import fastest_within, groups_of
from meshwright.solver.problem import (
    CONTEXT_MODE,
    STANDALONE_STAGES,
    WEIGHT_SHARDS,
    Objective,
    Problem,
    left_closed,
    on_gpus,
    usable_gpus,
)
from meshwright.solver.space.launcher_rules import standing_alone, weight_shard_obstacle
from meshwright.solver.space.request_rules import limited_by

GRADIENTS = "gradient_dtype"  # the switch that is a change of the states


def under_switch(problem: Problem, switch: Switch) -> Iterator[Change]:
    """Yield a switch with the settings that a launcher does not have anyway, and none that those beat."""
    gpus, work = [group.gpu for group in problem.cluster.groups], problem.workload
    facts = with_options(framework_facts(framework_of(problem.priced_as)), work.framework_options)
    able = switch.settings_of(problem.launcher, problem.model, gpus)

    def holds(setting: Setting) -> bool:
        return all(getattr(facts, name) == value for name, value in setting.options.items())

    ways = [
        replace(
            problem,
            workload=replace(work, framework_options={**work.framework_options, **one.options}),
            options=replace(
                problem.options,
                constraints=(*problem.options.constraints, *([one.only] if one.only else ())),
            ),
        )
        for one in able
        if not holds(one) and not any(one.name in other.beats for other in able if holds(other))
    ]
    if ways:
        yield Change(
            kind=switch.name, words=switch.change, effect=switch.effect,
            problem=ways[0], also=tuple(ways[1:]),
            settings={"search.allow": [switch.name]}, moves_memory=switch.frees_memory,
        )  # fmt: skip


def switched(problem: Problem) -> Iterator[Change]:
    """Yield the switches that a request must allow by name, and states nothing of."""
    for switch in _offered(problem, "step_time", problem.options.objective):
        if switch.name != GRADIENTS:
            yield from under_switch(problem, switch)
    for switch in _offered(problem, "energy_per_token") if problem.options.max_power_kw else ():
        for change in under_switch(problem, switch):
            first, *others = map(_on_most, (change.problem, *change.also))
            yield replace(
                change, kind=POWER, problem=first, also=tuple(others), effect="more GPUs share the power"
            )


POWER = "power"  # a limit for each GPU, under a limit for all
_NUMBERS = 8  # of GPUs that are tried under each limit


def _on_most(problem: Problem) -> Problem:
    """Return a request on the most GPUs that share its power."""
    own = on_gpus(problem, ())
    return on_gpus(own, tuple(within_power_budget(own, fewer=_NUMBERS)))


def _offered(problem: Problem, *objectives: Objective) -> list[Switch]:
    """Return the switches that a request may allow to save what some objectives rank by."""
    return [one for one in left_closed(problem) if one.change and one.objective in objectives]


OFFLOAD = "offload"


def offload(problem: Problem) -> Iterator[Change]:
    """Yield offload to the host, unless a request settles it."""
    able, options = launcher_capabilities(problem.launcher), problem.options
    if OFFLOAD in options.allow or OFFLOAD in limited_by(problem) or len(able.offload) == 1:
        return
    yield Change(
        kind=OFFLOAD,
        words="CPU offload",
        effect="",
        problem=allowing(problem, OFFLOAD),
        settings={"search.allow": [OFFLOAD]},
    )


_LAYOUTS = {
    STANDALONE_STAGES: "a separate stage for the embedding or the head",
    WEIGHT_SHARDS: "weights sharded over data-parallel ranks",
    CONTEXT_MODE: "hierarchical context parallelism",
}


def layouts(problem: Problem) -> Iterator[Change]:
    """Yield the layouts that a request must allow by name, and that its launcher has."""
    able, allow = launcher_capabilities(problem.launcher), problem.options.allow
    opened = dict[str, Problem]()
    for changed in standing_alone(allowing(problem, STANDALONE_STAGES)):
        opened[STANDALONE_STAGES] = replace(changed, options=replace(changed.options, allow=allow))
    if not weight_shard_obstacle(problem, able):
        opened[WEIGHT_SHARDS] = allowing(problem, WEIGHT_SHARDS)
    if not HIERARCHICAL.keys().isdisjoint(able.context_parallel_modes):
        opened[CONTEXT_MODE] = allowing(problem, CONTEXT_MODE)
    for name, changed in opened.items():
        if name not in allow and usable_gpus(problem) > 1:
            yield Change(
                kind=name, words=_LAYOUTS[name], effect="", problem=changed,
                settings={"search.allow": [name]},
            )  # fmt: skip


def within_power(
    problem: Problem, change: Change, profile: Profile, answer: Answer, searches: WorkWatch
) -> list[Best]:
    """Return the best plans under a limit for each GPU, on the numbers of GPUs of the change."""
    limit_s = worth_s(problem, change, answer)
    with searches.cut():
        plans, _ = fastest_within(groups_of(change, profile), limit_s, with_fewer=False)
        return [replace(one, proved=False) for one in plans]  # other numbers may be faster
    return plans_near(problem, change, profile, answer)
