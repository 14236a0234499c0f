"""What others say fits on which cards, next to our answers: ``make bench ARGS=fits``.

``data/fits.yaml`` has the statements with their sources. Each is asked under every launcher that can
express it, and the best verdict counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.fit.accuracy_tables import table
from meshwright.profiles.units import GIB
from meshwright.service.requests.parse import parse_problem
from meshwright.service.requests.parts import named_parts
from meshwright.solver.planner.fits import Fit, fit_of
from meshwright.solver.space.launcher_choice import bound, launchers_able

DATA = Path(__file__).parent / "data" / "fits.yaml"
_ORDER = ("yes", "tight", "no")


@dataclass(frozen=True, slots=True)
class Judged:
    """One statement, and the best answer of all launchers."""

    statement: Mapping[str, Any]
    launcher: str  # empty: none can express it
    fit: Fit | None

    @property
    def verdict(self) -> str:
        """Return yes, tight or no; also no where no launcher can express it."""
        return "no" if self.fit is None else self.fit.verdict

    @property
    def is_right(self) -> bool:
        """Return whether there is an answer, and it agrees with the statement."""
        return self.fit is not None and bool(self.statement["fits"]) == (self.verdict != "no")

    def cells(self) -> list[str]:
        """Return the row of a table."""
        ours = (
            "–" if self.fit is None else f"{self.fit.lightest.prediction.peak_memory_bytes / GIB:.1f} GiB"
        )
        said = "fits" if self.statement["fits"] else "does not fit"
        return [
            self.statement["id"], said, str(self.statement["published"]), self.verdict, ours,
            self.launcher or "none", "" if self.is_right else "wrong",
        ]  # fmt: skip


def statements() -> list[Mapping[str, Any]]:
    """Return the statements, in the order in which they were written down."""
    found: list[Mapping[str, Any]] = yaml.safe_load(DATA.read_text())
    return found


def judged(statement: Mapping[str, Any]) -> Judged:
    """Return the best answer to a statement, of its launchers that can express it."""
    problem = parse_problem({**named_parts(statement["request"]), "launcher": "any"})
    able = [name for name in launchers_able(problem) if name in statement.get("launchers", (name,))]
    answers = ((name, fit_of(bound(problem, name))) for name in able)
    found = [(name, fit) for name, fit in answers if fit is not None]
    if not found:
        return Judged(statement, "", None)
    return Judged(statement, *min(found, key=lambda one: _rank(one[1])))


def _rank(fit: Fit) -> tuple[int, float]:
    return _ORDER.index(fit.verdict), fit.lightest.prediction.out_of_memory_probability


def lines() -> Iterator[str]:
    """Yield the table and the counts."""
    start = time.process_time()
    found = [judged(one) for one in statements()]
    yield from table(
        ["statement", "published", "peak there", "answer", "least memory here", "launcher", ""],
        [one.cells() for one in found],
    )
    right = sum(one.is_right for one in found)
    tight = sum(one.is_right and one.verdict == "tight" for one in found)
    took_s = time.process_time() - start
    yield f"{right} of {len(found)} are right, {tight} of them as tight ({took_s:.0f} CPU s)"


def main() -> None:
    """Print the table."""
    for line in lines():
        print(line)


if __name__ == "__main__":
    main()
