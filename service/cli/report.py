"""``meshwright report``: the self-contained page of an answer that was found before."""

from __future__ import annotations

import json
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import Profile
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.options import PROFILE_HELP
from meshwright.service.cli.saved_plans import SavedPlan, chosen_plan, verdicts_of
from meshwright.service.cli.terminal import say_warnings, service_packages_for, write_file
from meshwright.service.report.formatting import configuration_words
from meshwright.service.report.page import render_page
from meshwright.service.report.trace import trace_of
from meshwright.service.reporting import ReportOptions, drawn_timelines, report_of, settled_for
from meshwright.service.what_if.grid import Method
from meshwright.solver.answer import Answer

WHAT_IF_BUDGET_S = 20.0  # CPU seconds
_JOB_ID = 32  # hex digits; a plan's id has fewer


def report(
    plan_or_job: Annotated[
        str | None, typer.Argument(help="Plan id (or its first characters), or with --url a job id.")
    ] = None,
    *,
    source: Annotated[Path | None, typer.Option("--from", help="Answer file, e.g. answer.json.")] = None,
    rank: Annotated[int, typer.Option(help="Rank of the plan in --from to show first.")] = 1,
    url: Annotated[str | None, typer.Option(help="Service that has the job or plan.")] = None,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    what_if: Annotated[
        Method,
        typer.Option(
            help="Other hardware and batches: search them, predict them (faster), or leave them out."
        ),
    ] = "search",
    out: Annotated[Path | None, typer.Option(help="File to write [default: report-ID.html]")] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    timeline: Annotated[
        Path | None, typer.Option(help="Write the step's timeline for Perfetto to this file instead.")
    ] = None,
) -> None:
    """Write an answer as one HTML file to read, print or mail."""
    if url is None:
        kept = chosen_plan(plan_or_job, source, rank)
        answer, costs = kept.answer, profile_for(kept.problem, profile)
        found = _page(kept, answer, costs, what_if) if timeline is None else _timeline(kept, costs)
        name = kept.plan_id[:8] or "infeasible"
    elif plan_or_job is None or source is not None:
        raise typer.BadParameter("--url needs the id of a job or a plan of that service")
    else:
        with service_packages_for("report --url"):
            from meshwright.service.cli.client import ServiceClient  # noqa: PLC0415 - the planner alone lacks httpx
        with ServiceClient(url) as service:
            if timeline is None:
                kind = "jobs" if len(plan_or_job) == _JOB_ID else "plans"
                found = service.ask("GET", f"/v1/{kind}/{plan_or_job}/report").text
            else:
                found = _json(service.call("GET", f"/v1/plans/{plan_or_job}/timeline"))
        name = plan_or_job[:8]
    path = timeline or out or Path(f"report-{name}.html")
    write_file(path, found, "--out" if timeline is None else "--timeline")
    sys.stdout.write(f"wrote {path}\n")
    if open_it and timeline is None:
        webbrowser.open(path.resolve().as_uri())


def _page(kept: SavedPlan, answer: Answer, costs: Profile, what_if: Method) -> str:
    asked = ReportOptions(
        chosen=kept.plan_id,
        what_if=what_if,
        what_if_budget_s=WHAT_IF_BUDGET_S,
        verdicts=verdicts_of(answer.plans),
    )
    return render_page(report_of(answer, kept.problem, costs, asked))


def _timeline(kept: SavedPlan, costs: Profile) -> str:
    plan = kept.plan
    found, note = drawn_timelines(plan, *settled_for(plan, kept.problem, costs))
    if not found:
        raise InvalidProblemError.of("plan", "no timeline: no order of passes is known for its schedule")
    say_warnings([note] if note else [])
    return _json(trace_of(found, title=f"#{plan.rank} {configuration_words(plan.config)}", note=note))


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, allow_nan=False) + "\n"
