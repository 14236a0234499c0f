"""The Celery task of a worker: a hint wakes it; it claims jobs until none is waiting.

The hint names a job for whoever reads the logs. Claiming that very job would let the tenant that
publishes most go first. A hint that arrives while the database is away is held until it is back, so that
the queue keeps the others; a worker that leaves meanwhile puts it back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from celery import Celery
from celery.exceptions import Reject

from meshwright.workers.outage import patiently


def register(app: Celery, task: str, step: Callable[[], bool], leaving: threading.Event) -> None:
    """Add the task of that name, which calls ``step`` until it finds nothing to do.

    So a burst of jobs needs no hint for each. A second delivery of the same hint finds nothing to do. A
    worker that leaves before the database answers puts the hint back.
    """

    def steps() -> None:
        while step() and not leaving.is_set():
            pass

    @app.task(name=task, ignore_result=True, acks_late=True)
    def act_on_hint(_id: str) -> None:
        if not patiently(steps, leaving):
            raise Reject("this worker leaves", requeue=True)
