"""``meshwright report``: the self-contained page of an answer that was found before."""

from __future__ import annotations

import json
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.options import PROFILE_HELP
from meshwright.service.cli.saved_plans import KeptAnswer, answer_of_file, find_answer, plan_of, verdicts_of
from meshwright.service.cli.terminal import service_packages_for, write_file
from meshwright.service.report.formatting import configuration_words
from meshwright.service.report.page import render_page
from meshwright.service.report.trace import trace_of
from meshwright.service.reporting import ReportOptions, checked_timelines, report_of, settled_for
from meshwright.service.what_if.grid import Method

if TYPE_CHECKING:
    from meshwright.service.cli.client import ServiceClient


def report(
    plan_or_job: Annotated[
        str | None, typer.Argument(help="Id that plan printed (a prefix will do), or a job's, with --url.")
    ] = None,
    *,
    source: Annotated[Path | None, typer.Option("--from", help="Answer file, e.g. answer.json.")] = None,
    rank: Annotated[int, typer.Option(help="Rank of the plan in --from to show first.")] = 1,
    url: Annotated[str | None, typer.Option(help="A service that has the job or the plan.")] = None,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    what_if: Annotated[
        Literal["search", "predict", "none"],
        typer.Option(help="Other hardware and batches: searched, predicted (faster), or left out."),
    ] = "search",
    out: Annotated[Path | None, typer.Option(help="File to write; default: report-ID.html here.")] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    timeline: Annotated[
        Path | None, typer.Option(help="Write the step's timeline for Perfetto here instead.")
    ] = None,
) -> None:
    """Write an answer as one HTML file to read, print or mail."""
    if (plan_or_job is None) == (source is None):
        raise typer.BadParameter("give an id, or --from with an answer's file")
    run_report(
        ReportRequest(
            name=plan_or_job or "", source=source, rank=rank, url=url, profile=profile, what_if=what_if
        ),
        out=out,
        open_it=open_it,
        timeline=timeline,
    )


# --------------------------------------------------------------------------------------------------
# From a kept answer, a file or a service to its report or its timeline.


WHAT_IF_BUDGET_S = 20.0  # CPU seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """Which answer, and what its report shall hold."""

    name: str  # of a plan, or of a job where there is a ``url``
    source: Path | None = None
    rank: int = 1
    url: str | None = None
    profile: Sequence[Path] | None = None
    what_if: Method = "none"


def run_report(wanted: ReportRequest, *, out: Path | None, open_it: bool, timeline: Path | None) -> None:
    """Write the page, or the timeline.

    Raises:
        InvalidProblemError: there is no such answer, or a file cannot be written.
    """
    if timeline is not None:
        write_file(timeline, json.dumps(timeline_of(wanted), allow_nan=False) + "\n", "--timeline")
        sys.stdout.write(f"wrote {timeline}\n")
        return
    page, name = _page(wanted)
    path = out or Path(f"report-{name}.html")
    write_file(path, page, "--out")
    sys.stdout.write(f"wrote {path}\n")
    if open_it:
        webbrowser.open(path.resolve().as_uri())


def timeline_of(wanted: ReportRequest) -> dict[str, Any]:
    """The step of one plan in the Trace Event Format.

    Raises:
        InvalidProblemError: the plan has no timeline.
    """
    if wanted.url is not None:
        with _service_at(wanted.url) as service:
            return service.timeline(wanted.name)
    kept = _kept_answer(wanted)
    plan = plan_of(kept)
    costs = profile_for(kept.problem, wanted.profile)
    settled, profile = settled_for(plan, kept.problem, costs)
    found = checked_timelines(plan, settled, profile)
    if not found:
        message = "no timeline: its schedule has no known order, or other costs predicted it (--profile)"
        raise InvalidProblemError.of("plan", message)
    return trace_of(found, title=f"#{plan.rank} {configuration_words(plan.config)}")


def _service_at(url: str) -> ServiceClient:
    with service_packages_for("report --url"):
        from meshwright.service.cli.client import ServiceClient  # noqa: PLC0415 - the planner alone lacks httpx
    return ServiceClient(url)


def _kept_answer(wanted: ReportRequest) -> KeptAnswer:
    return answer_of_file(wanted.source, wanted.rank) if wanted.source else find_answer(wanted.name)


def _page(wanted: ReportRequest) -> tuple[str, str]:
    if wanted.url is not None:
        with _service_at(wanted.url) as service:
            return service.report(wanted.name), wanted.name[:8]
    kept = _kept_answer(wanted)
    asked = ReportOptions(
        chosen=kept.plan_id,
        what_if=wanted.what_if,
        what_if_budget_s=WHAT_IF_BUDGET_S,
        verdicts=verdicts_of(kept.answer.plans),
    )
    document = report_of(kept.answer, kept.problem, profile_for(kept.problem, wanted.profile), asked)
    return render_page(document), kept.plan_id[:8] or "infeasible"
