"""``meshwright jobs``: submit, list, show, wait for and cancel jobs of a running service."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.units import GIB
from meshwright.service.cli import terminal
from meshwright.service.cli.client import TERMINAL_STATES, ServiceClient
from meshwright.service.cli.problem_options import SWEEP_HELP, Request, with_request, with_sweep
from meshwright.service.cli.progress import ProgressLine
from meshwright.service.cli.saved_plans import keep
from meshwright.service.cli.terminal import screen
from meshwright.service.jobs.answers import answer_from_json
from meshwright.service.library import answer_document
from meshwright.service.report.points import render_points
from meshwright.service.report.terminal import render_answer
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.problem import Progress

app = typer.Typer(help="Jobs of a running service.", no_args_is_help=True)

Url = Annotated[str, typer.Option(envvar="MESHWRIGHT_URL", help="Where the service listens.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")]
JobId = Annotated[str, typer.Argument(help="Id of the job.")]
DEFAULT_URL = "http://127.0.0.1:8420"


@app.command()
@with_request
def submit(
    request: Request,
    *,
    url: Url = DEFAULT_URL,
    key: Annotated[str | None, typer.Option("--idempotency-key", help="Same key, same job.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Search again, even if known.")] = False,
    wait_for_it: Annotated[bool, typer.Option("--wait", help="Follow it and print its answer.")] = False,
    sweep: Annotated[list[str] | None, typer.Option(metavar="NAME=V,V", help=SWEEP_HELP)] = None,
    priority: Annotated[
        int | None, typer.Option(min=0, max=9, help="0 goes before 9 among your own.")
    ] = None,
    deadline_s: Annotated[float | None, typer.Option(help="Unclaimed so long: expired.")] = None,
    json_output: AsJson = False,
) -> None:
    """Submit a problem, or a sweep of them, as a job."""
    with_sweep(request, sweep or ())
    more = {"priority": priority, "deadline_s": deadline_s}
    request.update({name: value for name, value in more.items() if value is not None})
    job_id = submit_job(url, request, key=key, fresh=fresh, quiet=wait_for_it, as_json=json_output)
    if wait_for_it:
        raise typer.Exit(wait_for_job(url, job_id, as_json=json_output))


@app.command("list")
def list_jobs(
    url: Url = DEFAULT_URL,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Newest jobs to show.")] = 20,
    json_output: AsJson = False,
) -> None:
    """List the newest jobs."""
    print_jobs(url, limit, as_json=json_output)


@app.command("plans")
def list_plans(
    *,
    url: Url = DEFAULT_URL,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="A filter of GET /v1/plans: cluster=X, max_num_gpus=64, …."
        ),
    ] = None,
    max_memory_gib: Annotated[float | None, typer.Option(min=0.001, help="Peak of a GPU at most.")] = None,
    measured: Annotated[
        bool | None, typer.Option("--measured/--unmeasured", help="Those that a run was reported of.")
    ] = None,
    sort: Annotated[str, typer.Option(help="A figure; - before it: the largest first.")] = "step_time_s",
    limit: Annotated[int, typer.Option(min=1, max=200, help="Plans to show.")] = 20,
    json_output: AsJson = False,
) -> None:
    """List plans of all jobs by their figures: the fastest under 60 GiB, what was measured."""
    query = {"sort": sort, "page_size": str(limit), **assigned(where or ())}
    if max_memory_gib is not None:
        terminal.require_above_0("--max-memory-gib", max_memory_gib)
        query["max_peak_memory_bytes"] = str(int(max_memory_gib * GIB))
    if measured is not None:
        query["measured"] = str(measured).lower()
    print_plans(url, query, as_json=json_output)


@app.command()
def show(job_id: JobId, url: Url = DEFAULT_URL, json_output: AsJson = False) -> None:
    """Show one job, and its answer once it has one."""
    raise typer.Exit(print_job(url, job_id, as_json=json_output))


@app.command()
def wait(job_id: JobId, url: Url = DEFAULT_URL, json_output: AsJson = False) -> None:
    """Follow a job to its end and print its answer."""
    raise typer.Exit(wait_for_job(url, job_id, as_json=json_output))


@app.command()
def cancel(job_id: JobId, url: Url = DEFAULT_URL, json_output: AsJson = False) -> None:
    """Cancel a job; a finished one stays as it is."""
    cancel_job(url, job_id, as_json=json_output)


# --------------------------------------------------------------------------------------------------
# What ``meshwright jobs`` does: calls the service and prints what it says.


_EXIT_CODES = {
    "succeeded": terminal.FOUND,
    "infeasible": terminal.INFEASIBLE,
    "failed": terminal.NO_PLAN,
    "cancelled": terminal.CANCELLED,
    "expired": terminal.NO_PLAN,
}


def submit_job(
    url: str, request: Request, *, key: str | None, fresh: bool, quiet: bool, as_json: bool
) -> str:
    """Submit a problem; the id of its job, which is printed unless ``quiet``."""
    with ServiceClient(url) as service:
        job = service.submit(request, key=key, fresh=fresh)
    if not quiet:
        print_json(job) if as_json else sys.stdout.write(f"{job['id']}  {job['state']}\n")
    return str(job["id"])


def print_jobs(url: str, limit: int, *, as_json: bool) -> None:
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


def assigned(where: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE texts as a query.

    Raises:
        InvalidProblemError: one of them assigns nothing.
    """
    for text in where:
        if not all(text.partition("=")):
            message = f'"{shown(text)}" assigns nothing'
            raise InvalidProblemError.of(
                "--where", message, allowed="NAME=VALUE", nearest="cluster=dgx-h100"
            )
    return dict(text.split("=", 1) for text in where)


def print_plans(url: str, query: Mapping[str, str], *, as_json: bool) -> None:
    """Plans of all jobs, one line each."""
    with ServiceClient(url) as service:
        page = service.plans(query)
    if as_json:
        print_json(page)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    is_verified = any(plan["verified"] for plan in page["plans"])
    for title in (
        "plan",
        "model",
        "cluster",
        "GPUs",
        "tp",
        "pp",
        "cp",
        "dp",
        "step",
        "measured",
        "peak memory",
        *["verified"] * is_verified,
    ):
        table.add_column(title, no_wrap=True)
    for plan in page["plans"]:
        sizes = (f"{name}_parallel_size" for name in ("tensor", "pipeline", "context", "data"))
        names = ("plan_id", "model", "cluster", "num_gpus", *sizes)
        own = [str(plan[name]) if plan[name] is not None else "–" for name in names]
        verdict = [plan["verified"] or "–"] * is_verified
        table.add_row(*(Text(cell) for cell in (*own, *_figures_of(plan), *verdict)))
    screen().print(table)


def _figures_of(plan: Mapping[str, Any]) -> tuple[str, str, str]:
    step_s, peak, measured = plan["step_time_s"], plan["peak_memory_bytes"], plan["measured"] or {}
    step = f"{step_s:.3g} s" if step_s else "–"
    measured_text = f"{measured['step_time_s']:.3g} s" if measured.get("step_time_s") else "–"
    if measured.get("out_of_memory"):
        measured_text = "out of memory"
    return step, measured_text, f"{peak / GIB:.1f} GiB" if peak else "–"


def print_job(url: str, job_id: str, *, as_json: bool) -> int:
    """One job as it stands; the exit code of how it ended, 0 while it has not."""
    with ServiceClient(url) as service:
        job = service.job(job_id)
        return _print_job(service, job, as_json=as_json)


def wait_for_job(url: str, job_id: str, *, as_json: bool) -> int:
    """Follow a job to its end; the exit code of how it ended."""
    with ServiceClient(url) as service:
        return _print_job(service, followed(service, job_id), as_json=as_json)


def cancel_job(url: str, job_id: str, *, as_json: bool) -> None:
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
    has_answer = job["state"] in TERMINAL_STATES and bool(job["links"].get("plans"))
    answer = service.answer(job["id"]) if has_answer else None
    if as_json:
        print_json({**job, "answer": answer} if answer else job)
    elif answer:
        print_answer(answer, job["request"])
    else:
        sys.stdout.write(f"{job['id']}  {job['state']}\n")
    if job.get("problem"):
        terminal.say_error(job["problem"].get("detail") or job["problem"]["title"])
    return _EXIT_CODES.get(job["state"], terminal.FOUND)


def print_answer(answer: Mapping[str, Any], request: Mapping[str, object]) -> None:
    """The ranking for people, as ``meshwright plan`` prints and keeps it; of a sweep its points."""
    if answer.get("points"):
        console = screen()
        console.print(render_points(answer, width=console.width))
        return
    problem, read = parse_problem(request), answer_from_json(answer)
    if read.plans:
        terminal.say_warnings(keep(answer_document(read, problem), problem))
    console = screen()
    console.print(render_answer(read, problem, width=console.width))


def print_json(document: object) -> None:
    """JSON on stdout."""
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")
