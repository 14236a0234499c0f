"""A pipeline's step to scale: one row a rank, one path for each kind of pass and chunk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.profiles.figures import percent, seconds_like
from meshwright.service.report import formatting as figures
from meshwright.solver.configuration import FloatArray
from meshwright.solver.explanation import RankTimeline, Timeline, window
from meshwright.solver.schedules.simulate import KINDS

WIDTH = 100_000  # units of the whole step
HEIGHT = 10
STRIPE = 2  # units of the critical path's line under its passes
_GAP = 3_000  # units between the first and the last passes where the middle is left out
_SHADES = 4  # of chunks
_MARKS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Stroke:
    """All passes of one rank that look alike."""

    kind: str
    shade: int  # of the chunk among the rank's
    boxes: tuple[tuple[int, int], ...]  # left edge and width

    @property
    def path(self) -> str:
        """Return the boxes as one SVG path, as high as the row; the critical path is a line at its foot."""
        top = HEIGHT - STRIPE if self.kind == "critical" else 0
        high = HEIGHT - top
        return "".join(f"M{x} {top}h{wide}v{high}h-{wide}z" for x, wide in self.boxes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One rank."""

    rank: int
    strokes: tuple[Stroke, ...]  # the critical path last, over the others
    busy: str  # share of the step
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineChart:
    """The picture of one pipeline."""

    title: str
    rows: tuple[Row, ...]
    legend: tuple[tuple[str, str], ...]  # kind, name
    marks: tuple[str, ...]  # times at equal distances, from the left edge to the right one
    gap: tuple[int, int] | None  # units
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimeScale:
    """From seconds to units; what lies in the gap is left out."""

    end_s: float
    gap_s: tuple[float, float] | None

    @property
    def unit(self) -> float:
        """Return the units of a second."""
        if self.gap_s is None:
            return WIDTH / self.end_s
        return (WIDTH - _GAP) / (self.end_s - (self.gap_s[1] - self.gap_s[0]))

    def at(self, time_s: FloatArray) -> FloatArray:
        """Return units from the left."""
        if self.gap_s is None:
            return time_s * self.unit
        shift = _GAP - (self.gap_s[1] - self.gap_s[0]) * self.unit
        behind = time_s * self.unit + shift
        return np.where(time_s < self.gap_s[1], np.minimum(time_s, self.gap_s[0]) * self.unit, behind)

    @property
    def gap(self) -> tuple[int, int] | None:
        """Return where the middle was."""
        if self.gap_s is None:
            return None
        left = round(self.gap_s[0] * self.unit)
        return left, left + _GAP

    def marks(self) -> tuple[str, ...]:
        """Return times at equal distances."""
        found = []
        for number in range(_MARKS):
            place = WIDTH * number / (_MARKS - 1)
            time_s = place / self.unit
            if self.gap_s is not None and self.gap is not None and place > self.gap[0]:
                time_s = self.end_s - (WIDTH - place) / self.unit
            found.append("0" if number == 0 else seconds_like(time_s, self.end_s))
        return tuple(found)


def timeline_chart(timeline: Timeline, most_passes: int) -> TimelineChart:
    """Return the picture of one timeline; ``most_passes`` bound its size."""
    seen = window(timeline, most_passes)
    last = timeline.last
    places = _TimeScale(end_s=timeline.end_s, gap_s=seen.gap_s)
    rows = [
        _row(short, full, timeline, places, is_last=full is last)
        for short, full in zip(seen.timeline.ranks, timeline.ranks, strict=True)
    ]
    kinds = {stroke.kind for row in rows for stroke in row.strokes}
    return TimelineChart(
        title=timeline.title,
        rows=tuple(rows),
        legend=tuple(
            (name, _NAMES.get(name, figures.words(name))) for name in (*KINDS, *_NAMES) if name in kinds
        ),
        marks=places.marks(),
        gap=places.gap,
        note=_note(timeline, seen.gap_s),
    )


_NAMES = {
    "gradients": "gradient reduction that is not hidden",
    "optimizer": "optimizer step",
    "critical": "critical path (underlined)",
}


def _note(timeline: Timeline, gap_s: tuple[float, float] | None) -> str:
    passes, m = figures.count(timeline.num_passes), timeline.num_microbatches
    micro_batches = "1 micro-batch" if m == 1 else f"{m} micro-batches"
    said = f"{passes} passes of {micro_batches}, simulated one by one."
    if timeline.simulated < timeline.num_microbatches:
        said = f"The first {timeline.simulated} of {timeline.num_microbatches} micro-batches are drawn."
    if gap_s is not None:
        said += f" The middle, {figures.seconds(gap_s[1] - gap_s[0])} of the same rhythm, is left out."
    return f"{said} {_critical_words(timeline)}"


def _critical_words(timeline: Timeline) -> str:
    busiest = max(timeline.ranks, key=lambda rank: float(rank.seconds[rank.critical].sum()))
    whole_s = sum(float(rank.seconds[rank.critical].sum()) for rank in timeline.ranks)
    share = percent(float(busiest.seconds[busiest.critical].sum()) / whole_s)
    if len(timeline.ranks) == 1:
        return "Every pass is on the critical path."
    return f"The underlined passes decide the step: {share} of their time is on rank {busiest.rank}."


def _row(
    rank: RankTimeline, full: RankTimeline, timeline: Timeline, places: _TimeScale, *, is_last: bool
) -> Row:
    chunks = np.unique(full.chunk)
    shade = np.searchsorted(chunks, rank.chunk) * _SHADES // max(len(chunks), 1)
    starts, ends = places.at(rank.start_s), places.at(rank.start_s + rank.seconds)
    strokes = []
    for code, kind in enumerate(KINDS):
        for tone in range(_SHADES):
            mine = (rank.kind == code) & (shade == tone)
            if mine.any():
                strokes.append(Stroke(kind=kind, shade=tone, boxes=_boxes(starts[mine], ends[mine])))
    runs = [_runs(starts[rank.critical], ends[rank.critical])] if rank.critical.any() else []
    at_s = rank.end_s
    for kind, seconds in (("gradients", rank.gradients_s), ("optimizer", rank.optimizer_s)):
        if seconds * places.unit >= 1.0:
            edges = places.at(np.array([at_s, at_s + seconds]))
            strokes.append(Stroke(kind=kind, shade=0, boxes=_boxes(edges[:1], edges[1:])))
            if is_last:
                runs.append((edges[:1], edges[1:]))
        at_s += seconds
    if runs:
        strokes.append(
            Stroke(kind="critical", shade=0, boxes=tuple(box for run in runs for box in _boxes(*run)))
        )
    share = full.busy_s / timeline.step_time_s if timeline.simulated == timeline.num_microbatches else None
    busy = "–" if share is None else percent(share)
    return Row(
        rank=rank.rank,
        strokes=tuple(strokes),
        busy=busy,
        label=f"Rank {rank.rank}: {len(full.start_s)} passes, busy {busy} of the step",
    )


def _runs(starts: FloatArray, ends: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return passes that follow one another as one; a gap below a unit is not seen."""
    apart = starts[1:] - ends[:-1] > 1.0
    return starts[np.concatenate([[True], apart])], ends[np.concatenate([apart, [True]])]


def _boxes(starts: FloatArray, ends: FloatArray) -> tuple[tuple[int, int], ...]:
    left = np.rint(starts).astype(np.int64).tolist()
    width = np.maximum(np.rint(ends - starts), 1).astype(np.int64).tolist()
    return tuple(zip(left, width, strict=True))
