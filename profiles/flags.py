"""The arguments of launchers by their exact names: type, default, and whether a price depends on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import yaml

from meshwright.profiles.catalog import CATALOG

FLAGS_FOLDER = CATALOG / "flags"
Role = Literal["free", "open"]
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One argument of a launcher, as its parser declares it."""

    type: str
    default: object = None  # None where the source computes it
    until: str | None = None  # the last release that has it; None: the newest
    role: Role = "open"  # free: neither the time nor the memory of a step depends on it


@cache
def flags_of(program: str) -> Mapping[str, Flag]:
    """Return a program's arguments by name: in snake case, sections parted by dots."""
    raw = yaml.load((FLAGS_FOLDER / f"{program}.yaml").read_text("utf-8"), Loader=_Loader)  # noqa: S506
    return {str(name): Flag(**flag) for name, flag in raw.items()}


class FlagNames:
    """The arguments of some programs by name; dashes are as good as underscores."""

    def __init__(self, programs: Sequence[str]) -> None:
        self._flags = {
            name: flag for program in reversed(programs) for name, flag in flags_of(program).items()
        }
        self._free = frozenset(name for name, flag in self._flags.items() if flag.role == "free")
        self._sections = frozenset(name.rpartition(".")[0] for name in self._flags)

    def __contains__(self, name: str) -> bool:
        """Return whether one of the programs has an argument of that name."""
        return _plain(name) in self._flags

    def is_default(self, name: str, value: object) -> bool:
        """Return whether an argument is given the value that it has anyway."""
        flag = self._flags.get(_plain(name))
        return flag is not None and str(flag.default).lower() == str(value).lower()

    def kind(self, name: str) -> str:
        """Return ``bool``, ``int`` or ``float`` where an argument takes nothing else, or empty text."""
        flag = self._flags.get(_plain(name))
        kinds = set() if flag is None else {one.strip(" ]") for one in flag.type.split("|")} - {"None"}
        if kinds == {"int", "float"}:
            return "float"
        return kinds.pop() if len(kinds) == 1 and kinds <= {"bool", "int", "float"} else ""

    def is_free(self, name: str) -> bool:
        """Return whether no price depends on an argument, or on a section that takes any names.

        A section with arguments of its own takes those alone: what else is in it is not known.
        """
        plain = _plain(name)
        parts = plain.split(".")
        above = (".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
        return plain in self._free or any(one in self._free - self._sections for one in above)


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


@cache
def flag_names(*programs: str) -> FlagNames:
    """Return the arguments of some programs."""
    return FlagNames(programs)
