"""``python -m tests.processes.dying_writer URL N [SIGNAL]``: claims a job, is killed as it stores the end.

SIGKILL, or the signal of that name, comes just before the N-th thing that is sent to the database (BEGIN,
each statement, COMMIT); with N beyond the last one SIGKILL comes after the commit. Prints nothing.
"""

import os
import signal
import sys

from sqlalchemy import event

from meshwright.service.db.database import Database
from meshwright.service.jobs.engine import JobEngine
from tests.served.job_records import SUCCESS, claimed


def main(url: str, fatal: int, number: signal.Signals = signal.SIGKILL) -> None:
    database = Database(url)
    engine = JobEngine(database, lease_s=1.0)
    claim = claimed(engine)
    sent = 0

    def send(*_details: object) -> None:
        nonlocal sent
        sent += 1
        if sent == fatal:
            os.kill(os.getpid(), number)

    for moment in ("begin", "before_cursor_execute", "commit"):
        event.listen(database._engine, moment, send)
    assert engine.complete(claim, SUCCESS)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *(signal.Signals[name] for name in sys.argv[3:]))
