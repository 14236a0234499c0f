"""The words and operators of a shell script, with quotes resolved and expansions set apart; nothing is run.

And its whole-number arithmetic: ``$((8 * NODES))``.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

_LARGEST = 2**62
_MAX_TEXT = 200
_OPERATIONS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type, Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def whole_number(text: str) -> int | None:
    """The value of an expression of whole numbers, + - * / %, comparisons and brackets; None: none."""
    if len(text) > _MAX_TEXT:
        return None
    try:
        return _number(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _number(node: ast.expr) -> int:
    """One node; ValueError for what is no arithmetic."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        found = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        found = -_number(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        found = _OPERATIONS[type(node.op)](_number(node.left), _number(node.right))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        found = int(_COMPARISONS[type(node.ops[0])](_number(node.left), _number(node.comparators[0])))
    else:
        raise ValueError
    if abs(found) > _LARGEST:
        raise OverflowError
    return found


_OPERATORS = re.compile(r"\r?\n|;;&?|;&|;|&&|\|\||&>>?|>&|<&|>>|<<<|>\||\||&|<|>|\(|\)")
_HEREDOC = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([\w.!@%+-]+))")
_PAIRS = {"{": "}", "(": ")"}
# Within a word a # begins no comment.
_PLAIN = re.compile(r"""[^\\'"$`#<>;&|() \t\r\n][^\\'"$`<>;&|() \t\r\n]*""")
_QUOTED = {"'": re.compile("[^']+"), '"': re.compile(r'[^"\\$`]+')}
REDIRECTIONS = ("<", ">", ">>", ">&", "<&", "&>", "&>>", "<<<", ">|")
Kind = Literal["word", "operator", "heredoc"]


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a word: text, or an expansion such as ``${NAME:-8}``."""

    text: str
    expands: bool = False
    quoted: bool = False


@dataclass(slots=True)
class Token:
    """A word with its parts, an operator, or a text that stands below its command."""

    kind: Kind
    line: int
    parts: list[Part] = field(default_factory=list)
    joined: bool = False  # no blank before it

    @property
    def raw(self) -> str:
        """The word before expansion."""
        parts = self.parts  # one, of most
        return parts[0].text if len(parts) == 1 else "".join([part.text for part in parts])

    @property
    def plain(self) -> str:
        """The word where nothing of it is quoted or expanded, as keywords are; else empty."""
        for part in self.parts:
            if part.quoted or part.expands:
                return ""
        return self.raw

    def operates(self, *which: str) -> bool:
        """Whether it is one of these operators."""
        return self.kind == "operator" and self.raw in which


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
        self._blank = True  # what came last
        self._below: list[tuple[Token, str, bool, bool]] = []  # texts that begin on the next line

    def tokens(self) -> list[Token]:
        """All of them."""
        while self._at < len(self._text):
            self._step()
        self._close()
        return self._tokens

    def _step(self) -> None:
        """Take what comes next."""
        if (found := _PLAIN.match(self._text, self._at)) is not None:
            self._add(Part(self._taken(len(found.group()))))
            return
        char = self._text[self._at]
        if char == "\\":
            self._escape()
        elif char in "'\"":
            self._quote(char)
        elif char in "$`":
            self._dollar()
        elif char == "#" and self._word is None:
            end = self._text.find("\n", self._at)
            self._move((end if end >= 0 else len(self._text)) - self._at)
        elif char == "<" and self._text.startswith("<<", self._at) and self._heredoc():
            return
        elif char in "<>" and self._text.startswith("(", self._at + 1):
            end = self._balanced(self._at + 1)
            self._add(Part("$" + self._text[self._at + 1 : end], expands=True, quoted=True))
            self._move(end - self._at)
        elif (found := _OPERATORS.match(self._text, self._at)) is not None:
            self._operate(found.group())
        elif char in " \t\r":
            self._close()
            self._blank = True
            self._move(1)
        else:
            self._add(Part(char))
            self._move(1)

    def _operate(self, text: str) -> None:
        """End the word, and keep the operator; the number of a redirected stream is no word."""
        if text in REDIRECTIONS and self._word is not None and self._word.raw.isdecimal():
            self._word = None
        self._close()
        sign = "\n" if text.endswith("\n") else text
        self._tokens.append(Token("operator", self._line, [Part(sign)], joined=not self._blank))
        self._blank = sign == "\n"
        self._move(len(text))
        if sign == "\n" and self._below:
            self._take_texts()

    def _heredoc(self) -> bool:
        """``<<EOT``: what follows until the word stands below; whether it is one."""
        found = None if self._text.startswith("<<<", self._at) else _HEREDOC.match(self._text, self._at)
        if found is None:
            return False
        self._close()
        token = Token("heredoc", self._line)
        self._tokens.append(token)
        expands = found[4] is not None and "\\" not in found.group()
        self._below.append((token, found[2] or found[3] or found[4], found[1] == "-", expands))
        self._move(len(found.group()))
        return True

    def _take_texts(self) -> None:
        """The texts below a line, each until its word."""
        for token, word, tabs, expands in self._below:
            lines: list[str] = []
            while self._at < len(self._text):
                end = self._text.find("\n", self._at)
                end = len(self._text) if end < 0 else end
                line = self._text[self._at : end].rstrip("\r")
                self._move(end + 1 - self._at)
                line = line.lstrip("\t") if tabs else line
                if line.strip() == word:
                    break
                lines.append(line)
            body = "".join(f"{line}\n" for line in lines)
            token.parts = parts_of(body) if expands else [Part(body, quoted=True)]
        self._below = []

    def _move(self, count: int) -> None:
        """Go on, counting lines."""
        self._line += self._text.count("\n", self._at, self._at + count)
        self._at += count

    def _add(self, part: Part) -> None:
        """Add to the word, or begin one."""
        if self._word is None:
            self._word = Token("word", self._line, joined=not self._blank)
        self._word.parts.append(part)
        self._blank = False

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

    def _dollar(self) -> None:
        """``$NAME``, ``$'text'``, ``$(…)``, or a back-quoted command."""
        if self._text.startswith(("$'", '$"'), self._at):
            self._move(1)
            self._quote(self._text[self._at])
        else:
            self._add(Part(self._expansion(), expands=True))

    def _quote(self, mark: str) -> None:
        """Text in quotes; expansions only in double ones."""
        opened = self._line
        self._add(Part("", quoted=True))
        self._move(1)
        while self._at < len(self._text) and self._text[self._at] != mark:
            if (found := _QUOTED[mark].match(self._text, self._at)) is not None:
                self._add(Part(self._taken(len(found.group())), quoted=True))
                continue
            char = self._text[self._at]
            if char in "$`":
                self._add(Part(self._expansion(), expands=True, quoted=True))
                continue
            following = self._text[self._at + 1 : self._at + 2]  # of a backslash
            if following == "\n":
                self._move(2)
                continue
            if following and following in '"$\\`':
                self._move(1)
                char = following
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
            if length == 2 and following.isdecimal():  # noqa: PLR2004 - $1 has one digit
                break
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


def parts_of(text: str) -> list[Part]:
    """The parts of one word; blanks in it stay."""
    escaped = text.replace('"', '\\"')
    return [part for token in lex(f'"{escaped}"') for part in token.parts]
