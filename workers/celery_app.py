"""The Celery worker: one process, one job at a time, woken by hints.

The pool is ``solo``: the search has threads and a child process of its own, and the shutdown signal
reaches the code that gives the job back. More workers are more processes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from celery import Celery
from celery.signals import setup_logging, worker_shutting_down
from celery.worker import state
from kombu.transport import redis

from meshwright.service.jobs.queue import publisher_conf

BLOCKING_READ_S = 10.0  # the worker's Redis socket waits in a blocking read longer than a publisher's


def run_celery(
    redis_url: str,
    add_task: Callable[[Celery], None],
    *,
    queue: str,
    leaving: threading.Event,
    leave: Callable[[], None],
) -> None:
    """Consume the hints of one queue until SIGTERM or ``leaving``, which stops what runs.

    Celery reconnects to a Redis that went away. What it cannot recover from, such as a Redis that became a
    read-only replica, ends it without a signal: then this returns and ``leave`` was not called.

    Args:
        redis_url: where the hints are.
        add_task: registers the task that a hint starts.
        queue: the name of the hints' queue.
        leaving: ends the consumer when it is set.
        leave: called when Celery receives SIGTERM or Ctrl-C; it takes over both signals.
    """

    def stop_consuming() -> None:
        leaving.wait()  # set by Celery's signal handler, by ours before Celery had one, or by the runner
        state.should_stop = os.EX_OK  # type: ignore[assignment] # the stubs know its first value only

    worker_shutting_down.connect(lambda **_details: leave(), weak=False)
    threading.Thread(target=stop_consuming, daemon=True).start()
    setup_logging.connect(_keep_logging)  # Celery then leaves the process's own logging alone
    app = make_app(redis_url)
    add_task(app)
    alone = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    app.worker_main(["--quiet", "worker", "--pool=solo", *alone, f"--queues={queue}"])


class _Hints(redis.QoS):
    """Deliveries of a channel that closes without error when its connection is gone.

    kombu gives unacknowledged messages back when a channel closes. If Redis went away during an
    acknowledgement, the connection has lost its address by then (kombu 5.7 ``redis.py:_connparams``), and
    the AttributeError would end the worker. The hint is lost, which costs nothing: workers poll.
    """

    def restore_unacked_once(self, stderr: object = None) -> None:
        """Give messages back, if there is still a connection."""
        if getattr(self.channel.connection, "client", None) is not None:
            super().restore_unacked_once(stderr)


def make_app(redis_url: str) -> Celery:
    """Return the consumer's app: as the publisher's, one message at a time, acknowledged when done."""
    redis.Channel.QoS = _Hints
    app = Celery("meshwright", broker=redis_url)
    app.conf.update(publisher_conf())
    app.conf.update(
        worker_prefetch_multiplier=1,
        task_acks_late=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "socket_connect_timeout": 2.0,
            "socket_timeout": BLOCKING_READ_S,
            "health_check_interval": 5,
        },
    )
    return app


def _keep_logging(**_details: object) -> None:
    """Leave Celery's logging alone."""
