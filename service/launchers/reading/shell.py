"""As much of a shell script as a launch file needs: words, quotes, variables, arrays, continued lines.

Nothing is run. Commands are read from top to bottom as if every one of them were reached; what only a
running shell knows (command substitution, positional parameters, variables of the environment) stays
unknown and is named where it is needed.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

# --------------------------------------------------------------------------------------------------
# Whole-number arithmetic of a shell: ``$((8 * NODES))``.


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


def whole_number(text: str) -> int | None:
    """The value of an expression of whole numbers, + - * / % and brackets; None for anything else."""
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
    else:
        raise ValueError
    if abs(found) > _LARGEST:
        raise OverflowError
    return found


# --------------------------------------------------------------------------------------------------
# Words and separators of a shell script, with their quotes resolved and their expansions set apart.


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


UNKNOWN = "\x00"  # stands where a value is not known; the name follows, then another
MAX_WORDS = 40_000  # of all commands and arrays
MAX_TEXT = 200_000  # characters of one variable
_MAX_WRITTEN = 2_000_000  # characters that all expansions, assignments and commands of a script make
_MAX_WITHIN = 300_000  # characters of sourced files, of defaults and of arithmetic, each time one is read
_MAX_DEPTH = 8  # of files that read one another, and of defaults in defaults
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PARAMETER = re.compile(r"[A-Za-z_]\w*|\d+", re.ASCII)  # positional ones are never set
_WHOLE = re.compile(r"\$\{([A-Za-z_]\w*)(?:\[[@*]\])?\}|\$([A-Za-z_]\w*)", re.ASCII)
_OPENS, _CLOSES = {"if", "case", "for", "while", "until"}, {"fi", "esac", "done"}
_KEYWORDS = {*_OPENS, *_CLOSES, "then", "else", "elif", "do", "{", "}", "!"}
_BEFORE_ASSIGNMENT = {"export", "readonly", "declare", "local", "typeset", "-a", "-x", "-i"}
Include = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Word:
    """One word after expansion, and where it stands."""

    text: str
    line: int

    @property
    def unknown(self) -> str | None:
        """The name of a variable that is not known here, if one is part of it."""
        return self.text.split(UNKNOWN)[1] if UNKNOWN in self.text else None


@dataclass(slots=True)
class Script:
    """What a script would run, and what it sets."""

    variables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    words: dict[str, tuple[Word, ...]] = field(default_factory=dict)  # of each variable, where it is set
    commands: list[tuple[Word, ...]] = field(default_factory=list)
    conditional: dict[str, int] = field(default_factory=dict)  # set differently under a condition: line
    conditions: int = 0  # open ones
    line: int = 0  # that is read
    num_words: int = 0
    written: int = 0  # characters so far
    within: int = 0  # characters so far

    def write(self, texts: Iterable[str], *, words: int = 0) -> None:
        """Add to what was written; ValueError beyond any script's size."""
        self.written += sum(map(len, texts))
        self.num_words += words
        if self.written > _MAX_WRITTEN:
            raise ValueError(f"line {self.line}: the script expands beyond {_MAX_WRITTEN} characters")
        if self.num_words > MAX_WORDS:
            raise ValueError(f"line {self.line}: the script has more than {MAX_WORDS} words")

    def look_into(self, text: str) -> str:
        """The text of a sourced file or of a nested value; ValueError beyond any script's size."""
        self.within += len(text)
        if self.within > _MAX_WITHIN:
            what = "files that it sources and values in values"
            raise ValueError(f"line {self.line}: {what} have more than {_MAX_WITHIN} characters")
        return text


def read_script(
    text: str, variables: Mapping[str, str] | None = None, include: Include = lambda _: None
) -> Script:
    """The commands and variables of a script.

    Args:
        text: of the script.
        variables: known from outside; the script's own assignments replace them.
        include: the text of a file that is sourced, by its base name; None where there is none.

    Raises:
        ValueError: a quote or a bracket stays open, or the script expands without end.
    """
    script = Script(variables={name: (value,) for name, value in (variables or {}).items()})
    _run(script, text, include, 0)
    return script


def _run(script: Script, text: str, include: Include, depth: int) -> None:
    """Read one file into the script."""
    command: list[Token] = []
    tokens = lex(text)
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.kind == "open" and command and _is_array(command[-1]):
            end = next((at for at in range(index, len(tokens)) if tokens[at].kind == "close"), len(tokens))
            inside = [one for one in tokens[index + 1 : end] if one.kind == "word"]
            _assign_array(script, command.pop(), inside)
            index = end
        elif token.kind == "word":
            command.append(token)
        else:
            _finish(script, command, include, depth)
            command = []
        index += 1
    _finish(script, command, include, depth)


def _is_array(token: Token) -> bool:
    """Whether a word is ``NAME=`` or ``NAME+=``."""
    return _ASSIGNMENT.fullmatch(token.raw) is not None


def _assign_array(script: Script, target: Token, inside: Sequence[Token]) -> None:
    """``NAME=(…)`` or ``NAME+=(…)``."""
    words = [word for token in inside for word in _expanded(script, token)]
    _store(script, target.raw, words, target.line)


def _store(script: Script, head: str, words: Sequence[Word], line: int) -> None:
    """Set or extend a variable."""
    name = head.rstrip("=").rstrip("+")
    old = script.words.get(name, ())
    new = (*old, *words) if head.endswith("+=") else tuple(words)
    if script.conditions and old and new != old:
        script.conditional[name] = line
    if sum(len(word.text) for word in new) > MAX_TEXT or len(new) > MAX_WORDS:
        raise ValueError(f"line {line}: {name[:40]} grows beyond {MAX_TEXT} characters")
    script.write(word.text for word in new)
    script.words[name] = new
    script.variables[name] = tuple(word.text for word in new)


def _finish(script: Script, tokens: Sequence[Token], include: Include, depth: int) -> None:
    """One whole command: an assignment, a sourced file, or something to run."""
    rest = _after_assignments(script, list(tokens))
    words = [word for token in rest for word in _expanded(script, token)]
    sourced = len(words) > 1 and words[0].text in ("source", ".") and depth < _MAX_DEPTH
    text = include(words[1].text.rsplit("/", 1)[-1]) if sourced else None
    if text is not None:
        _run(script, script.look_into(text), include, depth + 1)
    elif words:
        script.commands.append(tuple(words))


def _after_assignments(script: Script, tokens: list[Token]) -> list[Token]:
    """What is left of a command when its keywords and assignments are taken."""
    while tokens and tokens[0].raw in _KEYWORDS:
        first = tokens.pop(0).raw
        script.conditions += (first in _OPENS) - (first in _CLOSES)
    while tokens and tokens[0].raw in _BEFORE_ASSIGNMENT:
        tokens.pop(0)
    while tokens and (match := _ASSIGNMENT.match(tokens[0].raw)):
        token = tokens.pop(0)
        value = _joined(script, token, skip=match.end())
        _store(script, match.group(), [Word(value, token.line)], token.line)
    return tokens


def _joined(script: Script, token: Token, skip: int) -> str:
    """The value of an assignment: no splitting, the first ``skip`` characters left out."""
    text, script.line = "", token.line
    for part in token.parts:
        text += " ".join(_value(script, part.text, 0)) if part.expands else part.text
    return text[skip:]


def _expanded(script: Script, token: Token) -> list[Word]:
    """A word after expansion: none, one or several."""
    script.line = token.line
    found = _whole_variable(script, token)
    if found is None:
        found = _pieced(script, token)
    script.write((word.text for word in found), words=len(found))
    return found


def _pieced(script: Script, token: Token) -> list[Word]:
    """A word of several parts after expansion."""
    done: list[str] = [""]
    any_quoted = False
    for part in token.parts:
        any_quoted = any_quoted or part.quoted
        values = _value(script, part.text, 0) if part.expands else (part.text,)
        if part.expands and not part.quoted:
            values = tuple(piece for value in values for piece in value.split())
        if not values:
            continue
        done[-1] += values[0]
        done += values[1:]
    return [Word(text, token.line) for text in done if text or any_quoted]


def _whole_variable(script: Script, token: Token) -> list[Word] | None:
    """The words of a variable that is all of a word, each with the line on which it was set."""
    parts = [part for part in token.parts if part.text]
    if len(parts) != 1 or not parts[0].expands:
        return None
    match = _WHOLE.fullmatch(parts[0].text)
    words = script.words.get(match.group(1) or match.group(2)) if match else None
    if words is None or (parts[0].quoted and not parts[0].text.endswith(("[@]}", "[*]}"))):
        return None
    if parts[0].quoted:
        return list(words)
    return [Word(piece, word.line) for word in words for piece in word.text.split()]


def _value(script: Script, expression: str, depth: int) -> tuple[str, ...]:
    """What ``$…`` stands for; ValueError where it, with all others, goes beyond any script's size."""
    found = _looked_up(script, expression, depth)
    script.write(found)
    return found


def _looked_up(script: Script, expression: str, depth: int) -> tuple[str, ...]:
    """What ``$…`` stands for."""
    if expression.startswith("$(("):
        number = whole_number(_substituted(script, expression[3:-2], depth))
        return (_unknown(expression) if number is None else str(number),)
    body = expression[2:-1] if expression.startswith("${") else expression[1:]
    match = _PARAMETER.match(body)
    if expression.startswith(("$(", "`")) or match is None:
        return () if body in ("@", "*") else (_unknown(expression),)
    return _parameter(script, match.group(), body[match.end() :], depth)


def _parameter(script: Script, name: str, rest: str, depth: int) -> tuple[str, ...]:
    """A variable with what follows its name: nothing, ``[@]``, a default, or a message."""
    known = script.variables.get(name)
    if rest in ("[@]", "[*]"):
        return known or ()
    mark = next((mark for mark in (":-", ":=", "-", "=") if rest.startswith(mark)), None)
    if mark is not None:
        if known is None or (mark.startswith(":") and not "".join(known)):
            return (_substituted(script, rest[len(mark) :], depth + 1),)
        return known
    if known is None or not (rest == "" or rest.startswith((":?", "?"))):
        return (_unknown(name),)
    return known


def _substituted(script: Script, text: str, depth: int) -> str:
    """Text with the variables in it replaced; ``NAME`` alone counts in arithmetic."""
    if depth > _MAX_DEPTH:
        raise ValueError("defaults in defaults without end")
    done = ""
    for part in _parts_of(script.look_into(text)):
        done += " ".join(_value(script, part.text, depth)) if part.expands else part.text
    return done if depth else _NAME.sub(lambda found: _bare(script, found.group()), done)


def _bare(script: Script, name: str) -> str:
    """A variable in arithmetic without its dollar sign."""
    value = script.variables.get(name, (name,))
    script.write(value)
    return " ".join(value)


def _parts_of(text: str) -> list[Part]:
    """The parts of one word; blanks in it stay."""
    tokens = lex(f'"{text}"') if '"' not in text else lex(text)
    return [part for token in tokens for part in token.parts]


def _unknown(name: str) -> str:
    """The mark of what is not known."""
    return f"{UNKNOWN}{name[:40]}{UNKNOWN}"
