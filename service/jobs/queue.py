"""The wake-up queue: hints to workers that a job may be waiting. The table is the truth.

A lost hint costs latency, never a job: workers poll the table, and the sweeper publishes again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Literal, Protocol

TASK_NAME = "meshwright.run_job"
QUEUE_NAME = "meshwright"
VERIFY_TASK_NAME = "meshwright.verify_plan"
VERIFY_QUEUE_NAME = "meshwright-verify"  # launchers take minutes and memory: workers of their own
MAX_HINTS = 64  # in ``BURST_S``: a worker that was woken looks for jobs until there is none
BURST_S = 1.0
MUTE_S = 5.0  # after a failed publish the broker is left alone for this long
CONNECT_TIMEOUT_S = 0.3
SOCKET_TIMEOUT_S = 0.5

QueueHealth = Literal["ok", "degraded", "polling"]
_log = logging.getLogger(__name__)


class WakeUpQueue(Protocol):
    """The interface of a queue that submitting and sweeping need."""

    def wake(self, job_id: str) -> None:
        """Wake a worker for ``job_id``; best effort, never raises, returns within a second."""
        ...

    def wake_verifier(self, plan_id: str) -> None:
        """Wake a verifying worker for ``plan_id``, in the same way."""
        ...

    def health(self) -> QueueHealth:
        """Return ``degraded``: the broker does not answer, and workers only poll."""
        ...


class PollingQueue:
    """No queue: embedded workers look at the table several times a second."""

    def wake(self, job_id: str) -> None:
        """Do nothing: workers poll."""

    def wake_verifier(self, plan_id: str) -> None:
        """Do nothing: workers poll."""

    def health(self) -> QueueHealth:
        """Return ``polling``, always."""
        return "polling"


class CeleryQueue:
    """Publishes a Celery message that carries the job's id and nothing else."""

    def __init__(self, redis_url: str) -> None:
        import kombu.transport.redis  # noqa: F401, PLC0415 - else the first request waits for it
        from celery import Celery  # noqa: PLC0415 - only a distributed service needs it

        self._app = Celery("meshwright", broker=redis_url, set_as_current=False)
        self._app.conf.update(publisher_conf())
        self._muted_until = 0.0
        self._sent_at: deque[float] = deque(maxlen=MAX_HINTS)
        self._late = threading.Lock()  # held while a hint waits for the end of a burst

    def wake(self, job_id: str) -> None:
        """Publish a hint; after ``MAX_HINTS`` within ``BURST_S``, send one more at the end of the burst.

        By then, the woken workers may have found no more jobs. After a failure it stays silent for
        a while, so that no request waits for a dead broker.
        """
        now = time.monotonic()
        if len(self._sent_at) == MAX_HINTS and now - self._sent_at[0] < BURST_S:
            if self._late.acquire(blocking=False):
                later = threading.Timer(BURST_S, self._wake_late, [job_id])
                later.daemon = True
                later.start()
            return
        self._sent_at.append(now)
        self._send(TASK_NAME, job_id, QUEUE_NAME)

    def _wake_late(self, job_id: str) -> None:
        self._late.release()  # a job that comes from now on has a hint of its own
        self._send(TASK_NAME, job_id, QUEUE_NAME)

    def wake_verifier(self, plan_id: str) -> None:
        """Publish on the queue of verifying workers."""
        self._send(VERIFY_TASK_NAME, plan_id, VERIFY_QUEUE_NAME)

    def _send(self, task: str, about: str, queue: str) -> None:
        if time.monotonic() < self._muted_until:
            return
        try:
            self._app.send_task(task, args=[about], queue=queue, ignore_result=True, retry=False)
        except Exception as fault:  # noqa: BLE001 - kombu, redis and the socket each raise their own
            self._muted_until = time.monotonic() + MUTE_S
            _log.warning("wake-up not published (%s); workers will find it", type(fault).__name__)

    def health(self) -> QueueHealth:
        """Ask the broker; answers within a second or so."""
        try:
            with self._app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1, interval_start=0, timeout=1)
        except Exception:  # noqa: BLE001 - whatever it is, the broker does not answer
            return "degraded"
        return "ok"


def password_refusal(redis_url: str | None) -> str | None:
    """Return why a Redis that answers refuses its password; None: it takes it, or does not answer.

    Workers poll the table while Redis is away, so that is no reason not to start. A wrong password
    stays wrong.
    """
    if redis_url is None:
        return None
    import redis  # noqa: PLC0415 - only a distributed service needs it

    options = {"socket_connect_timeout": CONNECT_TIMEOUT_S, "socket_timeout": SOCKET_TIMEOUT_S}
    try:
        with redis.Redis.from_url(redis_url, **options) as client:
            client.ping()
    except redis.exceptions.RedisError as fault:
        words = str(fault)
        if isinstance(fault, redis.exceptions.AuthenticationError) or words.startswith(_REFUSALS):
            return (
                f"Redis refuses the password ({words.partition('.')[0][:100]}): set "
                "MESHWRIGHT_REDIS_PASSWORD, or put it into MESHWRIGHT_REDIS_URL"
            )
    return None


_REFUSALS = ("NOAUTH", "WRONGPASS", "NOPERM", "ERR invalid password", "Authentication required")


def publisher_conf() -> dict[str, object]:
    """Return Celery settings that publisher and worker share: JSON only, no results, short timeouts."""
    return {
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "task_default_queue": QUEUE_NAME,
        "broker_transport_options": {
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_timeout": SOCKET_TIMEOUT_S,
            "max_retries": 1,
            "interval_start": 0,  # between the two tries; kombu would wait for 2 s
            "interval_step": 0,
        },
        "broker_connection_timeout": CONNECT_TIMEOUT_S,
    }


def queue_for(redis_url: str | None) -> WakeUpQueue:
    """Return the queue that the settings ask for."""
    return CeleryQueue(redis_url) if redis_url else PollingQueue()
