"""Kinds of rows that nobody looked at yet, best bound first: most of a million rows stay there.

``bounds.least_of_kind_s`` bounds every row of a kind, and memory refutes most kinds at sight, so a kind's
rows are numbered, priced and bounded one by one only when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from solver.columns import FloatArray, IntArray
from solver.search.bounds import least_of_kind_s, objective_bound_s
from solver.search.kinds import Kinds
from solver.search.priced import CHUNK, Priced

AT_ONCE = 16384  # rows opened together


@dataclass(slots=True, kw_only=True)
class Unopened:
    """Kinds in the order of their bounds; those before ``at`` are open."""

    kinds: Kinds
    order: IntArray
    bound_s: FloatArray  # of the kinds in that order
    objective_s: FloatArray  # bound on the closed form of each kind, in that order
    behind: IntArray  # rows of the kinds before each place, and of all of them
    at: int = 0

    @classmethod
    def of(cls, rows: Priced, kinds: Kinds, stopped: Callable[[], bool]) -> Unopened | None:
        """All kinds that may fit; None when ``stopped`` says to give up."""
        able = np.flatnonzero(rows.price_of >= 0)
        bounds, objectives = np.zeros(len(able)), np.zeros(len(able))
        for start in range(0, len(able), CHUNK):
            if stopped():
                return None
            here = able[start : start + CHUNK]
            quickest = rows.quickest(here)
            bounds[start : start + CHUNK] = least_of_kind_s(quickest)
            objectives[start : start + CHUNK] = objective_bound_s(quickest, kinds.least_fill[here])
        order = np.argsort(bounds, kind="stable")
        return cls(
            kinds=kinds,
            order=able[order],
            bound_s=bounds[order],
            objective_s=objectives[order],
            behind=np.concatenate([[0], np.cumsum(kinds.sizes[able[order]])]),
        )

    @property
    def least_s(self) -> float:
        """No row that is not open steps faster."""
        return float(self.bound_s[self.at]) if self.at < len(self.order) else np.inf

    def rows_within(self, limit_s: float) -> int:
        """How many rows that are not open have no larger bound."""
        end = int(np.searchsorted(self.bound_s, limit_s, side="right"))
        return int(self.behind[max(end, self.at)] - self.behind[self.at])

    def open(self) -> IntArray:
        """The rows of the next kinds, AT_ONCE of them or a few more."""
        enough = int(np.searchsorted(self.behind, self.behind[self.at] + AT_ONCE))
        begin, self.at = self.at, min(max(enough, self.at + 1), len(self.order))
        return self.kinds.rows(self.order[begin : self.at])

    def open_objectives(self, limit_s: float) -> IntArray:
        """The rows that are not open and whose closed form may be less; they stay where they are."""
        left = slice(self.at, None)
        return self.kinds.rows(self.order[left][self.objective_s[left] < limit_s])
