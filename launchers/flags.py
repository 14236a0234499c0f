"""The arguments of launchers by their exact names: type, default, and what each is to a prediction.

Each row has one role, so that a launcher's new argument, or one of a fork, is a new row
(``docs/adr/0008-one-table-per-program.md``).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from meshwright.profiles.errors import ProfileError

_FOLDER = Path(__file__).resolve().parent
# priced: it sets a field of the prediction. means: an older or a fork's spelling of other arguments.
# harmless: no time or memory of a step depends on it. refused: with it, what is priced is not what runs.
# listed: it may matter, and answers list it; a reason says why it is neither priced nor refused.
Role = Literal["priced", "means", "harmless", "refused", "listed"]
Kind = Literal["switch", "integer", "number", "word", "words", "text"]
_KINDS: Mapping[str, Kind] = {
    "bool": "switch", "int": "integer", "float": "number", "str": "word", "text": "text",
}  # fmt: skip
_SECTION = "a section; the arguments in it have their own roles"
_TURNED_ON = "read with "  # another argument
_OFF = ("false", "no", "off", "0", "0.0", "none", "null", "[]", "{}", "")
_SAID: tuple[Role, ...] = ("priced", "harmless", "refused", "listed")  # roles, as keys of a row
_NAME = re.compile(r"(?<![\w./])[A-Za-z]\w*(?:\.\w+)*(?![\w/])")  # but no part of a path
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One argument of a launcher, as its parser declares it."""

    type: str = ""  # empty: the program has no argument of this name, though its relation has
    default: object = None  # None where the source computes it
    choices: Sequence[str] = ()
    until: str | None = None  # the last release that has it; None: the newest
    of: str | None = None  # forks or older releases, where the pinned parser does not have it
    by: Sequence[str] = ()  # the commands that take it, where others of the program stop at it
    role: Role | None = None  # None: not decided yet, which a test refuses
    sets: str = ""  # the field of the prediction that it sets: model.hidden_size
    why: str = ""  # of a harmless or refused one, and of a listed one that was decided
    renames: str = ""  # the relation's argument that a relative has under this name alone
    means: Mapping[str, Any] = field(default_factory=dict)  # with their values; ``$``: its own
    wins: bool = False  # over the argument that it means
    first_decides: bool = False  # it means nothing where the first argument that it means is given
    words: Sequence[str] = ()  # those that are priced
    priced_as: Mapping[Any, Any] = field(default_factory=dict)  # the field's value for each priced word
    any_case: bool = False  # the program ignores the case of these words, but not of other arguments'
    least: int = 1  # of a whole number
    most: int | None = None  # the largest number; None: any
    unless: Sequence[str] = ()  # values priced all the same: not refused, not listed
    needs: str | None = None  # the argument without which it does nothing
    # Arguments, some with a word: the program stops without these, and next to those
    requires: Sequence[str] = ()
    excludes: Sequence[str] = ()

    @property
    def kind(self) -> Kind:
        """Return how the argument takes values; the values of ``text`` are not checked."""
        return "words" if self.type.startswith("list") else _KINDS.get(self.type, "text")

    def is_usual(self, value: object) -> bool:
        """Return whether a value is the argument's default; ``auto`` leaves it to the launcher."""
        text, usual = str(value).strip().lower(), str(self.default).lower()
        if self.default is None and self.type == "bool":
            usual = "false"
        return text in (usual, "auto") or _is_same_number(text, usual)

    def refuses(self, value: object) -> bool:
        """Return whether what is priced is not what runs with a value.

        An empty object of a class turns it on with its defaults: Axolotl's ``diffusion_lm: {}``.
        """
        if not self.type:
            return self.role == "refused"
        empty = str(value) == "{}" and self.type.endswith("Config | None")
        off = is_off(str(value)) and self.default is not True and not empty
        return self.role == "refused" and not (
            off or self.is_usual(value) or str(value).lower() in self.unless
        )


def is_off(text: str) -> bool:
    """Return whether a value turns its name off."""
    return text.strip().lower() in _OFF


def _is_same_number(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def _flag_of(name: str, row: Mapping[str, Any]) -> Flag:
    own = {key: value for key, value in row.items() if key not in (*_SAID, "as")}
    if "as" in row:  # in the other table without its section
        others, own_name = _table_named(row["as"], name), name.partition(".")[2]
        theirs = row.get("renames", name if name in others else own_name)
        if theirs not in others:
            words = " or ".join(filter(None, dict.fromkeys((row.get("renames", name), theirs))))
            raise ProfileError(f"{name}: the table of {row['as']} has no argument {words}")
        return replace(others[theirs], **({} if "renames" in row else _DECLARED) | own)
    role: Role | None = "means" if "means" in row else next((one for one in _SAID if one in row), None)
    why = row.get(str(role), "")
    return Flag(
        role=role, **{"sets": row.get("priced", ""), "why": why if isinstance(why, str) else ""} | own
    )


def _table_named(program: str, name: str) -> Mapping[str, Flag]:
    try:
        return flags_of(program)
    except FileNotFoundError:
        raise ProfileError(f"{name}: no program {program} has a table: {', '.join(programs())}") from None


_DECLARED: dict[str, Any] = {"default": None, "choices": (), "until": None, "of": None, "by": ()}


def programs() -> tuple[str, ...]:
    """Return the programs with a table, sorted."""
    return tuple(sorted(path.parent.name.replace("_", "-") for path in _FOLDER.glob("*/flags.yaml")))


def table_path(program: str) -> Path:
    """Return the file of a program's table."""
    return _FOLDER / program.replace("-", "_") / "flags.yaml"


@cache
def flags_of(program: str) -> Mapping[str, Flag]:
    """Return a program's arguments by name: in snake case, sections parted by dots."""
    raw = yaml.load(table_path(program).read_text("utf-8"), Loader=_Loader)  # noqa: S506
    return {str(name): _flag_of(str(name), row) for name, row in raw.items()}


class FlagNames:
    """The arguments of some programs by name; dashes are as good as underscores.

    The first program that has an argument decides. Where a row renames another's argument, the other name
    is none of theirs.
    """

    def __init__(self, programs: Sequence[str]) -> None:
        self.rows: dict[str, Flag] = {}
        self._spelled: dict[str, str] = {}
        self._originals: dict[str, str] = {}
        for program in reversed(programs):
            own = dict(flags_of(program))
            renamed = {row.renames: name for name, row in own.items() if row.renames}
            kept = {old: renamed.get(name, name) for old, name in self._spelled.items() if old not in own}
            self._spelled = kept | renamed
            self._originals |= {name: self.original(old) for old, name in renamed.items()}
            self.rows = {name: row for name, row in self.rows.items() if name not in renamed} | own
        # What else is in a section with arguments of its own is not known, unless one of them turns it on.
        parents = {name.rpartition(".")[0] for name in self.rows}
        self._whole = {
            name
            for name, row in self.rows.items()
            if row.why != _SECTION and (name not in parents or row.why.startswith(_TURNED_ON))
        }

    def __contains__(self, name: str) -> bool:
        """Return whether one of the programs has an argument of that name."""
        return plain_name(name) in self.rows

    def __iter__(self) -> Iterator[str]:
        """Return the arguments' names."""
        return iter(self.rows)

    def spelled(self, name: str) -> str:
        """Return how the first program spells an argument of a program after it."""
        return self._spelled.get(name, name)

    def renamed(self, name: str) -> str | None:
        """Return the first program's word for a name that only its relation has; None for other names."""
        plain = plain_name(name)
        return self._spelled.get(plain) if plain not in self.rows else None

    def original(self, name: str) -> str:
        """Return how a relative's relation spells one of its arguments."""
        return self._originals.get(name, name)

    def in_words(self, text: str, given: Container[str] = ()) -> str:
        """Return a sentence with the first program's words for arguments, but for ``given`` ones."""
        if not self._spelled:
            return text
        return _NAME.sub(lambda found: found[0] if found[0] in given else self.spelled(found[0]), text)

    def row(self, name: str) -> Flag | None:
        """Return the row of an argument, or of the section that takes any names; None without one."""
        plain = plain_name(name)
        if plain in self.rows:
            return self.rows[plain]
        parts = plain.split(".")
        above = (".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
        return next((self.rows[one] for one in above if one in self._whole), None)

    def is_default(self, name: str, value: object) -> bool:
        """Return whether an argument is given the value that is priced: its default, or one of its row."""
        flag = self.rows.get(plain_name(name))
        return flag is not None and (flag.is_usual(value) or str(value).lower() in flag.unless)

    def kind(self, name: str) -> str:
        """Return ``bool``, ``int`` or ``float`` where an argument takes nothing else, or empty text."""
        flag = self.rows.get(plain_name(name))
        kinds = set() if flag is None else {one.strip(" ]") for one in flag.type.split("|")} - {"None"}
        if kinds == {"int", "float"}:
            return "float"
        return kinds.pop() if len(kinds) == 1 and kinds <= {"bool", "int", "float"} else ""

    def is_free(self, name: str) -> bool:
        """Return whether no price depends on an argument."""
        row = self.row(name)
        return row is not None and row.role == "harmless"

    def is_ignored(self, name: str) -> bool:
        """Return whether an argument is harmless and sets no field."""
        row = self.row(name)
        return row is not None and row.role == "harmless" and not row.sets


def plain_name(name: str) -> str:
    """Return an argument's name in snake case, without its dashes."""
    return name.lstrip("-").replace("-", "_")


@cache
def flag_names(*programs: str) -> FlagNames:
    """Return the arguments of some programs."""
    return FlagNames(programs)
