"""The search as a worker calls it: with the profile that the problem names, or the one that ships."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.service.db.database import Database
from meshwright.service.stores.profiles import ProfileStore
from meshwright.solver.answer import Answer
from meshwright.solver.configuration import Configuration
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import OnProgress, Problem, ShouldStop


class StoredSearch:
    """Searches with the profiles that a database holds."""

    def __init__(self, database: Database, known: Sequence[Configuration] = ()) -> None:
        self._database = database
        self._known = known
        self._profiles = ProfileStore(database)

    def knowing(self, known: Sequence[Configuration]) -> StoredSearch:
        """The same, beginning with configurations that an earlier search had found."""
        return StoredSearch(self._database, known)

    def __call__(self, problem: Problem, *, on_progress: OnProgress, should_stop: ShouldStop) -> Answer:
        """Search with the profile that the problem names, or with the one that ships."""
        profile = self._profiles.profile_of(problem)
        return ask(problem, profile, on_progress=on_progress, should_stop=should_stop, known=self._known)
