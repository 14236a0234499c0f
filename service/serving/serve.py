"""The embedded service: the API, its worker processes and its database file, as one process tree.

Start: take the signals → own the SQLite file → bind → migrate → start workers → serve.
Stop (SIGTERM, Ctrl-C): finish requests → stop the workers, which give their jobs back → leave.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import NoReturn, Self

import uvicorn
from fastapi import FastAPI
from sqlalchemy.exc import DBAPIError

from meshwright.service import telemetry
from meshwright.service.api.app import create_app
from meshwright.service.api.edge import InHand
from meshwright.service.api.problems import ProblemProtocol
from meshwright.service.auth.access import Access
from meshwright.service.db import migrations
from meshwright.service.db.database import Database, DatabaseSilentError, sqlite_path
from meshwright.service.db.file_lock import owned
from meshwright.service.errors import ServerStartError
from meshwright.service.jobs.queue import password_refusal
from meshwright.service.settings import LOOPBACK_HOSTS, Settings
from meshwright.service.web.install import install

# --------------------------------------------------------------------------------------------------
# Starts worker processes, restarts those that die, and stops them all.


LOOK_S = 0.2
MIN_LIFE_S = 5.0  # a worker that dies younger is restarted with growing pauses
MAX_PAUSE_S = 10.0
KILL_AFTER_S = 2.0  # beyond the grace period


class Supervisor:
    """A context that owns ``settings.workers`` worker processes; spawned, never forked."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopping = threading.Event()
        command = [sys.executable, "-m", "meshwright.workers", "--parent-pid", str(os.getpid())]
        self._slots = [_Slot(command, _environment(settings)) for _ in range(settings.workers)]
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def __enter__(self) -> Self:
        return self

    def start(self) -> None:
        """Start the workers and keep them running; returns at once."""
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        for slot in self._slots:
            slot.terminate()
        give_up_at = time.monotonic() + self._settings.grace_s + KILL_AFTER_S
        for slot in self._slots:
            slot.wait(give_up_at)

    def _watch(self) -> None:
        while not self._stopping.is_set():
            for slot in self._slots:
                slot.keep_running()
            self._stopping.wait(LOOK_S)


class _Slot:
    """The place of one worker process."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._not_before = 0.0
        self._pause_s = LOOK_S

    def keep_running(self) -> None:
        """Start the process if there is none, unless it died a moment ago."""
        now = time.monotonic()
        if self._process is not None and self._process.poll() is not None:
            _log.warning("worker %d ended with %s", self._process.pid, self._process.returncode)
            young = now - self._started_at < MIN_LIFE_S
            self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s) if young else LOOK_S
            self._not_before = now + self._pause_s
            self._process = None
        if self._process is None and now >= self._not_before:
            # A session of its own: Ctrl-C in the terminal reaches the server, which stops its workers.
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._command, env=self._environment, start_new_session=True
            )
            self._started_at = now

    def terminate(self) -> None:
        """Ask the process to give its job back and leave."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self, give_up_at: float) -> None:
        """Wait until the process has left; kill it at ``give_up_at`` (monotonic clock)."""
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, give_up_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            _log.warning("worker %d does not leave; killed", self._process.pid)
            self._process.kill()
            self._process.wait()


def _environment(settings: Settings) -> dict[str, str]:
    """The worker's settings; the database URL may hold a password, so it is not put on a command line."""
    values = settings.model_dump(exclude={"host", "port", "insecure"}, exclude_none=True)
    return {**os.environ, **{f"MESHWRIGHT_{name.upper()}": str(value) for name, value in values.items()}}


MAX_OPEN_FILES = 65_536
CUT_S = 1.0  # for what is cut short at the end of the grace to be answered
_log = logging.getLogger(__name__)


def serve(settings: Settings, *, on_ready: Callable[[str], None] = print) -> None:
    """Serve until SIGTERM or Ctrl-C; ``on_ready`` gets the service's URL once it accepts requests.

    Raises:
        DatabaseBusyError: another server owns this SQLite file; names its process id.
        ServerStartError: the address cannot be bound, the database is not usable, or Redis refuses the
            password.
        SystemExit: a signal ended the start, before any worker was started; the exit code is 0.
    """
    with _Signals() as signals:
        telemetry.configure_logging(settings.log_format)
        _allow_open_files()
        with owned(sqlite_path(settings.database_url)), _bound(settings) as listener:
            _prepare_schema(settings)
            if (refusal := password_refusal(settings.queue_url)) is not None:
                raise ServerStartError(refusal)
            signals.hold()
            with Supervisor(settings) as workers:
                workers.start()
                _run(settings, listener, signals, on_ready)


def leave() -> NoReturn:
    """End the process after ``serve``, whatever its threads still compute for requests that were cut short.

    They hold no more than a transaction, which the database ends.
    """
    until = time.monotonic() + CUT_S
    others = [one for one in threading.enumerate() if one is not threading.current_thread()]
    for thread in others:
        thread.join(0.0 if thread.daemon else max(0.0, until - time.monotonic()))
    if not any(one.is_alive() and not one.daemon for one in others):
        raise SystemExit(os.EX_OK)  # telemetry sends the rest
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(os.EX_OK)


def _run(
    settings: Settings, listener: socket.socket, signals: _Signals, on_ready: Callable[[str], None]
) -> None:
    """Run uvicorn on a bound socket until a signal; it closes within the grace period."""
    app = create_app(settings, is_stopping=lambda: server.should_exit)
    install(app)
    gc.freeze()  # what is built stays: collecting it held up every request for 18 ms
    server = _Server(
        server_config(settings, app), lambda: on_ready(_url(listener)), app.state.in_hand, settings.grace_s
    )
    signals.stop(server)
    server.run(sockets=[listener])


def server_config(settings: Settings, app: FastAPI) -> uvicorn.Config:
    """Return how uvicorn serves the app."""
    return uvicorn.Config(
        app,
        timeout_graceful_shutdown=math.ceil(settings.grace_s + CUT_S),
        http=ProblemProtocol,
        forwarded_allow_ips=settings.trusted_proxies,
        log_config=None,
        access_log=False,
        server_header=False,
    )


class _Server(uvicorn.Server):
    """Uvicorn without signal handlers of its own, reporting when it accepts requests."""

    def __init__(
        self, config: uvicorn.Config, on_ready: Callable[[], None], in_hand: InHand, grace_s: float
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._in_hand = in_hand
        self._grace_s = grace_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then report."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, and answer those in hand: as asked within the grace, then with a 503."""
        cut = asyncio.get_running_loop().call_later(self._grace_s, self._in_hand.cut_short)
        try:
            await super().shutdown(sockets)
        finally:
            cut.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to ``_Signals``, which took them before the start."""
        yield


class _Signals:
    """SIGTERM and Ctrl-C from the first line to the last: each ends the start or stops the server.

    Uvicorn takes them only when it runs, and raises them again when it ends; one that arrives before would
    be lost, and the second would end this process before its workers.
    """

    def __init__(self) -> None:
        self._heard = False
        self._act: Callable[[int, FrameType | None], None] = _end_start

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._hear) for number in _STOPPING}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """Only note signals until ``stop``: processes are being started that must be ended in order.

        Raises:
            SystemExit: a signal has arrived already.
        """
        self._act = _note
        if self._heard:
            _end_start(signal.SIGTERM, None)

    def stop(self, server: uvicorn.Server) -> None:
        """Stop ``server`` on a signal, at once if one was noted; a second Ctrl-C drops open requests."""
        self._act = server.handle_exit
        if self._heard:
            server.should_exit = True

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._heard = True
        self._act(number, frame)


_STOPPING = (signal.SIGINT, signal.SIGTERM)


def _end_start(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def _note(_number: int, _frame: FrameType | None) -> None:
    """Act later."""


@contextmanager
def _bound(settings: Settings) -> Iterator[socket.socket]:
    """The listening socket; bound before anything is started, so that a taken port costs nothing."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Named as TCP, or asyncio does not turn Nagle's algorithm off: 40 ms for every answer.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as fault:
            where = f"{settings.host}:{settings.port}"
            raise ServerStartError(f"cannot listen on {where}: {fault.strerror}") from None
        yield listener


def _allow_open_files() -> None:
    """Every client that follows a job holds a file open: as many as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _prepare_schema(settings: Settings) -> None:
    database = Database(settings.database_url)
    try:
        database.await_server(within_s=settings.database_wait_s, tell=_log.warning)
        if settings.migrates:
            migrations.upgrade(database)
        else:
            migrations.require(database)
        is_local = settings.host in LOOPBACK_HOSTS or settings.insecure
        if not is_local and not Access(database, closed=settings.oidc_issuer is not None).demands_keys():
            raise ServerStartError(  # any caller of the port might submit
                f"host {settings.host[:64]} is not loopback and there are no keys: create one with "
                "meshwright keys create, or add --insecure"
            )
    except migrations.UnsupportedSchemaError as fault:
        raise ServerStartError(str(fault)) from None
    except DatabaseSilentError as fault:
        advice = "start it, correct MESHWRIGHT_DATABASE_URL, or wait longer with MESHWRIGHT_DATABASE_WAIT_S"
        raise ServerStartError(f"the database cannot be used: {fault}; {advice}") from None
    except DBAPIError as fault:
        reason = str(fault.orig).partition("\n")[0]
        raise ServerStartError(f"the database cannot be used: {reason}") from None
    finally:
        database.close()


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
