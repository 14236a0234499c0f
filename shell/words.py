"""Words and operators of a shell script, with quotes resolved and expansions set apart; nothing is run.

And whole-number arithmetic: ``$((8 * NODES))``, ``(( i++ ))``. Operators and their order are C's,
as bash(1) has them under ARITHMETIC EVALUATION.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.DOTALL)


def unescaped(text: str) -> str:
    r"""Return ``$'a\tb'`` with the characters that its backslashes denote."""

    def one(found: re.Match[str]) -> str:
        said = found[1]
        if said[0] == "x" and len(said) > 1:
            return chr(int(said[1:], 16))
        return chr(int(said, 8) & 255) if said[0] in "01234567" else _ESCAPES.get(said, said)

    return _ESCAPE.sub(one, text)


_OPERATORS = re.compile(r"\r?\n|;;&?|;&|;|&&|\|\||&>>?|>&|<&|>>|<<<|>\||\||&|<|>|\(|\)")
_HEREDOC = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([\w.!@%+-]+))")
_PAIRS = {"{": "}", "(": ")", "[": "]"}
# Within a word a # begins no comment.
_PLAIN = re.compile(r"""[^\\'"$`#<>;&|() \t\r\n][^\\'"$`<>;&|() \t\r\n]*""")
_WRITTEN = re.compile(r"\$'((?:\\.|[^\\'])*)'", re.DOTALL)
_QUOTED = {"'": re.compile("[^']+"), '"': re.compile(r'[^"\\$`]+')}
REDIRECTIONS = ("<", ">", ">>", ">&", "<&", "&>", "&>>", "<<<", ">|")
Kind = Literal["word", "operator", "heredoc"]


@dataclass(frozen=True, slots=True)
class WordPart:
    """A part of a word: text, or an expansion such as ``${NAME:-8}``."""

    text: str
    expands: bool = False
    quoted: bool = False


@dataclass(slots=True)
class Token:
    """A word with its parts, an operator, or a here-document."""

    kind: Kind
    line: int
    parts: list[WordPart] = field(default_factory=list)
    joined: bool = False  # no blank before it

    @property
    def raw(self) -> str:
        """The word before expansion."""
        parts = self.parts  # usually one
        return parts[0].text if len(parts) == 1 else "".join([part.text for part in parts])

    @property
    def plain(self) -> str:
        """The word if no part is quoted or expanded, as for keywords; else empty."""
        for part in self.parts:
            if part.quoted or part.expands:
                return ""
        return self.raw

    def operates(self, *which: str) -> bool:
        """Return whether it is one of these operators."""
        return self.kind == "operator" and self.raw in which


def lex(text: str) -> list[Token]:
    """Return the tokens of a script, without comments and with continued lines joined.

    Raises:
        ValueError: a quote or a bracket stays open; the message names its line.
    """
    return _Lexer(text).tokens()


class _Lexer:
    """A pass over the characters of a script."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._tokens: list[Token] = []
        self._word: Token | None = None
        self._blank = True  # whether the last character was a blank
        self._below: list[tuple[Token, str, bool, bool]] = []  # here-documents that begin on the next line
        self._sum = 0  # brackets open in ``((…))``, where ``<<`` is a shift

    def tokens(self) -> list[Token]:
        """Return all tokens."""
        while self._at < len(self._text):
            self._step()
        self._close()
        return self._tokens

    def _step(self) -> None:
        """Take the next character or construct."""
        if (found := _PLAIN.match(self._text, self._at)) is not None:
            self._add(WordPart(self._taken(len(found.group()))))
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
            self._add(WordPart("$" + self._text[self._at + 1 : end], expands=True, quoted=True))
            self._move(end - self._at)
        elif (found := _OPERATORS.match(self._text, self._at)) is not None:
            self._operate(found.group())
        elif char in " \t\r":
            self._close()
            self._blank = True
            self._move(1)
        else:
            self._add(WordPart(char))
            self._move(1)

    def _operate(self, text: str) -> None:
        """End the word, and keep the operator; the number of a redirected stream is not a word."""
        if text in REDIRECTIONS and self._word is not None and self._word.raw.isdecimal():
            self._word = None
        self._close()
        sign = "\n" if text.endswith("\n") else text
        after = bool(self._tokens) and self._tokens[-1].operates("(") and self._text[self._at - 1] == "("
        if sign == "(" and (self._sum or after):
            self._sum += 1 if self._sum else 2
        elif sign == ")" and self._sum:
            self._sum -= 1
        self._tokens.append(Token("operator", self._line, [WordPart(sign)], joined=not self._blank))
        self._blank = sign == "\n"
        self._move(len(text))
        if sign == "\n" and self._below:
            self._take_texts()

    def _heredoc(self) -> bool:
        """Take ``<<EOT``, the start of a here-document; return whether it is one."""
        other = self._sum or self._text.startswith("<<<", self._at)
        found = None if other else _HEREDOC.match(self._text, self._at)
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
        """Take the here-documents of a line, each up to its end word."""
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
            token.parts = parts_of(body) if expands else [WordPart(body, quoted=True)]
        self._below = []

    def _move(self, count: int) -> None:
        """Move on, counting lines."""
        self._line += self._text.count("\n", self._at, self._at + count)
        self._at += count

    def _add(self, part: WordPart) -> None:
        if self._word is None:
            self._word = Token("word", self._line, joined=not self._blank)
        self._word.parts.append(part)
        self._blank = False

    def _close(self) -> None:
        if self._word is not None:
            self._tokens.append(self._word)
            self._word = None

    def _escape(self) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        if following == "\r" and self._text[self._at + 2 : self._at + 3] == "\n":
            self._move(3)
        elif following == "\n":
            self._move(2)
        else:
            self._add(WordPart(following, quoted=True))
            self._move(2)

    def _dollar(self) -> None:
        """Take ``$NAME``, ``$'text'``, ``$(…)``, or a back-quoted command."""
        if (found := _WRITTEN.match(self._text, self._at)) is not None:
            self._add(WordPart(unescaped(found[1]), quoted=True))
            self._move(len(found.group()))
        elif self._text.startswith('$"', self._at):
            self._move(1)
            self._quote(self._text[self._at])
        else:
            text = self._expansion()
            self._add(WordPart(text, expands=text != "$"))

    def _quote(self, mark: str) -> None:
        """Take quoted text; only double quotes have expansions."""
        opened = self._line
        self._add(WordPart("", quoted=True))
        self._move(1)
        while self._at < len(self._text) and self._text[self._at] != mark:
            if (found := _QUOTED[mark].match(self._text, self._at)) is not None:
                self._add(WordPart(self._taken(len(found.group())), quoted=True))
                continue
            char = self._text[self._at]
            if char in "$`":
                text = self._expansion()
                self._add(WordPart(text, expands=text != "$", quoted=True))
                continue
            following = self._text[self._at + 1 : self._at + 2]  # after a backslash
            if following == "\n":
                self._move(2)
                continue
            if following and following in '"$\\`':
                self._move(1)
                char = following
            self._add(WordPart(char, quoted=True))
            self._move(1)
        if self._at >= len(self._text):
            raise ValueError(f"line {opened}: a quote stays open")
        self._move(1)

    def _expansion(self) -> str:
        """Take ``$NAME``, ``${…}``, ``$(…)``, ``$((…))``, ``$[…]`` or a back-quoted command."""
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
        found = self._text[self._at : self._at + length]
        self._move(length)
        return found

    def _balanced(self, start: int) -> int:
        opens = self._text[start]
        closes, depth = _PAIRS[opens], 0
        for at in range(start, len(self._text)):
            depth += (self._text[at] == opens) - (self._text[at] == closes)
            if depth == 0:
                return at + 1
        raise ValueError(f"line {self._line}: a bracket stays open")


def parts_of(text: str) -> list[WordPart]:
    """Return the parts of one word; its blanks stay."""
    escaped = text.replace('"', '\\"')
    found = [part for token in lex(f'"{escaped}"') for part in token.parts]
    return [replace(part, text=part.text.replace('\\"', '"')) if part.expands else part for part in found]


# --------------------------------------------------------------------------------------------------
# Arithmetic.


_LARGEST = 2**62
_LONGEST = 400
_MAX_POWER = 62
_MAX_DEPTH = 8  # of variables that hold names of variables
_SYMBOL = re.compile(
    r"\s*(?:(?P<number>\d+#[0-9a-zA-Z]+|0[xX][0-9a-fA-F]+|\d+)|(?P<name>[A-Za-z_]\w*(?:\[[^\]]*\])?)"
    r"|(?P<sign>\*\*|<<=|>>=|\+\+|--|&&|\|\||[-+*/%&|^]=|<<|>>|[<>=!]=|[-+*/%<>=!~&|^?:(),]))",
    re.ASCII,
)
_POWER = 11
# Binding strength of operators: bash(1), from the loosest to the tightest.
_ORDER: Mapping[str, int] = {
    sign: level
    for level, signs in enumerate(
        ("||", "&&", "|", "^", "&", "== !=", "< > <= >=", "<< >>", "+ -", "* / %"), start=1
    )
    for sign in signs.split()
} | {"**": _POWER}  # fmt: skip


def _divided(one: int, other: int) -> int:
    """Divide towards zero, as C does."""
    return abs(one) // abs(other) * (1 if (one < 0) == (other < 0) else -1)


_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divided,
    "%": lambda one, other: one - _divided(one, other) * other,
    "<<": lambda one, other: one << min(max(other, 0), _MAX_POWER),
    ">>": lambda one, other: one >> min(max(other, 0), _MAX_POWER),
    "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "==": lambda one, other: int(one == other), "!=": lambda one, other: int(one != other),
    "<": lambda one, other: int(one < other), ">": lambda one, other: int(one > other),
    "<=": lambda one, other: int(one <= other), ">=": lambda one, other: int(one >= other),
    "&&": lambda one, other: int(bool(one and other)), "||": lambda one, other: int(bool(one or other)),
}  # fmt: skip
_UNARY: Mapping[str, Callable[[int], int]] = {
    "-": operator.neg, "+": operator.pos, "~": operator.invert, "!": lambda one: int(not one),
}  # fmt: skip


def _power(one: int, other: int) -> int:
    if not 0 <= other <= _MAX_POWER:
        raise ValueError("no such power")
    return int(one**other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Access to variables for arithmetic; ValueError from either function: unknown."""

    get: Callable[[str], str]
    put: Callable[[str, int], object]


def _unset(name: str, *_: int) -> str:
    raise ValueError(name)


_NONE = Names(get=_unset, put=_unset)


def whole_number(text: str, names: Names = _NONE) -> int | None:
    """Return the value of an expression of whole numbers and variables; None if it is unknown."""
    try:
        return _Expression(text, names, 0).value()
    except (ValueError, ArithmeticError, RecursionError):
        return None


class _Expression:
    """An expression, read from left to right; parts that are not reached set nothing."""

    def __init__(self, text: str, names: Names, depth: int) -> None:
        if len(text) > _LONGEST or depth > _MAX_DEPTH:
            raise ValueError("too long")
        self._names, self._depth = names, depth
        self._reached = True
        self._tokens: list[tuple[str, str]] = []
        self._at = at = 0
        text = text.strip()
        while at < len(text):
            found = _SYMBOL.match(text, at)
            if found is None:
                raise ValueError(text)
            self._tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
            at = found.end()

    def value(self) -> int:
        """Return the value of the whole expression; ValueError if something is left."""
        number = self._listed()
        if self._at < len(self._tokens):
            raise ValueError(self._tokens[self._at])
        return number

    def _is(self, *signs: str) -> str:
        """Take the next sign if it is one of these; empty otherwise."""
        kind, text = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        if kind != "sign" or text not in signs:
            return ""
        self._at += 1
        return text

    def _listed(self) -> int:
        number = self._assigned()
        while self._is(","):
            number = self._assigned()
        return number

    def _assigned(self) -> int:
        """Evaluate ``NAME = …``, ``NAME += …``, or a condition."""
        start = self._at
        kind, name = self._tokens[start] if start < len(self._tokens) else ("", "")
        if kind == "name":
            self._at += 1
            sign = self._is(
                "=", *(f"{sign}=" for sign in ("+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"))
            )
            if sign:
                number = self._assigned()
                return self._put(
                    name, _OPERATIONS[sign[:-1]](self._get(name), number) if sign[:-1] else number
                )
            self._at = start
        number = self._bound(1)
        if not self._is("?"):
            return number
        first = self._under(self._assigned, reached=number != 0)
        if not self._is(":"):
            raise ValueError("?")
        other = self._under(self._assigned, reached=number == 0)
        return first if number else other

    def _under(self, read: Callable[[], int], *, reached: bool) -> int:
        """Evaluate a part that counts only if reached; otherwise its variables may be unknown."""
        before, self._reached = self._reached, self._reached and reached
        number = read()
        self._reached = before
        return number

    def _bound(self, least: int) -> int:
        """Evaluate operands with at least this binding strength."""
        number = self._operand()
        while True:
            kind, sign = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
            level = _ORDER.get(sign, 0) if kind == "sign" else 0
            if level < least or not level:
                return number
            self._at += 1
            stops = (sign == "&&" and not number) or (sign == "||" and number)
            following = level if sign == "**" else level + 1

            def right(following: int = following) -> int:
                return self._bound(following)

            other = self._under(right, reached=not stops)
            if not self._reached:
                number = 0
            else:
                number = _power(number, other) if sign == "**" else _OPERATIONS[sign](number, other)
            if abs(number) > _LARGEST:
                raise OverflowError

    def _operand(self) -> int:
        if sign := self._is("++", "--"):
            kind, name = self._tokens[self._at]
            if kind != "name":
                raise ValueError(sign)
            self._at += 1
            return self._put(name, self._get(name) + (1 if sign == "++" else -1))
        if sign := self._is(*_UNARY):
            return _UNARY[sign](self._operand())
        if self._is("("):
            number = self._listed()
            if not self._is(")"):
                raise ValueError("(")
            return number
        if self._at >= len(self._tokens):
            raise ValueError("ends")
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            return _digits(text)
        if kind != "name":
            raise ValueError(text)
        number = self._get(text)
        if sign := self._is("++", "--"):
            self._put(text, number + (1 if sign == "++" else -1))
        return number

    def _get(self, name: str) -> int:
        """Return a variable's value; its text is an expression, too."""
        if not self._reached:
            return 0
        text = self._names.get(name)
        return _Expression(text, self._names, self._depth + 1).value() if text.strip() else 0

    def _put(self, name: str, number: int) -> int:
        if self._reached:
            self._names.put(name, number)
        return number


def _digits(text: str) -> int:
    """Parse ``12``, ``0x1f``, ``017`` (octal) or ``2#101``."""
    base, sign, digits = text.partition("#")
    if sign:
        number = int(digits, int(base))
    elif text[:2].lower() == "0x":
        number = int(text, 16)
    else:
        number = int(text, 8 if text[0] == "0" and len(text) > 1 else 10)
    if number > _LARGEST:
        raise OverflowError
    return number
