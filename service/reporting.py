"""A report of an answer: computes the additional parts of its page, for the command line and the API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isclose

from meshwright.launchers.registry import export
from meshwright.profiles.errors import PlannerError, RefusedExportError
from meshwright.profiles.profile import Profile
from meshwright.service.report.document import Details, Document, document_of, prediction_document
from meshwright.service.report.formatting import seconds
from meshwright.service.report.page import render_page
from meshwright.service.requests.parse import digest_of, problem_to_mapping
from meshwright.service.what_if.grid import Method, what_ifs
from meshwright.solver.answer import Answer, Plan, settled_problem
from meshwright.solver.explain.roofline import rooflines_of
from meshwright.solver.explain.timeline import timelines_of
from meshwright.solver.explanation import Timeline, slowest_step_s
from meshwright.solver.predict import profile_of_variant
from meshwright.solver.problem import Problem

MOST_DETAILED = 5  # plans that are shown in full
MOST_LISTED = 100  # plans of a ranking


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """The contents requested for a report."""

    chosen: str = ""  # plan_id to show first; the best plan where it is empty
    detailed: int = MOST_DETAILED
    what_if: Method = "predict"
    what_if_budget_s: float = inf
    verdicts: Mapping[str, str] = field(default_factory=dict)  # what launchers made of plans, by plan_id


def report_of(
    answer: Answer, problem: Problem, profile: Profile, asked: ReportOptions | None = None
) -> Document:
    """Return the report of an answer.

    Args:
        answer: what was found.
        problem: what was asked.
        profile: what prices it.
        asked: what the report is to hold.
    """
    wish = asked or ReportOptions()
    left_out = len(answer.plans) > MOST_LISTED
    if left_out:
        answer = replace(answer, plans=_listed(answer.plans, wish))
    shown = _shown(answer.plans, wish)
    return document_of(
        answer,
        problem,
        {plan.plan_id: details_of(plan, problem, profile) for plan in shown},
        what_if=what_ifs(problem, profile, answer, method=wish.what_if, budget_s=wish.what_if_budget_s),
        problem_json=json.dumps(problem_to_mapping(problem), indent=1, allow_nan=False),
        digest=digest_of(problem),
        left_out=left_out,
        verdicts=wish.verdicts,
        chosen=wish.chosen,
    )


def details_of(plan: Plan, problem: Problem, profile: Profile) -> Details:
    """Return the additional details of one plan."""
    settled, own = settled_for(plan, problem, profile)
    timelines, note = drawn_timelines(plan, settled, own)
    launcher, files, notes = _launch_files(plan, problem)
    return Details(
        timelines=timelines,
        rooflines=rooflines_of(settled, own, plan.config) if timelines else (),
        log_memory_sigma=own.log_memory_sigma,
        launcher=launcher,
        files=files,
        file_notes=notes,
        note=note,
    )


def prediction_page(plan: Plan, problem: Problem, profile: Profile, *, breaks: Sequence[str]) -> str:
    """Return one configuration in full as an HTML page: ``plan`` has its prediction and reasons."""
    timelines, note = drawn_timelines(plan, problem, profile)
    details = Details(
        timelines=timelines,
        rooflines=rooflines_of(problem, profile, plan.config) if timelines else (),
        log_memory_sigma=profile.log_memory_sigma,
        note=note,
    )
    return render_page(prediction_document(plan, problem, details, breaks=breaks))


def settled_for(plan: Plan, problem: Problem, profile: Profile) -> tuple[Problem, Profile]:
    """Return the question as a plan settled it (launcher, precision, optimizer, batch), and its profile."""
    settled = settled_problem(plan, problem)
    return settled, profile_of_variant(settled, profile)


def drawn_timelines(plan: Plan, problem: Problem, profile: Profile) -> tuple[tuple[Timeline, ...], str]:
    """Return a plan's timelines by ``profile``, and a note where other costs had predicted the plan.

    There are none, and no note, where no order of passes is known.
    """
    try:
        found = tuple(timelines_of(problem, profile, plan.config))
    except PlannerError:
        return (), ""
    predicted_s, now_s = plan.prediction.step_time_s, slowest_step_s(found)
    if not found or isclose(now_s, predicted_s, rel_tol=1e-6):
        return found, ""
    return found, (
        f"Another profile or version predicted this plan: {seconds(predicted_s)} a step. The timeline shows"
        f" what the costs here give: {seconds(now_s)}."
    )


def _launch_files(plan: Plan, problem: Problem) -> tuple[str, dict[str, str], tuple[str, ...]]:
    name = problem.launcher
    if name == "any" and plan.launchers:
        name = plan.launchers[0]
    if name in ("any", "none"):
        return "", {}, ("To get launch files, name a launcher.",)
    try:
        bundle = export(plan, problem, name)
    except RefusedExportError as fault:
        return name, {}, tuple(error.sentence() for error in fault.errors)
    return name, bundle.files, tuple(bundle.warnings)


def _listed(plans: Sequence[Plan], wish: ReportOptions) -> tuple[Plan, ...]:
    behind = [plan for plan in plans[MOST_LISTED:] if plan.plan_id == wish.chosen]
    return (*plans[:MOST_LISTED], *behind)


def only(answer: Answer, plan: Plan) -> Answer:
    """Return the answer with one plan only, for a report of it."""
    return replace(answer, plans=(plan,), pareto=None, baseline=None)


def _shown(plans: Sequence[Plan], wish: ReportOptions) -> list[Plan]:
    first = [plan for plan in plans if plan.plan_id == wish.chosen]
    others = [plan for plan in plans if plan.plan_id != wish.chosen]
    return sorted([*first, *others][: wish.detailed], key=lambda plan: plan.rank)
