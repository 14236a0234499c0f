"""Two configurations side by side: what each difference between them buys.

One difference after the other is carried over from the first to the second, along a path on which every
stop can be priced, as many stops as possible break no rule, as few as possible lack memory, and the step
time goes back and forth as little as it can. Neighbouring stops differ by what a difference buys there, so
the parts add up to the whole. In another order the parts would be others; the sum would not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from profiles.frameworks import FrameworkFacts
from profiles.profile import Profile
from solver.columns import Columns
from solver.comparison import Comparison, Step
from solver.cost.memory import memory_budget_bytes
from solver.plan import Configuration, Prediction
from solver.predictions import predicted
from solver.problem import Problem
from solver.rules import rules_of, violation_masks
from solver.why.assembled import Assembled
from solver.why.differences import Difference, carried, differences_of
from solver.why.explained import fallen
from solver.why.ordering import ILLEGAL, MOST, TOO_BIG, best_order
from solver.why.placed_compare import broken_of, fits, placed_path

Option = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of two configurations, with the problem under whose facts it runs."""

    problem: Problem
    configuration: Configuration


@dataclass(frozen=True, slots=True)
class _Stop:
    """A point of the path."""

    change: str
    problem: Problem
    configuration: Configuration


def compared(profile: Profile, first: Side, second: Side) -> Comparison:
    """Both sides and the path between them.

    Raises:
        InvalidProblemError: a framework option of a side is unknown or wrong.
    """
    stops = [_Stop("", first.problem, first.configuration)]
    for name, problem in _option_changes(first.problem, second.problem, profile.framework):
        stops.append(_Stop(name, problem, first.configuration))
    stops += _path(second.problem, profile, first.configuration, second.configuration)
    priced = [predicted(stop.problem, profile, stop.configuration) for stop in stops]
    falls = [
        fallen(stop.problem, profile, [stop.configuration], [found.step_time_s])[0]
        for stop, found in zip(stops, priced, strict=True)
    ]
    steps = [
        Step(
            change=stops[at].change,
            step_change_s=priced[at].step_time_s - priced[at - 1].step_time_s,
            terms_s={name: falls[at][name] - falls[at - 1][name] for name in falls[at]},
            fits=_fits(stops[at], profile, priced[at]),
            breaks=_broken(stops[at]),
        )
        for at in range(1, len(stops))
    ]
    return Comparison(
        first=priced[0],
        second=priced[-1],
        first_waterfall_s=falls[0],
        second_waterfall_s=falls[-1],
        steps=tuple(steps),
    )


def _option_changes(first: Problem, second: Problem, facts: FrameworkFacts) -> list[tuple[str, Problem]]:
    """What the sides' workloads have otherwise, carried over one by one."""
    now, then = first.workload.framework_options, second.workload.framework_options
    problem, found = first, []
    for name in ("precision", "optimizer"):
        old, new = getattr(problem.workload, name), getattr(second.workload, name)
        if old != new:
            changed = {name: new}
            problem = replace(problem, workload=replace(problem.workload, **changed))
            found.append((f"{name} {old} → {new}", problem))
    for name in sorted(now.keys() | then.keys()):
        if now.get(name) == then.get(name):
            continue
        options: dict[str, Option] = {**problem.workload.framework_options}
        options.pop(name, None)
        if name in then:
            options[name] = then[name]
        problem = replace(problem, workload=replace(problem.workload, framework_options=options))
        value = then.get(name, getattr(facts, name, "as the framework has it"))
        word = ("off", "on")[value] if isinstance(value, bool) else str(value)
        found.append((f"{name.replace('_', ' ')} {word}", problem))
    return found


def _fits(stop: _Stop, profile: Profile, prediction: Prediction) -> bool:
    """Whether the peak stays within the budget."""
    problem = stop.problem
    if stop.configuration.is_placed:
        return fits(problem, profile, stop.configuration)
    budget = memory_budget_bytes(problem, profile, problem.options.max_out_of_memory_probability)
    return prediction.peak_memory_bytes <= budget + len(prediction.stages)  # terms are rounded


def _broken(stop: _Stop) -> tuple[str, ...]:
    """Names of the rules that a configuration breaks."""
    if stop.configuration.is_placed:
        return broken_of(stop.problem, stop.configuration)
    rules = rules_of(stop.problem)
    mask = int(violation_masks(rules, Columns.of([stop.configuration]))[0])
    return tuple(rule.name for bit, rule in enumerate(rules) if mask >> bit & 1)


def _path(problem: Problem, profile: Profile, first: Configuration, second: Configuration) -> list[_Stop]:
    """The stops after the first configuration; the last one is the second."""
    if first.is_placed or second.is_placed:
        path = placed_path(problem, profile, first, second)
        return [_Stop(words, problem, configuration) for words, configuration in path]
    differences = differences_of(first, second)
    if not differences:
        return [] if first == second else [_Stop("everything else", problem, second)]
    order = differences
    if len(differences) <= MOST:
        order = best_order(differences, _prices(problem, profile, (first, second), differences))
    stops, done = [], frozenset[str]()
    for difference in order:
        done |= {difference.name}
        here = carried(problem, first, second, done)
        if len(done) == len(differences):
            here = second
        stops.append(_Stop(difference.words, problem, here or second))
    return stops


def _prices(
    problem: Problem,
    profile: Profile,
    ends: tuple[Configuration, Configuration],
    differences: Sequence[Difference],
) -> dict[int, tuple[int, float]]:
    """Of each set of carried differences, as bits: what it costs a path, and its closed-form step."""
    names = [difference.name for difference in differences]
    stops = {
        done: carried(problem, *ends, frozenset(n for at, n in enumerate(names) if done >> at & 1))
        for done in range(1 << len(names))
    }
    there = {done: stop for done, stop in stops.items() if stop is not None}
    found = dict.fromkeys(stops, (ILLEGAL * ILLEGAL, 0.0))
    if there:
        priced = Assembled.of(problem, profile, list(there.values()))
        budget = memory_budget_bytes(problem, profile, problem.options.max_out_of_memory_probability)
        short = priced.stages.peak_memory_bytes.max(axis=1) > budget
        masks = violation_masks(rules_of(problem), priced.columns) != 0
        costs = ILLEGAL * masks.astype(int) + TOO_BIG * short.astype(int)
        pairs = zip(costs.tolist(), priced.objective_s().tolist(), strict=True)
        found |= dict(zip(there, pairs, strict=True))
    return found
