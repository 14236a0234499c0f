"""Whether a problem on a mixed cluster has a plan at all; *no* is a proof unless the search was stopped."""

from __future__ import annotations

from collections.abc import Callable

from profiles.profile import Profile
from solver.mixed.fleet import Fleet
from solver.mixed.frontier import PlacedFrontier
from solver.mixed.outer import Outer, outer_of
from solver.mixed.plans import of_placement, of_split
from solver.mixed.sets import sets_of
from solver.mixed.shares import shares_of, solve_split
from solver.plan import Configuration
from solver.problem import Problem


def first_plan(
    problem: Problem, profile: Profile, stopped: Callable[[], bool] = lambda: False
) -> Configuration | None:
    """A configuration that is legal and fits; None: there is none, or ``stopped`` said so first.

    Of the usual candidates and, where none of them does, of all (``outer_of``), as the search itself.
    """
    fleet = Fleet.of(problem, profile)
    found = _first(outer_of(fleet)[0], stopped)
    if found is None and not stopped():
        found = _first(outer_of(fleet, wide=True)[0], stopped)
    return found


def _first(outer: Outer, stopped: Callable[[], bool]) -> Configuration | None:
    """The first one that is met."""
    frontier = PlacedFrontier.of(outer, 1)
    frontier.run(lambda state: bool(state.ranked) or stopped())
    if frontier.ranked:
        return of_placement(outer, frontier.ranked[0]).config
    shares = shares_of(outer) if len(outer) else []
    for groups in sets_of(len(shares)):
        exchange = outer.fleet.exchange_s(groups)
        split = solve_split(shares, groups, exchange, stopped=stopped)
        if split is not None:
            return of_split(outer.fleet, shares, split).config
    return None
