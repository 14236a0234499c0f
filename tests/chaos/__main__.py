"""``python -m tests.chaos``: break everything for real, and count what was lost or done twice.

Storms over SQLite and PostgreSQL, then a rolling upgrade and the way back on PostgreSQL. The last line is
``jobs=N kills=N lost=0 double=0``. It exits with 1 when anything was lost, done twice, left stuck, answered
differently, or refused with anything but 503, when a client of the rolling upgrade saw any error, and when
neighbours (sign-ins whose provider hangs, slow bodies, long requests at a SIGTERM) were answered by a bug,
or kept the API from others.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from redis import Redis
from sqlalchemy import create_engine, text

from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from tests.chaos.rolling import roll
from tests.chaos.storm import LEASE_S, Storm, Weather, rage
from tests.chaos.witness import Verdict
from tests.processes import starting
from tests.processes.postgres_server import PostgresServer
from tests.processes.servers import RedisServer, Settings, free_port

_FEW = {"kill_worker": 4, "kill_api": 1, "freeze": 1, "database": 1, "redis": 1, "clock": 1}
_MANY = {"kill_worker": 122, "kill_api": 8, "freeze": 11, "database": 6, "redis": 11, "clock": 6}
SHORT = Storm(jobs=16, faults={**_FEW, "stop_api": 1, "sign_ins": 1, "slow_bodies": 1})
FULL = Storm(jobs=510, faults={**_MANY, "stop_api": 12, "sign_ins": 12, "slow_bodies": 12})
SIGTERMS = {"short": 20, "full": 60}  # to workers in the middle of jobs during the rolling upgrade


def main() -> int:
    """Storm over SQLite, over PostgreSQL with Redis, then upgrade and roll back."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a minute instead of many")
    parser.add_argument("--only", choices=["sqlite", "postgresql", "rolling"], help="one part")
    parser.add_argument("--before", metavar="COMMIT", help="the older release")
    parser.add_argument("--jobs", type=int, help="a storm of so many jobs; faults in proportion")
    parser.add_argument("--starts", type=int, help="only: start so many servers, each ended meanwhile")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    arguments = parser.parse_args()
    if arguments.starts:
        with tempfile.TemporaryDirectory() as folder:
            return 0 if starting.main(Path(folder), arguments.starts) else 1
    storm = SHORT if arguments.short else FULL
    if arguments.jobs:
        storm = _scaled(storm, arguments.jobs)
    storms = {"sqlite": over_sqlite, "postgresql": over_postgresql}
    total: Counter[str] = Counter()
    clean = True
    figures: dict[str, dict[str, float]] = {}
    for name, run in storms.items():
        if arguments.only in {name, None}:
            started = time.monotonic()
            verdict, weather, refused = run(storm)
            figures[name] = _figures(storm, verdict, weather, time.monotonic() - started)
            print(name, json.dumps(figures[name]), *verdict.losses[:5], *refused[:3], flush=True)  # noqa: T201 - a command's report
            total.update(jobs=storm.jobs, kills=weather.done["kills"])
            total.update(lost=verdict.lost + verdict.stuck, double=verdict.double)
            clean = clean and verdict.is_clean and not refused
    if arguments.only in {"rolling", None}:
        rolled = roll(SIGTERMS["short" if arguments.short else "full"], arguments.before)
        figures["rolling"] = rolled.figures
        print("rolling", rolled.schemas, json.dumps(rolled.figures), *rolled.faults[:5], flush=True)  # noqa: T201
        total.update({name: int(rolled.figures[name]) for name in ("jobs", "lost", "double")})
        clean = clean and not rolled.faults
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(" ".join(f"{name}={total[name]}" for name in ("jobs", "kills", "lost", "double")))  # noqa: T201
    return 0 if clean else 1


def _scaled(storm: Storm, jobs: int) -> Storm:
    """The same weather over another number of jobs."""
    faults = {name: max(1, round(times * jobs / storm.jobs)) for name, times in storm.faults.items()}
    return Storm(jobs=jobs, faults=faults, seed=storm.seed)


def over_sqlite(storm: Storm) -> tuple[Verdict, Weather, list[str]]:
    """Polling workers on one file; the database crashes with everybody who has it open."""
    faults = {name: times for name, times in storm.faults.items() if name not in ("redis", "clock")}
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'jobs.db'}"
        database = _migrated(url)

        def extra(weather: Weather) -> None:
            weather.takes["database"] = weather.kill_everything

        here = Storm(jobs=storm.jobs, faults=faults, seed=storm.seed)
        try:
            return rage(here, _settings(url), database, extra)
        finally:
            database.close()


def over_postgresql(storm: Storm) -> tuple[Verdict, Weather, list[str]]:
    """Celery workers and a polling one; PostgreSQL crashes and Redis loses everything."""
    with PostgresServer() as server, tempfile.TemporaryDirectory() as folder:
        url = server.new_database("chaos")
        _make_clock(url)
        database = _migrated(url)
        redis = RedisServer(port=free_port(), folder=Path(folder))
        redis.start()

        def extra(weather: Weather) -> None:
            weather.takes["database"] = lambda: weather.may_crash() and _crash(server, weather.done)
            weather.takes["redis"] = lambda: _lose(redis)
            weather.takes["clock"] = lambda: weather.may_crash() and _set_clock(database, weather.done)

        try:
            return rage(storm, {**_settings(url), "redis_url": redis.url}, database, extra)
        finally:
            redis.stop()
            database.close()


def _crash(server: PostgresServer, done: Counter[str]) -> bool:
    """By turns: one server process is killed, or all of them quit and are started again."""
    if done["database"] % 2:
        server.crash()
        server.start()
    else:
        server.kill_backend()
    return True


STEP_S = 3600.0  # beyond every lease, within every deadline
_CLOCK = """
CREATE SCHEMA odd;
CREATE TABLE odd.clock (ahead double precision);
INSERT INTO odd.clock VALUES (0);
CREATE FUNCTION odd.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$
    SELECT pg_catalog.clock_timestamp() + make_interval(secs => (SELECT ahead FROM odd.clock)) $$;
ALTER DATABASE chaos SET search_path = public, odd, pg_catalog;"""


def _make_clock(url: str) -> None:
    """Let this database have a clock that can be set: its schema is looked at before PostgreSQL's own."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(_CLOCK))
    engine.dispose()


def _set_clock(database: Database, done: Counter[str]) -> bool:
    """By turns an hour forward and back."""
    ahead = STEP_S if done["clock"] % 2 == 0 else 0.0
    with database.write() as connection:
        connection.execute(text("UPDATE odd.clock SET ahead = :ahead"), {"ahead": ahead})
    return True


def _lose(redis: RedisServer) -> bool:
    """Flush what is queued, then restart: clients lose their messages and their connections."""
    client = Redis.from_url(redis.url)
    client.flushall()
    client.close()
    redis.stop()
    redis.start()
    return True


def _migrated(url: str) -> Database:
    database = Database(url)
    migrations.upgrade(database)
    return database


def _settings(url: str) -> Settings:
    return {
        "database_url": url,
        "port": str(free_port()),
        "workers": "0",
        "lease_s": str(LEASE_S),
        "sweep_s": "0.3",
        "slow_poll_s": "1",
    }


def _figures(storm: Storm, verdict: Verdict, weather: Weather, seconds: float) -> dict[str, float]:
    """What happened, for the log and the document."""
    return {
        "jobs": storm.jobs,
        "sweeps_among_them": verdict.sweeps,
        "points_of_sweeps": verdict.points,
        "fleets_among_them": verdict.fleets,
        "kills": weather.done["kills"],
        "freezes": weather.done["freeze"],
        "database_crashes": weather.done["database"],
        "redis_losses": weather.done["redis"],
        "clock_steps": weather.done["clock"],
        "stopped_servers": weather.done["stop_api"],
        "bursts_of_sign_ins": weather.done["sign_ins"],
        "bursts_of_slow_bodies": weather.done["slow_bodies"],
        "lost": verdict.lost,
        "double": verdict.double,
        "stuck": verdict.stuck,
        "answers": verdict.answers,
        "most_attempts": verdict.most_attempts,
        "seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
