"""One line of the comparison, and the table of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from benchmarks.against.process import Run

_WHOLE_S = 100.0  # from here on without decimals
HEADINGS = ("planner", "covered", "CPU", "step by the peer's judge", "step by Meshwright's")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one planner answered to a question, and what that took; whole processes are timed."""

    planner: str
    covered: str
    cpu_s: float
    by_peer: str = "–"
    by_us: str = "–"

    @classmethod
    def of(
        cls, planner: str, covered: str, runs: Sequence[Run], *, by_peer: str = "–", by_us: str = "–"
    ) -> Self:
        """The row of a planner that answered so in these runs; their medians count."""
        return cls(
            planner=planner,
            covered=covered,
            cpu_s=median_of([run.cpu_s for run in runs]),
            by_peer=by_peer,
            by_us=by_us,
        )

    def cells(self) -> tuple[str, ...]:
        """As shown."""
        return (self.planner, self.covered, seconds(self.cpu_s), self.by_peer, self.by_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One question put to a peer and to us."""

    question: str
    rows: tuple[Row, ...]
    remarks: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """As Markdown."""
        head = [f"**{self.question}**", "", f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|"]
        body = [f"| {' | '.join(row.cells())} |" for row in self.rows]
        return [*head, *body, "", *(f"* {remark}" for remark in self.remarks), ""]


def seconds(value: float) -> str:
    """A time with three digits that count."""
    if value < 1.0:
        return f"{1e3 * value:.3g} ms"
    return f"{value:.2f} s" if value < _WHOLE_S else f"{value:.0f} s"


def counted(number: int, what: str) -> str:
    """A number with its thousands apart, and what was counted."""
    return f"{number:,} {what}".replace(",", " ")


def judged(step_s: float | None, *, fits: bool) -> str:
    """A step as a judge prices it, and whether the judge finds room for it."""
    if step_s is None:
        return "not expressible"
    return seconds(step_s) + ("" if fits else ", does not fit")


def ratio_remark(name: str, theirs_s: float, ours_s: float, target: float) -> str:
    """How much less CPU time ours takes, and whether that is as much less as it should be."""
    ratio = theirs_s / ours_s
    verdict = "reached" if ratio >= target else "missed"
    return f"CPU time: {ratio:.1f} × less than {name} (target {target:g} ×: {verdict})"


def median_of(values: Sequence[float]) -> float:
    """The middle value, the lower one of two."""
    return sorted(values)[(len(values) - 1) // 2]
