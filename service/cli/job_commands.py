"""What ``meshwright jobs`` does: calls the service and prints what it says."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from service.answers import answer_from_json
from service.cli import exits
from service.cli.client import TERMINAL_STATES, ServiceClient
from service.cli.kept import keep
from service.cli.problem_options import Request
from service.cli.progress import ProgressLine
from service.cli.screen import screen
from service.library import answer_document
from service.report.points import render_points
from service.report.terminal import render_answer
from service.request import parse_problem
from solver.progress import Progress

_EXIT_CODES = {
    "succeeded": exits.FOUND,
    "infeasible": exits.INFEASIBLE,
    "failed": exits.NO_PLAN,
    "cancelled": exits.CANCELLED,
    "expired": exits.NO_PLAN,
}


def submit(url: str, request: Request, *, key: str | None, fresh: bool, quiet: bool, as_json: bool) -> str:
    """Submit a problem; the id of its job, which is printed unless ``quiet``."""
    with ServiceClient(url) as service:
        job = service.submit(request, key=key, fresh=fresh)
    if not quiet:
        print_json(job) if as_json else sys.stdout.write(f"{job['id']}  {job['state']}\n")
    return str(job["id"])


def list_jobs(url: str, limit: int, *, as_json: bool) -> None:
    """The newest jobs, one line each."""
    with ServiceClient(url) as service:
        page = service.jobs(limit)
    if as_json:
        print_json(page)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("job", "state", "created", "finished"):
        table.add_column(title, no_wrap=True)
    for job in page["jobs"]:
        cells = (job["id"], job["state"], job["created_at"], job.get("finished_at") or "–")
        table.add_row(*(Text(str(cell)) for cell in cells))
    screen().print(table)


def show(url: str, job_id: str, *, as_json: bool) -> int:
    """One job as it stands; the exit code of how it ended, 0 while it has not."""
    with ServiceClient(url) as service:
        job = service.job(job_id)
        return _print_job(service, job, as_json=as_json)


def wait(url: str, job_id: str, *, as_json: bool) -> int:
    """Follow a job to its end; the exit code of how it ended."""
    with ServiceClient(url) as service:
        return _print_job(service, followed(service, job_id), as_json=as_json)


def cancel(url: str, job_id: str, *, as_json: bool) -> None:
    """Ask for a job to be cancelled."""
    with ServiceClient(url) as service:
        job = service.cancel(job_id)
    if as_json:
        print_json(job)
    else:
        wanted = " (cancelling)" if job["cancel_requested"] and job["state"] == "running" else ""
        sys.stdout.write(f"{job['id']}  {job['state']}{wanted}\n")


def followed(service: ServiceClient, job_id: str) -> dict[str, Any]:
    """The finished job; its progress is shown meanwhile."""
    line, job = ProgressLine(), {}
    for job in service.until_finished(job_id):
        if job.get("progress"):
            line.show(_progress(job["progress"]))
    line.clear()
    return job


def _progress(raw: Mapping[str, Any]) -> Progress:
    """A progress report of the service."""
    return Progress(
        stage=raw["stage"],
        explored=raw["explored"],
        total=raw["total"],
        incumbent_step_time_s=raw.get("incumbent_step_time_s"),
        bound_step_time_s=raw.get("bound_step_time_s"),
        gap=raw.get("gap"),
        elapsed_s=raw["elapsed_s"],
    )


def _print_job(service: ServiceClient, job: Mapping[str, Any], *, as_json: bool) -> int:
    """A job, and its answer where it has one."""
    has_answer = job["state"] in TERMINAL_STATES and bool(job["links"].get("plans"))
    answer = service.answer(job["id"]) if has_answer else None
    if as_json:
        print_json({**job, "answer": answer} if answer else job)
    elif answer:
        print_answer(answer, job["request"])
    else:
        sys.stdout.write(f"{job['id']}  {job['state']}\n")
    if job.get("problem"):
        exits.say_error(job["problem"].get("detail") or job["problem"]["title"])
    return _EXIT_CODES.get(job["state"], exits.FOUND)


def print_answer(answer: Mapping[str, Any], request: Mapping[str, object]) -> None:
    """The ranking for people, as ``meshwright plan`` prints and keeps it; of a sweep its points."""
    if answer.get("points"):
        console = screen()
        console.print(render_points(answer, width=console.width))
        return
    problem, read = parse_problem(request), answer_from_json(answer)
    if read.plans:
        exits.say_warnings(keep(answer_document(read, problem), problem))
    console = screen()
    console.print(render_answer(read, problem, width=console.width))


def print_json(document: object) -> None:
    """JSON on stdout."""
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")
