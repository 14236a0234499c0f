"""The ranking as a table that can be sorted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from meshwright.service.report.beyond import baseline_words, deciding_words, run_words
from meshwright.service.report.charts.bars import WIDTH
from meshwright.service.report.formatting import COLUMNS, LONG_NAMES, SHORT_NAMES, configuration_words
from meshwright.service.report.ranking import (
    Column,
    changes_of,
    columns_of,
    equal_to_first,
    own_changes,
    ranking_notes,
    simplest_of_tied,
    switch_words,
)
from meshwright.service.report.terminal import peak_words
from meshwright.solver.answer import Answer, Plan
from meshwright.solver.problem import Problem

_KINDS = {"step": "step", "peak memory (stage)": "memory"}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnHeading:
    """One column."""

    title: str
    hint: str
    is_words: bool
    kind: str  # size, step, memory or figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """A figure as a bar from zero, with its band or its limit, in units of WIDTH."""

    width: float
    low: float | None = None
    high: float | None = None
    limit: float | None = None


Entry = tuple[str, str, Gauge | None]  # a cell's text, what it is sorted by, and its bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One plan."""

    plan_id: str
    rank: int
    words: str  # its sizes
    entries: tuple[Entry, ...]
    has_details: bool
    is_tied: bool
    mark: str  # best, simplest


@dataclass(frozen=True, slots=True, kw_only=True)
class Standings:
    """The table, with the client's own configuration below."""

    headings: tuple[ColumnHeading, ...]
    rows: tuple[Standing, ...]
    run: str  # of the first plan in a sentence; empty if the request looks at one step
    baseline: str  # in a sentence; empty without one
    deciding: tuple[str, ...]  # what to measure, of robust plans
    note: str


def standings_of(answer: Answer, problem: Problem, detailed: AbstractSet[str]) -> Standings:
    """Return the table of all plans; those in ``detailed`` lead to their own part of the report."""
    columns = _columns(answer.plans, moe=problem.model.moe is not None)
    headings = [
        ColumnHeading(
            title=column.title.rstrip("*"),
            hint=COLUMNS.get(column.title.rstrip("*"), ""),
            is_words=column.left,
            kind=_KINDS.get(column.title, "size" if column.title in SHORT_NAMES.values() else "figure"),
        )
        for column in columns
    ]
    equal, simplest, gauges = equal_to_first(answer.plans), simplest_of_tied(answer.plans), _Gauges(answer)

    def entry(column: Column, heading: ColumnHeading, plan: Plan) -> Entry:
        text = column.cell(plan)
        return text, _key(column.title, text, plan), gauges.of(heading.kind, plan)

    def entries_of(plan: Plan) -> tuple[Entry, ...]:
        return tuple(entry(*pair, plan) for pair in zip(columns, headings, strict=True))

    rows = [
        Standing(
            plan_id=plan.plan_id,
            rank=plan.rank,
            words=configuration_words(plan.config, LONG_NAMES),
            entries=entries_of(plan),
            has_details=plan.plan_id in detailed,
            is_tied=bool(equal) and (plan.rank == 1 or plan.rank in equal),
            mark="simplest" if plan is simplest else "",
        )
        for plan in answer.plans
    ]
    first = answer.plans[0]
    peak = peak_words(first.prediction, problem)
    return Standings(
        headings=tuple(headings),
        rows=tuple(rows),
        run=run_words(first, first.outlook) if first.outlook else "",
        baseline=baseline_words(answer.baseline, len(answer.ranking)) if answer.baseline else "",
        deciding=tuple(deciding_words(answer.plans)),
        note=". ".join(
            [
                f"MFU of {peak} per GPU, causal attention counted",
                *ranking_notes(answer.plans),
                *_common_note(answer.plans),
                "",
            ]
        ).strip(),
    )


def _columns(plans: Sequence[Plan], *, moe: bool) -> list[Column]:
    """Return the columns of figures, and of a configuration those in which plans differ."""
    named = Column(title="with", cell=own_changes(plans), left=True)
    columns = [one for one in columns_of(plans, moe=moe) if one.title not in ("", "with")]
    columns.insert(len(columns) - (columns[-1].title == "also"), named)
    settings = {*SHORT_NAMES.values(), "recompute", "with"}
    return [
        column
        for column in columns
        if column.title not in settings or len({column.cell(plan) for plan in plans}) > 1
    ]


def _common_note(plans: Sequence[Plan]) -> list[str]:
    common = [one for one in changes_of(plans[0]) if all(one in changes_of(plan) for plan in plans)]
    said = ", ".join(map(switch_words, common))
    return [f"Each plan has: {said}"] if said and len(plans) > 1 else []


class _Gauges:
    """Bars of all steps on one scale from zero, and of all peaks on one, with the GPU's limit."""

    def __init__(self, answer: Answer) -> None:
        seen = [plan.prediction for plan in answer.plans]
        self._step = WIDTH / max(one.step_time_high_s for one in seen)
        self._memory = WIDTH / max(max(one.peak_memory_bytes, one.memory_limit_bytes) for one in seen)

    def of(self, kind: str, plan: Plan) -> Gauge | None:
        seen = plan.prediction
        if kind == "step":
            low, high = seen.step_time_low_s * self._step, seen.step_time_high_s * self._step
            return Gauge(
                width=round(seen.step_time_s * self._step, 1), low=round(low, 1), high=round(high, 1)
            )
        if kind == "memory":
            return Gauge(
                width=round(seen.peak_memory_bytes * self._memory, 1),
                limit=round(seen.memory_limit_bytes * self._memory, 1),
            )
        return None


def _key(title: str, text: str, plan: Plan) -> str:
    """Return the figure behind a cell; words sort as text."""
    if title == "step":
        return repr(plan.prediction.step_time_s)
    if title == "OOM risk":
        return repr(plan.prediction.out_of_memory_probability)
    number = _NUMBER.match(text)
    return number.group() if number else "" if text == "–" else text
