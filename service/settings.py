"""Settings of a service or worker process: read once, from the environment, at the edge."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


def state_dir() -> Path:
    """Where this user's records are kept (XDG base directory specification, ``XDG_STATE_HOME``)."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "meshwright"


def default_database_url() -> str:
    """A SQLite file in the user's state folder."""
    return f"sqlite:///{state_dir() / 'meshwright.db'}"


class Settings(BaseSettings):
    """Everything a process may be told; ``MESHWRIGHT_DATABASE_URL`` sets ``database_url``, and so on."""

    model_config = SettingsConfigDict(env_prefix="MESHWRIGHT_", extra="ignore", frozen=True)

    database_url: str = Field(default_factory=default_database_url, description="SQLite or PostgreSQL")
    redis_url: str | None = Field(default=None, description="None: workers poll the table")
    host: str = "127.0.0.1"
    port: int = Field(default=8420, ge=0, le=65_535, description="0: any free port")
    insecure: bool = Field(default=False, description="bind beyond loopback although there are no keys")
    workers: int = Field(default=1, ge=0, le=256, description="worker processes that serve starts")
    auto_migrate: bool | None = Field(default=None, description="None: on SQLite only")

    lease_s: float = Field(default=15.0, gt=0, description="a silent worker loses its job after this")
    sweep_s: float = Field(default=5.0, gt=0, description="between two sweeps of a worker")
    poll_s: float = Field(default=0.2, gt=0, description="between two looks of an idle embedded worker")
    slow_poll_s: float = Field(default=5.0, gt=0, description="the same beside a queue")
    grace_s: float = Field(default=5.0, gt=0, description="to finish requests, or give jobs back")
    queue_timeout_s: float = Field(default=86_400.0, gt=0, description="unclaimed this long: expired")
    max_wait_s: float = Field(default=30.0, gt=0, description="longest long-poll")

    @model_validator(mode="after")
    def _require_loopback(self) -> Self:
        """Without keys anybody who reaches the port may submit: stay on this machine unless told."""
        if self.host not in LOOPBACK_HOSTS and not self.insecure:
            raise ValueError(
                f"host {self.host[:64]} is not loopback and there are no keys; --insecure binds it"
            )
        return self

    @property
    def migrates(self) -> bool:
        """Whether a starting server brings the schema to its newest revision."""
        return self.database_url.startswith("sqlite") if self.auto_migrate is None else self.auto_migrate
