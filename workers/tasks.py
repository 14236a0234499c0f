"""The Celery task: a hint wakes the worker, which claims whatever is next, or finds nothing to do.

The hint names a job for whoever reads the logs. Claiming that very job would let the tenant that
publishes most go first.
"""

from __future__ import annotations

from celery import Celery

from meshwright.service.jobs.queue import TASK_NAME
from meshwright.workers.runner import Runner


def register(app: Celery, runner: Runner) -> None:
    """Add the one task to ``app``; a second delivery of the same hint claims nothing."""

    @app.task(name=TASK_NAME, ignore_result=True, acks_late=True)
    def run_job(_job_id: str) -> None:
        runner.run_next()
