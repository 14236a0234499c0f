"""The embedded service: the API, its worker processes and its database file, as one process tree.

Start: own the SQLite file → migrate → bind → start workers → serve.
Stop (SIGTERM, Ctrl-C): finish requests → tell workers, which give their jobs back → leave.
"""

from __future__ import annotations

import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from alembic.util.exc import CommandError
from sqlalchemy.exc import DBAPIError

from service import logs
from service.access import Access
from service.api.app import create_app
from service.api.malformed import ProblemProtocol
from service.db import migrations
from service.db.database import Database, DatabaseSilentError, sqlite_path
from service.errors import ServerStartError
from service.file_lock import owned
from service.settings import LOOPBACK_HOSTS, Settings
from service.supervisor import Supervisor
from service.web.install import install

MAX_OPEN_FILES = 65_536
_log = logging.getLogger(__name__)


def serve(settings: Settings, *, on_ready: Callable[[str], None] = print) -> None:
    """Serve until SIGTERM or Ctrl-C; ``on_ready`` gets the service's URL once it accepts requests.

    Raises:
        DatabaseBusyError: another server owns this SQLite file; names its process id.
        ServerStartError: the address cannot be bound, or the database cannot be used as it is.
    """
    logs.configure(settings.log_format)
    _allow_open_files()
    with owned(sqlite_path(settings.database_url)), _bound(settings) as listener:
        _prepare_schema(settings)
        with _quiet_signals(), Supervisor(settings) as workers:
            workers.start()
            _run(settings, listener, on_ready)


def _run(settings: Settings, listener: socket.socket, on_ready: Callable[[str], None]) -> None:
    """Run uvicorn on a bound socket until a signal; it closes within the grace period."""
    app = create_app(settings, is_stopping=lambda: server.should_exit)
    install(app)
    config = uvicorn.Config(
        app,
        timeout_graceful_shutdown=max(1, round(settings.grace_s)),
        http=ProblemProtocol,
        log_config=None,
        access_log=False,
        server_header=False,
    )
    server = _Server(config, lambda: on_ready(_url(listener)))
    server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """Uvicorn, saying when it accepts requests."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then report."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()


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
    """Migrate, or refuse a schema that another version left."""
    database = Database(settings.database_url)
    try:
        database.await_server(within_s=settings.database_wait_s, tell=_log.warning)
        if settings.migrates:
            migrations.upgrade(database)
        elif migrations.current(database) != migrations.head():
            raise ServerStartError("the database schema is not current; run: meshwright db upgrade")
        _require_loopback(settings, database)
    except CommandError:
        raise ServerStartError("the database schema is of a newer Meshwright; update this one") from None
    except DatabaseSilentError as fault:
        advice = "start it, correct MESHWRIGHT_DATABASE_URL, or wait longer with MESHWRIGHT_DATABASE_WAIT_S"
        raise ServerStartError(f"the database cannot be used: {fault}; {advice}") from None
    except DBAPIError as fault:
        reason = str(fault.orig).partition("\n")[0]
        raise ServerStartError(f"the database cannot be used: {reason}") from None
    finally:
        database.close()


def _require_loopback(settings: Settings, database: Database) -> None:
    """Without keys anybody who reaches the port may submit: stay on this machine unless told."""
    if settings.host in LOOPBACK_HOSTS or settings.insecure or Access(database).demands_keys():
        return
    raise ServerStartError(
        f"host {settings.host[:64]} is not loopback and there are no keys: "
        "make one with meshwright keys create, or bind it with --insecure"
    )


@contextmanager
def _quiet_signals() -> Iterator[None]:
    """Uvicorn raises its signal again when it is done; that must not end us before the workers ended."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _url(listener: socket.socket) -> str:
    """The address of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
