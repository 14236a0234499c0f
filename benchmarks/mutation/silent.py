"""Positions in a module where a mutant has no effect on a right program: no test could notice it."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from itertools import pairwise


def silent(code: str) -> set[tuple[int, int]]:
    """Return lines and columns where a change has no effect on a right program.

    Nothing evaluates annotations. ``strict=True`` of ``zip``, ``slots`` and ``kw_only`` of
    ``@dataclass(...)``, and the ``*`` and ``/`` between parameters only catch what must not happen.
    """
    found = {(token.start[0], token.start[1]) for token in _markers(code)}
    for node in ast.walk(ast.parse(code)):
        for mark in _marks(node):
            for line in range(mark.lineno, (mark.end_lineno or mark.lineno) + 1):
                start = mark.col_offset if line == mark.lineno else 0
                end = mark.end_col_offset if line == mark.end_lineno else 200
                found |= {(line, column) for column in range(start, end or 0)}
    return found


def _marks(node: ast.AST) -> Iterator[ast.expr]:
    for name in ("annotation", "returns"):
        if isinstance(mark := getattr(node, name, None), ast.expr):
            yield mark
    if isinstance(node, ast.keyword) and node.arg == "strict":
        yield node.value
    if isinstance(node, ast.ClassDef):
        calls = [one for one in node.decorator_list if isinstance(one, ast.Call)]
        for call in (one for one in calls if ast.unparse(one.func) == "dataclass"):
            yield from (one.value for one in call.keywords if one.arg in ("slots", "kw_only"))


def _markers(code: str) -> Iterator[tokenize.TokenInfo]:
    """Yield each ``*`` and ``/`` without an operand behind it: only between parameters is that Python."""
    blank = (tokenize.NL, tokenize.COMMENT)
    tokens = [one for one in tokenize.generate_tokens(io.StringIO(code).readline) if one.type not in blank]
    for token, after in pairwise(tokens):
        if token.string in ("*", "/") and after.string in (",", ")", ":"):
            yield token
