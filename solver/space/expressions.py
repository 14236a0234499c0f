"""A small language for side constraints: its words, its grammar, and the tree of an expression.

  implication  disjunction [=> implication]
  disjunction  conjunction {or conjunction}
  conjunction  negation {and negation}
  negation     not negation | comparison
  comparison   sum {(<= | < | >= | > | == | !=) sum}          chains mean what they mean in Python
  sum          product {(+ | -) product}
  product      unary {(* | // | %) unary}
  unary        - unary | name | number | 'word' | true | false | term ( 'word' ) | ( implication )

A term counts what a plan takes of one node group: ``stages('a100-sxm-80gb')``. Names of post-training have
a role and a dot: ``rollout.num_nodes``. Nothing is ever executed: the tree is data, which ``request_rules``
evaluates. ``//`` and ``%`` round down, as in Python.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from meshwright.profiles.errors import PlannerError

MAX_LENGTH = 500  # characters
MAX_WORDS = 120  # names, numbers and signs; bounds the depth of the tree as well
MAX_DEPTH = 24  # parentheses, negations and implications inside one another
MAX_NUMBER = 2**31 - 1
COMPARISONS = ("<=", "<", ">=", ">", "==", "!=")
GROUP_NUMBERS = ("gpus", "idle_nodes", "stages", "layers")
GROUP_ENDS = ("first", "last")  # logical: whether a group holds that stage
GROUP_TERMS = (*GROUP_NUMBERS, *GROUP_ENDS)
ROLE_TERMS = ("training.gpus", "rollout.gpus")  # of a step of post-training

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+)|(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)|(?P<word>'[^']*'|\"[^\"]*\")"
    r"|(?P<sign>=>|<=|>=|==|!=|//|[<>+\-*%()]))"
)


class ExpressionError(PlannerError):
    """Invalid expression; ``at`` counts its characters from 1."""

    code = "invalid_expression"

    def __init__(
        self, at: int, message: str, *, allowed: str | None = None, nearest: str | None = None
    ) -> None:
        super().__init__(f"character {at}: {message}")
        self.at = at
        self.reason = message
        self.allowed = allowed
        self.nearest = nearest


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: a sign with its operands, or a leaf with its value; ``at`` is its first character."""

    sign: str  # an operator, or "number", "name", "word", "logical"
    at: int
    operands: tuple[Node, ...] = ()
    value: int | str = 0  # of a leaf
    signs: tuple[str, ...] = ()  # of a chain of comparisons, one fewer than its operands


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            start = len(text) - len(text[at:].lstrip())
            raise ExpressionError(start + 1, _unreadable(text[start]))
        kind = str(match.lastgroup)
        found.append(_Token(kind, match.group(kind), match.start(kind) + 1))
        at = match.end()
        if len(found) > MAX_WORDS:
            raise ExpressionError(match.start(kind) + 1, f"more than {MAX_WORDS} names, numbers and signs")
    return [*found, _Token("end", "", end + 1)]


def _unreadable(sign: str) -> str:
    if sign in "'\"":
        return "a quoted word is not closed"
    advice = {"=": "; write == or =>", "&": "; write and", "|": "; write or", "!": "; write not or !=",
              "/": "; write //"}  # fmt: skip
    shown = sign if sign.isprintable() else "a control character"
    return f"{shown} is not understood{advice.get(sign, '')}"


class _Parser:
    """Recursive descent through the lines of the grammar."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._implication()
        token = self._tokens[self._next]
        if token.kind != "end":
            raise ExpressionError(token.at, f"an operator is missing before {token.text}")
        return node

    def _accept(self, *texts: str) -> _Token | None:
        token = self._tokens[self._next]
        if token.kind in ("sign", "name") and token.text in texts:
            self._next += 1
            return token
        return None

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError(self._tokens[self._next].at, f"nested deeper than {MAX_DEPTH} levels")

    def _implication(self) -> Node:
        self._deeper()
        left = self._binary(
            ("or",), lambda: self._binary(("and",), lambda: self._prefixed("not", self._comparison))
        )
        token = self._accept("=>")
        if token:
            left = Node("=>", token.at, (left, self._implication()))
        self._depth -= 1
        return left

    def _binary(self, signs: tuple[str, ...], operand: Callable[[], Node]) -> Node:
        left = operand()
        while token := self._accept(*signs):
            left = Node(token.text, token.at, (left, operand()))
        return left

    def _prefixed(self, sign: str, operand: Callable[[], Node]) -> Node:
        """Parse an operand behind any number of ``not``, or of ``-``, which takes it from 0."""
        token = self._accept(sign)
        if not token:
            return operand()
        self._deeper()
        inner = self._prefixed(sign, operand)
        self._depth -= 1
        return Node(sign, token.at, (inner,) if sign == "not" else (Node("number", token.at), inner))

    def _comparison(self) -> Node:
        operands, signs = [self._sum()], []
        while token := self._accept(*COMPARISONS):
            signs.append(token.text)
            operands.append(self._sum())
        return (
            Node("compare", operands[0].at, tuple(operands), signs=tuple(signs)) if signs else operands[0]
        )

    def _sum(self) -> Node:
        return self._binary(
            ("+", "-"), lambda: self._binary(("*", "//", "%"), lambda: self._prefixed("-", self._atom))
        )

    def _atom(self) -> Node:
        if self._accept("("):
            inner = self._implication()
            if not self._accept(")"):
                raise ExpressionError(self._tokens[self._next].at, "a closing parenthesis is missing")
            return inner
        token = self._tokens[self._next]
        if token.kind not in ("number", "name", "word") or token.text in ("and", "or", "not"):
            found = f"before {token.text}" if token.text else "at the end"
            raise ExpressionError(token.at, f"a variable or a number is missing {found}")
        self._next += 1
        return self._term(token) if token.kind == "name" and self._accept("(") else _leaf(token)

    def _term(self, token: _Token) -> Node:
        """Parse the group of a term: a name such as ``stages('slow')``."""
        if token.text not in (*GROUP_TERMS, *ROLE_TERMS):
            near = difflib.get_close_matches(token.text.lower()[:64], GROUP_TERMS, n=1, cutoff=0.5)
            message = f"{token.text[:64]} is not a term of a node group: {', '.join(GROUP_TERMS)}"
            raise ExpressionError(token.at, message, nearest=next(iter(near), None))
        group = self._tokens[self._next]
        if group.kind != "word":
            raise ExpressionError(group.at, f"{token.text} needs a node group in quotes")
        self._next += 1
        if not self._accept(")"):
            raise ExpressionError(self._tokens[self._next].at, "a closing parenthesis is missing")
        return Node("name", token.at, value=written_term(token.text, group.text[1:-1]))


def written_term(term: str, group: str) -> str:
    """Return a term of a node group as a name of expressions."""
    return f"{term}('{group}')"


@lru_cache(maxsize=1024)
def term_of(name: str) -> tuple[str, str] | None:
    """Return the term and the node group of a name; None: it is a variable."""
    term, parenthesis, group = name.partition("('")
    return (term, group.removesuffix("')")) if parenthesis else None


def _leaf(token: _Token) -> Node:
    if token.kind == "number":
        if len(token.text) > len(str(MAX_NUMBER)) or int(token.text) > MAX_NUMBER:
            raise ExpressionError(token.at, f"the number is larger than {MAX_NUMBER}")
        return Node("number", token.at, value=int(token.text))
    if token.kind == "word":
        return Node("word", token.at, value=token.text[1:-1])
    if token.text in ("true", "false"):
        return Node("logical", token.at, value=int(token.text == "true"))
    return Node("name", token.at, value=token.text)


@lru_cache(maxsize=1024)
def parse(text: str) -> Node:
    """Return the tree of an expression.

    Raises:
        ExpressionError: it is too long, too deep, or not of the grammar.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(MAX_LENGTH + 1, f"longer than {MAX_LENGTH} characters")
    return _Parser(text).whole()


def names_in(node: Node) -> set[str]:
    """Return every variable of an expression."""
    inner = set().union(*(names_in(operand) for operand in node.operands))
    return inner | ({str(node.value)} if node.sign == "name" else set())
