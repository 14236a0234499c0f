"""A re-plan as JSON and as a table, and the launch files of its first way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from pydantic import ConfigDict

from meshwright.launchers.registry import export
from meshwright.launchers.resume import with_resume_files
from meshwright.launchers.target import ExportBundle
from meshwright.profiles.errors import InvalidProblemError, RefusedExportError
from meshwright.profiles.figures import figure, tied
from meshwright.service.replan.request import Changed
from meshwright.service.replan.ways import FinishOption, Layout, Replan, Spans
from meshwright.service.report import formatting as figures
from meshwright.solver.configuration import Configuration

_DAY_S, _HOUR_S, _MINUTE_S = 86_400.0, 3600.0, 60.0
_FEW_DAYS = 3.0
_HEADS: tuple[str, ...] = (
    "#", "way", "layout", "GPUs", "step", "downtime", "lost work", "finishes in", "",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutAnswer:
    """A layout that a job could go on under."""

    plan_id: str
    num_gpus: int
    step_time_s: float
    config: Configuration

    @classmethod
    def of(cls, layout: Layout) -> LayoutAnswer:
        """Return one layout."""
        config, step_s = layout.config, layout.prediction.step_time_s
        return cls(plan_id=layout.plan.plan_id, num_gpus=config.num_gpus, step_time_s=step_s, config=config)


@dataclass(frozen=True, slots=True, kw_only=True)
class WayAnswer(Spans):
    """One way to finish a job; its seconds sum up to ``finish_s``."""

    rank: int
    layout: LayoutAnswer
    afterwards: LayoutAnswer | None  # what the job goes back to once its nodes are repaired

    @classmethod
    def of(cls, way: FinishOption, rank: int) -> WayAnswer:
        """Return one way."""
        return cls(
            rank=rank,
            layout=LayoutAnswer.of(way.layout),
            afterwards=None if way.afterwards is None else LayoutAnswer.of(way.afterwards),
            **{field.name: getattr(way, field.name) for field in fields(Spans)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanAnswer:
    """Ways to finish a job whose cluster changed, the soonest first."""

    __pydantic_config__: ClassVar[ConfigDict] = {"defer_build": True}  # not at the server's start

    plan_id: str  # that runs
    checkpoint_format: str
    saved_step: int
    lost_steps: int
    remaining_steps: int
    ways: tuple[WayAnswer, ...]
    refused: tuple[str, ...]  # ways that there are not, and why
    notes: tuple[str, ...]  # what was assumed
    files: Mapping[str, str]  # of the first way: launch files, and those that load the checkpoint
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, found: Replan, job: Changed, bundle: ExportBundle | None) -> ReplanAnswer:
        """Return all ways, with the launch files of the first."""
        return cls(
            plan_id=job.plan.plan_id, checkpoint_format=job.format.name, saved_step=found.saved_step,
            lost_steps=found.lost_steps, remaining_steps=found.remaining_steps,
            ways=tuple(WayAnswer.of(way, rank) for rank, way in enumerate(found.ways, 1)),
            refused=found.refused, notes=found.notes, files=bundle.files if bundle else {},
            warnings=tuple(bundle.warnings) if bundle else (),
        )  # fmt: skip


def files_of(found: Replan, job: Changed, rank: int = 1) -> ExportBundle:
    """Return the launch files of a way, with those that resume the run from its checkpoint.

    Raises:
        InvalidProblemError: there is no such way, or the problem names no launcher.
        RefusedExportError: the launcher cannot express its layout.
    """
    way = way_of(found, rank)
    plan, launcher = way.layout.plan, job.problem.launcher
    if launcher == "none":
        raise InvalidProblemError.of("/launcher", "the job names no launcher, so there are no launch files")
    bundle = export(plan, way.layout.problem, launcher)
    return with_resume_files(
        bundle, launcher, job.plan, plan,
        saved_step=job.saved_step, checkpoint_format=job.format.name,
    )  # fmt: skip


def first_files(found: Replan, job: Changed) -> ExportBundle | None:
    """Return the first way's files; None if it has none: no new start, or no launcher named."""
    if not found.ways or found.ways[0].kind == "as it is":
        return None
    try:
        return files_of(found, job)
    except (InvalidProblemError, RefusedExportError):
        return None


def way_of(found: Replan, rank: int) -> FinishOption:
    """Return the way of that rank (1 is the soonest).

    Raises:
        InvalidProblemError: there is none.
    """
    if not 1 <= rank <= len(found.ways):
        raise InvalidProblemError.of(
            "/rank",
            f"there is no way of rank {rank}",
            allowed=f"1 to {len(found.ways)}" if found.ways else "none: there is no way",
        )
    return found.ways[rank - 1]


# --------------------------------------------------------------------------------------------------
# In words, for a terminal.


def replan_lines(found: Replan, job: Changed, *, width: int) -> list[str]:
    """Return the ways as a table of ``width`` columns, or as a list where that has no room.

    What was assumed and what is not possible follow.
    """
    best = found.ways[0] if found.ways else None
    done, total, saved = map(figures.count, (job.steps_done, job.steps_total, found.saved_step))
    head = (
        f"plan {job.plan.plan_id} · step {done} of {total}, resumes from {saved} · "
        f"checkpoint {job.format.name} ({job.place})"
    )
    rows = [_HEADS, *(_row(way, rank, best) for rank, way in enumerate(found.ways, 1))]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    table = [
        "  ".join(cell.ljust(room) for cell, room in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    if max(map(len, table)) > width:
        table = [_in_a_line(row, width) for row in rows[1:]]
    said = [
        *(f"not possible: {text}" for text in found.refused),
        *(f"note: {text}" for text in found.notes),
    ]
    return [
        figures.wrapped(figures.pieces(head, "·"), width).plain,
        "",
        *table,
        "",
        *(figures.wrapped(line, width).plain for line in said),
    ]


def _in_a_line(row: tuple[str, ...], width: int) -> str:
    """Return ``1. new layout: pp 7 · dp 8, 56 GPUs, step 4.16 s, downtime 10 min, …``."""
    rank, way, layout, gpus, *spans, place = row
    named = [f"{head} {span}" for head, span in zip(_HEADS[4:-1], spans, strict=True)]
    later = [f"{place[1:]} later"] if place.startswith("+") else []
    parts = map(tied, (f"{gpus} GPUs", *named, *later))
    words = ", ".join([figures.pieces(layout, "·"), *parts])
    return figures.wrapped(f"{rank}. {way}: {words}", width, hang=3).plain


def _row(way: FinishOption, rank: int, best: FinishOption | None) -> tuple[str, ...]:
    config, prediction = way.layout.config, way.layout.prediction
    later_s = way.finish_s - (best.finish_s if best else 0.0)
    still_s = way.waiting_s + way.restart_s + way.resharding_s
    return (
        str(rank), way.kind, figures.configuration_words(config), figures.count(config.num_gpus),
        figures.seconds(prediction.step_time_s), _span(still_s), _span(way.lost_work_s),
        f"{_span(way.finish_s)} ({_range(way.finish_low_s, way.finish_high_s)})",
        "← soonest" if way is best else f"+{_span(later_s)}",
    )  # fmt: skip


def _range(low_s: float, high_s: float) -> str:
    """Return ``5.21 to 6.87 days``: the unit once where both have it."""
    low, high = _span(low_s), _span(high_s)
    unit = f" {high.partition(' ')[2]}"
    return f"{low.removesuffix(unit) if low.endswith(unit) else low} to {high}"


def _span(seconds: float) -> str:
    """Return ``52.9 days``, ``3.2 h``, ``10 min``, ``4 s``."""
    for unit_s, name in ((_DAY_S, "days"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if seconds >= (_FEW_DAYS * unit_s if unit_s == _DAY_S else unit_s):
            return f"{figure(seconds / unit_s)} {name}"
    return f"{seconds:.0f} s"
