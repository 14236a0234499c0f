"""A change of a request that the user may decide, its best plan, and what that saves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, islice
from math import inf
from typing import Any

import numpy as np

from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Answer, Lever, Prediction
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.objective import outlook_of
from meshwright.solver.explain.reference import switches_of
from meshwright.solver.planner.recipes import WORTH_OF_A_RECIPE
from meshwright.solver.problem import (
    PER_GPU,
    POWER_LIMIT,
    Problem,
    allows_nodes_of,
    can_start,
    for_one_plan,
    gpu_counts,
    may_use_fewer,
    on_gpus,
    usable_gpus,
    with_changes,
)
from meshwright.solver.space.enumerate import fewer_gpus
from meshwright.solver.space.request_rules import counts_kept
from meshwright.solver.splits import divisors

ROUNDING = 1e-6  # of a score: what is as good counts as within
WORTH = 0.01  # of the first plan's time for each token must a change save to be named
_WORTH_OF = {
    "neighbour": 0.03,  # a batch or length beside the request's own
    "batch": 0.05,  # others: nearly every job trains more tokens a second with a larger batch
    "batching": 0.05,
    "recipe": WORTH_OF_A_RECIPE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a request that the user may decide."""

    # gradients, optimizer, states for both, precision, base_precision, launcher, batch, neighbour,
    # batching, offload, package, recipe, group, power, or the name of a switch or of a layout
    kind: str
    words: str
    effect: str
    problem: Problem  # the request with the change; its switches are still open
    also: tuple[Problem, ...] = ()  # with other values of what the change opens
    settings: Mapping[str, Any] = field(default_factory=dict)  # values by their paths in the request
    moves_memory: bool = False  # the best layout may be far from the first plan's
    moves_switches: bool = False  # so may its switches


def within_seconds(change: Change, seconds: float) -> Change:
    """Return a change with a limit of seconds: CP-SAT seldom proves stages on unlike nodes."""
    options = replace(change.problem.options, time_limit_s=seconds)
    return replace(change, problem=replace(change.problem, options=options))


def in_order(levers: Iterable[Lever]) -> tuple[Lever, ...]:
    """Return the levers worth naming, the best first: one for each kind and set of fields.

    One that changes results hides none that does not.
    """
    best = dict[tuple[str | bool, ...], Lever]()
    for one in sorted(levers, key=lambda one: (-one.saves, one.change)):
        if one.saves > worth_of(one.kind):
            best.setdefault((one.kind, one.effect.rpartition(": ")[2] == "results", *one.settings), one)
    return tuple(best.values())


def worth_of(kind: str) -> float:
    """Return the share of the first plan's time for each token that a change must save to be named."""
    return _WORTH_OF.get(kind, WORTH)


def under_first(problem: Problem, answer: Answer, *, by_step: bool = True) -> Problem:
    """Return the request under the launcher and with the batch of the first plan, asked for one plan alone.

    What saves time of a plan that meets a deadline meets it, too. It is ranked ``by_step``: instead of by a
    quantile, or on as many GPUs instead of by tokens or hours of a GPU; instead of by energy, under the
    same limit of power as well.
    """
    first = answer.ranking[0]
    own = problem.under(first.launchers[0]) if first.launchers else problem
    options = replace(for_one_plan(own.options), deadline_days=None, batch_sizes=())
    work = replace(own.workload, global_batch_size=first.config.global_batch_size)
    if by_step and (options.objective in PER_GPU or by_energy(answer)):
        limits = (*options.constraints, f"num_gpus == {first.config.num_gpus}")
        options = replace(options, objective="step_time", constraints=limits)
        drawn = switches_of(first).get(POWER_LIMIT)
        work = work if drawn is None else with_changes(work, {POWER_LIMIT: drawn})
    elif by_quantile(answer):
        options = replace(options, objective="step_time")
    return replace(own, workload=work, options=options)


def likely_numbers(problem: Problem, answer: Answer) -> list[int]:
    """Return the numbers of GPUs that a change may need: the first plan's, all, what shares the batch best.

    Instead of all, the most within a power budget.
    """
    first, named = answer.ranking[0].config.num_gpus, gpu_counts(problem)
    if not may_use_fewer(problem):
        return [*dict.fromkeys((first, *named))]
    if problem.options.max_power_kw is not None:
        named = (next(within_power_budget(problem), named[0]),)
    shared = sharing(problem.workload.global_batch_size, named[0])
    may = [shared] if can_use(problem, shared) else []
    return [*dict.fromkeys((first, *named, *may))]


def on_likely(problem: Problem, likely: Sequence[int]) -> Problem:
    """Return a request on its likely numbers of GPUs, if there are any and it may use fewer than all."""
    return on_gpus(problem, tuple(likely)) if likely and may_use_fewer(problem) else problem


def likely_if_idle(problem: Problem, change: Change, answer: Answer) -> list[int]:
    """Return the numbers of GPUs that a change may need where the first plan leaves some idle."""
    return likely_numbers(change.problem, answer) if leaves_idle(problem, answer) else []


def sharing(batch: int, gpus: int) -> int:
    """Return how many of some GPUs share a batch best, in replicas of a power of two each."""
    replicas = [size for size in divisors(batch) if size <= gpus]
    inner = [1 << (gpus // size).bit_length() - 1 for size in replicas]  # tensor ranks or stages
    _, shared = max((one**3 * each**2, one * each) for one, each in zip(replicas, inner, strict=True))
    return shared


def can_use(problem: Problem, num_gpus: int) -> bool:
    """Return whether a launcher starts so many GPUs, on nodes that a request allows."""
    return can_start(problem, num_gpus) and allows_nodes_of(problem, num_gpus)


def within_power_budget(problem: Problem, *, fewer: int | None = None) -> Iterator[int]:
    """Yield the numbers of GPUs within a request's power budget, the most first.

    ``fewer``: how many of those below all GPUs; None: all.
    """
    counts = gpu_counts(problem)
    yield from compress(counts, counts_kept(problem, np.array(counts)))
    yield from islice(fewer_gpus(problem, 1), fewer)  # which are within it


def leaves_idle(problem: Problem, answer: Answer) -> bool:
    """Return whether the first plan leaves GPUs idle."""
    return answer.ranking[0].config.num_gpus < usable_gpus(problem)


def by_energy(answer: Answer) -> bool:
    """Return whether plans are ranked by their energy."""
    return answer.objective is not None and answer.objective.name == "energy_per_token"


def by_quantile(answer: Answer) -> bool:
    """Return whether plans are ranked by the 90 % quantile of their step."""
    return answer.objective is not None and answer.objective.name == "robust"


def time_per_token(problem: Problem, config: Configuration, seen: Prediction) -> float:
    """Return the seconds of a step for each of its tokens."""
    return seen.step_time_s / problem.tokens_of(config)


@dataclass(frozen=True, slots=True)
class Best:
    """The best plan that was found of a changed request."""

    config: Configuration
    prediction: Prediction
    way: Problem  # the changed request under the plan's switches
    profile: Profile | None = None  # that prices it; None: its energy is not compared
    proved: bool = True  # no layout of the changed request is faster


Found = tuple[list[Best], bool]  # the best first, and whether they stand without plans nearby
Find = Callable[[Change], Found]


def as_lever(problem: Problem, answer: Answer, change: Change, best: Best) -> Lever:
    """Return a change with its plan and what that saves of the first plan's time per token.

    Plans are sought by their step, and under the launcher of the first one, so that gains by a quantile, of
    energy, or under any launcher are lower bounds.
    """
    first, config, seen = answer.ranking[0], best.config, best.prediction
    now_s, then_s = first.prediction.step_time_s, seen.step_time_s
    if by_quantile(answer):
        now_s, then_s = first.prediction.step_time_high_s, seen.step_time_high_s
    saved = 1.0 - (then_s / change.problem.tokens_of(config)) / (now_s / problem.tokens_of(first.config))
    if by_energy(answer) and best.profile is not None and first.outlook is not None:
        drawn = outlook_of(best.way, best.profile, config, seen).energy_per_token_j
        saved = 1.0 - (drawn or inf) / (first.outlook.energy_per_token_j or inf)
    return Lever(
        kind=change.kind,
        change=change.words,
        effect=change.effect,
        settings=change.settings,
        config=config,
        step_time_s=seen.step_time_s,
        num_gpus=config.num_gpus,
        gpu_s_per_token=time_per_token(change.problem, config, seen) * config.num_gpus,
        peak_memory_bytes=seen.peak_memory_bytes,
        saves=saved,
        at_least=not best.proved or by_quantile(answer) or by_energy(answer) or bool(first.launchers),
    )


def levers_of_best(problem: Problem, answer: Answer, change: Change, plans: Sequence[Best]) -> list[Lever]:
    """Return the lever of the best plan of a change; [] without a plan."""
    return [as_lever(problem, answer, change, best) for best in plans[:1]]


def worth_s(problem: Problem, change: Change, answer: Answer, saved: float = 0.0) -> float:
    """Return the step of a changed request that just saves enough of the first plan's time per token.

    ``saved``: the share that another launcher already saves. The change must save more than both.
    """
    first, work = answer.ranking[0], change.problem.workload
    share = 1.0 - max(worth_of(change.kind), saved)
    per_token = share * time_per_token(problem, first.config, first.prediction)
    return per_token * work.global_batch_size * work.tokens_per_sequence


def allowing(problem: Problem, word: str) -> Problem:
    """Return a request that allows one word more."""
    options = replace(problem.options, allow=(*problem.options.allow, word))
    return replace(problem, options=options)
