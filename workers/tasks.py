"""The Celery task: a hint names a job, and the runner claims it or finds that there is nothing to do."""

from __future__ import annotations

from celery import Celery

from service.queue import TASK_NAME
from workers.runner import Runner


def register(app: Celery, runner: Runner) -> None:
    """Add the one task to ``app``; a second delivery of the same hint claims nothing."""

    @app.task(name=TASK_NAME, ignore_result=True, acks_late=True)
    def run_job(job_id: str) -> None:
        runner.run_next(job_id=job_id)
