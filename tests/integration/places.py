"""A database with the settings of the workers over it."""

from dataclasses import dataclass

from sqlalchemy import select

from meshwright.service.db.database import Database
from meshwright.service.db.tables import jobs, plans
from meshwright.service.jobs.states import TERMINAL_STATES
from tests.processes.servers import HANGS_S, Settings, until
from tests.reliability.figures import measured
from tests.served.job_records import job_in

LEASE_S, SWEEP_S = 2.0, 0.5


@dataclass(frozen=True, kw_only=True)
class Place:
    database: Database
    settings: Settings

    def measured(self, fault: int, what: str, value: float, unit: str = "") -> None:
        """Note a figure of this database."""
        measured(fault, what, value, unit, on=self.database.dialect)

    def await_state(self, *states: str, job_id: str = "job", within_s: float = HANGS_S) -> None:
        until(lambda: job_in(self.database, job_id).state in states, within_s=within_s)

    def await_end(self, job_id: str = "job", *, within_s: float = HANGS_S) -> str:
        self.await_state(*TERMINAL_STATES, job_id=job_id, within_s=within_s)
        return job_in(self.database, job_id).state

    def plans(self, job_id: str = "job") -> list[object]:
        with self.database.read() as connection:
            query = select(plans.c.body).where(plans.c.job_id == job_id).order_by(plans.c.rank)
            return list(connection.execute(query).scalars())

    def worker_of(self, job_id: str = "job") -> str | None:
        with self.database.read() as connection:
            found: str | None = connection.scalar(select(jobs.c.worker).where(jobs.c.id == job_id))
            return found
