"""A service whose searches go on until they are stopped."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.processes.servers import RunningServer, free_port, serving, working


@dataclass(frozen=True, kw_only=True)
class Slow:
    """The service, and what it was started with: another one may take its place."""

    server: RunningServer
    settings: dict[str, str]

    @property
    def url(self) -> str:
        return self.server.url

    def cancel(self, job_id: str) -> None:
        """End a job, so that the worker is free for the next one."""
        assert httpx.post(f"{self.url}/v1/jobs/{job_id}:cancel", timeout=10).status_code == 200


@contextmanager
def slow_service(folder: Path) -> Iterator[Slow]:
    """Started with one slow worker."""
    url, port = f"sqlite:///{folder / 'slow.db'}", str(free_port())
    settings = {"database_url": url, "workers": "0", "port": port, "grace_s": "1"}
    with (
        serving(settings) as started,
        working(settings, module="tests.processes.slow_worker", stderr=subprocess.DEVNULL),
    ):
        yield Slow(server=started, settings=settings)
