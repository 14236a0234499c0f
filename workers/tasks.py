"""The Celery task of a worker: a hint wakes it; it claims whatever is next, or finds nothing to do.

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
    """Add the task of that name, which calls ``step`` once the database answers.

    A second delivery of the same hint finds nothing to do. A worker that leaves puts the hint back.
    """

    @app.task(name=task, ignore_result=True, acks_late=True)
    def act_on_hint(_id: str) -> None:
        if not patiently(step, leaving):
            raise Reject("this worker leaves", requeue=True)
