"""From one placed configuration to another: what differs, and the stops between them.

Micro-batch, ZeRO stage, recomputation, where the stages stand with how many replicas, and the split of the
layers are carried over one by one. Between unlike replicas, or a mesh and placed stages, everything is
carried over at once: there is no configuration with some of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import groupby

from profiles.profile import Profile
from solver.mixed.check import broken_on_groups
from solver.mixed.completing import settled
from solver.plan import Configuration
from solver.problem import Problem
from solver.why.differences import Difference
from solver.why.ordering import ILLEGAL, TOO_BIG, best_order
from solver.why.placed import placed_all
from solver.why.placed_alternatives import Judge, short_bytes

_SIZES = {
    "data_parallel_size": "dp", "context_parallel_size": "cp", "expert_parallel_size": "ep",
    "micro_batch_size": "mbs", "zero_stage": "zero",
}  # fmt: skip
_RANKS = ("data_parallel_size", "context_parallel_size")
Path = list[tuple[str, Configuration]]


def placed_path(problem: Problem, profile: Profile, first: Configuration, second: Configuration) -> Path:
    """Words and configurations after the first; the last one is the second."""
    if first == second:
        return []
    if not (first.stage_groups and second.stage_groups):
        return [(_whole(second), second)]
    differences = placed_differences(first, second)
    done, path = frozenset[str](), Path()
    for one in best_order(differences, _prices(problem, profile, (first, second), differences)):
        done |= {one.name}
        last = len(done) == len(differences)
        path.append((one.words, second if last else _carried(problem, first, second, done)))
    return path


def _whole(second: Configuration) -> str:
    """What everything at once is."""
    if second.replicas:
        names = [one.stage_groups[0].group for one in second.replicas]
        return f"replicas of their own on {', '.join(names)}"
    return "stages on node groups" if second.stage_groups else "one mesh over all nodes"


def placed_differences(first: Configuration, second: Configuration) -> list[Difference]:
    """In a fixed order; what follows from the others is none of its own."""
    found = [
        Difference(name=name, words=f"{short} {getattr(first, name)} → {getattr(second, name)}")
        for name, short in _SIZES.items()
        if getattr(first, name) != getattr(second, name)
    ]
    if first.recompute_granularity != second.recompute_granularity:
        words = f"recompute {second.recompute_granularity}".replace("none", "off")
        found.append(Difference(name="recompute_granularity", words=words))
    if _stands(first) != _stands(second):  # GPUs are those of stages times replicas: they go together
        found = [one for one in found if one.name not in _RANKS]
        ranks = [
            f"{_SIZES[name]} {getattr(second, name)}" for name in _RANKS if _differ(first, second, name)
        ]
        words = ", ".join([f"stages {_stands(second)}", *ranks])
        found.append(Difference(name="stage_groups", words=words))
    same = len(first.stage_layers) == len(second.stage_layers)
    if same and first.stage_layers != second.stage_layers:
        found.append(Difference(name="stage_layers", words="layers of the stages"))
    return found or [Difference(name="rest", words="everything else")]


def _differ(first: Configuration, second: Configuration, name: str) -> bool:
    """Whether two configurations have a size otherwise."""
    return bool(getattr(first, name) != getattr(second, name))


def _stands(config: Configuration) -> str:
    """``2 × h100 tp 4, 1 × a100 tp 2``."""
    stands = [(one.group, one.tensor_parallel_size) for one in config.stage_groups]
    runs = [(place, len(list(run))) for place, run in groupby(stands)]
    return ", ".join(f"{count} × {group} tp {size}" for (group, size), count in runs)


def _carried(
    problem: Problem, first: Configuration, second: Configuration, done: AbstractSet[str]
) -> Configuration:
    """The first configuration with the named differences of the second."""
    names = {name for name in done if name != "rest"}
    moves = "stage_groups" in names and len(first.stage_layers) != len(second.stage_layers)
    names |= {"stage_layers"} if moves else set()
    names |= {*_RANKS} if "stage_groups" in names else set()
    changed = replace(first, **{name: getattr(second, name) for name in names})
    return settled(problem.cluster, changed, problem.workload.global_batch_size)


def _prices(
    problem: Problem,
    profile: Profile,
    ends: tuple[Configuration, Configuration],
    differences: Sequence[Difference],
) -> dict[int, tuple[int, float]]:
    """Of each set of carried differences, as bits: what it costs a path, and its closed-form step."""
    names = [difference.name for difference in differences]
    sets = [frozenset(n for at, n in enumerate(names) if done >> at & 1) for done in range(1 << len(names))]
    placed = placed_all(problem, profile, [_carried(problem, *ends, some) for some in sets])
    judge = Judge()
    return {
        done: (
            ILLEGAL * bool(judge.broken(one)) + TOO_BIG * (max(short_bytes(one)) > 0.0),
            one.objective_s,
        )
        for done, one in enumerate(placed)
    }


def fits(problem: Problem, profile: Profile, config: Configuration) -> bool:
    """Whether every stage stays within its own budget."""
    return max(short_bytes(placed_all(problem, profile, [config])[0])) <= 0.0


def broken_of(problem: Problem, config: Configuration) -> tuple[str, ...]:
    """Names of the rules that a placed configuration breaks on any group."""
    return tuple(dict.fromkeys(broken_on_groups(problem, config)))
