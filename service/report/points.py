"""The points of a sweep as people and spreadsheets read them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.profiles.figures import percent
from meshwright.service.report import formatting as figures
from meshwright.solver.configuration import Configuration, configuration_from_json

Row = Mapping[str, Any]
_FIGURES = ("num_gpus", "step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "peak_memory_bytes", "gap")
_MARK = "●"
_HEADS = ["GPUs", "step", "tokens/s", "per GPU", "GiB", "", "proved", "best plan"]
_WORDS = _HEADS.index("")  # from here on columns hold words
_GUTTER = 2  # blanks behind every column


def render_points(answer: Mapping[str, Any], *, width: int) -> RenderableType:
    """Return the table of points, then what holds for all of them.

    If the plans have no room next to the figures, they follow the table line by line.
    """
    rows: Sequence[Row] = answer["points"]
    axes = list(rows[0]["values"])
    heads = [figures.SHORT_NAMES.get(name, name.replace("_", " ")) for name in axes] + _HEADS
    cells = [[*(str(row["values"][name]) for name in axes), *_cells(row)] for row in rows]
    plans: list[Text] = []
    if sum(max(map(cell_len, column)) + _GUTTER for column in zip(heads, *cells, strict=True)) > width:
        plans = [
            figures.wrapped(f"{_values(row)}: {figures.pieces(words, '·')}", width, indent=2, hang=4)
            for row, (*_, words) in zip(rows, cells, strict=True)
            if words
        ]
        heads, cells = heads[:-1], [one[:-1] for one in cells]
    table = Table(box=None, pad_edge=False, padding=(0, _GUTTER, 0, 0), header_style="dim")
    for title in heads:
        left = title in _HEADS[_WORDS:]
        table.add_column(title, justify="left" if left else "right", no_wrap=title in _HEADS)
    for row, shown in zip(rows, cells, strict=True):
        table.add_row(*map(Text, shown), style="bold green" if row["rank"] == 1 else "")
    notes = [_verdict(answer), f"{_MARK} no other point is faster on as few GPUs, or as fast on fewer"]
    notes += [f"warning: {warning}" for warning in answer["warnings"]]
    return Group(
        table,
        *([Text(), *plans] if plans else []),
        Text(),
        *(figures.wrapped(note, width, indent=2) for note in notes),
    )


def points_to_csv(answer: Mapping[str, Any]) -> str:
    """Return one line a point: its values, its best plan's figures and sizes (RFC 4180)."""
    text, rows = io.StringIO(), answer["points"]
    writer = csv.writer(text, lineterminator="\n")
    axes = list(rows[0]["values"])
    writer.writerow([*axes, "status", "rank", "plan_id", *_FIGURES, "efficient", "configuration"])
    for row in rows:
        values = [row["values"][name] for name in axes]
        words = "" if row["config"] is None else figures.configuration_words(_config(row))
        shown = [row["status"] or row["state"], row["rank"], row["plan_id"]]
        writer.writerow([*values, *shown, *(row[name] for name in _FIGURES), row["efficient"], words])
    return text.getvalue()


def _values(row: Row) -> str:
    return ", ".join(
        f"{figures.SHORT_NAMES.get(name, name)} {value}" for name, value in row["values"].items()
    )


def _cells(row: Row) -> list[str]:
    if row["plan_id"] is None:
        why = row["infeasible"] or (row["problem"] or {}).get("detail") or ""
        return ["–", "–", "–", "–", "–", "", row["status"] or row["state"], why]
    return [
        figures.count(row["num_gpus"]),
        figures.seconds(row["step_time_s"]),
        figures.count(round(row["tokens_per_s"])),
        figures.count(round(row["tokens_per_s_per_gpu"])),
        figures.gib(row["peak_memory_bytes"]),
        _MARK if row["efficient"] else "",
        row["status"],
        f"{figures.configuration_words(_config(row))}  {row['plan_id']}",
    ]


def _config(row: Row) -> Configuration:
    return configuration_from_json(row["config"])


def _verdict(answer: Mapping[str, Any]) -> str:
    rows = answer["points"]
    found = sum(row["plan_id"] is not None for row in rows)
    words = f"{found} of {len(rows)} points have a plan · {answer['status']}"
    if answer["gap"] is not None:
        words += f" · gap {percent(answer['gap'])}"
    effort = f"{figures.count(answer['explored'])} configurations · {figures.seconds(answer['elapsed_s'])}"
    return figures.pieces(f"{words} · {effort}", "·")
