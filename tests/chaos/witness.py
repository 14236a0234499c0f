"""An independent record of how jobs end, kept by triggers of the database itself, and the verdict."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import text

from meshwright.service.db.database import Database

TERMINAL = "('succeeded', 'infeasible', 'failed', 'cancelled', 'expired')"

FLEET_JOBS = 2  # of each fleet
_SQLITE = (
    "CREATE TABLE endings (job_id TEXT, state TEXT)",
    f"""CREATE TRIGGER ending AFTER UPDATE OF state ON jobs WHEN NEW.state IN {TERMINAL}
        BEGIN INSERT INTO endings VALUES (NEW.id, NEW.state); END""",  # noqa: S608 - constants
    "CREATE TABLE returns (job_id TEXT)",
    """CREATE TRIGGER return AFTER UPDATE OF state ON jobs
        WHEN OLD.state = 'running' AND NEW.state = 'queued'
        BEGIN INSERT INTO returns VALUES (NEW.id); END""",
)
_POSTGRESQL = (
    "CREATE TABLE endings (job_id TEXT, state TEXT)",
    """CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
       'BEGIN INSERT INTO endings VALUES (NEW.id, NEW.state); RETURN NEW; END'""",
    f"""CREATE TRIGGER ending AFTER UPDATE OF state ON jobs FOR EACH ROW
        WHEN (NEW.state IN {TERMINAL}) EXECUTE FUNCTION note()""",
    "CREATE TABLE returns (job_id TEXT)",
    """CREATE FUNCTION note_return() RETURNS trigger LANGUAGE plpgsql AS
       'BEGIN INSERT INTO returns VALUES (NEW.id); RETURN NEW; END'""",
    """CREATE TRIGGER return AFTER UPDATE OF state ON jobs FOR EACH ROW
        WHEN (OLD.state = 'running' AND NEW.state = 'queued') EXECUTE FUNCTION note_return()""",
)
_ENDED = """SELECT 'all', count(DISTINCT job_id) FROM endings
            WHERE job_id IN (SELECT id FROM jobs WHERE parent_id IS NULL)"""
_BUSY = "SELECT worker, attempts FROM jobs WHERE state = 'running' AND num_children IS NULL"
_FLEETS = """SELECT whole.id, whole.state FROM jobs AS whole JOIN jobs AS part ON part.parent_id = whole.id
             WHERE whole.num_children IS NULL"""
_ANSWERS = """SELECT CAST(request AS VARCHAR), count(DISTINCT plan_id)
              FROM jobs JOIN plans ON plans.job_id = jobs.id GROUP BY CAST(request AS VARCHAR)"""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of the jobs that were acknowledged."""

    lost: int  # acknowledged, or a part of a sweep or fleet that was, but not succeeded with its plan
    double: int  # ended twice, stored twice, or made twice of one idempotency key
    stuck: int  # neither queued for a reason nor ended
    losses: tuple[str, ...]  # how the lost ones ended
    answers: int  # different answers to one question; 1
    most_attempts: int
    sweeps: int
    fleets: int
    points: int

    @property
    def is_clean(self) -> bool:
        return (self.lost, self.double, self.stuck, self.answers) == (0, 0, 0, 1)


class Witness:
    """Watches one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        with database.write() as connection:
            for statement in _SQLITE if database.dialect == "sqlite" else _POSTGRESQL:
                connection.exec_driver_sql(statement)

    def ended(self) -> int:
        """How many of the jobs that were submitted have ended."""
        return self._count(_ENDED)["all"]

    def given_back(self) -> int:
        """How often a worker that left, or lost its lease, made its job wait again."""
        return self._count("SELECT 'all', count(*) FROM returns")["all"]

    def busy_workers(self) -> dict[int, int]:
        """Attempts of the running jobs by the process id of their worker."""
        found = self._count(_BUSY)
        return {int(worker.rpartition(":")[2]): attempts for worker, attempts in found.items()}

    def verdict(self, acknowledged: Mapping[str, str]) -> Verdict:
        """Judge the jobs by the idempotency keys they were acknowledged under."""
        states = self._words("SELECT id, state FROM jobs")
        plans = self._count("SELECT job_id, count(*) FROM plans GROUP BY job_id")
        endings = self._count("SELECT job_id, count(*) FROM endings GROUP BY job_id")
        ours = set(acknowledged.values())
        points = self._words("SELECT id, parent_id FROM jobs WHERE parent_id IS NOT NULL")
        due = self._count("SELECT id, num_children FROM jobs WHERE num_children IS NOT NULL")
        fleets = dict.fromkeys(self._words(_FLEETS), FLEET_JOBS)
        due |= fleets
        there = self._count("SELECT parent_id, count(*) FROM jobs GROUP BY parent_id")
        wanted = ours | {job for job, parent in points.items() if parent in ours}
        lost = sorted(
            job for job in wanted if states.get(job) != "succeeded" or not (plans.get(job) or job in fleets)
        )
        lost += [job for job, number in due.items() if there.get(job) != number]
        ends = self._words("SELECT id, state || coalesce(CAST(problem AS VARCHAR), '') FROM jobs")
        twice = sum(endings.get(job, 0) > 1 or plans.get(job, 0) > 1 for job in states)
        surplus = len(states.keys() - wanted) + len(acknowledged) - len(ours)
        return Verdict(
            lost=len(lost),
            losses=tuple(f"{job}: {ends.get(job, 'gone')}" for job in lost),
            double=twice + surplus,
            stuck=sum(state in {"queued", "running"} for state in states.values()),
            answers=max(self._count(_ANSWERS).values()),
            most_attempts=max(self._count("SELECT id, attempts FROM jobs").values()),
            sweeps=len(due) - len(fleets),
            fleets=len(fleets),
            points=sum(parent not in fleets for parent in points.values()),
        )

    def _words(self, query: str) -> dict[str, str]:
        with self._database.read() as connection:
            return {str(name): str(word) for name, word in connection.execute(text(query))}

    def _count(self, query: str) -> dict[str, int]:
        with self._database.read() as connection:
            return {str(name): int(number) for name, number in connection.execute(text(query))}
