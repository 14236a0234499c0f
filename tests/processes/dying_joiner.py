"""``python -m tests.processes.dying_joiner URL SWEEP N``: joins a sweep, and is killed at its N-th step.

SIGKILL comes just before the N-th thing that is sent to the database (BEGIN, each statement, COMMIT);
with N beyond the last one it comes after the commit. Prints nothing; ends by the signal in any case.
"""

import os
import signal
import sys

from sqlalchemy import event

from meshwright.service.db.database import Database
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.sweeps import Sweeps


def main(url: str, sweep_id: str, fatal: int) -> None:
    database = Database(url)
    sweeps = Sweeps(database, JobEngine(database, lease_s=1.0), worker="dying")
    sent = 0

    def send(_connection: object, *details: object) -> None:
        nonlocal sent
        statement = str(details[1]) if details else ""
        if statement == "BEGIN" or statement.startswith("SELECT"):
            return  # what only reads changes nothing
        sent += 1
        if sent == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    for moment in ("before_cursor_execute", "commit"):
        event.listen(database._engine, moment, send)
    sweeps.child_ended(sweep_id)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
