"""Settings from the environment with options over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from profiles.errors import FieldError, InvalidProblemError
from service.settings import Settings


def settings_with(given: Mapping[str, Any]) -> Settings:
    """The settings of this process; what is None is left to the environment.

    Raises:
        InvalidProblemError: a value, given or of the environment, is wrong.
    """
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as fault:
        details = fault.errors(include_url=False, include_input=False)
        raise InvalidProblemError(
            FieldError(
                pointer=".".join(str(part) for part in detail["loc"]) or "settings",
                message=detail["msg"].removeprefix("Value error, "),
            )
            for detail in details
        ) from None
