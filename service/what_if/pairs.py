"""Two changes at once: small tables of GPUs against batch, and of GPUs against network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from meshwright.service.report import formatting as figures
from meshwright.service.report.what_if import HeatCell, HeatTable
from meshwright.service.what_if.carried import CarriedConfiguration, WhatIfPlan, carried_over
from meshwright.service.what_if.changes import WhatIfChange, WhatIfQuestion, batches, network
from meshwright.solver.clock import Watch

Outcome = WhatIfPlan | Literal["late", "unknown"] | None  # None: nothing fits of what was asked
LEVELS = 6  # of colour
PAIR_METHOD = (
    "Two changes at once: total tokens per second compared with the original question, and "
    "the step. The row and the column as asked are the lines above. Every other cell "
    "predicts their plans, so a search of that question may find a faster one."
)
_BESIDE: Mapping[str, Callable[[WhatIfQuestion], Iterator[WhatIfChange]]] = {
    "batch": batches,
    "network": network,
}
_TITLES = {"batch": "GPUs and batch", "network": "GPUs and network between nodes"}
WORDS: Mapping[Literal["late", "unknown"] | None, str] = {
    "late": "not computed: out of time",
    "unknown": "not known: too many configurations to search them all",
    None: "nothing found that fits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """One changed question with its outcome."""

    change: WhatIfChange
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The inputs of pairs of changes."""

    asked: WhatIfQuestion
    now: WhatIfPlan
    singles: Sequence[Single]
    listed: Sequence[CarriedConfiguration]  # the best plans of the question as asked
    watch: Watch  # of all cells

    def tables(self) -> tuple[HeatTable, ...]:
        """Return GPUs in rows, batches or networks in columns; none where one of them cannot be changed."""
        rows = self._of("GPUs")
        found = [(subject, self._of(subject)) for subject in _BESIDE]
        return tuple(self._table(subject, rows, columns) for subject, columns in found if rows and columns)

    def _of(self, subject: str) -> list[Single]:
        own = [one for one in self.singles if one.change.subject == subject]
        return sorted(own, key=lambda one: one.change.factor)

    def _table(self, subject: str, rows: Sequence[Single], columns: Sequence[Single]) -> HeatTable:
        lines, heads = _with_asked(rows), _with_asked(columns)
        outcomes = [[self._outcome(subject, row, column) for column in heads] for row in lines]
        most = max(one.rate for line in outcomes for one in line if isinstance(one, WhatIfPlan))
        return HeatTable(
            title=_TITLES[subject],
            columns=tuple(_title(one) for one in heads),
            rows=tuple(
                (_title(row), tuple(self._cell(one, most) for one in line))
                for row, line in zip(lines, outcomes, strict=True)
            ),
        )

    def _outcome(self, subject: str, row: Single | None, column: Single | None) -> Outcome:
        if row is None or column is None:
            one = row or column
            return one.outcome if one else self.now
        if self.watch.interrupted():
            return "late"
        for change in _BESIDE[subject](row.change.question):
            if change.factor == column.change.factor:
                single = [
                    one.outcome.candidate for one in (row, column) if isinstance(one.outcome, WhatIfPlan)
                ]
                return carried_over(self.asked, change.question, [*single, *self.listed])
        return row.outcome  # on one island there is no other network to take

    def _cell(self, outcome: Outcome, most: float) -> HeatCell:
        if not isinstance(outcome, WhatIfPlan):
            return HeatCell(text="–", title=WORDS[outcome] if outcome else "nothing carried over fits")
        return HeatCell(
            text=f"×{outcome.rate / self.now.rate:.2f}",
            step=figures.seconds(outcome.prediction.step_time_s),
            title=figures.configuration_words(outcome.candidate.configuration),
            level=round(LEVELS * outcome.rate / most),
            is_asked=outcome is self.now,
        )


def _with_asked(singles: Sequence[Single]) -> list[Single | None]:
    less = [one for one in singles if one.change.factor < 1]
    return [*less, None, *(one for one in singles if one.change.factor > 1)]


def _title(single: Single | None) -> str:
    if single is None:
        return "as asked"
    return single.change.words.removesuffix(" between nodes").removeprefix("network between nodes ")
