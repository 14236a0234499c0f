"""The ranking as a table that can be sorted."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from meshwright.service.report.beyond import baseline_words
from meshwright.service.report.formatting import COLUMNS
from meshwright.service.report.ranking import columns_of, ranking_notes, switch_notes
from meshwright.service.report.terminal import peak_words
from meshwright.solver.answer import Answer, Plan
from meshwright.solver.problem import Problem

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnHeading:
    """One column."""

    title: str
    hint: str
    is_words: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One cell."""

    text: str
    key: str  # what it is sorted by


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One plan."""

    plan_id: str
    rank: int
    entries: tuple[Entry, ...]
    has_details: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Standings:
    """The table, with the client's own configuration below."""

    headings: tuple[ColumnHeading, ...]
    rows: tuple[Standing, ...]
    baseline: str  # in a sentence; empty without one
    note: str


def standings_of(answer: Answer, problem: Problem, detailed: AbstractSet[str]) -> Standings:
    """Return the table of all plans; those in ``detailed`` lead to their own part of the report."""
    columns = [
        column for column in columns_of(answer.plans, moe=problem.model.moe is not None) if column.title
    ]
    rows = [
        Standing(
            plan_id=plan.plan_id,
            rank=plan.rank,
            entries=tuple(
                Entry(text=column.cell(plan), key=_key(column.title, column.cell(plan), plan))
                for column in columns
            ),
            has_details=plan.plan_id in detailed,
        )
        for plan in answer.plans
    ]
    headings = [
        ColumnHeading(
            title=column.title.rstrip("*"),
            hint=COLUMNS.get(column.title.rstrip("*"), ""),
            is_words=column.left,
        )
        for column in columns
    ]
    peak = peak_words(answer.plans[0].prediction, problem)
    return Standings(
        headings=tuple(headings),
        rows=tuple(rows),
        baseline=baseline_words(answer.baseline, len(answer.ranking)) if answer.baseline else "",
        note=". ".join(
            [
                f"MFU of {peak} per GPU, causal attention counted",
                *ranking_notes(answer.plans),
                *(note.capitalize() for note in switch_notes(answer.plans)),
                "",
            ]
        ).strip(),
    )


def _key(title: str, text: str, plan: Plan) -> str:
    """Return the figure behind a cell; words sort as text."""
    if title == "step":
        return repr(plan.prediction.step_time_s)
    if title == "OOM risk":
        return repr(plan.prediction.out_of_memory_probability)
    number = _NUMBER.match(text)
    return number.group() if number else "" if text == "–" else text
