"""Starts the service in this process."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from service.cli.exits import BAD_INPUT, FOUND, say_error
from service.errors import ServerStartError
from service.serve import serve
from service.settings import Settings


def run_server(given: Mapping[str, Any]) -> int:
    """Serve until SIGTERM or Ctrl-C; options override the environment."""
    try:
        settings = Settings(**given)
    except ValidationError as fault:
        for detail in fault.errors(include_url=False, include_input=False):
            where = ".".join(str(part) for part in detail["loc"]) or "settings"
            say_error(f"{where}: {detail['msg'].removeprefix('Value error, ')}")
        return BAD_INPUT
    try:
        serve(settings, on_ready=_announce)
    except ServerStartError as fault:
        say_error(str(fault))
        return BAD_INPUT
    return FOUND


def _announce(url: str) -> None:
    """Say where the service listens, at once even in a pipe."""
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
