"""Figures as people read them: few digits, always with their unit."""

from __future__ import annotations

from meshwright.profiles.units import GIB

_TENTHS_FROM, _WHOLE_FROM = 10.0, 100.0  # digits shrink as a figure grows: 3.28, 32.8, 328
NO_BREAK = "\N{NO-BREAK SPACE}"


def figure(value: float) -> str:
    """Return three significant digits: 3.28, 32.8, 328."""
    decimals = 2 if value < _TENTHS_FROM else 1 if value < _WHOLE_FROM else 0
    return f"{value:.{decimals}f}"


def gib(value_bytes: float) -> str:
    """Return bytes in GiB without the unit: 65.1, 651."""
    value = value_bytes / GIB
    return f"{value:.0f}" if value >= _WHOLE_FROM else f"{value:.1f}"


def gib_of(used_bytes: float, limit_bytes: float) -> str:
    """Return ``65.1 of 79.6 GiB``, or ``155 of 40 GiB``.

    The limit has no more decimals than the amount used.
    """
    used = gib(used_bytes)
    return f"{used} of {gib(limit_bytes) if '.' in used else f'{limit_bytes / GIB:.0f}'} GiB"


def scale_of(whole_s: float) -> tuple[float, str, int]:
    """Return factor, unit and decimals of seconds that are written like ``whole_s``."""
    factor, unit = (1.0, "s") if whole_s >= 1 else (1e3, "ms")
    return factor, unit, len(figure(whole_s * factor).partition(".")[2])


def seconds_like(value_s: float, whole_s: float) -> str:
    """Return ``5.8 s`` of ``29.0 s``: in the unit and with the digits of the whole."""
    factor, unit, digits = scale_of(whole_s)
    return f"{value_s * factor:.{digits}f} {unit}"


def percent(share: float) -> str:
    """Return ``46 %``."""
    return f"{share * 100:.0f} %"


def tied(piece: str) -> str:
    """Return a piece that is not broken: its blanks hold."""
    return piece.replace(" ", NO_BREAK)
