"""The values of one file, checked one by one for kind and range; unread names are listed."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path

import yaml

from meshwright.launchers.flags import Flag, FlagNames, flag_names, is_off, plain_name
from meshwright.launchers.reading.base import MAX_LISTED, Overrides, Place
from meshwright.launchers.reading.documents import LocatedValue, Values
from meshwright.launchers.rules import near_divisors
from meshwright.launchers.table import of_table
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.profiles.frameworks import OPTION_NUMBERS
from meshwright.shell.values import unknown_fault, unknown_in

# --------------------------------------------------------------------------------------------------
# Intended names: a typo is refused, because a launcher ignores it or stops at it.


_SHORT = 6  # letters; a shorter name may be meant as anything
_SHORT_WORD = 4  # shorter words only match swapped letters: ep_size is not a typo of sp_size
_LONG_WORD = 8  # longer words may have two typos
_CUTOFF = 0.8  # of difflib's ratio: two typos in ten letters
_BETWEEN = re.compile(r"[._-]")
DECIMAL = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,2})?", re.ASCII)


def meant(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` is a typo of; None without one.

    Each word may have one letter wrong, missing, added or swapped with its neighbour; short
    words and digits must be right: ``fp4_recipe`` is not meant to be ``fp8_recipe``.
    """
    if len(name) < _SHORT:
        return None
    near = difflib.get_close_matches(name, known, n=3, cutoff=_CUTOFF)
    return next((other for other in near if _is_slip(name, other)), None)


def typo_of(name: str, among: Sequence[str]) -> str | None:
    """Return the first of some names that is a typo of ``name``; None without one."""
    near = difflib.get_close_matches(name, among, n=len(among) or 1, cutoff=_CUTOFF)
    return next((other for other in near if len(other) >= _SHORT and _is_slip(other, name)), None)


def _is_slip(name: str, other: str) -> bool:
    """Return whether each word of one name is a typo of that of the other."""
    if _digits(name) != _digits(other):
        return False
    words = list(zip_longest(_BETWEEN.split(name), _BETWEEN.split(other), fillvalue=""))
    if any("" in pair for pair in words):
        return _slips(name, other) == 1  # separators between words
    return all(one == right or _is_slip_of_word(one, right) for one, right in words)


def _is_slip_of_word(word: str, right: str) -> bool:
    if len(right) < _SHORT_WORD:
        return sorted(word) == sorted(right) and _slips(word, right) == 1
    return _slips(word, right) <= 1 + (len(right) >= _LONG_WORD)


def _digits(name: str) -> str:
    return "".join(letter for letter in name if letter.isdecimal())


def _slips(one: str, other: str) -> int:
    """Return the edits or swaps of neighbouring letters between two names (optimal string alignment)."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for row, letter in enumerate(one, start=1):
        now = [row]
        for column, wanted in enumerate(other, start=1):
            cost = min(last[column] + 1, now[-1] + 1, last[column - 1] + (letter != wanted))
            if row > 1 and column > 1 and (letter, one[row - 2]) == (other[column - 2], wanted):
                cost = min(cost, before[column - 2] + 1)
            now.append(cost)
        before, last = last, now
    return last[-1]


# --------------------------------------------------------------------------------------------------
# Names that affect a run. The row of an argument decides; one that no table has is judged by its words.


_WORDS = Path(__file__).with_name("unknown.yaml")
_ONE_RANK = ("1", "-1")


@dataclass(frozen=True, slots=True)
class _Words:
    affects: Mapping[str, re.Pattern[str]]
    of_one: Sequence[str]
    parts: re.Pattern[str]
    but_not: re.Pattern[str]
    of_pictures: re.Pattern[str]


@cache
def _words_of_unknown() -> _Words:
    raw = yaml.load(_WORDS.read_text("utf-8"), Loader=yaml.CSafeLoader)
    return _Words(
        affects={what: re.compile("|".join(words)) for what, words in raw["affects"].items()},
        of_one=raw["of_one"],
        parts=re.compile(rf"(?:^|_)(?:{'|'.join(raw['parts'])})(?:_|$)"),
        but_not=re.compile(rf"(?:^|_)(?:{'|'.join(raw['but_not'])})(?:_|$)"),
        of_pictures=re.compile("|".join(raw["of_pictures"])),
    )


def affected(row: Flag | None, name: str, text: str) -> str | None:
    """Return the part of a run that depends on an argument that was not read; None for nothing.

    Args:
        row: its row. A priced one is read in another form of the launcher; then, and without one, its
            words decide.
        name: name of the argument.
        text: its value; off, a default, a single rank or a single micro-batch affects nothing.
    """
    if is_off(text):
        return None
    if row is not None and row.role != "priced":
        return None
    known, plain = _words_of_unknown(), name.rpartition(".")[2].lstrip("-").replace("-", "_").lower()
    if known.of_pictures.search(plain):
        return None
    what = next((what for what, words in known.affects.items() if words.fullmatch(plain)), None)
    if what is None and known.parts.search(plain) and not known.but_not.search(plain):
        what = known.of_one[0]
    return None if what in known.of_one and text.strip() in _ONE_RANK else what


def undecided(what: str) -> str:
    """Return the message for a name that affects a run (``affected``)."""
    return f"unknown option that affects {what}"


UNREAD = "is not read next to these arguments, so what runs may not be what is priced"


def passing(name: str) -> str:
    """Return the hint on ignoring an unknown name."""
    return f"--ignore {name}, where it does nothing"


# --------------------------------------------------------------------------------------------------
# Divisions that a file leaves to its launcher.


def first_larger(num_layers: int, chunks: int, *, field: str) -> tuple[int, ...]:
    """Return an even split with one layer more in the first chunks, as DeepSpeed and torchtitan do.

    DeepSpeed 0.19.8, runtime/utils.py:627 ``partition_balanced`` of the transformer layers, and
    torchtitan 0.3.0 (``torchtitan_stages._own``, which counts embedding and head as layers).

    Raises:
        InvalidProblemError: more chunks than layers; ``field`` sets the chunks.
    """
    if not 1 <= chunks <= num_layers:
        raise InvalidProblemError.of(
            field,
            f"{chunks} stages for {num_layers} layers",
            allowed=f"1 to {num_layers}",
            nearest=str(min(max(chunks, 1), num_layers)),
        )
    least, more = divmod(num_layers, chunks)
    return tuple(least + (place < more) for place in range(chunks))


def divided(total: int, by: int, *, field: str, what: str) -> int:
    """Return ``total / by``, which must be whole.

    Raises:
        InvalidProblemError: it is not whole; ``what`` describes the division in words.
    """
    if by < 1 or total % by:
        raise InvalidProblemError.of(
            field,
            f"{what}: {by} does not divide {total}",
            allowed=f"divisors of {total}",
            nearest=near_divisors(max(by, 1), total) or None,
        )
    return total // by


# --------------------------------------------------------------------------------------------------
# The values.


MAX_INTEGER = 2**31 - 1
_FAULTS = 20
_LONG = 6  # letters of a name that is not a typo of another known one
_SLIPS_TRIED = 400
_LEFT_OPEN = ("auto", "none", "null", "")
_KINDS = {
    "bool": re.compile(r"true|false|yes|no|on|off|[01ytnf]"),
    "int": re.compile(r"[-+]?[\d_]+(?:\.0*)?"),
    "float": re.compile(r"[-+]?(?:[\d_]+\.?\d*|\.\d+)(?:e[-+]?\d+)?|[-+]?inf|nan"),
}
_KIND_NAMES = {"bool": "true or false", "int": "a whole number", "float": "a number"}
_TRUE, _FALSE = ("true", "yes", "1", "on"), ("false", "no", "0", "off")


_PLACEHOLDER = re.compile(r"\$\{|\$\(|\{\{")


def near_word(value: object, allowed: str | None) -> str | None:
    """Return the allowed word that is nearest to a value, ignoring case; None if none is near."""
    words = {word.lower(): word for word in (allowed or "").split(", ")}
    if not isinstance(value, str) or any(" " in word for word in words):
        return None
    return next((words[near] for near in difflib.get_close_matches(value.lower(), words, n=1)), None)


def is_placeholder(text: str) -> bool:
    """Return whether a value of a document stands for another one: ``${SIZE}``, ``{{ size }}``."""
    return _PLACEHOLDER.search(text) is not None


_UNSAID = Flag(type="object")


_IGNORES = re.compile(r"--ignore [A-Za-z_][\w.-]*")


class Fields:
    """The values of a launch file by dotted name, and the faults found in them."""

    def __init__(
        self, file: str, values: Values, overrides: Overrides | None = None, programs: Sequence[str] = ()
    ) -> None:
        """Take the values of a file.

        Args:
            file: its name.
            values: its values by dotted name.
            overrides: values that the user supplies.
            programs: programs with these arguments; their tables give defaults, words and limits.
        """
        self.file = file
        self.programs = tuple(programs)
        self.parser = ""  # the program that takes them, where it stops at names that it doesn't have
        self.command = ""  # that of the program's commands which takes them
        self.faults: list[FieldError] = []
        self.notes: list[str] = []
        ignored = [name for name in values if overrides.ignores(name)] if overrides is not None else []
        self._values = {name: found for name, found in values.items() if name not in ignored}
        for name in ignored:
            self.note(f"line {values[name].line}: {shown(name)} is ignored (--ignore)")
        self._taken: set[str] = set()

    def spelled(self, name: str) -> str:
        """Return how the file's program spells an argument that its relation has under another name."""
        return flag_names(*self.programs).spelled(name)

    def _in_words(self, text: str) -> str:
        """Return a text on arguments in the program's words; names that the file gives stay."""
        return flag_names(*self.programs).in_words(text, self._values)

    def has(self, name: str) -> bool:
        """Return whether the file gives a value; ``null`` does not count."""
        self.take(name)
        return self._found(name) is not None

    def is_null(self, name: str) -> bool:
        """Return whether the file sets ``null``, which turns off a default."""
        found = self._values.get(self.spelled(name))
        return found is not None and found.value is None

    def has_section(self, name: str) -> bool:
        """Return whether the file gives a value in a section."""
        return any(one.startswith(f"{name}.") and self._found(one) is not None for one in self._values)

    def section(self, name: str) -> dict[str, object]:
        """Return the values of a section, by their names in it."""
        return {one: self.raw(f"{name}.{one}") for one in self.names_in(name)}

    def names_in(self, section: str) -> list[str]:
        """Return the names in a section, without its prefix; they stay unread."""
        start = f"{section}."
        return [one.removeprefix(start) for one in self._values if one.startswith(start)]

    def peek(self, name: str) -> object:
        """Return the file's value, which stays unread; None if it is not given."""
        found = self._found(name)
        return None if found is None else found.value

    def sections(self) -> list[str]:
        """Return the first parts of all names, each once."""
        return list(dict.fromkeys(name.partition(".")[0] for name in self._values))

    def take(self, *names: str) -> None:
        """Mark names as read where their values do not matter."""
        self._taken.update(map(self.spelled, names))

    def pass_over(self, *names: str) -> None:
        """Mark and note the names that are given and do nothing in this run."""
        for name in names:
            if self.has(name):
                self.note(f"{name} does nothing here")

    def take_setting(self, *fields: str) -> None:
        """Mark and note the names that set some fields of the prediction, which this run does not have."""
        known = flag_names(*self.programs)
        for name, found in self._values.items():
            row = known.row(name)
            if row is None or row.sets not in fields or name in self._taken:
                continue
            self.take(name)
            if not (is_off(str(found.value)) or row.is_usual(found.value)):
                self.note(f"{name} does nothing here")

    def refuse_others(self, command: str) -> None:
        """Record a fault for each argument that another command of the program takes, and this one not."""
        known = flag_names(*self.programs)
        for name in self._values:
            row = known.row(name)
            if row is not None and row.by and command not in row.by:
                self.fault(name, f"is unknown, and {self.parser} stops there", allowed=passing(shown(name)))

    def take_section(self, name: str) -> None:
        """Mark a section as read that does nothing in this run, with a note if it sets anything."""
        if self.has_section(name):
            self.note(f"{name} does nothing here")
        self._taken.update(one for one in self._values if one.startswith(f"{name}."))

    def raw(self, name: str, *, instead: str = "") -> object:
        """Return the file's value; None if it is not given.

        Args:
            name: name of the value.
            instead: option or value that replaces an unknown one.

        Raises:
            InvalidProblemError: the value is known only to a running shell.
        """
        self.take(name)
        found = self._found(name)
        if found is None:
            return None
        unknown = unknown_in(found.value)
        if unknown is not None:
            raise InvalidProblemError(
                [*self.faults, unknown_fault(self.spelled(name), unknown, found.line, instead=instead)]
            )
        return found.value

    def named(self, pattern: re.Pattern[str]) -> str | None:
        """Return the first fully matching name with a value that is not off; None without one."""
        on = (name for name, found in self._values.items() if not is_off(str(found.value)))
        return next((name for name in on if pattern.fullmatch(name)), None)

    def valued(self, is_meant: Callable[[str], bool]) -> str | None:
        """Return the first name with a text value that ``is_meant`` accepts; None without one."""
        return next((name for name, found in self._values.items() if is_meant(str(found.value))), None)

    def _row(self, name: str) -> Flag:
        """Return the row of a name; an empty one if the programs' tables lack it."""
        return flag_names(*self.programs).row(self.spelled(name)) or _UNSAID

    def integer(self, name: str, default: int | None = None, *, low: int | None = None) -> int:
        """Return a whole number, else ``default``, else the table's. Without either it must be given."""
        found = self.optional(name, low=low)
        usual = found if found is not None else default if default is not None else self._row(name).default
        if not isinstance(usual, int):
            self.expect(name)
            return 1
        return usual

    def optional(self, name: str, *, low: int | None = None) -> int | None:
        """Return a whole number; None if it is not given or not a whole number in range.

        A number out of range is a fault, and returned as the nearest limit, so that no other fault follows.
        """
        value, row = self.raw(name), self._row(name)
        if value is None:
            return None
        low, most = row.least if low is None else low, MAX_INTEGER if row.most is None else row.most
        number, allowed = _whole(value), f"{low} to {most}"
        if value is True:
            self.fault(name, "needs a value", allowed=allowed)
            return None
        if self._is_unfilled(name, value, allowed):
            return None
        if number is None or not low <= number <= most:
            nearest = None if number is None else str(min(max(number, low), most))
            self.fault(
                name, f"{_words(value)} is not a whole number in range", allowed=allowed, nearest=nearest
            )
            return None if number is None or row.most is None else min(max(number, low), most)
        return number

    def number(self, name: str, default: float) -> float:
        """Return a finite number, in the range of its row, else of the option that the row sets."""
        value, row = self.raw(name), self._row(name)
        if value is None:
            return default
        option = row.sets.removeprefix("option.") if row.type == "float" else ""
        low, most = OPTION_NUMBERS.get(option, (-math.inf, math.inf))
        if row.most is not None:
            low, most = row.least, row.most
        allowed = f"{low:g} to {most:g}" if math.isfinite(most) else "a finite number"
        if self._is_unfilled(name, value, allowed):
            return default
        if isinstance(value, str) and DECIMAL.fullmatch(value):  # a command's word
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.fault(name, f"{_words(value)} is not a number", allowed=allowed)
            return default
        if not low <= value <= most:
            nearest = f"{min(max(value, low), most):g}"
            self.fault(name, f"{value:g} is out of range", allowed=allowed, nearest=nearest)
            return default
        return float(value)

    def flag(self, name: str, *, default: bool | None = None) -> bool:
        """Return true or false, also given as a word; without ``default``, the table's, else false."""
        value = self.raw(name)
        default = self._row(name).default is True if default is None else default
        if value is None:
            return default
        word = str(value).lower()
        if self._is_unfilled(name, value, "true, false"):
            return default
        if not isinstance(value, bool | int | str) or word not in (*_TRUE, *_FALSE):
            self.fault(name, f"{_words(value)} is neither true nor false", allowed="true, false")
            return default
        return word in _TRUE

    def choice(self, name: str, default: str | None = None, *, row: Flag | None = None) -> str:
        """Return one of the priced words, else one of the launcher's words, in its case if that counts.

        ``row``: another argument's row, if its words are allowed here.
        """
        own = self._row(name)
        is_strange = row is None and own.choices and self.peek(name) not in own.choices
        row = row or own
        usual = str(row.default) if default is None else default
        allowed = row.words or row.priced_as or row.choices
        program = of_table(self.programs[0])
        exact = not (row.any_case or (program is not None and program.any_case))
        fault = "unknown" if is_strange else "not supported"
        return self.word(name, usual, allowed=allowed, fault=fault, exact=exact)

    def word(
        self,
        name: str,
        default: str = "",
        *,
        allowed: Iterable[str] = (),
        fault: str = "unknown",
        exact: bool = False,
    ) -> str:
        """Return a text, one of ``allowed`` if given, ignoring case unless ``exact``."""
        value = self.raw(name)
        if value is None:
            return default
        words = tuple(allowed)
        if value is False and any(word.lower() == "no" for word in words):
            value = "no"  # YAML reads unquoted NO as false
        if type(value) is int and any(word.isdecimal() for word in words):
            value = str(value)
        if value is True and "true" not in words:
            self.fault(name, "needs a value", allowed=", ".join(words) or None)
            return default
        if not isinstance(value, str):
            self.fault(name, f"{_words(value)} is not text", allowed=", ".join(words) or None)
            return default
        if self._is_unfilled(name, value, ", ".join(words) or "the value"):
            return default
        alike = (word for word in words if not exact and word.lower() == value.lower())
        same = value if value in words else next(alike, None)
        if words and same is None:
            self.fault(name, f"{_words(value)} is {fault}", allowed=", ".join(words))
            return default
        return same or value

    def _is_unfilled(self, name: str, value: object, allowed: str) -> bool:
        """Record a fault for a placeholder, which is no value of the run; return whether it is one."""
        unfilled = isinstance(value, str) and is_placeholder(value)
        if unfilled:
            self.fault(name, f"{shown(str(value))} is a placeholder", allowed=allowed)
        return unfilled

    def priced(self, name: str, default: str | None = None) -> str:
        """Return what the table prices a word as; another word is a fault."""
        values = self._row(name).priced_as
        return str(values.get(self.choice(name, default), next(iter(values.values()))))

    def fault(
        self, name: str, message: str, *, allowed: str | None = None, nearest: str | None = None
    ) -> None:
        """Record a fault of a value; its file and line become part of the message."""
        renamed = flag_names(*self.programs).renamed(name)
        found = self._found(name) if renamed is None else self._values.get(name, self._found(renamed))
        where = f"line {found.line}: " if found and found.line else ""
        nearest = nearest or near_word(found.value if found else None, allowed)
        passes = _IGNORES.search(allowed or "")
        fault = FieldError(
            pointer=self._in_words(name),
            message=self._in_words(where + message),
            allowed=allowed and self._in_words(allowed),
            nearest=nearest and self._in_words(nearest),
            tip=self._in_words(passes[0]) if passes and not nearest else "",
        )
        if len(self.faults) < _FAULTS and fault not in self.faults:
            self.faults.append(fault)

    def slip_for(self, name: str) -> bool:
        """Record a fault for a typo of a name that is not given, or its relation's word; return if so."""
        name = self.spelled(name)
        if self.has(name) or len(name.rpartition(".")[2]) < _LONG:
            return False
        known = flag_names(*self.programs)
        slip = next((key for key in self._values if known.renamed(key) == name), None)
        slip = slip or typo_of(name, [key for key in self._values if key not in self._taken])
        if slip is not None:
            self.fault(slip, "is unknown", nearest=name)
        return slip is not None

    def expect(self, name: str, message: str = "is not given") -> None:
        """Record a fault if a name is not given."""
        if not self.has(name) and not self.slip_for(name):
            self.fault(name, message)

    def note(self, *texts: str) -> None:
        """Add notes on the actual run."""
        self.notes = [*self.notes, *map(self._in_words, texts)][:MAX_LISTED]

    def note_commands(self, over: Values) -> None:
        """Note the values of the file that a command overrides."""
        for name, found in over.items():
            said = f"{name} is {shown(str(found.value))}, not the file's"
            self.note(f"line {found.line} of the command: {said}")

    def stop(self) -> None:
        """Raise the faults found so far.

        Raises:
            InvalidProblemError: there are faults.
        """
        if self.faults:
            raise InvalidProblemError(self.faults)

    def refuse_unpriced(self) -> None:
        """Record a fault for each argument with which what is priced is not what runs."""
        known = flag_names(*self.programs)
        self._refuse_sections(known)
        for name in self._values:
            row = known.row(name)
            if row is None or row.role != "refused" or self._lacks(row):
                continue
            if row.refuses(self.raw(name)):
                default = False if row.default is None and row.type == "bool" else row.default
                usual = None if default is None else str(default).lower()
                values = dict.fromkeys(one for one in (usual, *row.unless) if one is not None)
                self.fault(
                    name, f"cannot be read: {row.why}", allowed=", ".join(values) or None, nearest=usual
                )

    def _refuse_sections(self, known: FlagNames) -> None:
        """Record a fault for each value that is on in a refused section, instead of for the section."""
        for name, found in self._values.items():
            parts, own = name.split("."), known.row(name)
            if is_off(str(found.value)) or (own is not None and own.role == "refused"):
                continue
            for section in (".".join(parts[:end]) for end in range(1, len(parts))):
                row = known.row(section) if section in known else None
                if row is not None and row.role == "refused" and not self._lacks(row):
                    self.fault(name, f"cannot be read: {row.why}", allowed=f"no {section}")
                    break

    def unread(self) -> tuple[str, ...]:
        """Return the unread names, except those that do not affect the price.

        Raises:
            InvalidProblemError: one of them is a relation's word for an argument with another here, a typo
                of a name that is not given, or of any if the first program stops at unknown names; or
                affects the run.
        """
        known = flag_names(*self.programs)
        self.refuse_unpriced()
        self._refuse_plain_sections()
        self._drop_anchors(known)
        left = [name for name in self._values if name not in self._taken]
        lacking = [name for name in self._taken if name not in self._values]
        self._refuse_kinds(known)
        for name in (name for name in left[:_SLIPS_TRIED] if name not in known):
            near = known.renamed(name) or meant(name, lacking)
            if near is None and self._stops_at(name):
                near = meant(name, known)
            if near is not None:
                self.fault(name, "is unknown", nearest=near)
        self.stop()
        found = [
            name
            for name in left
            if not (known.is_free(name) or known.is_default(name, self._values[name].value))
            and not self._lacks(known.row(name))
        ]
        for name in found:
            row = known.row(name)
            if what := affected(row, name, str(self._values[name].value)):
                self.fault(name, undecided(what), allowed=passing(shown(name)))
            elif row is None and self.parser:
                self.fault(name, f"is unknown, and {self.parser} stops there", allowed=passing(shown(name)))
            elif row is not None and row.role == "priced" and not is_off(str(self._values[name].value)):
                self.fault(name, UNREAD, allowed=passing(shown(name)))
        self.stop()
        return tuple(shown(name) for name in found)[:MAX_LISTED]

    def _stops_at(self, name: str) -> bool:
        """Return whether the first program stops at a name that it does not have."""
        program = of_table(self.programs[0])
        stops = "" if program is None else program.stops
        return stops == "all" or (stops == "top" and "." not in name)

    def _drop_anchors(self, known: FlagNames) -> None:
        """Drop unknown sections that only hold values to repeat; record a fault where the program stops.

        ``x-batch: &batch {…}`` is for ``<<: *batch``, which has brought its values where they count.
        """
        sections = {name.partition(".")[0] for name in (*known, *self._taken)}
        held = dict[str, list[str]]()
        for name in (name for name, found in self._values.items() if found.anchored):
            section = name.partition(".")[0]
            if plain_name(section) not in sections:
                held.setdefault(section, []).append(name)
        program = self.programs[0]
        for section, names in held.items():
            if self._stops_at(section):
                where = f"line {self._values[names[0]].line}: unknown, and {program} stops there"
                why = f"{where}, though it only holds values to repeat"
                allowed = "its values in the places that repeat them"
                self.faults.append(FieldError(pointer=section, message=why, allowed=allowed))
            self._values = {name: found for name, found in self._values.items() if name not in names}

    def _lacks(self, row: Flag | None) -> bool:
        """Return whether the argument without which a row does nothing is not given."""
        return row is not None and row.needs is not None and self._found(row.needs) is None

    def _refuse_kinds(self, known: FlagNames) -> None:
        """Record a fault for each priced value that is unknown, or a text instead of another kind."""
        for name, found in self._values.items():
            row, unknown = known.row(name), unknown_in(found.value)
            if unknown is not None and row is not None and row.role == "priced":
                self.faults.append(unknown_fault(name, unknown, found.line))
            if not isinstance(found.value, str) or unknown is not None:
                continue
            kind, text = known.kind(name), found.value.strip().lower()
            if kind and self._is_unfilled(name, found.value, _KIND_NAMES[kind]):
                continue
            if kind and text not in _LEFT_OPEN and not _KINDS[kind].fullmatch(text):
                self.fault(name, f"{_words(found.value)} is not {_KIND_NAMES[kind]}")

    def _refuse_plain_sections(self) -> None:
        for name in sorted({name.rpartition(".")[0] for name in self._taken if "." in name} - self._taken):
            value = self.raw(name) if name in self._values else None
            if value not in (None, {}):
                self.fault(name, f"{_words(value)} is not a section", allowed="names with values under it")

    def place(self, name: str) -> Place:
        """Return a name of the file with its line."""
        found = self._found(name)
        return self.spelled(name), found.line if found else 0

    def place_of(self, field: str) -> Place:
        """Return the first name of the file that sets a field of the prediction, with its line."""
        known = flag_names(*self.programs)
        names = (
            name for name in self._values if (row := known.row(name)) is not None and row.sets == field
        )
        return self.place(next(names, field.rpartition(".")[2]))

    def _found(self, name: str) -> LocatedValue | None:
        found = self._values.get(self.spelled(name))
        return None if found is None or found.value is None else found


def _whole(value: object) -> int | None:
    """Return a whole number, also from a text or 8.0."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= MAX_INTEGER else None
    text = value.removeprefix("-") if isinstance(value, str) else ""
    return int(str(value)) if text.isascii() and text.isdecimal() and len(text) < 12 else None  # noqa: PLR2004


def _words(value: object) -> str:
    return f'"{shown(value)}"' if isinstance(value, str) else shown(str(value)[:64])
