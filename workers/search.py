"""The search as a worker calls it: with the profile that the problem names, or the one that ships."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.profiles.profile import Profile
from meshwright.service.db.database import Database
from meshwright.service.stores.profiles import ProfileStore
from meshwright.solver.answer import Answer
from meshwright.solver.clock import Watch
from meshwright.solver.configuration import Configuration
from meshwright.solver.planner.launchers import ask_and_compare
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import OnProgress, Problem, ShouldStop

_LEAST_S = 0.05  # of a search that begins with plans: enough to price them


class StoredSearch:
    """Searches with the profiles that a database holds."""

    def __init__(self, database: Database) -> None:
        self._profiles = ProfileStore(database)

    def __call__(
        self,
        problem: Problem,
        *,
        on_progress: OnProgress,
        should_stop: ShouldStop,
        known: Sequence[Configuration] = (),
        compared: bool = True,
    ) -> Answer:
        """Search with the profile that the problem names, or with the one that ships.

        ``known`` are configurations that an earlier search had found; this one begins with them.
        ``compared``: with changes that train faster.
        Where the service's own choice of a profile is left out, the time that is left finds the answer.
        """
        watch = Watch(time_limit_s=problem.options.time_limit_s)

        def answer(profile: Profile, found: Sequence[Configuration]) -> Answer:
            limit_s = max(watch.left_s, _LEAST_S) if found else problem.options.time_limit_s
            asked = replace(problem, options=replace(problem.options, time_limit_s=limit_s))
            answered = ask_and_compare if compared else ask
            return answered(
                asked, profile, on_progress=on_progress, should_stop=should_stop, known=(*found, *known)
            )

        return self._profiles.answered(problem, answer)
