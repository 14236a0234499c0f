"""Reads a foreign file once, and names file, place and expectation when it is broken."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from meshwright.profiles.documents import read_json
from meshwright.profiles.errors import InvalidProblemError, ProfileError
from meshwright.profiles.reading import MAX_TEXT, shown

MAX_BYTES = 256 * 2**20  # a long run's log; everything else is far smaller
MAX_PAYLOAD_BYTES = 2**50
MAX_SECONDS = 1e6
MAX_BYTES_PER_S = 1e15
MAX_COUNT = 10**6

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"[0-9]{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFile:
    """One file's name and text, without terminal colours."""

    name: str
    text: str

    @classmethod
    def open(cls, path: Path | str) -> ForeignFile:
        """Read a text file.

        Raises:
            ProfileError: the file does not exist, is empty or too large, or is not UTF-8 text.
        """
        file = Path(path)
        name = "".join(letter if letter.isprintable() else "?" for letter in file.name[:MAX_TEXT])
        try:
            if not file.is_file():
                raise ProfileError(f"{name}: no such file")
            if file.stat().st_size > MAX_BYTES:
                raise ProfileError(f"{name}: larger than {MAX_BYTES // 2**20} MiB")
            text = file.read_text("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ProfileError(f"{name}: is not UTF-8 text (byte {error.start})") from error
        except (OSError, ValueError) as error:
            raise ProfileError(f"{name}: cannot be read") from error
        if "\0" in text:
            raise ProfileError(f"{name}: is a binary file, expected text")
        if not text.strip():
            raise ProfileError(f"{name}: is empty")
        return cls.of(name, text)

    @classmethod
    def of(cls, name: str, text: str) -> ForeignFile:
        """Return text that was read already, such as a command's output."""
        return cls(name=name, text=_ANSI.sub("", text))

    def fault(self, where: str, message: str) -> ProfileError:
        """Return the error of this file, to be raised: names the file, the place and what was expected."""
        return ProfileError(f"{self.name}: {where}: {message}" if where else f"{self.name}: {message}")

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield line numbers from 1 and lines."""
        for number, line in enumerate(self.text.split("\n"), 1):
            yield number, line.rstrip("\r")

    def number(self, value: object, where: str, *, high: float, low: float = 0.0) -> float:
        """Return a finite number in [low, high], from a JSON number or from text.

        Raises:
            ProfileError: the value is anything else.
        """
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fault(where, f"{shown(value)} is not a number")
        if not low <= value <= high:
            raise self.fault(where, f"{shown(value)} is out of range, expected {low:g} to {high:g}")
        return float(value)

    def positive(self, value: object, where: str, *, high: float) -> float:
        """Return a number in (0, high].

        Raises:
            ProfileError: the value is anything else.
        """
        return self.number(value, where, low=math.ulp(0.0), high=high)

    def whole(self, value: object, where: str, *, low: int = 1, high: int = MAX_COUNT) -> int:
        """Return a whole number in [low, high], from a JSON number or from digits.

        Raises:
            ProfileError: the value is anything else.
        """
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fault(where, f"{shown(value)} is not a whole number")
        if not low <= value <= high:
            raise self.fault(where, f"{shown(value)} is out of range, expected {low} to {high}")
        return value

    def mapping(self, value: object, where: str) -> Mapping[str, object]:
        """Return a JSON object that is not empty.

        Raises:
            ProfileError: the value is anything else.
        """
        if not isinstance(value, dict) or not value:
            raise self.fault(where, f"{shown(value)} is not a JSON object with entries")
        return value

    def entries(self, value: object, where: str) -> list[object]:
        """Return a JSON list.

        Raises:
            ProfileError: the value is anything else.
        """
        if not isinstance(value, list):
            raise self.fault(where, f"{shown(value)} is not a list")
        return value

    def json(self) -> Mapping[str, object]:
        """Return the file as one JSON object.

        Raises:
            ProfileError: it is not JSON, is too big or too deep, names a field twice, or is not an object.
        """
        try:
            return self.mapping(read_json(self.text), "the file")
        except InvalidProblemError as fault:
            first = fault.errors[0]
            allowed = f" (allowed: {first.allowed})" if first.allowed else ""
            raise self.fault(first.pointer, first.message + allowed) from fault
