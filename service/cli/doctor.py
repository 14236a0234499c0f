"""``meshwright doctor``: what is wrong with a service's surroundings, and what to do about it."""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer
from sqlalchemy import select

from meshwright.service.cli.terminal import BAD_INPUT, print_json, screen
from meshwright.service.db import migrations
from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database, sqlite_path
from meshwright.service.db.metric_records import job_figures, leader_figures
from meshwright.service.db.usage_records import live_workers
from meshwright.service.jobs.queue import CeleryQueue, password_refusal
from meshwright.service.report.formatting import plain_table
from meshwright.service.settings import Settings, settings_with
from meshwright.solver.answer import version_of

State = Literal["ok", "look", "wrong"]
MIN_FREE_BYTES = 2**30  # on the disk of a SQLite file
MAX_CLOCK_OFF_S = 5.0  # of this machine and the database: leases use the database's, logs this one's
MIN_OPEN_FILES = 4_096  # each client that follows a job holds one
OLD_QUEUE_S = 900.0  # as the alert MeshwrightQueueLong


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was looked at, how it is, and what to do if it is not well."""

    about: str
    state: State
    words: str
    action: str = ""


def doctor(
    database_url: Annotated[
        str | None, typer.Option(help="Database URL [default: MESHWRIGHT_DATABASE_URL]")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Check settings, database, Redis, workers, clock, disk, versions; say what to do. Exit 2 if wrong."""
    settings = settings_with({"database_url": database_url})  # a wrong value is named with its range
    found = list(findings(settings))
    if json_output:
        print_json([asdict(one) for one in found])
    else:
        rows = [(one.about, one.state, one.words) for one in found]
        console = screen()
        console.print(plain_table(("what", "state", "found"), rows))
        for one in found:
            if one.action:
                console.print(f"{one.about}: {one.action}", soft_wrap=True)
    raise typer.Exit(BAD_INPUT if any(one.state == "wrong" for one in found) else 0)


def findings(settings: Settings) -> Iterator[Finding]:
    """Yield what was found, one thing after the other; a failed look is a finding too."""
    yield Finding(about="settings", state="ok", words=f"version {version_of('meshwright')}")
    yield _open_files()
    yield from _disk(settings)
    yield from _redis(settings)
    path = sqlite_path(settings.database_url)
    if path is not None and not path.is_file():
        yield Finding(
            about="database",
            state="wrong",
            words=f"{path.name} is not there",
            action="meshwright serve makes it, or correct MESHWRIGHT_DATABASE_URL",
        )
        return
    database = Database(settings.database_url)
    try:
        for look in (_schema, _writes, _clock, _queue, _workers):
            try:
                one = look(database)
                yield one
                if look is _schema and one.state == "wrong":
                    return  # what else is there cannot be read
            except Exception as fault:  # noqa: BLE001 - whatever it is, the other looks go on
                words = str(getattr(fault, "orig", fault)).partition("\n")[0][:120]
                yield Finding(
                    about=look.__name__.strip("_"),
                    state="wrong",
                    words=words,
                    action="start the database, or correct MESHWRIGHT_DATABASE_URL",
                )
    finally:
        database.close()


def _open_files() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = hard != resource.RLIM_INFINITY and hard < MIN_OPEN_FILES
    return Finding(
        about="open files",
        state="look" if few else "ok",
        words=f"at most {'any number' if hard == resource.RLIM_INFINITY else hard}",
        action=f"raise the limit to {MIN_OPEN_FILES} (ulimit -Hn, LimitNOFILE=)" if few else "",
    )


def _disk(settings: Settings) -> Iterator[Finding]:
    path = sqlite_path(settings.database_url)
    if path is None:
        return
    folder = next((one for one in path.parents if one.exists()), path.parent)
    free = shutil.disk_usage(folder).free
    yield Finding(
        about="disk",
        state="wrong" if free < MIN_FREE_BYTES else "ok",
        words=f"{free / 2**30:.1f} GiB free for {path.name}",
        action="free space, or lower MESHWRIGHT_KEEP_JOBS_DAYS" if free < MIN_FREE_BYTES else "",
    )


def _redis(settings: Settings) -> Iterator[Finding]:
    if settings.queue_url is None:
        yield Finding(about="redis", state="ok", words="none: workers poll the table")
        return
    if (refusal := password_refusal(settings.queue_url)) is not None:
        yield Finding(about="redis", state="wrong", words="refuses the password", action=refusal)
        return
    away = CeleryQueue(settings.queue_url).health() != "ok"
    yield Finding(
        about="redis",
        state="look" if away else "ok",
        words="does not answer: workers poll" if away else "answers",
        action="start it, or correct MESHWRIGHT_REDIS_URL: until then jobs start later" if away else "",
    )


def _schema(database: Database) -> Finding:
    fit, at = migrations.fit(database), migrations.current(database)
    words = f"{fit}, at {at or 'no revision'}; this version has {migrations.head()}"
    well = fit in {"current", "newer"}
    return Finding(
        about="schema",
        state="ok" if well else "wrong",
        words=words,
        action=""
        if well
        else "meshwright db upgrade"
        if fit == "outdated"
        else "start the release that made it, or take it back: meshwright db downgrade REVISION",
    )


def _writes(database: Database) -> Finding:
    well = database.takes_writes()
    return Finding(
        about="writes",
        state="ok" if well else "wrong",
        words="taken" if well else "refused: read-only, or its disk is full",
        action="" if well else "free the database's disk, or connect to the primary",
    )


def _clock(database: Database) -> Finding:
    with database.read() as connection:
        off_s = float(connection.execute(select(now_s())).scalar_one()) - time.time()
    far = abs(off_s) > MAX_CLOCK_OFF_S
    return Finding(
        about="clock",
        state="look" if far else "ok",
        words=f"the database is {abs(off_s):.1f} s {'ahead of' if off_s > 0 else 'behind'} this machine",
        action="let both follow one time server (chrony): leases are safe, times in logs are not"
        if far
        else "",
    )


def _queue(database: Database) -> Finding:
    with database.read() as connection:
        jobs, leader = job_figures(connection), leader_figures(connection)
    age_s, waiting = jobs.oldest_queued_age_s, jobs.by_state.get("queued", 0)
    headless = waiting > 0 and leader.lease_left_s <= 0
    late = age_s > OLD_QUEUE_S
    return Finding(
        about="queue",
        state="wrong" if headless else "look" if late else "ok",
        words=f"{waiting} wait, the oldest for {age_s:.0f} s; "
        + ("no worker leads" if leader.lease_left_s <= 0 else "a worker leads"),
        action="start a worker: nobody sweeps"
        if headless
        else "start more workers, or set MESHWRIGHT_MAX_RUNNING_JOBS"
        if late
        else "",
    )


def _workers(database: Database) -> Finding:
    with database.read() as connection:
        found = live_workers(connection)
    own = version_of("meshwright")
    others = sorted({one.version for one in found} - {own})
    return Finding(
        about="workers",
        state="look" if not found or others else "ok",
        words=f"{len(found)} alive" + (f", some of version {', '.join(others)}" if others else ""),
        action="meshwright worker, or MESHWRIGHT_WORKERS=1 meshwright serve"
        if not found
        else "finish the upgrade: plans name the version that found them"
        if others
        else "",
    )
