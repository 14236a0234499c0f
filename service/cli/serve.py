"""``meshwright serve`` and ``meshwright worker``: the long-lived processes."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Annotated

import typer
from sqlalchemy import make_url

from meshwright.service.cli.terminal import BAD_INPUT, say_error
from meshwright.service.errors import ServerStartError
from meshwright.service.serving.serve import leave, serve
from meshwright.service.settings import Settings, settings_with

DatabaseUrl = Annotated[
    str | None, typer.Option(help="SQLite or PostgreSQL URL [default: MESHWRIGHT_DATABASE_URL]")
]
RedisUrl = Annotated[str | None, typer.Option(help="Redis URL to wake workers (without it, workers poll).")]


def serve_command(
    *,
    host: Annotated[str | None, typer.Option(help="Address to bind.")] = None,
    port: Annotated[int | None, typer.Option(help="Port (0 picks a free one).")] = None,
    database_url: DatabaseUrl = None,
    redis_url: RedisUrl = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes to start.")] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Bind beyond loopback although no key exists.")
    ] = None,
    allowed_hosts: Annotated[
        str | None, typer.Option(help="Host names to answer to without a key, separated by commas.")
    ] = None,
) -> None:
    """Run the service: API, records and workers on this machine."""
    given = {
        "host": host,
        "port": port,
        "database_url": database_url,
        "redis_url": redis_url,
        "workers": workers,
        "insecure": insecure,
        "allowed_hosts": allowed_hosts,
    }
    try:
        settings = settings_with(given)
        serve(settings, on_ready=partial(_announce, settings))
    except ServerStartError as fault:
        say_error(str(fault))
        raise typer.Exit(BAD_INPUT) from None
    leave()


def worker(
    database_url: DatabaseUrl = None,
    redis_url: RedisUrl = None,
    celery: Annotated[bool, typer.Option("--celery", help="Wait for wake-ups from the queue.")] = False,
) -> None:
    """Run one worker process (python -m meshwright.workers)."""
    command = [sys.executable, "-m", "meshwright.workers"]
    command += ["--database-url", database_url] if database_url else []
    command += ["--redis-url", redis_url] if redis_url else []
    command += ["--celery"] if celery else []
    os.execv(sys.executable, command)  # noqa: S606 - this process becomes the worker, no shell


def _announce(settings: Settings, url: str) -> None:
    """Print where the service listens, its records, and the next commands, at once even in a pipe."""
    records = make_url(settings.database_url).render_as_string(hide_password=True)
    sys.stdout.write(f"{url}\n")
    sys.stdout.write(f"  records    {records}\n")
    sys.stdout.write("  stop       Ctrl-C, or SIGTERM (another worker resumes running searches)\n")
    sys.stdout.write("  first key  meshwright keys create --scope admin\n")
    sys.stdout.flush()
