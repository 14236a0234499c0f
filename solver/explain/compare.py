"""Comparison of two configurations: the effect of each difference between them.

One difference after the other is carried over from the first to the second, along a path on which every
stop can be priced, as many stops as possible break no rule, as few as possible lack memory, and the step
time goes back and forth as little as it can. Neighbouring stops differ by what a difference buys there, so
the parts add up to the whole. In another order the parts would be others; the sum would not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, pairwise

from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Prediction
from meshwright.solver.configuration import SHORT_NAMES, VARIABLES, Configuration
from meshwright.solver.cost.context import facts_as_run
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.explain.alternatives import RuleJudge, settle
from meshwright.solver.explain.waterfall import waterfalls
from meshwright.solver.explanation import Comparison, Step
from meshwright.solver.predict import predicted
from meshwright.solver.problem import Problem
from meshwright.solver.splits import even_split

# --------------------------------------------------------------------------------------------------
# What two configurations have otherwise, and the configurations that have some of it from each.


_LAST = ("virtual_pipeline_size", "micro_batch_size", "offload", "rank_order")  # in this order
_FREE = [one.name for one in VARIABLES.values() if not one.part_of and not one.follows]
# What differs together, under the name of the variable that the others refine.
_GROUPS: Mapping[str, tuple[str, ...]] = {
    name: (name, *(one.name for one in VARIABLES.values() if one.part_of == name))
    for name in ("num_gpus", *(name for name in _FREE if name not in _LAST), *_LAST)
}
_RECOMPUTE = "recompute_granularity"
_RANKS = ("data_parallel_size", "context_parallel_size")
# Of stages on node groups: how many replicas they have and where they are go together.
_GROUPS_OF_STAGES: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("expert_parallel_size", "micro_batch_size", "zero_stage", _RECOMPUTE)},
    "stage_groups": ("stage_groups", *_RANKS),
}
_SHORT = {"num_gpus": "GPUs", "offload": "offload", **SHORT_NAMES}


def differences_of(first: Configuration, second: Configuration) -> dict[str, str]:
    """Return what differs by name, with words such as ``tp 8 → 4``, in a fixed order.

    What follows from other differences (dp, micro-batches, shards) is left out.
    """
    found = dict[str, str]()
    for name, fields in _groups(first).items():
        if any(getattr(first, one) != getattr(second, one) for one in fields):
            both = (_recompute(first), _recompute(second))
            if name == _RECOMPUTE and both[0] == both[1]:
                continue
            found[name] = _words(name, first, second)
    same_chunks = len(first.stage_layers) == len(second.stage_layers)
    if same_chunks and first.stage_layers != second.stage_layers:
        found["stage_layers"] = "layers per chunk"
    return found


def _groups(config: Configuration) -> Mapping[str, tuple[str, ...]]:
    return _GROUPS_OF_STAGES if config.stage_groups else _GROUPS


def _recompute(c: Configuration) -> str:
    if c.recompute_granularity != "full":
        return {"none": "off", "selective": "of scores"}.get(c.recompute_granularity, "?")
    every = c.recompute_layers >= max(c.stage_layers)
    layers = "1 layer" if c.recompute_layers == 1 else f"{c.recompute_layers} layers"
    return "of every layer" if every else f"of {layers} a chunk"


def _words(name: str, first: Configuration, second: Configuration) -> str:
    if name == _RECOMPUTE:
        return f"recompute {_recompute(second)}"
    if name == "stage_groups":
        moved = [f"stages {_places(second)}"] if _places(first) != _places(second) else []
        ranks = (one for one in _RANKS if getattr(first, one) != getattr(second, one))
        sizes = (f"{_SHORT[one]} {getattr(first, one)} → {getattr(second, one)}" for one in ranks)
        return ", ".join([*moved, *sizes])
    if name == "rank_order":
        return (
            f"ranks numbered along {_axes(first, second, second)} instead of {_axes(first, second, first)}"
        )
    old, new = getattr(first, name), getattr(second, name)
    if name == "context_parallel_size" and old == new:
        return f"cp by {second.context_parallel_mode.replace('_', ' ')}"
    if name == "tensor_parallel_size" and old == new:
        return f"sequence parallel {'on' if second.sequence_parallel else 'off'}"
    fields = [one for one in _GROUPS[name] if one in _SHORT]
    changed = (one for one in fields if getattr(first, one) != getattr(second, one))
    return ", ".join(f"{_SHORT[one]} {getattr(first, one)} → {getattr(second, one)}" for one in changed)


def _axes(first: Configuration, second: Configuration, one: Configuration) -> str:
    """Return the order of a configuration's ranks, ``tp, pp, dp``, without axes that neither has."""
    sizes = {axis: f"{name}_parallel_size" for axis, name in (("tp", "tensor"), ("cp", "context"))}
    axes = [axis for axis in one.rank_order.split("-") if axis not in sizes
            or max(getattr(first, sizes[axis]), getattr(second, sizes[axis])) > 1]  # fmt: skip
    return ", ".join(axes)


def carried(
    problem: Problem, first: Configuration, second: Configuration, done: AbstractSet[str]
) -> Configuration | None:
    """Carry over the named differences of the second configuration; None if that is impossible.

    Data parallelism takes the GPUs that the other axes leave.
    """
    changed = dict[str, object]()
    groups = _groups(first)
    for name in done & groups.keys():
        changed |= {one: getattr(second, one) for one in groups[name] if one != "num_gpus"}
    mixed = replace(first, **changed)  # type: ignore[arg-type]
    if mixed.stage_groups:
        split = _split(problem, first, second, len(mixed.stage_groups), done)
        return settle(problem, replace(mixed, stage_layers=split))
    gpus = (second if "num_gpus" in done else first).num_gpus
    model = mixed.tensor_parallel_size * mixed.pipeline_parallel_size * mixed.context_parallel_size
    chunks = mixed.pipeline_parallel_size * mixed.virtual_pipeline_size
    if gpus % model or not 0 < chunks <= problem.model.num_layers:
        return None
    split = _split(problem, first, second, chunks, done)
    recomputing = second if _RECOMPUTE in done else first
    every = mixed.recompute_granularity == "full" and (
        recomputing.recompute_layers >= max(recomputing.stage_layers)
    )
    found = settle(
        problem,
        replace(
            mixed,
            data_parallel_size=gpus // model,
            stage_layers=split,
            recompute_layers=sum(split) if every else mixed.recompute_layers,
        ),
    )
    return None if found is None else _sharded(first, second, found)


def _split(
    problem: Problem, first: Configuration, second: Configuration, chunks: int, done: AbstractSet[str]
) -> tuple[int, ...]:
    owners = (second, first) if "stage_layers" in done else (first, second)
    if len(first.stage_layers) != len(second.stage_layers):
        owners = (second, first)
    for owner in owners:
        if len(owner.stage_layers) == chunks:
            return owner.stage_layers
    return even_split(problem.model.num_layers, chunks)


def _sharded(first: Configuration, second: Configuration, found: Configuration) -> Configuration:
    """Return shard sets as large as those of a configuration with the same ranks, else all ranks."""
    ranks = found.replicating_ranks
    for owner in (second, first):
        same = ranks == owner.replicating_ranks
        if found.zero_stage and same and owner.zero_stage == found.zero_stage:
            return replace(found, zero_shard_size=owner.zero_shard_size)
    return found


# --------------------------------------------------------------------------------------------------
# In which order the differences of two configurations are carried over.


MOST = 10  # differences with orders that are looked through; more are carried over in their own order
ILLEGAL, TOO_BIG = 100, 1  # what a stop costs the path
_DIGITS = 9  # of seconds; what is less is rounding


def best_order(differences: Sequence[str], prices: Mapping[int, tuple[int, float]]) -> list[str]:
    """Return the order with the fewest broken rules, then memory shortages, then the shortest way.

    Args:
        differences: of the two configurations, by name.
        prices: of each set of carried differences, as bits: what it costs a path, and its step in seconds.
    """
    full = (1 << len(differences)) - 1

    @cache
    def best(done: int) -> tuple[int, float, tuple[int, ...]]:
        if done == full:
            return 0, 0.0, ()
        options = []
        for at in range(len(differences)):
            if not done >> at & 1:
                penalty, step_s = prices[done | 1 << at]
                cost, way_s, rest = best(done | 1 << at)
                way_s = round(way_s + abs(step_s - prices[done][1]), _DIGITS)
                options.append((cost + penalty, way_s, (at, *rest)))
        return min(options)

    return [differences[at] for at in best(0)[2]]


def _whole(second: Configuration) -> str:
    if second.replicas:
        names = [one.stage_groups[0].group for one in second.replicas]
        return f"separate replicas on {', '.join(names)}"
    return "stages on node groups" if second.stage_groups else "one mesh over all nodes"


def _places(config: Configuration) -> str:
    places = [(one.group, one.tensor_parallel_size) for one in config.stage_groups]
    runs = [(place, len(list(run))) for place, run in groupby(places)]
    return ", ".join(f"{count} × {group} tp {size}" for (group, size), count in runs)


# --------------------------------------------------------------------------------------------------
# The path from one side to the other.
#
# Between unlike replicas, or a mesh and stages on node groups, everything is carried over at once: there is
# no configuration with some of each.


Option = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedConfiguration:
    """One of two configurations, or a stop between them, with the problem that supplies its facts."""

    problem: Problem
    configuration: Configuration
    change: str = ""  # that leads to it, on the way from one side to the other
    profile: Profile | None = None  # what it costs; None: as the second side


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    prediction: Prediction
    fall_s: dict[str, float]
    fits: bool
    breaks: tuple[str, ...]  # names of rules

    @classmethod
    def of(cls, stop: ComparedConfiguration, profile: Profile) -> _Judged:
        found = evaluate(stop.problem, stop.profile or profile, [stop.configuration], with_spread=True)
        prediction = predicted(stop.problem, found[0])
        return cls(
            prediction=prediction,
            fall_s=waterfalls(stop.problem, found, [prediction.step_time_s])[0],
            fits=max(found[0].short_bytes()) <= 0.0,
            breaks=RuleJudge(stop.problem).broken(found[0]),
        )


def compared(profile: Profile, first: ComparedConfiguration, second: ComparedConfiguration) -> Comparison:
    """Return both sides and the path between them, which begins with the launcher where they differ in it.

    Raises:
        InvalidProblemError: a framework option of a side is unknown or wrong.
    """
    stops = [first]
    if first.problem.priced_as != second.problem.priced_as:
        change = f"launcher {first.problem.priced_as} → {second.problem.priced_as}"
        stops.append(replace(first, problem=second.problem, profile=second.profile, change=change))
    else:
        for name, problem in _option_changes(first.problem, second.problem, profile):
            stops.append(replace(first, problem=problem, change=name))
    stops += _path(second.problem, profile, first.configuration, second.configuration)
    found = [_Judged.of(stop, profile) for stop in stops]
    steps = [
        Step(
            change=stop.change,
            step_change_s=now.prediction.step_time_s - before.prediction.step_time_s,
            terms_s={name: now.fall_s[name] - before.fall_s[name] for name in now.fall_s},
            fits=now.fits,
            breaks=tuple(rule for rule in now.breaks if rule not in found[0].breaks),
        )
        for stop, (before, now) in zip(stops[1:], pairwise(found), strict=True)
    ]
    return Comparison(
        first=found[0].prediction,
        second=found[-1].prediction,
        first_waterfall_s=found[0].fall_s,
        second_waterfall_s=found[-1].fall_s,
        steps=tuple(steps),
    )


def _option_changes(first: Problem, second: Problem, profile: Profile) -> list[tuple[str, Problem]]:
    """Return what else runs, one after the other; an option under which the same runs is no change."""
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
        before = problem
        problem = replace(before, workload=replace(before.workload, framework_options=options))
        if (run := facts_as_run(problem, profile)) == facts_as_run(before, profile):
            continue
        value = then.get(name, getattr(run, name, "the framework's default"))
        word = ("off", "on")[value] if isinstance(value, bool) else str(value)
        found.append((f"{name.replace('_', ' ')} {word}", problem))
    return found


def _path(
    problem: Problem, profile: Profile, first: Configuration, second: Configuration
) -> list[ComparedConfiguration]:
    if first == second:
        return []
    there = ComparedConfiguration(problem=problem, configuration=second)
    if first.replicas or second.replicas or _groups(first) is not _groups(second):
        return [replace(there, change=_whole(second))]
    differences = differences_of(first, second)
    if not differences:
        return [replace(there, change="everything else")]
    order = list(differences)
    if len(order) <= MOST:
        order = best_order(order, _prices(problem, profile, (first, second), order))
    stops, done = [], frozenset[str]()
    for name in order:
        done |= {name}
        here = second if len(done) == len(differences) else carried(problem, first, second, done)
        stops.append(replace(there, configuration=here or second, change=differences[name]))
    return stops


def _prices(
    problem: Problem,
    profile: Profile,
    ends: tuple[Configuration, Configuration],
    names: Sequence[str],
) -> dict[int, tuple[int, float]]:
    """Return path cost and closed-form step of each set of carried differences, keyed by bits."""
    stops = {
        done: carried(problem, *ends, frozenset(n for at, n in enumerate(names) if done >> at & 1))
        for done in range(1 << len(names))
    }
    there = {done: stop for done, stop in stops.items() if stop is not None}
    found = dict.fromkeys(stops, (ILLEGAL * ILLEGAL, 0.0))
    judge = RuleJudge(problem)
    for done, one in zip(there, evaluate(problem, profile, list(there.values())), strict=True):
        costs = ILLEGAL * bool(judge.broken(one)) + TOO_BIG * (max(one.short_bytes()) > 0.0)
        found[done] = costs, one.objective_s
    return found
