"""The Celery tasks: a hint wakes the worker, which claims whatever is next, or finds nothing to do.

The hint names a job for whoever reads the logs. Claiming that very job would let the tenant that
publishes most go first. A hint that arrives while the database is away is held until it is back, so that
the queue keeps the others; a worker that leaves meanwhile puts it back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from celery import Celery
from celery.exceptions import Reject

from meshwright.service.jobs.queue import TASK_NAME, VERIFY_TASK_NAME
from meshwright.workers.outage import patiently
from meshwright.workers.runner import Runner


def register(app: Celery, runner: Runner, leaving: threading.Event) -> None:
    """Add the task of searching workers; a second delivery of the same hint claims nothing."""

    @app.task(name=TASK_NAME, ignore_result=True, acks_late=True)
    def run_job(_job_id: str) -> None:
        _act_on_hint(runner.run_next, leaving)


def register_verifying(app: Celery, verify_next: Callable[[], bool], leaving: threading.Event) -> None:
    """Add the task of verifying workers."""

    @app.task(name=VERIFY_TASK_NAME, ignore_result=True, acks_late=True)
    def verify_plan(_plan_id: str) -> None:
        _act_on_hint(verify_next, leaving)


def _act_on_hint(step: Callable[[], bool], leaving: threading.Event) -> None:
    """Run ``step`` once the database answers.

    Raises:
        Reject: this worker leaves; the hint goes back to the queue.
    """
    if not patiently(step, leaving):
        raise Reject("this worker leaves", requeue=True)
