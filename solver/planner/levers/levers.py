"""Changes that the user may decide and that save time, energy or nodes: the levers of an answer's plans.

Each comes with other numerics, another script, package or batch, so that no search makes it unasked.
Its plan is found a few moves away from the answer's own plans and from the rule of thumb, priced under the
changed request, which takes milliseconds, and laid out in its fastest split. It has passed the independent
check, and a search of the changed request finds that plan or a better one, so that the gain is a lower
bound, and called one (``Lever.at_least``). Changes that free or take much memory are searched, since a
layout far away may then be best. So are batches where the first plan leaves GPUs idle, offload and other
changes with few candidates (``_is_searched``), and some launchers (``of_launchers``). What ranks plans
otherwise than by step is searched as well (``_by_score``).
``every_lever`` searches each change instead, as ``explain --levers`` does.

Work is counted, in configurations and in looks at the clock, so that an answer is the same on every machine
that has the time to try all of them. One that has not leaves levers out, and its answer warns of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Answer, Lever
from meshwright.solver.clock import LOOKS_PER_S, Watch, WorkWatch, look
from meshwright.solver.cost.objective import counts_busy
from meshwright.solver.planner.levers.change import (
    Change,
    in_order,
    leaves_idle,
    levers_of_best,
    under_first,
    within_seconds,
    worth_of,
)
from meshwright.solver.planner.levers.launchers import (
    launchers,
    of_each_stack,
    of_launchers,
    of_launchers_without_room,
    precisions_elsewhere,
    without_room,
)
from meshwright.solver.planner.levers.nearby import (
    plans_near,
    plans_nearby,
    proved_or_near,
    with_ends_alone,
)
from meshwright.solver.planner.levers.neighbours import (
    batches,
    batchings,
    near_batches,
    near_lengths,
    neighbours,
    rounder_numbers,
)
from meshwright.solver.planner.levers.nodes import one_group_alone, saving_nodes
from meshwright.solver.planner.levers.numerics import bases, lighter, of_fewer_bits, precisions, worth_both
from meshwright.solver.planner.levers.recipes import as_published, packaged, published, relaid
from meshwright.solver.planner.levers.searched import (
    by_score,
    has_stages,
    is_small,
    proved_plans,
    searched_plans,
)
from meshwright.solver.planner.levers.switches import (
    OFFLOAD,
    POWER,
    layouts,
    offload,
    switched,
    within_power,
)
from meshwright.solver.problem import PER_GPU, STANDALONE_STAGES, Problem
from meshwright.solver.space.enumerate import estimated_outer


def levers_of(
    problem: Problem, profile: Profile, answer: Answer, watch: Watch, *, looks: int
) -> tuple[Lever, ...]:
    """Return the changes that save enough (``worth_of``), the best first; of launchers the fastest alone.

    Where plans are ranked by energy, or for each GPU and leave some idle, changes are searched by that. On
    the fewest nodes, changes that save nodes. Of stages on unlike nodes, what ``_of_placed_stages`` tries.

    Args:
        problem: the request.
        profile: its costs.
        answer: its plans.
        watch: its time; what is not tried before it ends is left out.
        looks: looks at the clock of all searches of changes. Batches get as many again, neighbours and
            offload too, launchers twice as many, those with adapters on other layers as many again, and a
            power limit four times as many. Where they end a search, what is near counts. A search on unlike
            nodes or on one of their groups ends after the seconds of so many looks.
    """
    if not has_levers(problem, answer):
        return ()
    own, found = under_first(problem, answer), list[Lever]()
    ranked = under_first(problem, answer, by_step=False)
    with watch.cut():
        if not _saves_time(ranked, answer):
            return in_order(_without_time_levers(ranked, profile, answer, looks=looks))
        searches = WorkWatch(looks=looks)
        alone = {kind: WorkWatch(looks=looks) for kind in ("batch", OFFLOAD)}
        find = partial(proved_plans, own, profile=profile, answer=answer, searches=searches)
        recipes, near = [*published(own, profile, answer)], list[Change]()
        found += [lever for lever, _ in recipes]
        for change in _changes_by(ranked, own):
            look()
            if change.problem.places_stages:  # no mesh is near to stages on unlike nodes
                plans, _ = searched_plans(own, within_seconds(change, looks / LOOKS_PER_S), profile, answer)
            elif change.kind == "launcher":
                plans = []  # ``of_launchers`` tries them below
            elif _is_searched(own, change, answer):
                work = alone.get(change.kind, searches)
                plans = proved_or_near(own, change, profile, answer, partial(find, searches=work))
            elif change.kind == POWER:
                plans = within_power(own, change, profile, answer, WorkWatch(looks=4 * looks))
            elif change.kind == STANDALONE_STAGES:
                plans = with_ends_alone(own, change, profile, answer)
            else:
                plans = []
                near.append(change)
            found += levers_of_best(own, answer, change, plans)
        for change, plans in zip(near, plans_nearby(own, near, profile, answer), strict=True):
            found += levers_of_best(own, answer, change, plans)
        found += one_group_alone(own, profile, answer, seconds=looks / LOOKS_PER_S)
        found += lighter(own, profile, answer, searches)
        found += _under_others(own, profile, answer, looks=2 * looks)
        found += of_launchers_without_room(own, answer, find)
        beside = partial(find, searches=WorkWatch(looks=looks))
        found += neighbours(own, profile, answer, beside)
        found += relaid(own, answer, recipes, find)
        found += _by_score(ranked, profile, answer, found, looks=looks)
    return in_order(_without_batches(problem, [*found, *packaged(problem, profile, answer)]))


def _under_others(problem: Problem, profile: Profile, answer: Answer, *, looks: int) -> Iterator[Lever]:
    """Yield other launchers, and products in 8 bits that only they have, near the plans of these."""
    found = [*of_launchers(problem, profile, answer, looks=looks)]
    yield from found
    known, searches = [lever.config for lever in found], WorkWatch(looks=looks)
    for change in precisions_elsewhere(problem):
        saved = _saved_by_part(found, change)
        plans = plans_near(problem, change, profile, answer, saved=saved, known=known)
        plans = plans or proved_plans(problem, change, profile, answer, searches)[0]
        levers = levers_of_best(problem, answer, change, plans)
        yield from (one for one in levers if one.saves > saved)


def _saved_by_part(levers: Iterable[Lever], change: Change) -> float:
    """Return what a change must save to be named beside those that are a part of it; 0 without any."""
    parts = [one.saves for one in levers if one.settings.items() < change.settings.items()]
    return max(parts) + worth_of(change.kind) if parts else 0.0


def _without_batches(problem: Problem, levers: Iterable[Lever]) -> Iterator[Lever]:
    """Yield the levers, without other batches where a request has several."""
    several = bool(problem.options.batch_sizes)
    return (one for one in levers if not (several and "workload.global_batch_size" in one.settings))


_FEW_OFFLOADED = 4000  # candidates with stages: a search of all that offload may free takes up to 1 s


def _is_searched(problem: Problem, change: Change, answer: Answer) -> bool:
    """Return whether a change is searched: it moves much memory, or there are few candidates.

    So are batches where the first plan leaves GPUs idle. With stages only other precisions are searched,
    since faster products favour other layouts, and offload, which may spare recomputation or stages.
    """
    asked = change.problem
    if change.moves_memory or (change.kind == "batch" and leaves_idle(problem, answer)):
        return True
    if not has_stages(asked):
        return is_small(asked)
    if change.kind == OFFLOAD:
        return estimated_outer(asked) <= _FEW_OFFLOADED
    return change.kind == "precision" and is_small(asked)


def has_levers(problem: Problem, answer: Answer) -> bool:
    """Return whether levers are searched: for plans on at most all GPUs, in a mesh or as stages.

    They are ranked by step, its quantile or energy, by tokens or hours of a GPU, and on the fewest nodes by
    anything.
    """
    options = problem.options
    if not answer.ranking:
        return False
    one_batch = options.deadline_days is None and not options.batch_sizes
    if options.gpus == "fewest":
        return one_batch and len(problem.cluster.groups) == 1
    energy_alone = counts_busy(problem) and one_batch
    by_step = options.objective in ("step_time", "robust") or (
        options.objective in PER_GPU and not options.num_nodes
    )
    if problem.places_stages:
        return options.objective == "step_time" and not options.batch_sizes
    return (by_step or energy_alone) and not problem.cluster.differs


def changes_of(problem: Problem) -> Iterator[Change]:
    """Yield the changes that a request leaves to the user, under its own launcher and under others."""
    yield from precisions(problem)
    yield from bases(problem)
    yield from switched(problem)
    yield from batches(problem)
    yield from batchings(problem)
    yield from offload(problem)
    yield from layouts(problem)
    yield from launchers(problem)


def _changes_by(ranked: Problem, problem: Problem) -> Iterator[Change]:
    """Return the changes that may save what ranks plans, and launchers that can rank plans by it.

    More GPUs that share a power save time alone.
    """
    by_step = ranked.options.objective == "step_time"
    able = {one.problem.launcher for one in launchers(ranked)}
    for one in changes_of(problem):
        if one.kind == "launcher":
            if one.problem.launcher in able:
                yield one
        elif by_step or one.kind != POWER:
            yield one


def _saves_time(problem: Problem, answer: Answer) -> bool:
    """Return whether levers of every kind are tried, which save time for each token.

    Where plans are ranked for each GPU and leave some idle, a change may rather use others.
    """
    per_gpu = problem.options.objective in PER_GPU or counts_busy(problem)
    idle = per_gpu and leaves_idle(problem, answer)
    return problem.options.gpus == "all" and not idle and not problem.places_stages


_BY_SCORE = 6  # times as many looks as other changes get are for searches by score


def _by_score(
    problem: Problem, profile: Profile, answer: Answer, known: Sequence[Lever] = (), *, looks: float
) -> list[Lever]:
    """Return what saves enough of what plans are ranked by, each by a search of its own.

    Nothing where that is the step, or goes with it on as many GPUs: other levers are sought by that.

    Args:
        problem: the request under the first plan, with its objective.
        profile: its costs.
        answer: its plans.
        known: levers that were sought by step, which a search is to match.
        looks: looks at the clock of other changes. Each search takes at most half of those left.
    """
    found, left = list[Lever](), _BY_SCORE * looks
    per_gpu = problem.options.objective in PER_GPU and leaves_idle(problem, answer)
    if not (per_gpu or counts_busy(problem)):
        return found
    for change in _changes_by_score(problem, profile):
        alike = [one.saves for one in known if one.settings == change.settings]
        saved = max([_saved_by_part((*known, *found), change), *alike])
        work = WorkWatch(looks=round(left / 2))
        with work.cut():
            found += by_score(problem, change, profile, answer, saved=saved)
        left -= round(left / 2) - work.looks_left
    return worth_both(found)


def _changes_by_score(problem: Problem, profile: Profile) -> Iterator[Change]:
    """Yield every change, likely ones first, for later ones get less work."""
    yield from near_batches(problem)
    yield from of_fewer_bits(problem)
    yield from _changes_by(problem, problem)
    yield from near_lengths(problem)
    yield from precisions_elsewhere(problem)
    for alike in without_room(problem):
        yield from alike
    yield from as_published(problem, profile)


def _without_time_levers(
    problem: Problem, profile: Profile, answer: Answer, *, looks: float
) -> Iterator[Lever]:
    """Return what saves time of stages on unlike nodes, or nodes, or what ranks plans."""
    if problem.places_stages:
        return _of_placed_stages(problem, profile, answer, seconds=looks / LOOKS_PER_S)
    if problem.options.gpus == "fewest":
        return saving_nodes(problem, profile, answer)
    by_score = _by_score(problem, profile, answer, looks=looks)
    return iter((*by_score, *packaged(problem, profile, answer, scored=True)))


def _of_placed_stages(
    problem: Problem, profile: Profile, answer: Answer, *, seconds: float
) -> Iterator[Lever]:
    """Yield launchers, fewer bits and rounder numbers, each by a search: no mesh is near to stages."""
    fewer_bits = (*precisions(problem), *precisions_elsewhere(problem), *of_fewer_bits(problem))
    for change in (*of_each_stack(problem), *fewer_bits, *rounder_numbers(problem)):
        if change.problem.places_stages and "search.allow" in change.settings:
            continue  # not available for these
        look()
        plans, _ = searched_plans(problem, within_seconds(change, seconds), profile, answer)
        yield from levers_of_best(problem, answer, change, plans)


def every_lever(problem: Problem, profile: Profile, answer: Answer, watch: Watch) -> tuple[Lever, ...]:
    """Return all changes that save enough to be named, each with the best plan of its own search."""
    if not has_levers(problem, answer):
        return ()
    own, found = under_first(problem, answer), list[Lever]()
    ranked = under_first(problem, answer, by_step=False)
    with watch.cut():
        looks = own.options.time_limit_s * LOOKS_PER_S
        if not _saves_time(ranked, answer):
            return in_order(_without_time_levers(ranked, profile, answer, looks=looks))
        if not counts_busy(ranked):
            for change in (*of_fewer_bits(own), *changes_of(own), *precisions_elsewhere(own)):
                look()
                plans, _ = searched_plans(own, change, profile, answer)
                found += levers_of_best(own, answer, change, plans)
        else:
            found += _by_score(ranked, profile, answer, looks=looks)
        found += one_group_alone(own, profile, answer, seconds=own.options.time_limit_s)
        find = partial(searched_plans, own, profile=profile, answer=answer)
        found += of_launchers_without_room(own, answer, find)
        found += relaid(own, answer, [*published(own, profile, answer)], find)
        found += neighbours(own, profile, answer, find)
    found = [*_without_batches(problem, [*found, *packaged(problem, profile, answer)])]
    ascending = sorted(found, key=lambda one: one.saves)
    best = {(one.kind, one.change): one for one in ascending if one.saves > worth_of(one.kind)}
    return tuple(sorted(best.values(), key=lambda one: (-one.saves, one.change)))
