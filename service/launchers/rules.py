"""What a rule of a launcher is, and how it names the nearest legal value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from profiles.errors import FieldError, RefusedExportError
from service.launchers.target import Target

Rule = Callable[[Target], Iterator[FieldError]]  # yields one fault for each broken value


def fault(field: str, message: str, *, allowed: str | None = None, nearest: object = None) -> FieldError:
    """A fault of one field of the plan's configuration (``/config/<field>``)."""
    return FieldError(
        pointer=f"/config/{field}",
        message=message,
        allowed=allowed,
        nearest=None if nearest is None else str(nearest),
    )


def near_divisors(value: int, total: int) -> str:
    """The divisors of ``total`` next to ``value``, below and above."""
    small = [n for n in range(1, math.isqrt(total) + 1) if total % n == 0]
    return _neighbours(value, sorted({*small, *(total // n for n in small)}))


def near_multiples(value: int, unit: int) -> str:
    """The positive multiples of ``unit`` next to ``value``."""
    below = value // unit * unit
    return _neighbours(value, [n for n in (below, below + unit) if n > 0])


def refuse(rules: Iterable[Rule], target: Target) -> None:
    """Hold ``target`` against every rule.

    Raises:
        RefusedExportError: rules are broken; every fault of every rule is in it.
    """
    faults = [found for rule in rules for found in rule(target)]
    if faults:
        raise RefusedExportError(faults)


def _neighbours(value: int, legal: list[int]) -> str:
    below = [n for n in legal if n <= value][-1:]
    above = [n for n in legal if n > value][:1]
    return " or ".join(str(n) for n in below + above)
