"""The flags of a launch command with their values and lines, checked one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from typing import Any

from meshwright.launchers.flags import Flag, flag_names, is_off, plain_name
from meshwright.launchers.megatron_core.names import flag_kinds, flags_of_fields, spelled, table
from meshwright.launchers.reading.base import Overrides, Place
from meshwright.launchers.reading.fields import DECIMAL, affected, meant, near_word, passing, undecided
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.shell.values import UNKNOWN, Word, unknown_arguments, unknown_fault, unknown_in, why_unknown

_MAX_SHOWN = 40
_UNSET = re.compile(rf"{UNKNOWN}([A-Za-z_]\w*){UNKNOWN}")  # ``$EXTRA`` alone, without quotes
_MAX_DIGITS = 15
MAX_LISTED = 32
_MAX_LEFT = 400
_LARGEST = 10**_MAX_DIGITS - 1
_OWN_NAMES = ("megatron-bridge", "ms-swift", "llama-factory")  # launchers over Megatron-Core
_ALLOWED: Mapping[str, str] = {"number": "a finite decimal number", "word": "one word"}


@dataclass(frozen=True, slots=True)
class Value:
    """The value of one flag, with its line."""

    texts: tuple[str, ...]
    line: int

    @property
    def first(self) -> str:
        """Return the first word; ``on`` for a switch."""
        return self.texts[0] if self.texts else "on"


@dataclass(slots=True, kw_only=True)
class Given:
    """All flags that affect a plan; the last of equal ones counts, as in argparse."""

    values: dict[str, Value] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)  # flags that may matter but are unknown
    notes: list[str] = field(default_factory=list)
    faults: list[FieldError] = field(default_factory=list)
    called: dict[str, str] = field(default_factory=dict)  # names of flags in the file, if they differ
    left: dict[str, tuple[str, Value]] = field(default_factory=dict)  # unknown flags: plain name, value
    others: dict[str, Value] = field(default_factory=dict)  # flags that no plan depends on, as tokenizers

    def has(self, name: str) -> bool:
        """Return whether a flag is given; ``name`` has no dashes."""
        return f"--{name}" in self.values

    def word(self, name: str, default: str = "") -> str:
        """Return the value of a flag as text."""
        value = self.values.get(f"--{name}")
        return value.texts[0] if value and value.texts else default

    def words(self, name: str) -> tuple[str, ...]:
        """Return all values of a flag."""
        value = self.values.get(f"--{name}")
        return value.texts if value else ()

    def other(self, *names: str) -> str:
        """Return the first given value of flags that do not affect a plan; empty without one."""
        for name in names:
            value = self.others.get(f"--{name}")
            if value is not None and value.texts:
                if (unknown := unknown_in(value.texts[0])) is not None:
                    called = self.called.get(f"--{name}", f"--{name}")
                    raise InvalidProblemError(
                        [*self.faults, unknown_fault(_shown(called), unknown, value.line)]
                    )
                return value.texts[0]
        return ""

    def partly(self, name: str) -> str:
        """Return a path that does not affect a plan and may be partly unknown; empty if it is not given."""
        value = self.others.get(f"--{name}")
        return value.texts[0] if value is not None and value.texts else ""

    def integer(self, name: str, default: int) -> int:
        """Return the value of a flag that takes a whole number."""
        return int(self.word(name)) if self.has(name) else default

    def optional(self, name: str) -> int | None:
        """Return a whole number; None if the flag is not given."""
        return int(self.word(name)) if self.has(name) else None

    def number(self, name: str, default: float) -> float:
        """Return the value of a flag that takes a number."""
        return float(self.word(name)) if self.has(name) else default

    def fields(self, record: str, *names: str) -> dict[str, Any]:
        """Return fields of a record (``model.mla``) that single flags set; without them only defaults."""
        found: dict[str, Any] = {}
        for name in names:
            flag = flags_of_fields()[record][name]
            row, text = table()[flag], self.word(flag.replace("_", "-"))
            value = {"switch": bool, "integer": int, "number": float}[row.kind](text or row.default or 0)
            if self.has(flag.replace("_", "-")):
                found[name] = True if row.kind == "switch" else value
            elif row.default is not None:
                found[name] = value
        return found

    def fault(self, name: str, message: str, *, allowed: str | None = None, nearest: object = None) -> None:
        """Record a fault of a flag; its line becomes part of the message."""
        value = self.values.get(f"--{name}")
        where = f"line {value.line}: " if value and value.line else ""
        called = self.called.get(f"--{name}", f"--{name}")
        if len(self.faults) < MAX_LISTED:
            word = self.word(name)
            near = near_word(word, allowed) if nearest is None else str(nearest)
            self.faults.append(
                FieldError(pointer=called, message=where + message, allowed=allowed, nearest=near)
            )

    def fault_of(self, name: str, value: Value, message: str, *, allowed: str | None = None) -> None:
        """Record a fault of a flag that is not kept."""
        nearest = near_word(value.first, allowed)
        self.refuse(_shown(name), f"line {value.line}: {message}", allowed=allowed, nearest=nearest)

    def place(self, name: str) -> Place:
        """Return a flag as the file spells it, with its line."""
        value = self.values.get(f"--{name}")
        return self.called.get(f"--{name}", f"--{name}"), value.line if value else 0

    def note(self, *texts: str) -> None:
        """Add notes on the actual run; flags are spelled as in the file."""
        for text in texts:
            for flag, name in self.called.items():
                text = re.sub(rf"{flag}(?![\w-])", name, text) if flag in text else text  # noqa: PLW2901
            if len(self.notes) < MAX_LISTED:
                self.notes.append(text)

    def take(self, name: str, value: Value, *, called: str | None = None) -> None:
        """Keep one flag, or record its fault; ``called`` is its name in the file."""
        shown = _shown((called or name).replace(UNKNOWN, "$"))
        value = self._without_unset(name, value)
        if name not in flag_kinds():
            self.others[name] = value
            if plain_name(name) not in table() or table()[plain_name(name)].role == "listed":
                self.leave(shown, name, value)
        elif problem := _wrong(name, value):
            text, allowed = problem
            where = f"line {value.line}: " if value.line else ""  # none if it is supplied
            self.refuse(shown, where + text, allowed=allowed)
        else:
            if called is not None:
                self.called[name] = _shown(called)
            self._replace(name, value)

    def _without_unset(self, name: str, value: Value) -> Value:
        """Return the value without unset variables after it, which the shell expands to nothing."""
        count = {"switch": 0, "words": len(value.texts)}.get(flag_kinds().get(name, "words"), 1)
        unset = [found[1] for text in value.texts[count:] if (found := _UNSET.fullmatch(text)) is not None]
        if not unset or len(unset) < len(value.texts) - count:
            return value
        for one in unset:
            self.note(f"line {value.line}: ${one} is not set: read as empty")
        return replace(value, texts=value.texts[:count])

    def leave(self, shown: str, name: str, value: Value) -> None:
        """List an unknown name, unless it cannot affect a prediction."""
        if len(self.left) < _MAX_LEFT:
            self.left.setdefault(shown, (plain_name(name), value))
        free = flag_names("megatron-lm", "megatron-core").is_free(name)
        if not free and shown not in self.unread and len(self.unread) < _MAX_LEFT:
            self.unread.append(shown)

    def refuse_slips(self, names: Mapping[str, str], whole: Sequence[str] = ()) -> None:
        """Refuse unknown names that are a typo of a name, which the launchers' parsers stop at.

        ``names``: flags by their names in snake case; ``whole``: the names with their sections, if the
        launcher has sections. A correct name in another section is refused, too.
        """
        for shown, (name, value) in self.left.items():
            near = (
                None
                if shown in flag_names("megatron-lm", "megatron-core", *_OWN_NAMES)
                else meant(name, names)
            )
            if near is None:
                continue
            part = shown.rpartition(".")[2].lstrip("-")
            right = near if "_" in part else near.replace("_", "-")
            if right != part:
                self.refuse(
                    shown, f"line {value.line}: is unknown", nearest=shown.removesuffix(part) + right
                )
            elif whole:
                same = [one for one in whole if names.get(one.rpartition(".")[2]) == names[near]]
                self.refuse(
                    shown,
                    f"line {value.line}: is not a name of that section",
                    nearest=next(iter(get_close_matches(shown, same, n=1, cutoff=0.0)), None),
                )
            elif names[near] not in self.values:
                self.refuse(shown, f"line {value.line}: is not read there", nearest=right)

    def refuse_undecided(self, *programs: str) -> None:
        """Refuse names that are not read and affect a run: by their row, else in any launcher.

        ``programs``: launchers over Megatron-LM with arguments of their own.
        """
        rows = flag_names("megatron-lm", "megatron-core", *programs)
        for shown in tuple(self.unread):
            name, value = self.left.get(shown, ("", Value((), 0)))
            row = rows.row(shown) or rows.row(name)
            if row is not None and row.role == "refused":
                if not self._refuse_unpriced(shown, value, row):
                    self.unread.remove(shown)  # at its default, or without the argument that it needs
            elif what := affected(row, name, value.first):
                self.refuse(shown, f"line {value.line}: {undecided(what)}", allowed=passing(shown))

    def refuse(
        self, shown: str, message: str, *, allowed: str | None = None, nearest: str | None = None
    ) -> None:
        """Record a fault of a flag that is not kept."""
        if len(self.faults) < MAX_LISTED:
            self.faults.append(FieldError(pointer=shown, message=message, allowed=allowed, nearest=nearest))

    def refuse_unpriced(self) -> None:
        """Refuse the flags with which what is priced is not what runs, unless their values are off."""
        for name, value in self.others.items():
            if (row := table().get(plain_name(name))) is not None:
                self._refuse_unpriced(_shown(name), value, row)

    def _refuse_unpriced(self, shown: str, value: Value, row: Flag) -> bool:
        """Refuse a value that makes the run differ from what is priced; return whether it was refused."""
        if not row.refuses(value.first) or self._lacks(row):
            return False
        why, allowed = f"cannot be read: {row.why}", ", ".join(row.unless) or f"no {shown}"
        if (unknown := unknown_in(value.first)) is not None:
            why, allowed = why_unknown(unknown)
        self.refuse(shown, f"line {value.line}: {why}", allowed=allowed)
        return True

    def _lacks(self, row: Flag) -> bool:
        """Return whether the flag without which a row does nothing is not given, or is off."""
        if row.needs is None:
            return False
        needed = {**self.others, **self.values}.get(spelled(row.needs))
        return needed is None or (bool(needed.texts) and is_off(needed.texts[0]))

    def _replace(self, name: str, value: Value) -> None:
        old = self.values.get(name)
        if old is not None and old.texts != value.texts:
            first, last = _shown(" ".join(old.texts)), _shown(" ".join(value.texts))
            self.note(
                f"{name} is given twice, {first} on line {old.line} and {last} on line {value.line}: "
                "the last counts"
            )
        self.values[name] = value

    def stop(self) -> None:
        """Raise the faults found so far.

        Raises:
            InvalidProblemError: there are faults.
        """
        if self.faults:
            raise InvalidProblemError(self.faults)


def flags_in(words: Sequence[Word]) -> Iterator[tuple[str, Value]]:
    """Yield the flags among words, each with the words up to the next flag."""
    starts = [at for at, word in enumerate(words) if word.text.startswith("--")]
    for at, end in pairwise([*starts, len(words)]):
        name, equals, attached = words[at].text.partition("=")
        following = [word.text for word in words[at + 1 : end]]
        yield name, Value((*([attached] if equals else []), *following), words[at].line)


def given_flags(words: Sequence[Word], overrides: Overrides) -> Given:
    """Sort the words after a training script's name into flags and their values.

    Raises:
        InvalidProblemError: a flag lacks its value, or has a wrong, unknown or unreadable one.
    """
    if (fault := unknown_arguments(words)) is not None:
        raise fault
    given = Given()
    for name, value in flags_in(words):
        if overrides.ignores(name):
            given.note(f"line {value.line}: {_shown(name)} is ignored (--ignore)")
        else:
            given.take(name, value)
    given.refuse_slips(plain_names())
    given.refuse_unpriced()
    given.stop()
    return given


def _wrong(name: str, value: Value) -> tuple[str, str | None] | None:
    """Return the fault of a known flag's value and the allowed values; None if it is valid."""
    kind, texts = flag_kinds()[name], value.texts
    if (unknown := unknown_in(list(texts))) is not None:
        return why_unknown(unknown)
    if kind == "switch":
        stray = f'takes no value: "{_shown(texts[0])}" would stop Megatron-LM' if texts else ""
        return (stray, f"{name} alone, or no {name}") if stray else None
    if not texts:
        return "needs a value", _allowed(name)
    if kind != "words" and len(texts) > 1:
        why = " by layer. That is not supported" if name == "--num-experts" else ""  # Megatron-DeepSpeed's
        return f"takes one value, not {len(texts)}{why}", _allowed(name)
    if kind == "integer":
        return _wrong_integer(name, texts[0])
    wrong = kind == "number" and not (len(texts[0]) <= _MAX_DIGITS and DECIMAL.fullmatch(texts[0]))
    return (f'"{_shown(texts[0])}" is not a number', _ALLOWED[kind]) if wrong else None


def _wrong_integer(name: str, text: str) -> tuple[str, str | None] | None:
    """Return the fault of a whole number: sizes begin at 1, optional ones at 0."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        return f'"{_shown(text)}" is not a whole number in range', _allowed(name)
    return ("must be 1 or more", _allowed(name)) if int(text) < _least(name) else None


@cache
def plain_names() -> dict[str, str]:
    """Return the flags with values that are read, by their names in snake case."""
    return {plain_name(flag): flag for flag in flag_kinds()}


def _allowed(name: str) -> str | None:
    kind = flag_kinds()[name]
    return f"{_least(name)} to {_LARGEST}" if kind == "integer" else _ALLOWED.get(kind)


def _least(name: str) -> int:
    return table()[plain_name(name)].least


def _shown(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:_MAX_SHOWN])
