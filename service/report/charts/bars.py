"""Bars next to words: a step, memory of each stage, and the way from the ideal step to the real one.

Rows of a table with bars drawn over WIDTH units and stretched by the page: the words keep their size
on a phone, and a screen reader reads a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp

from meshwright.profiles.figures import scale_of, seconds_like
from meshwright.service.report import formatting as figures
from meshwright.service.report.charts.palette import MEMORY_COLORS, TIME_COLORS
from meshwright.solver.answer import Plan, Prediction, StagePrediction

WIDTH = 1000  # units of a whole bar
_Z_80_PERCENT = 1.2816  # half width of a normal distribution's central 80 %, in sigmas
_LEAST_SHARE = 0.0005  # of a step: smaller terms are summed up as the rest
_EDGE = 4  # units right of a limit, so that its line is seen whole
_LEAST_SHOWN = 0.005  # the same, of one bar of a whole step


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of a bar."""

    term: str
    label: str  # name and figure
    at: float
    width: float
    color: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row."""

    name: str
    note: str
    segments: tuple[Segment, ...]
    figure: str
    share: str = ""
    cells: tuple[str, ...] = ()  # figures of every term, for the table behind the picture
    low: float | None = None  # whisker
    high: float | None = None
    limit: float | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedBar:
    """A whole in one bar, with its legend."""

    title: str
    segments: tuple[Segment, ...]
    legend: tuple[tuple[str, str, str, str], ...]  # colour, name, explanation, figure
    limit: float | None = None
    limit_words: str = ""


def step_bar(plan: Plan) -> StackedBar:
    """Return the time of a step, from the model's own work to the last loss, in one bar."""
    step_s = plan.prediction.step_time_s
    spent = plan.prediction.time_breakdown_s if plan.why is None else plan.why.waterfall_s
    shown = {name: value for name, value in spent.items() if value >= _LEAST_SHOWN * step_s}
    rest = step_s - sum(shown.values())
    if rest >= _LEAST_SHOWN * step_s / 10:
        shown["rest"] = shown.get("rest", 0.0) + rest
    texts = {name: seconds_like(value, step_s) for name, value in shown.items()}
    title = f"Time of a step: {figures.seconds(step_s)}"
    return _stacked(title, shown, texts, WIDTH / sum(shown.values()), TIME_COLORS)


def memory_bar(
    title: str,
    memory_bytes: Mapping[str, int],
    limit_bytes: float,
    *,
    limit_words: str = "limit of the GPU",
) -> StackedBar:
    """Return the memory of one stage by term against the GPU's limit, in one bar.

    Args:
        title: of the bar.
        memory_bytes: by term.
        limit_bytes: of the GPU.
        limit_words: name of the limit's mark in the legend.
    """
    shown = {name: float(memory_bytes[name]) for name in figures.MEMORY_TERMS if memory_bytes.get(name)}
    texts = {name: f"{figures.gib(size)} GiB" for name, size in shown.items()}
    unit = (WIDTH - _EDGE) / max(limit_bytes, sum(shown.values()))
    bar = _stacked(title, shown, texts, unit, MEMORY_COLORS)
    return replace(bar, limit=round(limit_bytes * unit, 1), limit_words=limit_words)


def _stacked(
    title: str,
    values: Mapping[str, float],
    texts: Mapping[str, str],
    unit: float,
    colors: Mapping[str, str],
) -> StackedBar:
    hints = figures.MEMORY_TERMS if colors is MEMORY_COLORS else figures.TIME_TERMS
    return StackedBar(
        title=title,
        segments=_segments(values, texts, unit, colors),
        legend=tuple((colors[name], figures.words(name), hints[name], texts[name]) for name in values),
    )


def _segments(
    values: Mapping[str, float], texts: Mapping[str, str], unit: float, colors: Mapping[str, str]
) -> tuple[Segment, ...]:
    """Return a segment for each term, laid end to end."""
    found, at = [], 0.0
    for name, value in values.items():
        label, width = f"{figures.words(name)} {texts[name]}", round(max(value * unit, 0.0), 1)
        found.append(Segment(term=name, label=label, at=round(at, 1), width=width, color=colors[name]))
        at += value * unit
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Rows with their legend."""

    rows: tuple[Bar, ...]
    legend: tuple[tuple[str, str, str], ...]  # colour, name, explanation
    summary: str  # the content of the picture, in a sentence


def memory_bars(prediction: Prediction, log_memory_sigma: float | None) -> Bars:
    """Return every stage's memory by term against its GPU's limit; whiskers: the 80 % interval.

    Args:
        prediction: of the plan.
        log_memory_sigma: spread of ln(measured / predicted) peak memory; None: no whiskers.
    """
    band = exp(_Z_80_PERCENT * log_memory_sigma) if log_memory_sigma else 1.0
    limits = [stage.memory_limit_bytes or prediction.memory_limit_bytes for stage in prediction.stages]
    peaks = [stage.peak_memory_bytes for stage in prediction.stages]
    unit = WIDTH / (1.03 * max(*limits, max(peaks) * band))
    terms = [
        name
        for name in figures.MEMORY_TERMS
        if any(stage.memory_bytes.get(name) for stage in prediction.stages)
    ]
    rows = [
        _stage(stage, terms, unit, limit=limit, band=band if log_memory_sigma else None)
        for stage, limit in zip(prediction.stages, limits, strict=True)
    ]
    heaviest = prediction.stages[prediction.heaviest_stage]
    return Bars(
        rows=tuple(rows),
        legend=tuple(
            (MEMORY_COLORS[name], figures.words(name), figures.MEMORY_TERMS[name]) for name in terms
        ),
        summary=f"Stage {heaviest.stage} is the heaviest: "
        f"{figures.gib_of(heaviest.peak_memory_bytes, prediction.memory_limit_bytes)}; "
        f"the risk of running out is {figures.risk(prediction.out_of_memory_probability)}.",
    )


def _stage(
    stage: StagePrediction, terms: Sequence[str], unit: float, *, limit: int, band: float | None
) -> Bar:
    sizes = {name: stage.memory_bytes.get(name, 0) for name in terms}
    texts = {name: f"{figures.gib(size)} GiB" for name, size in sizes.items()}
    layers = f"{stage.layers} layer{'s' if stage.layers != 1 else ''}"
    peak = stage.peak_memory_bytes
    return Bar(
        name=f"stage {stage.stage}",
        note=layers,
        segments=_segments(sizes, texts, unit, MEMORY_COLORS),
        figure=figures.gib_of(peak, limit),
        cells=tuple(map(figures.gib, sizes.values())),
        low=round(peak / band * unit, 1) if band else None,
        high=round(peak * band * unit, 1) if band else None,
        limit=round(limit * unit, 1),
    )


def waterfall_bars(terms_s: Mapping[str, float], step_s: float) -> Bars:
    """Return bars from the first term to the whole step; each begins where the one before ended.

    Args:
        terms_s: seconds by term, in order; they sum to the step.
        step_s: the step.
    """
    shown = {name: value for name, value in terms_s.items() if abs(value) >= _LEAST_SHARE * step_s}
    rest = step_s - sum(shown.values())
    if abs(rest) >= _LEAST_SHARE * step_s / 10:
        shown["rest"] = shown.get("rest", 0.0) + rest
    edges, at = [0.0], 0.0
    for value in shown.values():
        at += value
        edges.append(at)
    unit, low = WIDTH / (max(edges) - min(edges)), min(edges)
    rows, at = [], 0.0
    for number, (name, value) in enumerate(shown.items()):
        start = min(at, at + value)
        kind = "ideal" if number == 0 else "gain" if value < 0 else "loss"
        rows.append(_term(name, value, step_s, ((start - low) * unit, abs(value) * unit), kind))
        at += value
    whole = Segment(term="whole", label="step", at=round(-low * unit, 1), width=round(step_s * unit, 1))
    rows.append(
        Bar(
            name="the step",
            note="",
            segments=(whole,),
            figure=_like(step_s, step_s),
            share="100 %",
            hint="what one optimizer step takes",
        )
    )
    return Bars(rows=tuple(rows), legend=(), summary=_fall_summary(shown, step_s))


def _term(name: str, value_s: float, step_s: float, place: tuple[float, float], kind: str) -> Bar:
    figure = _like(value_s, step_s)
    segment = Segment(
        term=kind, label=f"{figures.words(name)} {figure}", at=round(place[0], 1), width=round(place[1], 1)
    )
    return Bar(
        name=figures.words(name),
        note="",
        segments=(segment,),
        figure=figure,
        share=f"{100 * value_s / step_s:.1f} %".replace("-", "−"),
        hint=figures.TIME_TERMS.get(name, ""),
    )


def _like(value_s: float, step_s: float) -> str:
    """Return seconds in the step's unit, with one more digit than it: ``5.06 s`` of ``29.0 s``."""
    factor, unit, digits = scale_of(step_s)
    return f"{value_s * factor:.{digits + 1}f} {unit}".replace("-", "−")


def _fall_summary(shown: Mapping[str, float], step_s: float) -> str:
    first, *others = shown
    ideal = seconds_like(shown[first], step_s)
    said = f"{figures.sentence_case(figures.words(first))} takes {ideal} of {figures.seconds(step_s)}"
    lost = sorted((name for name in others if shown[name] > 0), key=lambda name: -shown[name])[:2]
    if not lost:
        return f"{said}."
    named = " and ".join(f"{figures.words(name)} ({seconds_like(shown[name], step_s)})" for name in lost)
    return f"{said}; most of the rest is {named}."
