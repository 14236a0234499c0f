"""Meshwright: which parallel configuration should a training run use, and how sure are we?

``plan``, ``predict``, ``explain``, ``export``, ``validate`` and ``calibrate`` are the commands of those
names as functions; ``meshwright.service.library`` documents them. They are loaded when they are first used:
importing a part of the package loads no other part.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.profiles.errors import InvalidProblemError, PlannerError
    from meshwright.service.library import (
        CalibrateResult,
        ExplainResult,
        PlanResult,
        PredictResult,
        ValidateResult,
        calibrate,
        explain,
        export,
        plan,
        predict,
        read_result,
        validate,
    )

__all__ = [
    "CalibrateResult",
    "ExplainResult",
    "InvalidProblemError",
    "PlanResult",
    "PlannerError",
    "PredictResult",
    "ValidateResult",
    "calibrate",
    "explain",
    "export",
    "plan",
    "predict",
    "read_result",
    "validate",
]
_ERRORS = {"InvalidProblemError", "PlannerError"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - what the name stands for
    """A function or a type of the interface.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    home = "meshwright.profiles.errors" if name in _ERRORS else "meshwright.service.library"
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """The names of the interface and what every module has."""
    return sorted({*globals(), *__all__})
