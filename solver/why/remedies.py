"""Nothing fits: the nearest changes that do, each with its best plan, cheapest first.

A change is offered only after its own space was searched and its best plan has passed the independent
check; it costs the GPU seconds of a token. Changes of the request and of its methods come before less
work, that before hardware.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from profiles.profile import Profile
from solver.check import violations
from solver.plan import Configuration, Infeasibility, Prediction, Remedy
from solver.predict import predict
from solver.problem import Problem
from solver.search.fitting import some_fits
from solver.search.frontier import Frontier
from solver.search.priced import priced_space
from solver.search.watch import Watch, look
from solver.space import enumerate_space, is_too_large
from solver.why.relaxed import (
    Change,
    asked_less,
    done_otherwise,
    less_work,
    missing,
    more_hardware,
    other_gpus,
    remedy_of,
)

_MOST = 8
_ENOUGH = 2  # of the kinds where each further change only goes further

Fastest = tuple[Configuration, Prediction] | Literal["unknown"] | None


def with_remedies(
    problem: Problem,
    profile: Profile,
    found: Infeasibility,
    watch: Watch,
) -> Infeasibility:
    """The reasons with verified changes, those that were found before the time was over; they say so."""
    groups: list[list[Remedy]] = [[] for _ in range(4)]
    complete, judged = False, True
    with watch.cut():
        kinds = (
            (_free(problem, profile, found), _MOST),
            (less_work(problem, profile), _ENOUGH),
            (more_hardware(problem, profile), 1),
            (other_gpus(problem), 1),
        )
        for group, (changes, enough) in zip(groups, kinds, strict=True):
            judged &= _add_fitting(group, changes, enough)
        complete = True
    found = replace(found, reasons=(*found.reasons, *missing(complete=complete, judged=judged)))
    cheap, work, nodes, gpus = (sorted(group, key=lambda one: one.gpu_s_per_token) for group in groups)
    hardware = sorted([*nodes, *gpus], key=lambda one: one.gpu_s_per_token)
    remedies = (*cheap[: _MOST - 3], *work[:1], *hardware)
    if not remedies:
        return found
    return replace(found, remedies=remedies, changes=tuple(remedy.change for remedy in remedies))


def _free(problem: Problem, profile: Profile, found: Infeasibility) -> Iterator[Change]:
    """What needs neither other work nor other machines."""
    yield from asked_less(problem, profile, found.nearest)
    yield from done_otherwise(problem, profile)


def _add_fitting(group: list[Remedy], changes: Iterator[Change], enough: int) -> bool:
    """Add changes that have a plan until there are ``enough``; whether all that were tried were judged."""
    judged = True
    for change in changes:
        if len(group) == enough:
            break
        look()
        if change.last_resort and group:
            continue
        best = fastest(change.problem, change.profile)
        if best is None or best == "unknown":
            judged &= best is None
            continue
        config, prediction = best
        workload = change.problem.workload
        tokens = workload.global_batch_size * workload.seq_length
        group.append(remedy_of(change.words, config, prediction, tokens=tokens))
    return judged


def fastest(problem: Problem, profile: Profile, *, wide: bool = False) -> Fastest:
    """The first plan of a problem, proved and checked; no reasons are sought.

    Of the usual candidates and, where none of them fits, of all (``wide``), as the search itself. None:
    nothing fits (proved); unknown: there are too many configurations to look at all of them.

    Raises:
        OutOfTime: the clock that this runs under was over first.
    """
    if is_too_large(problem, wide=wide):
        return "unknown"
    space = enumerate_space(problem, legal_only=True, wide=wide)
    if not _ties(problem) and not some_fits(problem, profile, space.rows):
        return None if space.every else fastest(problem, profile, wide=True)
    priced = priced_space(problem, profile, space.rows)
    if len(priced) < len(space.rows):  # too many to price
        return "unknown"
    frontier = Frontier.of(priced, 1)
    frontier.run(lambda _: False)
    look()  # a frontier ends in silence where the time is over
    if not frontier.ranked:
        return None if space.every else fastest(problem, profile, wide=True)
    first = frontier.ranked[0]
    row = frontier.rows.take([first.row])
    config = row.columns.configuration(0, first.split, row.replayed([first.split])[0])
    if any(violations(problem, profile, config)):
        return "unknown"
    return config, predict(problem, profile, config)


def _ties(problem: Problem) -> bool:
    """Whether the request ties variables to one another: then the lightest rows do not stand for all."""
    return bool(problem.options.constraints) or "num_microbatches" in problem.options.named
