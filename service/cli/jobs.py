"""``meshwright jobs``: submit, list, show, wait for and cancel jobs of a running service."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Annotated, Any

import typer

from meshwright.profiles.documents import shown
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.profiles.units import GIB
from meshwright.service.cli import terminal
from meshwright.service.cli.client import ServiceClient
from meshwright.service.cli.options import SWEEP_HELP, Full, Request, with_request
from meshwright.service.cli.problem_options import with_sweep
from meshwright.service.cli.progress import ProgressLine
from meshwright.service.cli.saved_plans import keep
from meshwright.service.cli.terminal import print_json, screen
from meshwright.service.jobs.answers import answer_document, answer_from_json
from meshwright.service.jobs.states import TERMINAL_STATES
from meshwright.service.report.formatting import plain_table
from meshwright.service.report.points import render_points
from meshwright.service.report.post_training import render_post_training
from meshwright.service.report.terminal import render_answer, render_summary
from meshwright.service.requests.labels import selector_of
from meshwright.service.requests.parse import parse_problem
from meshwright.service.requests.parts import is_post_training
from meshwright.solver.problem import Progress
from meshwright_client.records import Progress as JobProgress
from meshwright_client.records import State

app = typer.Typer(help="Jobs of a running service.", no_args_is_help=True)

Url = Annotated[str, typer.Option(envvar="MESHWRIGHT_URL", help="Where the service listens.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")]
JobId = Annotated[str, typer.Argument(help="Id of the job.")]
DEFAULT_URL = "http://127.0.0.1:8420"


@app.command()
@partial(with_request, stored=True)
def submit(
    request: Request,
    *,
    url: Url = DEFAULT_URL,
    key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key", help="Idempotency key: repeating the request returns the same job."
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Search again, even if there is a stored answer.")
    ] = False,
    wait_for_it: Annotated[bool, typer.Option("--wait", help="Wait for the answer and print it.")] = False,
    sweep: Annotated[list[str] | None, typer.Option(metavar="NAME=V,V", help=SWEEP_HELP)] = None,
    priority: Annotated[
        int | None, typer.Option(min=0, max=9, help="Priority 0 (first) to 9 (last) among your jobs.")
    ] = None,
    deadline_s: Annotated[
        float | None,
        typer.Option(help="Expire the job if no worker starts it within this many seconds."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Label of the job (repeat for more): team=nlp."),
    ] = None,
    json_output: AsJson = False,
) -> None:
    """Submit a problem, or a sweep of them, as a job."""
    with_sweep(request, sweep or ())
    labels = _assigned(label or (), "--label", nearest="team=nlp")
    more = {"priority": priority, "deadline_s": deadline_s, "labels": labels or None}
    request.update({name: value for name, value in more.items() if value is not None})
    with ServiceClient(url) as service:
        job = service.submit(request, key=key, fresh=fresh)
        if wait_for_it:
            raise typer.Exit(_print_job(service, followed(service, job["id"]), as_json=json_output))
    _print(job, f"{job['id']}  {job['state']}\n", as_json=json_output)


@app.command("list")
def list_jobs(
    *,
    url: Url = DEFAULT_URL,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Newest jobs to show.")] = 20,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only jobs with this label (repeat: with all)."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only jobs of this model: llama-3.1-70b.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only jobs from this key: its id, or me.")] = None,
    state: Annotated[str | None, typer.Option(help="Only jobs in this state: failed.")] = None,
    json_output: AsJson = False,
) -> None:
    """List the newest jobs."""
    labels = selector_of(_assigned(label or (), "--label", nearest="team=nlp"))
    given = {"labels": labels or None, "model": model, "owner": owner, "state": state}
    with ServiceClient(url) as service:
        wanted = {name: value for name, value in given.items() if value is not None}
        page = service.call("GET", "/v1/jobs", params={"page_size": limit, **wanted})
    if json_output:
        print_json(page)
        return
    labelled = ["labels"] if any(job.get("labels") for job in page["jobs"]) else []
    rows = [
        (
            job["id"],
            job["state"],
            job.get("title") or job.get("model") or "–",
            _minute(job["created_at"]),
            _minute(job.get("finished_at")),
            *(selector_of(job.get("labels") or {}) for _ in labelled),
        )
        for job in page["jobs"]
    ]
    screen().print(plain_table(("job", "state", "question", "created", "finished", *labelled), rows))


def _minute(moment: str | None) -> str:
    return moment[:16].replace("T", " ") if moment else "–"


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
    max_memory_gib: Annotated[
        float | None, typer.Option(min=0.001, help="Largest peak memory of a GPU, in GiB.")
    ] = None,
    measured: Annotated[
        bool | None,
        typer.Option("--measured/--unmeasured", help="Only plans with, or without, a reported run."),
    ] = None,
    sort: Annotated[
        str, typer.Option(help="Figure to sort by. Put - before it to sort in descending order.")
    ] = "step_time_s",
    limit: Annotated[int, typer.Option(min=1, max=200, help="Plans to show.")] = 20,
    json_output: AsJson = False,
) -> None:
    """List plans of all jobs by their figures. For example the fastest under 60 GiB, or those measured."""
    assigned = _assigned(where or (), "--where", nearest="cluster=dgx-h100")
    query = {"sort": sort, "page_size": str(limit), **assigned}
    if max_memory_gib is not None:
        terminal.require_above_0("--max-memory-gib", max_memory_gib)
        query["max_peak_memory_bytes"] = str(int(max_memory_gib * GIB))
    if measured is not None:
        query["measured"] = str(measured).lower()
    with ServiceClient(url) as service:
        page = service.call("GET", "/v1/plans", params=query)
    if json_output:
        print_json(page)
        return
    verified = ["verified"] if any(plan["verified"] for plan in page["plans"]) else []
    rows = [
        (
            *("–" if plan[name] is None else str(plan[name]) for name in _COLUMNS.values()),
            *_figures_of(plan),
            *(plan[name] or "–" for name in verified),
        )
        for plan in page["plans"]
    ]
    screen().print(plain_table((*_COLUMNS, "step", "measured", "peak memory", *verified), rows))


@app.command()
def show(job_id: JobId, url: Url = DEFAULT_URL, full: Full = False, json_output: AsJson = False) -> None:
    """Show one job, and its answer once it has one."""
    with ServiceClient(url) as service:
        job = service.call("GET", f"/v1/jobs/{job_id}")
        raise typer.Exit(_print_job(service, job, as_json=json_output, full=full))


@app.command()
def wait(job_id: JobId, url: Url = DEFAULT_URL, full: Full = False, json_output: AsJson = False) -> None:
    """Follow a job to its end and print its answer."""
    with ServiceClient(url) as service:
        raise typer.Exit(_print_job(service, followed(service, job_id), as_json=json_output, full=full))


@app.command()
def cancel(job_id: JobId, url: Url = DEFAULT_URL, json_output: AsJson = False) -> None:
    """Cancel a job. A finished one does not change."""
    with ServiceClient(url) as service:
        job = service.call("POST", f"/v1/jobs/{job_id}:cancel")
    wanted = " (cancelling)" if job["cancel_requested"] and job["state"] == "running" else ""
    _print(job, f"{job['id']}  {job['state']}{wanted}\n", as_json=json_output)


@app.command()
def delete(job_id: JobId, url: Url = DEFAULT_URL) -> None:
    """Delete a job with its plans, events and re-plans. A worker that has it stops."""
    with ServiceClient(url) as service:
        service.ask("DELETE", f"/v1/jobs/{job_id}")
    sys.stdout.write(f"{job_id}  deleted\n")


@app.command()
def share(
    job_id: JobId,
    *,
    days: Annotated[float, typer.Option(help="Days until the link expires.")] = 3.0,
    url: Url = DEFAULT_URL,
    json_output: AsJson = False,
) -> None:
    """Make a read-only link to an answer. Its address is shown once."""
    with ServiceClient(url) as service:
        made = service.call("POST", f"/v1/jobs/{job_id}/share-links", json={"expires_in_days": days})
    made["url"] = f"{url.rstrip('/')}{made['path']}"
    until = f"link {made['id']}, works until {_minute(made['expires_at'])} UTC"
    _print(made, f"{made['url']}\n{until}\n", as_json=json_output)


@app.command()
def links(
    job_id: Annotated[str | None, typer.Argument(help="Id of a job [default: of all jobs].")] = None,
    url: Url = DEFAULT_URL,
    json_output: AsJson = False,
) -> None:
    """List the active links to an answer, or to all answers."""
    found: list[dict[str, Any]] = []
    token: str | None = ""
    with ServiceClient(url) as service:
        while token is not None:
            more = {"page_token": token} if token else {}
            path = "/v1/share-links" if job_id is None else f"/v1/jobs/{job_id}/share-links"
            page = service.call("GET", path, params=more)
            found += page["links"]
            token = page.get("next_page_token")
    lines = (
        f"{one['id']}  {_of_job(one) if job_id is None else ''}made "
        f"{_minute(one['created_at'])}  until {_minute(one['expires_at'])} UTC\n"
        for one in found
    )
    _print({"links": found}, "".join(lines), as_json=json_output)


def _of_job(link: Mapping[str, Any]) -> str:
    return f"of job {link['job_id']}  "


@app.command()
def unshare(
    job_id: JobId,
    link_id: Annotated[str, typer.Argument(help="Id of the link, as `jobs links` prints it.")],
    url: Url = DEFAULT_URL,
) -> None:
    """Revoke a link to an answer."""
    with ServiceClient(url) as service:
        service.ask("DELETE", f"/v1/jobs/{job_id}/share-links/{link_id}")
    sys.stdout.write(f"{link_id}  revoked\n")


# --------------------------------------------------------------------------------------------------
# Replies of the service, printed.


_EXIT_CODES = {
    "succeeded": terminal.FOUND,
    "infeasible": terminal.INFEASIBLE,
    "failed": terminal.NO_PLAN,
    "cancelled": terminal.CANCELLED,
    "expired": terminal.NO_PLAN,
}


def _assigned(texts: Sequence[str], option: str, *, nearest: str) -> dict[str, str]:
    for text in texts:
        if not all(text.partition("=")):
            raise InvalidProblemError.of(
                option, f'"{shown(text)}" assigns nothing', allowed="NAME=VALUE", nearest=nearest
            )
    return dict(text.split("=", 1) for text in texts)


_COLUMNS = {
    "plan": "plan_id", "model": "model", "cluster": "cluster", "GPUs": "num_gpus",
    "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "cp": "context_parallel_size",
    "dp": "data_parallel_size",
}  # fmt: skip


def _figures_of(plan: Mapping[str, Any]) -> tuple[str, str, str]:
    step_s, peak, run = plan["step_time_s"], plan["peak_memory_bytes"], plan["measured"] or {}
    measured = f"{run['step_time_s']:.3g} s" if run.get("step_time_s") else "–"
    return (
        f"{step_s:.3g} s" if step_s else "–",
        "out of memory" if run.get("out_of_memory") else measured,
        f"{peak / GIB:.1f} GiB" if peak else "–",
    )


def followed(service: ServiceClient, job_id: str) -> dict[str, Any]:
    """Return the finished job; its progress is shown meanwhile."""
    line = ProgressLine()

    def show(_state: State, progress: JobProgress | None) -> None:
        if progress is not None:
            line.show(Progress(**{one.name: getattr(progress, one.name) for one in fields(Progress)}))

    job = service.ended(job_id, show)
    line.clear()
    return job


def _print(document: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    print_json(document) if as_json else sys.stdout.write(text)


def _print_job(service: ServiceClient, job: Mapping[str, Any], *, as_json: bool, full: bool = False) -> int:
    has_answer = job["state"] in TERMINAL_STATES and bool(job["links"].get("plans"))
    answer = service.answer(job["id"]) if has_answer else None
    if as_json:
        print_json({**job, "answer": answer} if answer else job)
    elif answer:
        print_answer(answer, job["request"], full=full)
    else:
        sys.stdout.write(f"{job['id']}  {job['state']}\n")
    if job.get("problem"):
        terminal.say_error(job["problem"].get("detail") or job["problem"]["title"])
    return _EXIT_CODES.get(job["state"], terminal.FOUND)


def print_answer(answer: Mapping[str, Any], request: Mapping[str, object], *, full: bool = False) -> None:
    """The ranking for people, as ``meshwright plan`` prints and keeps it; of a sweep its points."""
    if answer.get("points"):
        console = screen()
        console.print(render_points(answer, width=console.width))
        return
    if is_post_training(request):
        _print_roles(answer)
        return
    problem, read = parse_problem(request), answer_from_json(answer)
    if read.plans:
        terminal.say_warnings(keep(answer_document(read, problem), problem))
    console = screen()
    render = render_answer if full else render_summary
    console.print(render(read, problem, width=console.width))


def _print_roles(answer: Mapping[str, Any]) -> None:
    if "faults" not in answer:
        console = screen()
        console.print(render_post_training(answer, width=console.width))
        return
    for one in answer["faults"]:
        error = FieldError(
            pointer=one["field"], message=one["message"], allowed=one["allowed"], nearest=one["nearest"]
        )
        terminal.say_error(error.sentence())
