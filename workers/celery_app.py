"""The Celery worker: one process, one job at a time, woken by hints.

The pool is ``solo``: the search has threads and a child process of its own, and the shutdown signal
reaches the code that gives the job back. More workers are more processes.
"""

from __future__ import annotations

import threading

from celery import Celery
from celery.signals import worker_shutting_down

from service.queue import QUEUE_NAME, publisher_conf
from workers.runner import Runner
from workers.tasks import register

BLOCKING_READ_S = 10.0  # the worker's Redis socket waits in a blocking read longer than a publisher's


def run_celery(redis_url: str, runner: Runner, *, leaving: threading.Event) -> None:
    """Consume hints until SIGTERM; then stop the running search, which gives its job back."""

    def leave(**_details: object) -> None:
        leaving.set()

    worker_shutting_down.connect(leave, weak=False)
    app = make_app(redis_url)
    register(app, runner)
    options = ["--pool=solo", "--loglevel=WARNING", "--without-gossip", "--without-mingle"]
    app.worker_main(["worker", *options, "--without-heartbeat", f"--queues={QUEUE_NAME}"])


def make_app(redis_url: str) -> Celery:
    """The consumer's app: as the publisher's, one message at a time, acknowledged when done."""
    app = Celery("meshwright", broker=redis_url)
    conf = publisher_conf()
    app.conf.update(conf)
    app.conf.update(
        worker_prefetch_multiplier=1,
        task_acks_late=True,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "socket_connect_timeout": 2.0,
            "socket_timeout": BLOCKING_READ_S,
            "health_check_interval": 5,
        },
    )
    return app
