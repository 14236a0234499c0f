"""The Celery task: a hint wakes the worker, which claims whatever is next, or finds nothing to do.

The hint names a job for whoever reads the logs. Claiming that very job would let the tenant that
publishes most go first.
"""

from __future__ import annotations

from collections.abc import Callable

from celery import Celery

from meshwright.service.jobs.queue import TASK_NAME, VERIFY_TASK_NAME
from meshwright.workers.runner import Runner


def register(app: Celery, runner: Runner) -> None:
    """Add the one task to ``app``; a second delivery of the same hint claims nothing."""

    @app.task(name=TASK_NAME, ignore_result=True, acks_late=True)
    def run_job(_job_id: str) -> None:
        runner.run_next()


def register_verifying(app: Celery, verify_next: Callable[[], bool]) -> None:
    """Add the task of verifying workers: a hint, as the other."""

    @app.task(name=VERIFY_TASK_NAME, ignore_result=True, acks_late=True)
    def verify_plan(_plan_id: str) -> None:
        verify_next()
