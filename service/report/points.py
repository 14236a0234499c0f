"""The points of a sweep as people and spreadsheets read them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.service.report import formatting as figures
from meshwright.service.report.formatting import wrapped
from meshwright.solver.configuration import Configuration, configuration_from_json

Row = Mapping[str, Any]
_FIGURES = ("num_gpus", "step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "peak_memory_bytes", "gap")
_MARK = "●"


def render_points(answer: Mapping[str, Any], *, width: int) -> RenderableType:
    """The table of points, then what holds for all of them."""
    rows: Sequence[Row] = answer["points"]
    axes = list(rows[0]["values"])
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in axes:
        table.add_column(figures.SHORT_NAMES.get(name, name.replace("_", " ")), justify="right")
    for title in ("GPUs", "step", "tokens/s", "per GPU", "GiB"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("", "proved", "best plan"):
        table.add_column(title, overflow="fold")
    for row in rows:
        first = [str(row["values"][name]) for name in axes]
        style = "bold green" if row["rank"] == 1 else ""
        table.add_row(*(Text(cell) for cell in [*first, *_cells(row)]), style=style)
    notes = [_verdict(answer), f"{_MARK} no other point is faster on as few GPUs, or as fast on fewer"]
    notes += [f"warning: {warning}" for warning in answer["warnings"]]
    return Group(table, Text(), *(wrapped(note, width, indent=2) for note in notes))


def points_to_csv(answer: Mapping[str, Any]) -> str:
    """One line a point: its values, its best plan's figures and sizes (RFC 4180)."""
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


def _cells(row: Row) -> list[str]:
    """The figures of one point, or why it has none."""
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
    """The best plan's configuration."""
    return configuration_from_json(row["config"])


def _verdict(answer: Mapping[str, Any]) -> str:
    """How much of the whole is proved."""
    rows = answer["points"]
    found = sum(row["plan_id"] is not None for row in rows)
    words = f"{found} of {len(rows)} points have a plan · {answer['status']}"
    if answer["gap"] is not None:
        words += f" · gap {figures.percent(answer['gap'])}"
    effort = f"{figures.count(answer['explored'])} configurations · {figures.seconds(answer['elapsed_s'])}"
    return f"{words} · {effort}"
