"""``NAME=VALUE`` options: glossary names or their short forms, integers or words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.requests.numbers import written_out
from meshwright.service.requests.parts import LONG_NAMES as _LONG_NAMES
from meshwright.service.requests.parts import long_name
from meshwright.solver.configuration import VARIABLES, Variable

_WORKLOAD = {"gbs": "global_batch_size", "seq": "seq_length"}  # of the workload, as people call them
_SWITCHES = {"true": True, "false": False}
Value = int | str
_NAME = re.compile(r"'[^']*'|\"[^\"]*\"|[A-Za-z_]\w*")
_NEXT_PAIR = re.compile(r",(?=\s*[A-Za-z_][\w-]*\s*=)")  # tp=8,pp=4 is two; stage_layers=4,3 is one
_ENDS = 2  # of a range
_DECIMAL = re.compile(r"-?\d{0,18}\.?\d{1,18}(?:e[+-]?\d{1,2})?", re.IGNORECASE)
_LONGEST_SLIP = 4  # characters: what is longer is compared with the long names, where it is checked
MAX_DIGITS = 18  # what fits 64 bits
_LENGTH = "length"  # of the numbers in which k is 1024
_GPUS = re.compile(r"(\d{1,9}) ?gpus?", re.IGNORECASE)


def values_of(option: str, texts: Iterable[str]) -> dict[str, Value | list[Value]]:
    """``tp=8`` as ``{"tensor_parallel_size": 8}``, ``stage_layers=4,3`` as a list, ``…=true`` as True.

    Raises:
        InvalidProblemError: a text is not NAME=VALUE, or a name is given twice.
    """
    return {
        name: [*map(_value, value.split(","))] if name == "stage_layers" else _value(value)
        for name, value in _pairs(option, texts, "NAME=VALUE")
    }


def values_by_own_names(option: str, texts: Iterable[str]) -> dict[str, Value]:
    """Return values by the names of a file's program, which the glossary doesn't have.

    Raises:
        InvalidProblemError: a text is not NAME=VALUE, or a name is given twice.
    """
    return {name: _value(value) for name, value in _pairs(option, texts, "NAME=VALUE", glossary=False)}


def facts_of(option: str, texts: Iterable[str]) -> dict[str, Value | float]:
    """``fp32_ends=1`` and ``moe_dispatcher=deepep`` as facts of a framework, by their own names.

    Raises:
        InvalidProblemError: a text is not NAME=VALUE, or a name is given twice.
    """
    found = values_by_own_names(option, texts)
    return {
        name: float(one) if isinstance(one, str) and _DECIMAL.fullmatch(one) else one
        for name, one in found.items()
    }


def asked_values(option: str, texts: Iterable[str]) -> dict[str, Value]:
    """``tp=4,pp=2`` as values of variables that a configuration can have.

    Raises:
        InvalidProblemError: a name or a word is unknown, or a number is out of range.
    """
    found = dict[str, Value]()
    for name, value in values_of(option, texts).items():
        variable = VARIABLES.get(name)
        if variable is None:
            near = get_close_matches(name, VARIABLES, n=1, cutoff=0.5)
            raise InvalidProblemError.of(
                option, f"{shown(name)} is not a variable", allowed=", ".join(VARIABLES),
                nearest=next(iter(near), None),
            )  # fmt: skip
        if isinstance(value, list) or not _is_value(variable, value):
            ends = f"an integer from {variable.least} to {variable.most}"
            allowed = ", ".join(variable.words) or (ends if variable.is_integer else "true, false")
            raise InvalidProblemError.of(option, f"{name} can't be {shown(str(value))}", allowed=allowed)
        found[name] = value
    return found


def _is_value(variable: Variable, value: Value) -> bool:
    if variable.words:
        return value in variable.words
    if not variable.is_integer:
        return value in (True, False)
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and variable.least <= int(value) <= variable.most


def prohibitions_of(option: str, texts: Iterable[str]) -> dict[str, list[Value]]:
    """``mbs=3,5`` as ``{"micro_batch_size": [3, 5]}``.

    Raises:
        InvalidProblemError: a text is not NAME=VALUE[,VALUE], or a name is given twice.
    """
    pairs = _pairs(option, texts, "NAME=VALUE[,VALUE]")
    return {name: [_value(part) for part in values.split(",")] for name, values in pairs}


def bounds_of(option: str, texts: Iterable[str]) -> dict[str, list[int]]:
    """``mbs=1:4`` as ``{"micro_batch_size": [1, 4]}``.

    Raises:
        InvalidProblemError: a text is not NAME=LOW:HIGH with integers, or a name is given twice.
    """
    bounds = {}
    for name, limits in _pairs(option, texts, "NAME=LOW:HIGH"):
        low, _, high = limits.partition(":")
        ends = [_value(low), _value(high)]
        if any(isinstance(end, str) for end in ends):
            raise InvalidProblemError.of(
                option, f'"{shown(limits)}" is not LOW:HIGH', allowed="two integers"
            )
        bounds[name] = [int(end) for end in ends]
    return bounds


def counts_of(option: str, text: str | None) -> object:
    """``4`` as 4, ``2,4`` as a list, ``1:16`` as a range from ``min`` to ``max``; ``2k`` is 2048.

    Raises:
        InvalidProblemError: a part of it is no number.
    """
    if text is None:
        return None
    parts = [written_out(_LENGTH, part.strip(), whole=True) for part in re.split(r"[,:]", text)]
    digits = [part.strip().removeprefix("-") for part in parts]  # a range error has the nearest count
    if not all(map(str.isdecimal, digits)) or text.count(":") > (len(parts) == _ENDS):
        gpus = _GPUS.fullmatch(text.strip())
        hint = f"--num-gpus {gpus[1]}" if gpus and option == "--num-nodes" else None
        raise InvalidProblemError.of(
            option,
            f'"{shown(text)}" is not N, N,N or LOW:HIGH',
            allowed="a number (4), several (2,4) or a range (2:8)",
            nearest=hint,
        )
    values = [int(part) for part in parts]
    if ":" in text:
        return {"min": values[0], "max": values[1]}
    return values if "," in text else values[0]


def long_names(expression: str) -> str:
    """An expression in which ``tp``, ``pp``, … are written out; words in quotes stay."""
    return _NAME.sub(lambda match: long_name(match.group()), expression)


def near_short_name(name: str) -> str | None:
    """``tp (tensor_parallel_size)`` for ``tpp``: what a short name that is none was meant to be."""
    near = get_close_matches(name, _LONG_NAMES, cutoff=0.5) if len(name) <= _LONGEST_SLIP else []
    near.sort(key=lambda short: short[0] != name[0])  # people err in later letters
    return f"{near[0]} ({_LONG_NAMES[near[0]]})" if near else None


def typed_at(expression: str, at: int) -> int:
    """The character of an expression as it was typed, from 1, for one of what ``long_names`` made of it."""
    longer = 0
    for match in _NAME.finditer(expression):
        end = match.start() + longer + len(long_names(match.group()))
        if at <= match.start() + longer:
            break
        if at <= end:
            return min(at - longer, match.end())
        longer = end - match.end()
    return at - longer


def _pairs(
    option: str, texts: Iterable[str], form: str, *, glossary: bool = True
) -> Iterator[tuple[str, str]]:
    seen = set()
    for text in (one for several in texts for one in _NEXT_PAIR.split(several)):
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and all(part.strip() for part in value.split(","))):
            raise InvalidProblemError.of(option, f'"{shown(text)}" is not {form}')
        long = long_name(name)
        known = not glossary or long in VARIABLES or name.lower() in _WORKLOAD
        meant = None if known else near_short_name(name)
        if meant:
            message = f'unknown "{shown(name)}". Did you mean {meant}?'
            raise InvalidProblemError.of(option, message, nearest=meant)
        long = long if long in VARIABLES else _WORKLOAD.get(name.lower(), name.replace("-", "_"))
        long = long if glossary else name
        if long in seen:
            raise InvalidProblemError.of(option, f"{shown(long)} is given more than once")
        seen.add(long)
        yield long, value


def _value(text: str) -> Value:
    digits = text.strip()
    if digits.lower() in _SWITCHES:
        return _SWITCHES[digits.lower()]
    return int(digits) if digits.removeprefix("-").isdecimal() and len(digits) <= MAX_DIGITS else digits
