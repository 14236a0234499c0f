"""JSON from outside: read strictly, bounded in size and depth, before anyone looks at its meaning.

The JSON grammar is RFC 8259; NaN, infinities, repeated keys, NUL and lone surrogates are refused.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from profiles.errors import InvalidProblemError

MAX_INPUT_BYTES = 8 * 2**20  # the limit of a request body
MAX_DEPTH = 32  # a problem is 6 deep; more is an attack or a mistake
MAX_ERRORS = 20  # faults that one answer names
MAX_SHOWN = 64  # characters of foreign text that an error repeats
MAX_BITS = 63  # of an integer, its sign not counted
MAX_DIGITS = 400  # of one integer; a longer one is refused before it is converted
_UNCLEAN = re.compile("[\0\ud800-\udfff]")


def shown(text: str) -> str:
    """Foreign text as an error may repeat it: printable and short."""
    clean = "".join(char if char.isprintable() else "?" for char in text[: MAX_SHOWN + 1])
    return clean if len(clean) <= MAX_SHOWN else clean[: MAX_SHOWN - 3] + "..."


def pointer(*parts: object) -> str:
    """The JSON pointer (RFC 6901) of ``parts``; each part is escaped and kept short."""
    return "".join("/" + shown(str(part)).replace("~", "~0").replace("/", "~1") for part in parts)


def read_json(text: str | bytes) -> Mapping[str, object]:
    """The JSON object in ``text``.

    Raises:
        InvalidProblemError: too big, too deep, not JSON, not an object, or a value no request may hold.
    """
    if len(text) > MAX_INPUT_BYTES:
        raise InvalidProblemError.of("", "the input is too big", allowed=f"{MAX_INPUT_BYTES} bytes")
    try:
        raw = json.loads(
            text, parse_constant=_refuse_constant, parse_int=_bounded_int, object_pairs_hook=_unique_keys
        )
    except InvalidProblemError:
        raise
    except RecursionError:
        raise InvalidProblemError.of("", f"nested deeper than {MAX_DEPTH} levels") from None
    except json.JSONDecodeError as fault:
        where = f"line {fault.lineno}, column {fault.colno}"
        raise InvalidProblemError.of("", f"not JSON: {fault.msg} ({where})") from None
    except UnicodeDecodeError:
        raise InvalidProblemError.of("", "not JSON: the text is not UTF-8") from None
    return require_plain(raw)


def shown_path(path: Path) -> str:
    """A path as an error may repeat it: printable, its end kept."""
    text = str(path)
    return shown(text) if len(text) <= MAX_SHOWN else f"...{shown(text[3 - MAX_SHOWN :])}"


def require_plain(raw: object) -> Mapping[str, object]:
    """``raw`` itself, when it is an object of plain, finite, bounded values.

    Raises:
        InvalidProblemError: something in it is not; the first such value is named.
    """
    if not isinstance(raw, dict):
        raise InvalidProblemError.of("", "must be an object")
    stack: list[tuple[tuple[object, ...], object]] = [((), raw)]
    while stack:
        where, value = stack.pop()
        if len(where) > MAX_DEPTH:
            raise InvalidProblemError.of("", f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            stack.extend(((*where, _text(where, key)), item) for key, item in value.items())
        elif isinstance(value, list):
            stack.extend(((*where, index), item) for index, item in enumerate(value))
        else:
            _require_plain_value(where, value)
    return raw


def _require_plain_value(where: tuple[object, ...], value: object) -> None:
    """Refuse what is not null, a boolean, a finite number of 64 bits, or clean text."""
    if isinstance(value, str):
        _text(where, value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidProblemError.of(pointer(*where), "must be a finite number")
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise InvalidProblemError.of(
            pointer(*where), "the number is too large", allowed=f"{MAX_BITS} bits and a sign"
        )
    elif not isinstance(value, int | float | None):
        raise InvalidProblemError.of(pointer(*where), "must be a JSON value")


def _text(where: tuple[object, ...], value: object) -> str:
    """``value``, when it is text without NUL and without lone surrogates."""
    if not isinstance(value, str):
        raise InvalidProblemError.of(pointer(*where), "keys must be text")
    if _UNCLEAN.search(value):
        raise InvalidProblemError.of(pointer(*where), "text must not hold NUL or lone surrogates")
    return value


def _refuse_constant(name: str) -> NoReturn:
    """NaN and infinities are no JSON."""
    raise InvalidProblemError.of("", f"{name} is not a JSON number")


def _bounded_int(digits: str) -> int:
    """An integer, unless it is absurdly long."""
    if len(digits) > MAX_DIGITS:
        raise InvalidProblemError.of("", "a number is too large")
    return int(digits)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object, unless a key is repeated."""
    values = dict(pairs)
    if len(values) != len(pairs):
        repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise InvalidProblemError.of("", f'the key "{shown(repeated)}" is repeated')
    return values
