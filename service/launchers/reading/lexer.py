"""Words and separators of a shell script, with their quotes resolved and their expansions set apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

_SEPARATORS = "\n;&|<>"
_PAIRS = {"{": "}", "(": ")"}
Kind = Literal["word", "end", "open", "close"]


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a word: text, or an expansion such as ``${NAME:-8}``."""

    text: str
    expands: bool = False
    quoted: bool = False


@dataclass(slots=True)
class Token:
    """A word with its parts, or what separates words."""

    kind: Kind
    line: int
    parts: list[Part] = field(default_factory=list)

    @property
    def raw(self) -> str:
        """The word before expansion."""
        return "".join(part.text for part in self.parts)


def lex(text: str) -> list[Token]:
    """The tokens of a script; comments are gone, continued lines are joined.

    Raises:
        ValueError: a quote or a bracket stays open; the message names its line.
    """
    return _Lexer(text).tokens()


class _Lexer:
    """One pass over the characters."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._tokens: list[Token] = []
        self._word: Token | None = None

    def tokens(self) -> list[Token]:
        """All of them."""
        while self._at < len(self._text):
            self._step()
        self._close()
        return self._tokens

    def _step(self) -> None:
        """Take what comes next."""
        char = self._text[self._at]
        if char == "\\":
            self._escape()
        elif char in _SEPARATORS + "()":
            self._separate("open" if char == "(" else "close" if char == ")" else "end")
        elif char in "'\"":
            self._quote(char)
        elif char in "$`":
            self._add(Part(self._expansion(), expands=True))
        elif char in " \t\r":
            self._close()
            self._move(1)
        elif char == "#" and self._word is None:
            end = self._text.find("\n", self._at)
            self._move((end if end >= 0 else len(self._text)) - self._at)
        else:
            self._add(Part(char))
            self._move(1)

    def _separate(self, kind: Kind) -> None:
        """End the word, and the command or the list; the number of a redirected stream is no word."""
        if self._text[self._at] in "<>" and self._word is not None and self._word.raw.isdecimal():
            self._word = None
        self._close()
        self._tokens.append(Token(kind, self._line))
        self._move(1)

    def _move(self, count: int) -> None:
        """Go on, counting lines."""
        self._line += self._text.count("\n", self._at, self._at + count)
        self._at += count

    def _add(self, part: Part) -> None:
        """Add to the word, or begin one."""
        if self._word is None:
            self._word = Token("word", self._line)
        self._word.parts.append(part)

    def _close(self) -> None:
        """End the word."""
        if self._word is not None:
            self._tokens.append(self._word)
            self._word = None

    def _escape(self) -> None:
        """A backslash outside quotes: joins lines, or takes the next character as it is."""
        following = self._text[self._at + 1 : self._at + 2]
        if following == "\r" and self._text[self._at + 2 : self._at + 3] == "\n":
            self._move(3)
        elif following == "\n":
            self._move(2)
        else:
            self._add(Part(following, quoted=True))
            self._move(2)

    def _quote(self, mark: str) -> None:
        """Text in quotes; expansions only in double ones."""
        opened = self._line
        self._add(Part("", quoted=True))
        self._move(1)
        while self._at < len(self._text) and self._text[self._at] != mark:
            char = self._text[self._at]
            if mark == '"' and char in "$`":
                self._add(Part(self._expansion(), expands=True, quoted=True))
                continue
            if (
                mark == '"'
                and char == "\\"
                and self._text[self._at + 1 : self._at + 2] in ('"', "$", "\\", "`")
            ):
                self._move(1)
                char = self._text[self._at]
            elif mark == '"' and char == "\\" and self._text[self._at + 1 : self._at + 2] == "\n":
                self._move(2)
                continue
            self._add(Part(char, quoted=True))
            self._move(1)
        if self._at >= len(self._text):
            raise ValueError(f"line {opened}: a quote stays open")
        self._move(1)

    def _expansion(self) -> str:
        """``$NAME``, ``${…}``, ``$(…)``, ``$((…))``, or a back-quoted command, as it is written."""
        text, start = self._text, self._at
        following = text[start + 1 : start + 2]
        if text[start] == "`":
            end = text.find("`", start + 1)
            return self._taken((end if end >= 0 else len(text) - 1) + 1 - start)
        if following in _PAIRS:
            return self._taken(self._balanced(start + 1) - start)
        length = 1
        while (
            text[start + length : start + length + 1].isalnum()
            or text[start + length : start + length + 1] == "_"
        ):
            length += 1
        if length == 1 and following and following in "@*#?!$-":
            length = 2
        return self._taken(length)

    def _taken(self, length: int) -> str:
        """The next characters."""
        found = self._text[self._at : self._at + length]
        self._move(length)
        return found

    def _balanced(self, start: int) -> int:
        """Where the bracket that opens at ``start`` is closed, one further."""
        opens = self._text[start]
        closes, depth = _PAIRS[opens], 0
        for at in range(start, len(self._text)):
            depth += (self._text[at] == opens) - (self._text[at] == closes)
            if depth == 0:
                return at + 1
        raise ValueError(f"line {self._line}: a bracket stays open")
