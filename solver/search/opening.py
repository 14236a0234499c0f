"""A first plan before anything else, so that a search that is stopped early has something to show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from profiles.profile import Profile
from solver.columns import Columns, IntArray
from solver.crossing import Crossing
from solver.problem import Problem
from solver.search.fitting import lightest_of
from solver.search.frontier import Frontier
from solver.search.priced import priced_space
from solver.search.scout import FITS_AT_ALL
from solver.space import Space

_SAMPLE = 1024  # rows looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A row that has a split that fits."""

    row: int  # of the space, whose rows are legal
    frontier: Frontier  # a few rows with this one ranked


def first_plan(
    problem: Problem, profile: Profile, space: Space, tick: Callable[[], object] = lambda: None
) -> Opening | None:
    """A good row among a sample of the legal ones, or, where none fits, among the lightest ones.

    None: no sampled row has a split that fits, which proves nothing. ``tick`` is called now and then.
    """
    count = len(space.rows)
    for sample in (_spread, lambda _: _lightest(space.rows)):
        index = sample(count)
        rows = priced_space(problem, profile, space.rows.take(index))
        tick()
        frontier = Frontier.of(rows, 1)
        frontier.covers_all, frontier.raises = len(index) == count, ()
        if not rows.is_uniform:  # of layers of one kind those that fit are known
            frontier.raises = FITS_AT_ALL
        frontier.run(lambda state: bool(tick() or state.ranked))
        if frontier.ranked:
            return Opening(row=int(index[frontier.ranked[0].row]), frontier=frontier)
    return None


def _spread(count: int) -> IntArray:
    """Row numbers from end to end."""
    return (
        np.unique(np.linspace(0, count - 1, min(count, _SAMPLE)).astype(np.int64))
        if count
        else np.arange(0)
    )


def _lightest(rows: Columns | Crossing) -> IntArray:
    """The rows that need least memory, evenly thinned out."""
    light = lightest_of(rows)
    return light[_spread(len(light))]
