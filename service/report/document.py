"""A report as data: everything that its page shows, in words and places, before any markup.

Pure: an answer, its problem and details computed for them in; frozen records out. The page of a report
and the live page fill the same templates from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshwright.profiles.figures import percent
from meshwright.service.report import formatting as figures
from meshwright.service.report.charts.bars import Bars, memory_bars, waterfall_bars
from meshwright.service.report.charts.scatter import Scatter, pareto_scatter, roofline_scatter
from meshwright.service.report.charts.timeline import TimelineChart, timeline_chart
from meshwright.service.report.question import title_of
from meshwright.service.report.rank_map import RankMap, rank_map
from meshwright.service.report.sides import ComparisonTable, comparison_of
from meshwright.service.report.standings import Standings, standings_of
from meshwright.service.report.summary import launcher_words, warning_words
from meshwright.service.report.terminal import peak_words
from meshwright.service.report.verdict import (
    Fact,
    Verdict,
    facts_of,
    question_of,
    reasons_of,
    verdict_of,
)
from meshwright.service.report.what_if import WhatIfs
from meshwright.solver.answer import Answer, Plan, Prediction
from meshwright.solver.explanation import Roofline, Timeline, slowest_step_s
from meshwright.solver.problem import Problem

MOST_PASSES = 12_000  # drawn in one report, all plans together
_LEAST_PASSES = 1_500  # of one plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """Details of one plan computed in addition to the answer."""

    timelines: tuple[Timeline, ...] = ()
    rooflines: tuple[Roofline, ...] = ()
    log_memory_sigma: float | None = None
    launcher: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    file_notes: tuple[str, ...] = ()
    note: str = ""  # what a reader has to know of the timelines


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofView:
    """Operators of one kind of rank."""

    title: str  # its GPU, if a plan uses several types
    chart: Scatter
    operators: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDetails:
    """One plan in full."""

    plan_id: str
    rank: int
    words: str
    facts: tuple[Fact, ...]
    memory: Bars
    waterfall: Bars
    timelines: tuple[TimelineChart, ...]
    timeline_step: str
    ranks: RankMap
    rooflines: tuple[RoofView, ...]
    losses: tuple[tuple[str, str], ...]  # what costs, and what would lower it
    limits: tuple[str, ...]
    launcher: str
    files: tuple[tuple[str, str], ...]
    file_notes: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole report."""

    title: str
    question: tuple[Fact, ...]
    verdict: Verdict
    built: str  # what launchers made of the plans; empty: none was asked
    standings: Standings | None  # None: there are no plans
    pareto: Scatter | None
    plans: tuple[PlanDetails, ...]
    chosen: str  # plan_id; empty without one
    comparison: ComparisonTable | None
    what_if: WhatIfs | None
    provenance: tuple[Fact, ...]
    warnings: tuple[str, ...]
    problem_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionDocument:
    """One configuration in full, without a search."""

    title: str
    question: tuple[Fact, ...]
    plan: PlanDetails
    breaks: tuple[str, ...]  # rules of the search space
    warnings: tuple[str, ...]


def prediction_document(
    plan: Plan, problem: Problem, details: Details, *, breaks: Sequence[str]
) -> PredictionDocument:
    """Return the page of one configuration: ``plan`` holds it with its prediction and reasons."""
    return PredictionDocument(
        title=title_of(problem),
        question=question_of(problem),
        plan=_view(plan, problem, details, MOST_PASSES),
        breaks=tuple(map(figures.sentence_case, breaks)),
        warnings=tuple(problem.cluster.warnings),
    )


def document_of(
    answer: Answer,
    problem: Problem,
    details: Mapping[str, Details],
    *,
    what_if: WhatIfs | None,
    problem_json: str,
    digest: str,
    verdicts: Mapping[str, str],
    chosen: str = "",
    left_out: bool = False,
) -> Document:
    """Return the report of an answer.

    Args:
        answer: the answer.
        problem: its problem.
        details: of the plans that are shown in full, by plan_id.
        what_if: changed requests with their answers.
        problem_json: the canonical question.
        digest: of the problem.
        verdicts: of launchers on plans, by plan_id.
        chosen: the plan_id to show first; the best plan where it is empty.
        left_out: plans behind those of the answer are not listed.
    """
    first = chosen or (answer.plans[0].plan_id if answer.plans else "")
    shown = [plan for plan in answer.plans if plan.plan_id in details]
    most = max(MOST_PASSES // max(len(shown), 1), _LEAST_PASSES)
    views = [_view(plan, problem, details[plan.plan_id], most) for plan in shown]
    standings = standings_of(answer, problem, details.keys()) if answer.plans else None
    if standings is not None and left_out:
        note = f"{standings.note} Plans behind #{answer.plans[-1].rank} are left out."
        standings = replace(standings, note=note)
    return Document(
        title=title_of(problem),
        question=question_of(problem),
        verdict=verdict_of(answer, problem),
        built=figures.built_words(answer.plans, verdicts),
        standings=standings,
        pareto=pareto_scatter(answer, first) if len(answer.plans) > 1 or answer.pareto else None,
        plans=tuple(views),
        chosen=first,
        comparison=comparison_of(answer, first),
        what_if=what_if,
        provenance=facts_of(answer, problem, digest=digest),
        warnings=tuple(
            figures.with_questions(warning_words(one))
            for one in dict.fromkeys((*answer.warnings, *problem.cluster.warnings))
        ),
        problem_json=problem_json,
    )


def _view(plan: Plan, problem: Problem, details: Details, most_passes: int) -> PlanDetails:
    seen, step_s = plan.prediction, plan.prediction.step_time_s
    terms = plan.why.waterfall_s if plan.why else seen.time_breakdown_s
    losses, limits = reasons_of(plan)
    each = max(most_passes // max(len(details.timelines), 1), 1)
    return PlanDetails(
        plan_id=plan.plan_id,
        rank=plan.rank,
        words=figures.configuration_words(plan.config),
        facts=_plan_facts(plan, problem),
        memory=memory_bars(seen, details.log_memory_sigma),
        waterfall=waterfall_bars(terms, step_s),
        timelines=tuple(timeline_chart(one, each) for one in details.timelines),
        timeline_step=figures.seconds(slowest_step_s(details.timelines) or step_s),
        ranks=rank_map(plan, problem.cluster),
        rooflines=tuple(map(_roof_view, details.rooflines)),
        losses=losses,
        limits=limits,
        launcher=launcher_words(details.launcher),
        files=tuple(details.files.items()),
        file_notes=tuple(map(figures.sentence_case, details.file_notes)),
        note=details.note,
    )


def _plan_facts(plan: Plan, problem: Problem) -> tuple[Fact, ...]:
    seen, c = plan.prediction, plan.config
    schedule = "no pipeline" if c.pipeline_schedule == "none" else c.pipeline_schedule.replace("_", " ")
    peak = f"of {peak_words(seen, problem)} per GPU, causal attention counted"
    found = [
        Fact(
            label="Step", value=figures.step_time(seen), hint="one optimizer step, with its 80 % interval"
        ),
        Fact(label="Tokens/s/GPU", value=figures.count(round(seen.tokens_per_s_per_gpu)), hint=""),
        Fact(label="MFU", value=percent(seen.mfu), hint=peak),
        Fact(label="Peak memory", value=figures.stage_memory(seen), hint=_shown(seen)),
        Fact(label="OOM risk", value=figures.risk(seen.out_of_memory_probability), hint="out of memory"),
        Fact(label="GPUs", value=figures.count(c.num_gpus), hint=""),
        Fact(label="Schedule", value=schedule, hint="order of the passes"),
        Fact(label="Micro-batches", value=figures.count(c.num_microbatches), hint="per pipeline and step"),
    ]
    if c.stage_layers:
        found.append(
            Fact(label="Layers", value=figures.split(c.stage_layers), hint="of each chunk, in model order")
        )
    return tuple(found)


def _shown(seen: Prediction) -> str:
    shown = figures.peak_shown(seen).replace(" │", ",")
    return f"{figures.peak_title(seen)} of the heaviest stage: {shown}"


def _roof_view(roof: Roofline) -> RoofView:
    """Return the chart and a row for each operator, which ends with its share of the roof."""
    rows: Sequence[tuple[str, ...]] = [
        (
            str(number),
            point.name,
            str(point.layers),
            figures.seconds(point.seconds),
            f"{point.intensity:.0f}",
            figures.tera(point.rate_flops),
            percent(point.rate_flops / roof.roof_flops(point)),
        )
        for number, point in enumerate(roof.points, start=1)
    ]
    return RoofView(
        title=f"{roof.gpu}, {roof.note}" if roof.note else "",
        chart=roofline_scatter(roof),
        operators=tuple(rows),
    )
