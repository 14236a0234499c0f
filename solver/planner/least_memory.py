"""Least memory of a GPU that training takes under one launcher, and the fewest GPUs with room for it.

Not the memory of the fastest plan: of all legal configurations the one with the smallest peak, which
recomputes, shards and offloads as far as the launcher does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import Prediction, accepts_risk
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from meshwright.solver.search.feasible import lightest_of, nearest, some_fits_evenly
from meshwright.solver.search.priced_space import have_room, priced_rows, weighed_rows
from meshwright.solver.space.enumerate import enumerate_space, is_too_large
from meshwright.solver.space.launcher_choice import (
    LauncherChoice,
    as_asked_of_any,
    bound,
    chosen_launcher,
    launchers_able,
)

_ALL_ROWS = 50_000  # of more, those that recompute most are priced


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The configuration of least memory on some GPUs."""

    problem: Problem
    config: Configuration
    prediction: Prediction

    @property
    def num_gpus(self) -> int:
        """Return the GPUs that it runs on."""
        return self.config.num_gpus

    @property
    def fits(self) -> bool:
        """Return whether it stays within the risk of running out that the problem accepts."""
        return accepts_risk(self.problem, self.prediction)


def least_memory(problem: Problem) -> Need | None:
    """Return the configuration with the smallest peak, of rows with the smallest or fewest micro-batches.

    None where there is no row, or too many to write down.
    """
    light = _light(problem)
    return None if light is None else _least_of(problem, light)


def _light(problem: Problem) -> Columns | None:
    if problem.cluster.num_gpus > _FEW_GPUS and is_too_large(problem):
        return None
    space = enumerate_space(problem, legal_only=True)
    if not len(space.rows):
        return None
    index = lightest_of(space.rows)
    if len(space.rows) <= _ALL_ROWS:  # a rank with one layer is lighter without recomputing it
        sizes, passes = space.columns.micro_batch_size, space.columns.num_microbatches
        # gradients that several passes add up may lie whole on every rank, as FSDP2 has them
        index = np.flatnonzero((sizes == sizes.min()) | (passes == passes.min()))
    return space.rows.take(index)


def _least_of(problem: Problem, light: Columns) -> Need | None:
    profile = default_profile(problem.cluster, problem.priced_as)
    rows = priced_rows(problem, profile, light)
    if (found := nearest(rows)) is None:
        return None
    row, split = found
    (config,) = rows.take([row]).configurations([split])
    return Need(problem=problem, config=config, prediction=predict(problem, profile, config))


def first_that_fits(problems: Sequence[Problem]) -> Need | None:
    """Return the need of the first problem that it fits, else of the last; None: that has no legal row."""
    for problem in problems[:-1]:
        if have_room(problem, default_profile(problem.cluster, problem.priced_as)):
            need = least_memory(problem)
            if need is not None and need.fits:
                return need
    return least_memory(problems[-1])


_FEW_GPUS = 16  # on which a launcher's least memory takes some hundredths of a second


def default_launcher(problem: Problem) -> LauncherChoice:
    """Return the launcher of a question that names none: the first that can, and has room."""
    problem = as_asked_of_any(problem)
    choice = chosen_launcher(problem)
    if choice.launcher == "none" or not choice.able:
        return choice
    name = first_with_room(problem, (choice.launcher, *launchers_able(problem)))
    if name == choice.launcher:
        return choice
    why = f"memory: nothing fits under {choice.launcher}"
    return LauncherChoice(launcher=name, why=why, refused=choice.refused)


def first_with_room(problem: Problem, launchers: Sequence[str]) -> str:
    """Return the first launcher that a question fits, of some; the first one where none has room.

    Memory is asked about where GPUs are alike, and few or without a pipeline.
    """
    first = launchers[0]
    if not _asks_memory(problem, first):
        return first
    return next((name for name in dict.fromkeys(launchers) if _may_fit(problem, name)), first)


def may_have_room(problem: Problem) -> bool:
    """Return whether a question may fit under its launcher; True where memory is not asked about."""
    return not _asks_memory(problem, problem.launcher) or _may_fit(problem, problem.launcher)


def _asks_memory(problem: Problem, launcher: str) -> bool:
    pipelines = {*launcher_capabilities(launcher).schedules} - {"none"}
    return problem.cluster.is_homogeneous and (problem.cluster.num_gpus <= _FEW_GPUS or not pipelines)


def _may_fit(problem: Problem, launcher: str) -> bool:
    here = bound(problem, launcher)
    if is_too_large(here):
        return True
    light = _light(here)
    if light is None:
        return False
    if some_fits_evenly(weighed_rows(here, default_profile(here.cluster, here.priced_as), light)):
        return True
    need = _least_of(here, light)
    return need is not None and need.fits
