"""The linear relaxation of CP-SAT's model of a row, for slowest stages of at most some time.

Variables
  n[p] >= 0  stages of pattern p, in parts as well
  h[k]       stages between the ends with a deepest place of k or less, 0 <= h[k] <= k - 1
  u[K] >= 0  layers of a kind that no stage holds, and missing stages: the first, the last, and of all p
  c >= 0     forward passes that stages behind the slowest hide, for ``steps`` alone
Constraints, by the numbers of ``model``
  (1) and (3) with u for what is missing; (2) and (4): the stages of a group take no more GPUs than it has
  for each stage that begins it, of which there is at most one; (5) the first stage is at place p, and h
Objective
  minimise sum_p time_p n[p], with u = 0; where no such n exists, minimise sum u to prove that

A plan with a slowest stage of v <= M <= w has no pattern that takes longer than w, so that its closed form
is at least v + the least sum within w. The ladder of levels of the model, weak in its own relaxation, is
thereby replaced by a bisection of M. The solver's duals are taken as they come: by weak duality any of
them prove ``y b + sum_p min(0, c_p - y A_p) most_p``, which is added up here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import FloatArray, IntArray
from meshwright.solver.search.mixed.patterns import (
    ANYWHERE,
    ENDS,
    ROLES,
    Patterns,
    behind_others,
    most_of,
    patterns_of,
    patterns_of_any,
)
from meshwright.solver.search.mixed.rows import MixedRows

_SAFETY = 1e-9  # relative, of sums of doubles
_MISSING = 1e-4  # layers and stages that are missing: a larger lower bound proves that there is no plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """Bounds proved for plans with a slowest stage of at most some time."""

    sum_us: float  # least sum of their stages' times; +inf: there is no such plan
    more_us: FloatArray  # (N,) least amount by which a stage of each pattern raises that sum


class Relaxation:
    """The relaxation of a row, or of rows that have the same places for stages."""

    def __init__(
        self, rows: MixedRows, row: int, patterns: Patterns, legal: IntArray,
        *, slowest_us: IntArray | None = None, most_hidden: int | None = None,
    ) -> None:  # fmt: skip
        """Build it for some patterns.

        Args:
            rows: the priced rows.
            row: the one that is asked about, or one of several that are alike.
            patterns: its patterns, those of any of them.
            legal: numbers of stages.
            slowest_us: times that a plan's slowest stage may have, those of dominated patterns counted;
                without it the patterns'.
            most_hidden: the most forward passes that other stages hide, for ``least_us``.
        """
        from ortools.linear_solver import (  # type: ignore[import-untyped]  # noqa: PLC0415 (loaded late)
            pywraplp,
        )

        self.patterns, self._number = patterns, len(patterns)
        self.slowest_us = np.unique(patterns.slowest_us) if slowest_us is None else slowest_us
        self.most = most_of(rows, row, patterns)
        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        self._entries = list[tuple[IntArray, IntArray, FloatArray]]()
        self._low, self._high, self._upper = list[float](), list[float](), [self.most.astype(np.float64)]
        self._constrain(rows, row, legal)
        self._hidden = self._hide(most_hidden)
        self._load()

    @classmethod
    def of(
        cls, rows: MixedRows, numbers: Sequence[int], most_us: Sequence[float], range_at: int = 0,
        *, by_sender: bool = False, hides: bool = False,
    ) -> Relaxation:  # fmt: skip
        """Return the relaxation of one row, or of several rows that have the same stages to choose from.

        Args:
            rows: the priced rows.
            numbers: indices of the rows that the relaxation bounds.
            most_us: the longest stage that each may have, microseconds: all patterns up to it count.
            range_at: as ``patterns_of``.
            by_sender: as ``patterns_of``.
            hides: whether ``least_us`` is asked, which counts what stages hide.
        """
        each = [
            patterns_of(rows, row, limit_us, range_at, by_sender=by_sender)
            for row, limit_us in zip(numbers, most_us, strict=True)
        ]
        patterns = each[0] if len(each) == 1 else patterns_of_any(each)
        first = numbers[0]
        legal = rows.legal_stages(first, range_at)
        times_us = np.unique(np.concatenate([one.slowest_us for one in each]))
        most_hidden = None
        if hides:
            most_hidden = min(int(rows.num_microbatches[first]), int(legal.max(initial=1))) - 1
        return cls(rows, first, patterns, legal, slowest_us=times_us, most_hidden=most_hidden)

    def _constrain(self, rows: MixedRows, row: int, legal: IntArray) -> None:
        patterns, every = self.patterns, np.arange(self._number)
        counts = rows.layout.cumulative[-1].astype(np.float64)
        least = float(legal.min()) if len(legal) else 0.0
        missing = self._columns(np.append(counts, [1.0, 1.0, least]))
        for kind, layers in enumerate(counts.tolist()):
            held = patterns.counts[:, kind].astype(np.float64)
            self._row(layers, layers, (every, held), (missing[kind : kind + 1], np.ones(1)))
        gpus = rows.gpus_of_stage[patterns.option, row].astype(np.float64)
        group, begins = rows.group_of[patterns.option], np.isin(patterns.role, _BEGINS)
        for one in np.unique(group).tolist():
            here, opened = np.flatnonzero(group == one), np.flatnonzero((group == one) & begins)
            all_gpus = float(rows.fleet.groups[one].num_gpus)
            self._row(-np.inf, 0.0, (here, gpus[here]), (opened, np.full(len(opened), -all_gpus)))
            self._row(-np.inf, 1.0, (opened, np.ones(len(opened))))
        for entered, senders in behind_others(rows, row, patterns):
            self._row(-np.inf, 0.0, (entered, np.ones(len(entered))), (senders, -np.ones(len(senders))))
        first, ends = patterns.has_role("first"), patterns.has_role(*ENDS)
        short = [(missing[at : at + 1], np.ones(1)) for at in range(len(counts), len(missing))]
        for some, lacking in zip((first, ends), short, strict=False):
            self._row(1.0, 1.0, (some, np.ones(len(some))), lacking)
        reach = np.minimum(patterns.deepest[first], legal.max(initial=0)).astype(np.float64)
        self._row(-np.inf, 0.0, (every, np.ones(self._number)), (first, -reach))
        self._row(least, np.inf, (every, np.ones(self._number)), short[-1])
        between, deepest = patterns.has_role("middle", "entry"), patterns.deepest
        places = np.unique(deepest[between][deepest[between] < ANYWHERE])
        within = self._columns((places - 1).astype(np.float64))
        for at, place in enumerate(places.tolist()):
            tight = between[deepest[between] == place]
            before = within[at - 1 : at] if at else within[:0]
            self._row(0.0, 0.0, (within[at : at + 1], np.ones(1)), (before, -np.ones(len(before))),
                      (tight, -np.ones(len(tight))))  # fmt: skip

    def _hide(self, most: int | None) -> IntArray:
        """C <= stages - 1, which ``least_us`` counts."""
        hidden = self._columns(np.full(0 if most is None else 1, float(most or 0)))
        if len(hidden):
            every = np.arange(self._number)
            self._row(-np.inf, -1.0, (hidden, np.ones(1)), (every, -np.ones(self._number)))
        return hidden

    def _columns(self, upper: FloatArray) -> IntArray:
        begin = sum(map(len, self._upper))
        self._upper.append(np.asarray(upper, dtype=np.float64))
        return np.arange(begin, begin + len(upper))

    def _row(self, low: float, high: float, *parts: tuple[IntArray, FloatArray]) -> None:
        look()
        for columns, values in parts:
            self._entries.append((np.full(len(columns), len(self._low)), columns, values))
        self._low.append(low)
        self._high.append(high)

    def _load(self) -> None:
        """Hand the model over to the solver."""
        at, columns, values = (np.concatenate(parts) for parts in zip(*self._entries, strict=True))
        self._limits, upper = np.concatenate(self._upper), self._upper
        cells, same = np.unique(at * len(self._limits) + columns, return_inverse=True)
        at, columns = np.divmod(cells, len(self._limits))
        values = np.bincount(same, values)
        self._at, self._column, self._value = at, columns, values
        kinds = len(upper[1])
        self._missing = np.arange(self._number, self._number + kinds)
        self._cost = np.zeros(len(self._limits))
        self._cost[: self._number] = self.patterns.time_us
        solver = self._solver
        infinity = solver.infinity()
        self._variables = [solver.NumVar(0.0, most, "") for most in self._limits.tolist()]
        ends = zip(self._low, self._high, strict=True)
        self._rows = [solver.Constraint(max(low, -infinity), min(high, infinity)) for low, high in ends]
        for row, column, value in zip(at.tolist(), columns.tolist(), values.tolist(), strict=True):
            self._rows[row].SetCoefficient(self._variables[column], value)
        self._objective: Any = solver.Objective()
        self._objective.SetMinimization()
        self._now = self._limits.copy()
        self._aim = np.zeros(len(self._limits))

    def within(self, most_us: float) -> Relaxed:
        """Return the bounds of plans in which every stage takes at most a time."""
        look()
        limits, able = self._limits.copy(), self.patterns.slowest_us <= most_us
        limits[: self._number] = np.where(able, limits[: self._number], 0.0)
        none = limits.copy()
        none[self._missing] = 0.0
        solved, sum_us, more_us = self._solved(none, self._cost)
        if not solved:
            missed = np.zeros(len(limits))
            missed[self._missing] = 1.0
            if self._solved(limits, missed)[1] > _MISSING:
                sum_us = np.inf
        return Relaxed(sum_us=sum_us, more_us=np.where(able, more_us[: self._number], np.inf))

    def least_us(self, most_us: float, hidden_us: float) -> float:
        """Return a lower bound of the sum of all stages' times, less so much for each hidden pass.

        Of plans in which no stage takes longer than ``most_us`` for a micro-batch; +inf: there are none.
        """
        look()
        limits, cost = self._limits.copy(), self._cost.copy()
        limits[: self._number] = np.where(self.patterns.time_us <= most_us, limits[: self._number], 0.0)
        cost[self._hidden] = -hidden_us
        none = limits.copy()
        none[self._missing] = 0.0
        solved, sum_us, _ = self._solved(none, cost)
        if solved:
            return sum_us
        missed = np.zeros(len(limits))
        missed[self._missing] = 1.0
        return (
            np.inf
            if self._solved(limits, missed)[1] > _MISSING
            else -float(hidden_us * limits[self._hidden].sum())
        )

    def _solved(self, limits: FloatArray, cost: FloatArray) -> tuple[bool, float, FloatArray]:
        """Return (whether there is a solution, a lower bound of the objective, reduced costs)."""
        for at in np.flatnonzero(limits != self._now).tolist():
            self._variables[at].SetUb(float(limits[at]))
        for at in np.flatnonzero(cost != self._aim).tolist():
            self._objective.SetCoefficient(self._variables[at], float(cost[at]))
        self._now, self._aim = limits, cost
        solved = self._solver.Solve() == self._solver.OPTIMAL
        if not solved:
            return False, 0.0, np.zeros(len(limits))
        dual = np.array([one.dual_value() for one in self._rows])
        low, high = np.array(self._low), np.array(self._high)
        dual = np.where(dual > 0.0, np.where(np.isfinite(low), dual, 0.0),
                        np.where(np.isfinite(high), dual, 0.0))  # fmt: skip
        given = dual * np.where(dual > 0.0, np.where(np.isfinite(low), low, 0.0),
                                np.where(np.isfinite(high), high, 0.0))  # fmt: skip
        taken = np.bincount(self._column, dual[self._at] * self._value, minlength=len(limits))
        reduced = cost - taken
        below = np.minimum(reduced, 0.0) * limits
        total = float(given.sum() + below.sum())
        slack = _SAFETY * float(np.abs(given).sum() + np.abs(below).sum() + 1.0)
        least = 0.0 if (cost >= 0.0).all() else -np.inf
        return True, max(total - slack, least), np.maximum(reduced, 0.0)


_BEGINS = [ROLES.index(one) for one in ("entry", "last entry", "first")]
