"""Numbers as people write them: ``8k`` tokens, ``15T``, ``5%``, ``1m`` of time.

What is no such number is left unchanged, for the option's own error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

Units = Mapping[str, Fraction]
BINARY: Units = {"k": Fraction(2**10), "m": Fraction(2**20)}  # of lengths: 8k is 8192
DECIMAL: Units = {name: Fraction(10) ** power for name, power in (("k", 3), ("m", 6), ("b", 9), ("t", 12))}
_SECONDS: Units = {
    "ms": Fraction(1, 1000), "s": Fraction(1), "sec": Fraction(1), "m": Fraction(60), "min": Fraction(60),
    "h": Fraction(3600), "d": Fraction(86_400), "w": Fraction(604_800),
}  # fmt: skip


def _of(unit: str, *names: str) -> Units:
    """Return units of time as shares of one of them; a minute has no m where months may be meant."""
    return {name: _SECONDS[name] / _SECONDS[unit] for name in (unit, *names)}


_UNITS: Mapping[str, Units] = {  # by the last word of an option's name
    "s": _SECONDS,
    "timeout": _SECONDS,
    "limit": _SECONDS,
    "minutes": {"m": Fraction(1), **_of("min", "s", "h", "d")},
    "hours": _of("h", "min", "d"),
    "days": _of("d", "h", "w"),
    "kw": {"w": Fraction(1, 1000), "kw": Fraction(1), "mw": Fraction(1000), "gw": Fraction(10**6)},
    "gib": {"gib": Fraction(1)},
    "probability": {"%": Fraction(1, 100)},
    "confidence": {"%": Fraction(1, 100)},
    "tolerance": {"%": Fraction(1, 100)},
    "length": BINARY,
    "tokens": DECIMAL,
}
_WORDS = {  # of units, without a plural's s
    "second": "s", "minute": "min", "hour": "h", "hr": "h", "day": "d", "week": "w", "thousand": "k",
    "million": "m", "mn": "m", "billion": "b", "bn": "b", "trillion": "t", "tn": "t",
}  # fmt: skip
_COUNTED = re.compile(r" ?(?:tok(?:en)?s?|context|ctx)$", re.IGNORECASE)  # 8k tokens, 128K context
_NUMBER = re.compile(r"((?:\d[\d_]*)?\.?\d*(?:e[+-]?\d{1,2})?) ?([a-z]*|%)", re.IGNORECASE)
_MAX_CHARACTERS = 30


def written_out(name: str, text: str, *, whole: bool) -> str:
    """Return a number in the unit of an option, without one; other words unchanged.

    Args:
        name: of the option; its last word is its unit (``time_limit_s``).
        text: as it was typed.
        whole: whether the option takes whole numbers.
    """
    kind = name.rpartition("_")[2]
    bare = _COUNTED.sub("", text.strip()) if kind in ("length", "tokens") else text
    value = number_of(bare, _UNITS.get(kind, DECIMAL if whole else {}))
    if value is None or (whole and value.denominator > 1):
        return text
    return str(value.numerator) if value.denominator == 1 else repr(float(value))


def number_of(text: str, units: Units) -> Fraction | None:
    """Return the value of ``8k``, ``2.5 h`` or ``1 trillion``; None for other words."""
    match = _NUMBER.fullmatch(text.strip()) if len(text) <= _MAX_CHARACTERS else None
    if match is None or not match[1]:
        return None
    unit = match[2].lower()
    unit = unit if unit in units else _WORDS.get(unit.removesuffix("s"), unit)
    factor = units.get(unit) if unit else Fraction(1)
    try:
        return None if factor is None else Fraction(match[1].replace("_", "")) * factor
    except ValueError:
        return None
