"""Settings of a service or worker process: read once, from the environment, at the edge."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from meshwright.profiles.errors import FieldError, InvalidProblemError, shown_name
from meshwright.service.errors import VARIABLES
from meshwright.service.telemetry import LogFormat
from meshwright.service.verify.environments import MEMORY_BYTES, TIME_S

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
DATABASES = frozenset({"sqlite", "postgresql", "postgresql+psycopg"})
MIN_LEASE_S = 1.0  # a worker looks at its job four times a second

YEAR_S = 31_536_000  # no infinity

Seconds = Annotated[float, Field(gt=0, le=YEAR_S)]


def state_dir() -> Path:
    """Where this user's records are kept (XDG base directory specification, ``XDG_STATE_HOME``)."""
    return Path(os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")) / "meshwright"


def default_database_url() -> str:
    """A SQLite file in the user's state folder."""
    return f"sqlite:///{state_dir() / 'meshwright.db'}"


class Settings(BaseSettings):
    """Everything a process may be told; ``MESHWRIGHT_DATABASE_URL`` sets ``database_url``, and so on."""

    model_config = SettingsConfigDict(env_prefix=VARIABLES, extra="ignore", frozen=True)

    database_url: str = Field(
        default_factory=default_database_url,
        description="URL of the SQLite or PostgreSQL database",
        examples=["postgresql://user@host/meshwright"],
    )
    redis_url: str | None = Field(
        default=None,
        pattern="^rediss?://",
        examples=["redis://host:6379/0"],
        description="URL of Redis, which wakes workers. None: workers poll the table",
    )
    redis_password: SecretStr | None = Field(
        default=None, min_length=1, description="Redis password, if its URL has none. None: use the URL's"
    )
    host: str = Field(default="127.0.0.1", description="address to bind. Beyond loopback you need a key")
    port: int = Field(default=8420, ge=0, le=65_535, description="port to bind. 0: any free port")
    insecure: bool = Field(default=False, description="bind beyond loopback without a key")
    allowed_hosts: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9._, -]*$",
        examples=["planner.example.com"],
        max_length=4096,
        description="host names, separated by commas, that a server without keys answers to, in addition "
        "to loopback names and numeric addresses",
    )
    trusted_proxies: str | None = Field(
        default=None,
        examples=["10.0.0.0/8"],
        max_length=4096,
        description="addresses or networks of proxies that end TLS, separated by commas. If they report "
        "https (X-Forwarded-Proto), the session cookie is sent only over https. *: any proxy. None: "
        "uvicorn's FORWARDED_ALLOW_IPS, else loopback",
    )
    workers: int = Field(
        default=1, ge=0, le=256, description="worker processes that `meshwright serve` starts"
    )
    worker_memory_bytes: int | None = Field(
        default=None,
        ge=2**29,
        description="memory limit of a search, which fails beyond it. None: no limit",
    )
    verify_memory_bytes: int = Field(
        default=MEMORY_BYTES,
        ge=2**30,
        description="memory limit of a launcher that builds a plan, which fails beyond it",
    )
    verify_time_s: Seconds = Field(
        default=TIME_S, description="time limit of a launcher that builds a plan"
    )
    verify_attempts: int = Field(
        default=3,
        ge=1,
        le=100,
        description="after losing this number of workers, a plan counts as not built",
    )
    verify_elsewhere: bool = Field(
        default=False,
        description="accept any plan: launchers are installed on the workers that verify, not here",
    )
    auto_migrate: bool | None = Field(
        default=None, description="upgrade the database schema at the start. None: only on SQLite"
    )
    database_wait_s: float = Field(
        default=60.0,
        ge=0,
        le=86_400,
        description="how long `serve` and `db upgrade` wait for PostgreSQL to start",
    )

    docs_url: str = Field(
        default="",
        pattern=r"^(https?://[^\s?#]+)?$",
        examples=["https://docs.example.com"],
        description="address of your documentation site (`make docs` builds it), which pages link to. "
        "Empty: no links",
    )

    log_format: LogFormat = Field(
        default="text", description="text, or json: one object a line. Both have a line for every request"
    )

    metrics_tenants: int = Field(
        default=0,
        ge=0,
        le=1_000,
        description="tenants that `/metrics` names, with their CPU seconds of today: those that used the "
        "most. 0: none",
    )

    oidc_issuer: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s?#]+$",
        examples=["https://login.example.com"],
        description="OpenID Connect provider, as its tokens state it. None: people sign in with keys",
    )
    oidc_client_id: str = Field(
        default="meshwright", min_length=1, description="OIDC client id of this service"
    )
    oidc_client_secret: SecretStr | None = Field(
        default=None,
        min_length=1,
        description="OIDC client secret of this service. None: a public client with only PKCE",
    )
    oidc_scopes: str = Field(default="openid profile email", description="OIDC scopes to request")
    oidc_redirect_url: str | None = Field(
        default=None,
        validate_default=True,
        pattern=r"^https?://[^\s?#]+$",
        examples=["https://NAME/sign-in/oidc/callback"],
        description="address of /sign-in/oidc/callback as browsers see it. You need it with `oidc_issuer`",
    )
    oidc_tenant: str = Field(
        default="default",
        pattern="^[a-z0-9][a-z0-9._-]{0,63}$",
        examples=["default"],
        description="tenant of people who sign in by OIDC",
    )
    oidc_tenant_claim: str | None = Field(
        default=None, min_length=1, description="claim with a person's tenant, instead of `oidc_tenant`"
    )
    oidc_groups_claim: str = Field(
        default="groups", min_length=1, description="claim with a person's groups"
    )
    oidc_admin_groups: str = Field(
        default="", description="groups with the scope admin, separated by commas"
    )
    oidc_submit_groups: str = Field(
        default="",
        description="groups with the scope submit, all others only read. Empty: everyone may submit",
    )

    lease_s: float = Field(
        default=15.0,
        ge=MIN_LEASE_S,
        le=YEAR_S,
        description="a worker that is silent for this long loses its jobs",
    )
    sweep_s: Seconds = Field(default=5.0, description="how often workers sweep")
    poll_s: Seconds = Field(default=0.1, description="how often an idle worker polls without Redis")
    slow_poll_s: Seconds = Field(default=5.0, description="how often an idle worker polls with Redis")
    grace_s: Seconds = Field(
        default=5.0, description="how long a process may finish requests or give jobs back when it stops"
    )
    queue_timeout_s: Seconds = Field(
        default=86_400.0, description="a job that no worker claims for this long expires"
    )
    max_queued_jobs: int = Field(
        default=10_000, ge=1, le=10_000_000, description="queued jobs of one tenant. Beyond: 429"
    )
    max_running_jobs: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="running jobs of one tenant, others wait. None: up to all workers",
    )
    max_submits_per_minute: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="submissions a minute of one tenant. Beyond: 429. None: no limit",
    )
    max_cpu_s_per_day: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="CPU seconds a day (UTC) for the work of one key: searches while they run, "
        "verifications, predictions, re-plans, reports and calibrations. Beyond: 429. You can set it for "
        "each key. None: no limit",
    )
    beyond_cpu_quota: Literal["refuse", "wait"] = Field(
        default="refuse",
        description="jobs of a key that has used up its CPU seconds. refuse: 429. wait: they are queued. "
        "Either way, queued jobs wait for tomorrow",
    )
    keep_jobs_days: float = Field(
        default=90.0, gt=0, le=36_500, description="how long finished jobs and their results are kept"
    )
    idempotency_ttl_s: Seconds = Field(default=86_400.0, description="how long an Idempotency-Key is kept")
    event_heartbeat_s: Seconds = Field(
        default=15.0, description="how often an event stream sends a sign of life"
    )
    max_wait_s: Seconds = Field(default=30.0, description="longest wait of a long poll")

    @property
    def queue_url(self) -> str | None:
        """The URL of Redis with its password."""
        if self.redis_url is None or self.redis_password is None:
            return self.redis_url
        scheme, _, rest = self.redis_url.partition("://")
        if "@" in rest.partition("/")[0]:
            return self.redis_url
        return f"{scheme}://:{quote(self.redis_password.get_secret_value(), safe='')}@{rest}"

    @field_validator("database_url")
    @classmethod
    def _require_database(cls, url: str) -> str:
        """A database that several processes can share; the URL may hold a password and is not repeated."""
        try:
            parsed = make_url(url)
        except ArgumentError:
            raise ValueError(
                "not a URL such as sqlite:////folder/jobs.db or postgresql://host/name"
            ) from None
        if parsed.drivername not in DATABASES:
            raise ValueError(f"only {', '.join(sorted(DATABASES))} databases are supported")
        if parsed.drivername == "sqlite" and parsed.database in {None, "", ":memory:"}:
            raise ValueError("SQLite needs a file, which the server shares with its workers")
        return url

    @field_validator("oidc_redirect_url")
    @classmethod
    def _require_redirect(cls, url: str | None, others: ValidationInfo) -> str | None:
        """Refuse a provider without the address to come back to: a Host header is anybody's to choose."""
        if url is None and others.data.get("oidc_issuer") is not None:
            raise ValueError(
                "is required with MESHWRIGHT_OIDC_ISSUER: the address by which browsers reach this service"
            )
        return url

    @field_validator("trusted_proxies")
    @classmethod
    def _require_networks(cls, proxies: str | None) -> str | None:
        """Refuse other words: uvicorn would compare them with addresses, and trust no proxy."""
        for one in [] if proxies in {None, "*"} else str(proxies).split(","):
            try:
                ip_network(one.strip())
            except ValueError:
                raise ValueError(
                    f"{one.strip()!r} is not an address or a network, e.g. 10.0.0.0/8; * is allowed alone"
                ) from None
        return proxies

    @property
    def host_names(self) -> frozenset[str]:
        """The names, in lower case, by which a server without keys may be called."""
        own = {name.strip().lower() for name in f"{self.allowed_hosts},{self.host}".split(",")}
        return LOOPBACK_HOSTS | (own - {""})

    @property
    def migrates(self) -> bool:
        """Whether a starting server brings the schema to its newest revision."""
        return self.database_url.startswith("sqlite") if self.auto_migrate is None else self.auto_migrate


def as_markdown() -> str:
    """Every setting with its default and what it is for: docs/settings.md."""
    lines = [
        "# Settings and environment variables",
        "",
        "Set these environment variables for servers, workers and the commands that touch",
        "the records. Each process reads them once, at its start. If a value is out of range,",
        "the process stops with an error that names it.",
        "",
        "| variable | default | what it is |",
        "|---|---|---|",
    ]
    for name, field in Settings.model_fields.items():
        default = "a file in the user's state folder" if field.default_factory else f"`{field.default}`"
        shown = "–" if field.default in {None, ""} and not field.default_factory else default
        lines.append(f"| `MESHWRIGHT_{name.upper()}` | {shown} | {field.description} |")
    return "\n".join(lines) + "\n"


# --------------------------------------------------------------------------------------------------
# Settings from the environment with options over them.


_MAY_HOLD_PASSWORDS = frozenset({"database_url", "redis_url", "redis_password", "oidc_client_secret"})


def settings_with(given: Mapping[str, Any]) -> Settings:
    """The settings of this process; what is None is left to the environment.

    Raises:
        InvalidProblemError: a value is wrong; its option, or its variable of the environment, is named.
    """
    typed = {name: value for name, value in given.items() if value is not None}
    try:
        return Settings(**typed)
    except ValidationError as fault:
        details = fault.errors(include_url=False)
        raise InvalidProblemError(_fault(detail, typed) for detail in details) from None


def _fault(detail: ErrorDetails, typed: Mapping[str, Any]) -> FieldError:
    """Return what is wrong with one setting; a value that may hold a password is not repeated."""
    from meshwright.service.requests.schema import field_error  # noqa: PLC0415 - only for an error

    name = str(detail["loc"][0])
    found, info = field_error(detail, Settings), Settings.model_fields[name]
    example = next(iter(info.examples or ()), "")
    message = found.message.removeprefix("Value error, ")
    if example and detail["type"] != "value_error":
        value = "" if name in _MAY_HOLD_PASSWORDS else f'"{shown_name(str(detail["input"]))}" '
        message = f"{value}does not look like {example}"
    elif name in _MAY_HOLD_PASSWORDS and detail["type"] != "value_error":
        message = "is empty"
    pointer = f"--{name.replace('_', '-')}" if name in typed else f"{VARIABLES}{name.upper()}"
    usual = str(info.default).lower() if isinstance(info.default, bool) else str(info.default or "")
    right = found.nearest or example or usual
    command = f"{pointer} {right}" if name in typed else f"export {pointer}={right}"
    return replace(found, pointer=pointer, message=message, tip=command if right else f"unset {pointer}")


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
