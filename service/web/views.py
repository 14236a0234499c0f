"""Jobs and their answers as pages show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.launchers.registry import launcher_names
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.db.plan_figures import PlanFigures
from meshwright.service.db.records import JobRecord, JobSummary, QuestionHeading
from meshwright.service.jobs.answers import answer_of, sorted_out
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.states import FLEET, TERMINAL_STATES
from meshwright.service.report.charts.scatter import Scatter, pareto_scatter
from meshwright.service.report.different import head_words, lines_of
from meshwright.service.report.formatting import gib, seconds, with_questions
from meshwright.service.report.question import sweep_title, title_of
from meshwright.service.report.sides import ComparisonTable, comparison_of
from meshwright.service.report.standings import Standings, standings_of
from meshwright.service.report.summary import warning_words
from meshwright.service.report.verdict import Fact, Verdict, question_of, verdict_of
from meshwright.service.requests.parse import parse_problem
from meshwright.service.stored import Unreadable
from meshwright.solver.answer import Answer
from meshwright.solver.problem import Problem

STATE_WORDS = {
    "queued": "waiting",
    "running": "searching",
    "succeeded": "done",
    "infeasible": "nothing fits",
    "failed": "failed",
    "cancelled": "cancelled",
    "expired": "expired",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One line of a list of jobs."""

    id: str
    state: str
    words: str  # its state
    title: str
    path: str
    created_at_s: float
    took: str
    best: str
    is_open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAnswer:
    """One page of an answer."""

    title: str
    question: tuple[Fact, ...]
    verdict: Verdict | None  # only of the page that begins with the first plan
    standings: Standings | None
    comparison: ComparisonTable | None
    pareto: Scatter | None
    different: tuple[str, ...]  # what near-optimal plans differ in, and each of them; empty: not asked for
    warnings: tuple[str, ...]
    unreadable: tuple[tuple[int, str], ...]  # rank and id of plans of this page
    chosen: str
    launcher: str  # with files for the first plan; empty: none was asked for
    ranks: tuple[int, int] | None  # first and last of this page
    next_page_token: str | None


_AXIS_WORDS = {
    "num_nodes": "nodes",
    "global_batch_size": "batch",
    "seq_length": "sequence length",
    "cluster": "cluster",
}
_BATCH = {"global_batch_size", "seq_length"}


def problem_of(job: JobRecord) -> Problem:
    """Return the question of a job; of a sweep, that of its first point."""
    return parse_problem({name: part for name, part in job.request.items() if name != "sweep"})


def measured_words(one: PlanFigures) -> str:
    """Return what a plan's runs took, next to the prediction: ``#1 29.1 s a step (+2.7 %), 66.0 GiB``."""
    found = []
    if one.measured_step_time_s is not None:
        found.append(f"{seconds(one.measured_step_time_s)} a step")
        if one.step_time_s:
            off = 100 * (one.measured_step_time_s / one.step_time_s - 1)
            found[0] += f" ({off:+.1f} %)".replace("-", "−")
    if one.measured_peak_memory_bytes is not None:
        found.append(f"{gib(one.measured_peak_memory_bytes)} GiB")
    if one.measured_out_of_memory:
        found.append("out of memory")
    return f"#{one.rank} {', '.join(found)}"


def job_rows(jobs: Jobs, tenant: str, found: Sequence[JobSummary]) -> list[JobRow]:
    """Return the lines of a list."""
    headings = jobs.headings(tenant, [job.id for job in found if job.title is None])
    return [_row(job, headings.get(job.id)) for job in found]


def _best_step(job: JobSummary) -> str:
    step_s = (job.progress or {}).get("incumbent_step_time_s")
    if isinstance(job.progress, Unreadable) or not isinstance(step_s, int | float | None):
        return "unreadable"
    return "" if step_s is None else seconds(step_s)


def _row(job: JobSummary, heading: QuestionHeading | None) -> JobRow:
    took_s = None
    if job.started_at_s is not None and job.finished_at_s is not None:
        took_s = job.finished_at_s - job.started_at_s
    return JobRow(
        id=job.id,
        state=job.state,
        words=STATE_WORDS.get(job.state, job.state),
        title=job.title or _heading_words(job, heading),
        path=path_of(job),
        created_at_s=job.created_at_s,
        took="" if took_s is None else seconds(took_s),
        best=_best_step(job),
        is_open=job.state not in TERMINAL_STATES,
    )


def _heading_words(job: JobSummary, heading: QuestionHeading | None) -> str:
    """Return what a fleet, or a job of an older release, is called in lists."""
    if heading is None:
        return f"{job.id[:8]}, unreadable"
    where = f"{heading.num_nodes} × {heading.cluster}"
    if job.kind == FLEET:
        return f"{heading.fleet}, a fleet on {where}"
    about = f"{heading.model} on {where}"
    return about if job.num_children is None else f"{about}, a sweep of {job.num_children}"


def path_of(job: JobSummary) -> str:
    """Return the address of a job's page."""
    return f"/{'fleets' if job.kind == FLEET else 'jobs'}/{job.id}"


def child_rows(children: Iterable[JobSummary]) -> list[JobRow]:
    """Points of a sweep, in order; the title is the point."""
    return [replace(_row(child, None), title=_point_title(child)) for child in children]


def _point_title(child: JobSummary) -> str:
    values = (child.point or {}).get("values", {})
    return point_words(values) if isinstance(values, Mapping) and values else f"{child.id[:8]}, unreadable"


def point_words(values: Mapping[str, object]) -> str:
    """Return the point of a sweep as ``nodes 2, batch 128``."""
    return ", ".join(
        f"{_AXIS_WORDS.get(name, name.replace('_', ' '))} {value}" for name, value in values.items()
    )


def best_point(job: JobRecord, plans: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the row of a sweep's point with the first of these plans; empty without one."""
    points = (job.answer or {}).get("points") or ()
    return points[plans[0]["point"]] if points and plans else {}


def answer_page(
    job: JobRecord,
    plans: Sequence[Mapping[str, Any]],
    next_page_token: str | None,
    *,
    of_best: JobRecord | None = None,
) -> ShownAnswer:
    """Return one page of the answer of a job that has one; ``of_best``: the job of a sweep's best point."""
    problem, (title, question) = problem_of(of_best or job), named(job)
    plans, unreadable = sorted_out(plans)
    answer = answer_of(job.answer, plans)
    is_first = not answer.plans or answer.plans[0].rank == 1
    has_front = is_first and (len(answer.plans) > 1 or bool(answer.plans and answer.pareto))
    return ShownAnswer(
        title=title,
        question=question,
        verdict=_verdict(answer, problem, best_point(job, plans)) if is_first else None,
        standings=_standings(answer, problem, is_whole=is_first and next_page_token is None),
        comparison=comparison_of(answer, answer.plans[0].plan_id) if answer.plans else None,
        pareto=pareto_scatter(answer, answer.plans[0].plan_id) if has_front else None,
        different=(head_words(answer.different), *lines_of(answer.different))
        if is_first and answer.different is not None
        else (),
        warnings=tuple(
            with_questions(warning_words(one))
            for one in dict.fromkeys((*answer.warnings, *problem.cluster.warnings))
        ),
        unreadable=tuple((one["rank"], one["plan_id"]) for one in unreadable),
        chosen=answer.plans[0].plan_id if is_first and answer.plans else "",
        launcher=_launcher(answer, problem) if is_first else "",
        ranks=(answer.plans[0].rank, answer.plans[-1].rank) if answer.plans else None,
        next_page_token=next_page_token,
    )


def _verdict(answer: Answer, problem: Problem, point: Mapping[str, Any]) -> Verdict:
    found = verdict_of(answer, problem)
    if not point:
        return found
    return replace(found, notes=(f"The best point is {point_words(point['values'])}.", *found.notes))


def _launcher(answer: Answer, problem: Problem) -> str:
    plan_names = answer.plans[0].launchers if answer.plans else ()
    return next((name for name in (problem.launcher, *plan_names) if name in launcher_names()), "")


def _standings(answer: Answer, problem: Problem, *, is_whole: bool) -> Standings | None:
    if not answer.plans:
        return None
    found = standings_of(answer, problem, {plan.plan_id for plan in answer.plans})
    # The client's own configuration can be ranked behind the plans only if all of them are listed.
    return found if is_whole else replace(found, baseline="")


def named(job: JobRecord) -> tuple[str, tuple[Fact, ...]]:
    """Return title and question of a job; of one that an older version wrote, its id."""
    try:
        problem = problem_of(job)
    except InvalidProblemError:
        return job.id, ()
    if not (axes := job.request.get("sweep")):
        return title_of(problem), question_of(problem)
    swept = " · ".join(point_words({name: ", ".join(map(str, values))}) for name, values in axes.items())
    fixed = [one for one in question_of(problem) if one.label != "Batch" or not _BATCH & set(axes)]
    title = sweep_title(problem, axes, job.num_children or 0)
    return title, (*fixed, Fact(label="Sweep", value=swept))
