"""Nothing fits: the nearest changes that do, each with its best plan, cheapest first.

A change is offered only after its own space was searched and its best plan has passed the independent
check; it costs the GPU seconds of a token. Changes of the request and of its methods come before less
work, that before hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

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
    CUT,
    Change,
    asked_less,
    done_otherwise,
    less_work,
    more_hardware,
    other_gpus,
    remedy_of,
)

_MOST = 8
_ENOUGH = 2  # of the kinds where each further change only goes further


def with_remedies(
    problem: Problem,
    profile: Profile,
    found: Infeasibility,
    watch: Watch,
) -> Infeasibility:
    """The reasons with verified changes, those that were found before the time was over; they say so."""
    groups: list[list[Remedy]] = [[] for _ in range(4)]
    complete = False
    with watch.cut():
        kinds = (
            (_free(problem, profile, found), _MOST),
            (less_work(problem, profile), _ENOUGH),
            (more_hardware(problem, profile), 1),
            (other_gpus(problem), 1),
        )
        for group, (changes, enough) in zip(groups, kinds, strict=True):
            _add_fitting(group, changes, enough)
        complete = True
    found = found if complete else replace(found, reasons=(*found.reasons, CUT))
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


def _add_fitting(group: list[Remedy], changes: Iterator[Change], enough: int) -> None:
    """Add changes that have a plan, ``enough`` of them at most."""
    for change in changes:
        look()
        if len(group) == enough:
            return
        if change.last_resort and group:
            continue
        best = fastest(change.problem, change.profile)
        if best is None:
            continue
        config, prediction = best
        workload = change.problem.workload
        tokens = workload.global_batch_size * workload.seq_length
        group.append(remedy_of(change.words, config, prediction, tokens=tokens))


def fastest(
    problem: Problem, profile: Profile, stopped: Callable[[], bool] = lambda: False
) -> tuple[Configuration, Prediction] | None:
    """The first plan of a problem, proved and checked; no reasons are sought.

    None where nothing fits, or where ``stopped`` says to give up before it is proved.
    """
    if is_too_large(problem):
        return None
    rows = enumerate_space(problem, stopped, legal_only=True).rows
    if not some_fits(problem, profile, rows):
        return None
    frontier = Frontier.of(priced_space(problem, profile, rows, stopped), 1, stopped)
    frontier.run(lambda _: stopped())
    if not frontier.ranked or not frontier.finished:
        return None
    first = frontier.ranked[0]
    row = frontier.rows.take([first.row])
    config = row.columns.configuration(0, first.split, row.replayed([first.split])[0])
    faults: Sequence[str] = list(violations(problem, profile, config))
    return None if faults else (config, predict(problem, profile, config))
