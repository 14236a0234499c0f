"""The smallest sets of edits of launch files that train faster, each read back from the edited texts.

``fixes_of`` is the whole interface: it takes launch files and a cluster, and returns sets of edits by their
number, with the texts that they make, seconds, memory, risk, and what the launcher's rules say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

from meshwright.launchers.reading.base import Source
from meshwright.service.requests.launch_files import Own
from meshwright.solver.answer import Prediction

WORTH = 0.02  # of the step: the least gain of one more edit
ENOUGH = 0.9  # of the possible gain: the smallest set that has as much is recommended


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagChange:
    """One argument of a launcher, before and after an edit."""

    name: str  # as the file spells it: --tensor-model-parallel-size, zero_optimization.stage
    old: str | None  # None: not given
    new: str | None  # None: removed
    file: str
    line: int  # of the old text, or of the line that it is added to

    def words(self) -> str:
        """Return the change on one line."""
        if self.new is None:
            return f"remove {self.name}"
        if self.old is None:
            return f"add {self.name} {self.new}".rstrip()
        return f"{self.name} {self.old} → {self.new}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FixSet:
    """A set of edits: the edited texts, and the run that is read back from them."""

    edits: tuple[tuple[FlagChange, ...], ...]  # each a decision, with the arguments that follow from it
    files: Mapping[str, str]  # the edited texts, by base name; the other files stay
    own: Own
    prediction: Prediction
    gain: float  # of the step time before: .22 is 22 % less
    verdict: str  # what judged the edited files
    faults: tuple[str, ...] = ()  # what it refuses; none of a set that is offered

    @property
    def number(self) -> int:
        """Return the number of edits."""
        return len(self.edits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixes:
    """All sets of edits of some launch files, from one edit up."""

    source: Source
    own: Own
    prediction: Prediction
    faults: tuple[str, ...]  # of the run as it stands
    sets: tuple[FixSet, ...]  # the best for each number of edits
    recommended: FixSet | None  # None: no edit gains 2 %
    possible_s: float  # the shortest step that is known: of the best plan, or of the best set
    possible_is_searched: bool
    unchangeable: tuple[str, ...]  # values that no edit of a literal changes, each with its line

    def diff(self, chosen: FixSet, paths: Mapping[str, str] | None = None) -> str:
        """Return the unified diff of a set; ``paths``: of files by their base names."""
        parts = list[str]()
        for name, text in sorted(chosen.files.items()):
            path = (paths or {}).get(name, name)
            old = self.source.text if name == self.source.name else self.source.other(name) or ""
            parts += _unified(old, text, path)
        return "".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return the sets as plain values."""
        raise NotImplementedError


def _unified(old: str, new: str, path: str) -> list[str]:
    lines = unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    return [one if one.endswith("\n") else f"{one}\n\\ No newline at end of file\n" for one in lines]


def fixes_of(
    source: Source,
    request: Mapping[str, object],
    *,
    variables: Mapping[str, str] | None = None,
    values: Mapping[str, object] | None = None,
    ignored: Sequence[str] = (),
    run: int | None = None,
) -> Fixes:
    """Return the smallest sets of edits of launch files that make a step shorter.

    Args:
        source: the launch files; ``service.cli.launch_files.source_of`` makes one of paths.
        request: the cluster, and what the files lack, as ``predict`` takes them.
        variables: of the shell.
        values: parts of the configuration that the files leave open.
        ignored: flags to ignore.
        run: which of several runs that a script starts, from 1.

    Raises:
        InvalidProblemError: the files cannot be read; it names the line.
    """
    raise NotImplementedError
