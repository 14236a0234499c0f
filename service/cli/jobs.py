"""``meshwright jobs``: submit, list, show, wait for and cancel jobs of a running service."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.problem_options import SWEEP_HELP, Request, with_request, with_sweep

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
    from service.cli import job_commands  # noqa: PLC0415 - the client is loaded when it is needed

    with_sweep(request, sweep or ())
    more = {"priority": priority, "deadline_s": deadline_s}
    request.update({name: value for name, value in more.items() if value is not None})
    job_id = job_commands.submit(url, request, key=key, fresh=fresh, quiet=wait_for_it, as_json=json_output)
    if wait_for_it:
        raise typer.Exit(job_commands.wait(url, job_id, as_json=json_output))


@app.command("list")
def list_jobs(
    url: Url = DEFAULT_URL,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Newest jobs to show.")] = 20,
    json_output: AsJson = False,
) -> None:
    """List the newest jobs."""
    from service.cli import job_commands  # noqa: PLC0415 - the same

    job_commands.list_jobs(url, limit, as_json=json_output)


@app.command()
def show(job_id: JobId, url: Url = DEFAULT_URL, json_output: AsJson = False) -> None:
    """Show one job, and its answer once it has one."""
    from service.cli import job_commands  # noqa: PLC0415 - the same

    raise typer.Exit(job_commands.show(url, job_id, as_json=json_output))


@app.command()
def wait(job_id: JobId, url: Url = DEFAULT_URL, json_output: AsJson = False) -> None:
    """Follow a job to its end and print its answer."""
    from service.cli import job_commands  # noqa: PLC0415 - the same

    raise typer.Exit(job_commands.wait(url, job_id, as_json=json_output))


@app.command()
def cancel(job_id: JobId, url: Url = DEFAULT_URL, json_output: AsJson = False) -> None:
    """Cancel a job; a finished one stays as it is."""
    from service.cli import job_commands  # noqa: PLC0415 - the same

    job_commands.cancel(url, job_id, as_json=json_output)
