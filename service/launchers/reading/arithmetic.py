"""Whole-number arithmetic of a shell: ``$((8 * NODES))``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

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
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> int:
    """One node; ValueError for what is no arithmetic."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        found = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        found = -_value(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        found = _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    else:
        raise ValueError
    if abs(found) > _LARGEST:
        raise OverflowError
    return found
