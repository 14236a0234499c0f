"""Starts the service in this process."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from service.cli.configured import settings_with
from service.cli.exits import BAD_INPUT, FOUND, say_error
from service.errors import ServerStartError
from service.serve import serve


def run_server(given: Mapping[str, Any]) -> int:
    """Serve until SIGTERM or Ctrl-C; options override the environment.

    Raises:
        InvalidProblemError: a setting is wrong.
    """
    try:
        serve(settings_with(given), on_ready=_announce)
    except ServerStartError as fault:
        say_error(str(fault))
        return BAD_INPUT
    return FOUND


def _announce(url: str) -> None:
    """Say where the service listens, at once even in a pipe."""
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
