"""A deadline that no plan meets: how long the fastest takes, and the nearest changes that meet it.

Each is verified: a later deadline by the plan that meets it, more nodes by a search on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from profiles.profile import Profile
from solver.outlook import outlook_of
from solver.plan import Infeasibility, Plan, Remedy
from solver.problem import Problem
from solver.search.search import search
from solver.search.watch import Watch, look
from solver.why.relaxed import CUT, Change, remedy_of

_TENTH = 10.0
_TRIES = 8  # numbers of nodes that are searched
_DIGITS = 4  # of a number of nodes, in binary: up to 16 every one is tried, then 18, 20, …
_MOST = 64  # times as many nodes that are still tried
_SEARCH_S = 10.0  # for each of them


@dataclass(frozen=True, slots=True, kw_only=True)
class More:
    """Nodes that there may be more of."""

    nodes: int  # that there are
    grow: Callable[[int], Change]  # the problem on so many, told in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A plan and the days of all its tokens."""

    plan: Plan
    days: float


def fastest_run(problem: Problem, profile: Profile) -> Run | None:
    """The run of the shortest step, whatever the deadline; None where nothing fits."""
    options = replace(
        problem.options, deadline_days=None, objective="step_time", top_k=1, certify="none", gpus="all"
    )
    return _first_run(replace(problem, options=options), profile)


def _first_run(problem: Problem, profile: Profile) -> Run | None:
    """The run of the first plan."""
    plans = search(problem, profile).plans
    if not plans:
        return None
    days = outlook_of(problem, profile, plans[0].config, plans[0].prediction).days
    return Run(plan=plans[0], days=days or 0.0)


def too_late(problem: Problem, run: Run, more: Sequence[More], watch: Watch) -> Infeasibility:
    """The reason, and what meets the deadline: a later one, more nodes.

    Args:
        problem: the request, with a deadline that ``run``, the fastest, misses.
        run: on the cluster as it is.
        more: what there may be more of.
        watch: its time is that of the search for what meets the deadline.
    """
    asked, gpus = problem.options.deadline_days or 0.0, run.plan.config.num_gpus
    reason = f"deadline: the fastest plan takes {run.days:.1f} days on {gpus} GPUs, {asked:g} are allowed"
    remedies = [_remedy(problem, f"a deadline of {_up(run.days):.1f} days", run.plan)]
    complete = False
    with watch.cut():
        for one in more:
            look()
            count = _enough_nodes(run, asked, one)
            if count is not None:
                remedies += _as_asked(one.grow(count))
        complete = True
    changes = tuple(one.change for one in remedies)
    return Infeasibility(
        reasons=(reason, *(() if complete else (CUT,))), changes=changes, remedies=tuple(remedies)
    )


def _enough_nodes(run: Run, asked: float, more: More) -> int | None:
    """The fewest nodes that were found to meet the deadline.

    A number is guessed from the last one as if speed grew with nodes, then what lies between the most that
    miss it and the fewest that meet it is halved; of large numbers round ones are tried, which split well.
    """
    low, high, days = more.nodes, 0, run.days
    for _ in range(_TRIES):
        guess = _round((low + high) // 2 if high else max(low + 1, ceil(low * days / asked)))
        look()
        if guess > _MOST * more.nodes or (high and not low < guess < high):
            break
        change = more.grow(guess)
        options = replace(change.problem.options, time_limit_s=_SEARCH_S)
        found = fastest_run(replace(change.problem, options=options), change.profile)
        if found is not None and found.days <= asked:
            high = guess
        else:
            low, days = guess, found.days if found is not None else days
    return high or None


def _round(nodes: int) -> int:
    """The next number with four binary digits and zeros behind them."""
    unit = 1 << max(nodes.bit_length() - _DIGITS, 0)
    return -(-nodes // unit) * unit


def _as_asked(change: Change) -> list[Remedy]:
    """The first plan of the request itself on more nodes, where it has one."""
    options = replace(change.problem.options, top_k=1, certify="none", gpus="all", time_limit_s=_SEARCH_S)
    problem = replace(change.problem, options=options)
    run = _first_run(problem, change.profile)
    if run is None or run.days > (problem.options.deadline_days or 0.0):
        return []
    return [_remedy(problem, f"{change.words} ({run.days:.1f} days)", run.plan)]


def _remedy(problem: Problem, words: str, plan: Plan) -> Remedy:
    """A change with its plan."""
    tokens = plan.config.global_batch_size * problem.workload.seq_length
    return remedy_of(words, plan.config, plan.prediction, tokens=tokens)


def _up(days: float) -> float:
    """To tenths of a day, never down."""
    return -(-days * _TENTH // 1.0) / _TENTH
