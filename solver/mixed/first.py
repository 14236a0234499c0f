"""Whether a problem on a mixed cluster has a plan at all."""

from __future__ import annotations

from typing import Literal

from profiles.profile import Profile
from solver.mixed.fleet import Fleet
from solver.mixed.frontier import PlacedFrontier
from solver.mixed.outer import Outer, outer_of
from solver.mixed.plans import of_placement, of_split
from solver.mixed.sets import sets_of
from solver.mixed.shares import shares_of, solve_split
from solver.plan import Configuration
from solver.problem import Problem
from solver.search.watch import look

First = Configuration | Literal["unknown"] | None


def first_plan(problem: Problem, profile: Profile) -> First:
    """A configuration that is legal and fits; None: there is none (proved); unknown: none among a sample.

    Of the usual candidates and, where none of them does, of all (``outer_of``), as the search itself.

    Raises:
        OutOfTime: the clock that this runs under was over first.
    """
    fleet = Fleet.of(problem, profile)
    found = _first(outer_of(fleet)[0])
    return found if isinstance(found, Configuration) else _first(outer_of(fleet, wide=True)[0])


def _first(outer: Outer) -> First:
    """The first one that is met."""
    frontier = PlacedFrontier.of(outer, 1)
    frontier.run(lambda state: bool(state.ranked))
    if frontier.ranked:
        return of_placement(outer, frontier.ranked[0]).config
    look()  # a frontier ends in silence where the time is over
    shares = shares_of(outer) if len(outer) else []
    for groups in sets_of(len(shares)):
        exchange = outer.fleet.exchange_s(groups)
        split = solve_split(shares, groups, exchange)
        if split is not None:
            return of_split(outer.fleet, shares, split).config
    return None if outer.whole else "unknown"
