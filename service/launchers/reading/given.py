"""The flags of a launch command with their values and lines, checked one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from profiles.errors import FieldError, InvalidProblemError
from service.launchers.megatron_lm_flags import FLAGS, REFUSED, is_irrelevant
from service.launchers.reading.shell import UNKNOWN, Word

_MAX_SHOWN = 40
_MAX_DIGITS = 15
_MAX_LISTED = 32


@dataclass(frozen=True, slots=True)
class Value:
    """What one flag was given, and on which line."""

    texts: tuple[str, ...]
    line: int


@dataclass(slots=True, kw_only=True)
class Given:
    """All flags that decide a plan; the last of equal ones counts, as in argparse."""

    values: dict[str, Value] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)  # flags that may matter and are not understood
    notes: list[str] = field(default_factory=list)
    faults: list[FieldError] = field(default_factory=list)

    def has(self, name: str) -> bool:
        """Whether a flag is given; ``name`` without its dashes."""
        return f"--{name}" in self.values

    def word(self, name: str, default: str = "") -> str:
        """The value of a flag as text."""
        value = self.values.get(f"--{name}")
        return value.texts[0] if value and value.texts else default

    def words(self, name: str) -> tuple[str, ...]:
        """All values of a flag."""
        value = self.values.get(f"--{name}")
        return value.texts if value else ()

    def integer(self, name: str, default: int) -> int:
        """The value of a flag that takes a whole number."""
        return int(self.word(name)) if self.has(name) else default

    def optional(self, name: str) -> int | None:
        """The same; None where it is not given."""
        return int(self.word(name)) if self.has(name) else None

    def number(self, name: str, default: float) -> float:
        """The value of a flag that takes a number."""
        return float(self.word(name)) if self.has(name) else default

    def fault(self, name: str, message: str, *, allowed: str | None = None) -> None:
        """Remember what is wrong with a flag; its line is part of the message."""
        value = self.values.get(f"--{name}")
        where = f"line {value.line}: " if value else ""
        self.faults.append(FieldError(pointer=f"--{name}", message=where + message, allowed=allowed))

    def stop(self) -> None:
        """Raise what was found wrong so far.

        Raises:
            InvalidProblemError: there were faults.
        """
        if self.faults:
            raise InvalidProblemError(self.faults)


def given_flags(words: Sequence[Word]) -> Given:
    """Sort the words behind a training script's name into flags and their values.

    Raises:
        InvalidProblemError: a flag lacks its value, has a wrong or an unknown one, or cannot be read.
    """
    given = Given()
    at = 0
    while at < len(words):
        name, _, attached = words[at].text.partition("=")
        end = at + 1
        while end < len(words) and not words[end].text.startswith("--"):
            end += 1
        if name.startswith("--"):
            texts = ((attached,) if "=" in words[at].text else ()) + tuple(
                w.text for w in words[at + 1 : end]
            )
            _take(given, name, Value(texts, words[at].line))
        at = end
    given.stop()
    return given


def _take(given: Given, name: str, value: Value) -> None:
    """Keep one flag, or say what is wrong with it."""
    shown = _shown(name.replace(UNKNOWN, "$"))
    if name in REFUSED:
        message = f"line {value.line}: cannot be read: {REFUSED[name]}"
        given.faults.append(FieldError(pointer=shown, message=message))
    elif name not in FLAGS:
        if not is_irrelevant(name) and shown not in given.unread and len(given.unread) < _MAX_LISTED:
            given.unread.append(shown)
    elif problem := _wrong(name, value):
        given.faults.append(FieldError(pointer=shown, message=f"line {value.line}: {problem}"))
    else:
        old = given.values.get(name)
        if old is not None and old.texts != value.texts:
            first, last = _shown(" ".join(old.texts)), _shown(" ".join(value.texts))
            given.notes.append(
                f"{name} is given twice, {first} on line {old.line} and {last} on line {value.line}: "
                "the last counts"
            )
        given.values[name] = value


def _wrong(name: str, value: Value) -> str | None:
    """What is wrong with the value of a known flag."""
    kind, texts = FLAGS[name], value.texts
    unknown = next((text.split(UNKNOWN)[1] for text in texts if UNKNOWN in text), None)
    if unknown is not None and kind != "switch":
        return (
            f"the value hangs on ${_shown(unknown)}, which the script does not set; give it a value there"
        )
    if kind == "switch":
        return None
    if not texts:
        return "needs a value"
    if kind != "words" and len(texts) > 1:
        return f"takes one value, not {len(texts)}"
    text = texts[0]
    if kind == "integer" and not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        return f'"{_shown(text)}" is no whole number'
    return None if kind != "number" or _is_number(text) else f'"{_shown(text)}" is no number'


def _is_number(text: str) -> bool:
    """Whether a text is a finite decimal number."""
    digits = text.removeprefix("-").replace(".", "", 1)
    return digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS


def _shown(text: str) -> str:
    """Text of the script as a message may repeat it: printable and short."""
    return "".join(char if char.isprintable() else "?" for char in text[:_MAX_SHOWN])
