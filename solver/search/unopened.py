"""Kinds of rows that nobody looked at yet, best bound first: most of a million rows stay there.

``bounds.least_of_kind_s`` bounds every row of a kind, and memory refutes most kinds at sight, so a kind's
rows are numbered, priced and bounded one by one only when its turn comes. Kinds that differ in the size of
their shard sets alone are one *family*: its bound is that of prices that no size undercuts
(``cost.price.price_unsharded``), and its kinds are priced and bounded one by one once that comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from solver.columns import FloatArray, IntArray
from solver.search.bounds import least_of_kind_s, objective_bound_s
from solver.search.kinds import Families, Kinds
from solver.search.priced import CHUNK, Priced

AT_ONCE = 16384  # rows opened together
_APART, _MANY = 2048, 16384  # kinds priced together at least, and at most


def _none() -> FloatArray:
    return np.zeros(0)


@dataclass(slots=True, kw_only=True)
class Unopened:
    """Kinds in the order of their bounds, those before ``at`` open, and families not taken apart."""

    rows: Priced
    kinds: Kinds
    families: Families  # best bound first; kinds that memory refutes at sight are none of their members
    families_s: FloatArray  # bounds of the families in that order
    families_objective_s: FloatArray  # bounds on the closed form of each family, in that order
    families_rows: IntArray  # rows of each family
    order: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # kinds taken apart
    bound_s: FloatArray = field(default_factory=_none)  # of the kinds in that order
    objective_s: FloatArray = field(default_factory=_none)  # bound on the closed form of each kind
    behind: IntArray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    at: int = 0

    @classmethod
    def of(cls, rows: Priced, stopped: Callable[[], bool]) -> Unopened | None:
        """All kinds that may fit; None when ``stopped`` says to give up."""
        kinds, families = rows.kinds, rows.families
        if kinds is None or families is None:
            raise ValueError("rows that were written down have no kinds")
        first = families.members[families.begin[:-1]]
        bounds, objectives = np.zeros(len(first)), np.zeros(len(first))
        for start in range(0, len(first), CHUNK):
            if stopped():
                return None
            here = first[start : start + CHUNK]
            quickest = rows.quickest_of_families(here)
            bounds[start : start + CHUNK] = least_of_kind_s(quickest)
            objectives[start : start + CHUNK] = objective_bound_s(quickest, kinds.least_fill[here])
        order = np.argsort(bounds, kind="stable")
        each = kinds.sizes[first] * families.sizes  # kinds of a family have the same chunkings
        found = cls(
            rows=rows,
            kinds=kinds,
            families=families.take(order),
            families_s=bounds[order],
            families_objective_s=objectives[order],
            families_rows=each[order],
        )
        found._settle()
        return found

    def _take_apart(self, index: IntArray) -> None:
        """Price and bound the kinds of some families, and sort them in."""
        fresh = self.families.members_of(index)
        bounds, objectives = np.zeros(len(fresh)), np.zeros(len(fresh))
        for start in range(0, len(fresh), CHUNK):
            here = fresh[start : start + CHUNK]
            quickest = self.rows.quickest(here)
            bounds[start : start + CHUNK] = least_of_kind_s(quickest)
            objectives[start : start + CHUNK] = objective_bound_s(quickest, self.kinds.least_fill[here])
        left = np.ones(len(self.families), dtype=np.bool_)
        left[index] = False
        self.families, self.families_s = self.families.take(np.flatnonzero(left)), self.families_s[left]
        self.families_objective_s, self.families_rows = (
            self.families_objective_s[left],
            self.families_rows[left],
        )
        order, bounds = np.append(self.order, fresh), np.append(self.bound_s, bounds)
        waiting = self.at + np.lexsort((order[self.at :], bounds[self.at :]))
        by_bound = np.concatenate([np.arange(self.at), waiting])
        self.order, self.bound_s = order[by_bound], bounds[by_bound]
        self.objective_s = np.append(self.objective_s, objectives)[by_bound]
        self.behind = np.concatenate([[0], np.cumsum(self.kinds.sizes[self.order])])

    def _settle(self) -> None:
        """Take families apart until the next AT_ONCE rows are those of least bound, or nearly so.

        Once _MANY kinds are taken apart for that, it is enough that the first of them are.
        """
        taken = 0
        while len(self.families):
            last = self._end() - 1
            enough = last >= self.at and self.behind[last + 1] - self.behind[self.at] >= AT_ONCE
            sure = self.bound_s[last if taken < _MANY else self.at] if enough else -np.inf
            if enough and sure < self.families_s[0]:
                return
            number = int(np.searchsorted(self.families_s, sure, side="right"))
            most = int(np.searchsorted(self.families.begin, _MANY, side="right")) - 1
            few = int(np.searchsorted(self.families.begin, _APART))
            number = max(min(max(number, few), most, len(self.families)), 1)
            taken += int(self.families.begin[number])
            self._take_apart(np.arange(number))

    def _end(self) -> int:
        """Where the kinds of the next AT_ONCE rows, or a few more, end."""
        enough = int(np.searchsorted(self.behind, self.behind[self.at] + AT_ONCE))
        return min(max(enough, self.at + 1), len(self.order))

    @property
    def least_s(self) -> float:
        """No row that is not open steps faster."""
        waiting = float(self.bound_s[self.at]) if self.at < len(self.order) else np.inf
        return min(waiting, float(self.families_s[0]) if len(self.families) else np.inf)

    @property
    def least_objective_s(self) -> float:
        """No row's closed form is less, open or not."""
        return float(
            min(self.objective_s.min(initial=np.inf), self.families_objective_s.min(initial=np.inf))
        )

    def rows_within(self, limit_s: float) -> int:
        """How many rows that are not open may have no larger bound."""
        end = int(np.searchsorted(self.bound_s, limit_s, side="right"))
        far = int(np.searchsorted(self.families_s, limit_s, side="right"))
        waiting = int(self.behind[max(end, self.at)] - self.behind[self.at])
        return waiting + int(self.families_rows[:far].sum())

    def open(self) -> IntArray:
        """The rows of the next kinds, AT_ONCE of them or a few more."""
        self._settle()
        begin, self.at = self.at, self._end()
        return self.kinds.rows(self.order[begin : self.at])

    def open_objectives(self, limit_s: float) -> IntArray:
        """The rows that are not open and whose closed form may be less; they stay where they are."""
        if len(near := np.flatnonzero(self.families_objective_s < limit_s)):
            self._take_apart(near)
        left = slice(self.at, None)
        return self.kinds.rows(self.order[left][self.objective_s[left] < limit_s])
