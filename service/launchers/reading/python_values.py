"""Values of a Python module that is never run: constants and the arguments of calls, by its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from profiles.documents import shown
from service.launchers.reading.base import refused
from service.launchers.reading.documents import MAX_BRACKETS, Found, is_deep

MAX_MODULE = 200_000  # characters
_MAX_VALUES = 20_000


def tree_of(name: str, text: str) -> ast.Module:
    """The syntax tree of a module.

    Raises:
        InvalidProblemError: too big, too deep, or no Python, with the line.
    """
    called = shown(name)
    if len(text) > MAX_MODULE:
        raise refused(f"{called}: the file is too big", allowed=f"{MAX_MODULE} characters")
    if is_deep(text):
        raise refused(f"{called}: more than {MAX_BRACKETS} brackets are open at a time")
    if not text.strip():
        raise refused(f"{called}: the file is empty")
    try:
        return ast.parse(text)
    except SyntaxError as fault:
        raise refused(f"{called}: not Python: {shown(fault.msg)} (line {fault.lineno})") from None
    except (ValueError, RecursionError, MemoryError):
        raise refused(f"{called}: not Python that can be read") from None


def constants_of(name: str, text: str) -> dict[str, object]:
    """Module-level ``NAME = literal`` of a module.

    Raises:
        InvalidProblemError: the module cannot be read.
    """
    return {key: found.value for key, found in constants(tree_of(name, text)).items()}


def constants(tree: ast.Module) -> dict[str, Found]:
    """The same of a tree, with lines; what is no literal is left out."""
    found: dict[str, Found] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            value = literal(node.value, found)
            if isinstance(target, ast.Name) and value is not NOTHING:
                found[target.id] = Found(value, node.lineno)
    return found


class _Nothing:
    """No literal."""

    def __str__(self) -> str:
        return "an expression, which is not run,"


NOTHING = _Nothing()


def literal(node: ast.expr, names: Mapping[str, Found]) -> object:
    """The value of a literal, of a constant's name, or of a list or dictionary of such; or ``NOTHING``."""
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id].value
    try:
        return _literal(node)
    except ValueError:
        return NOTHING


def _literal(node: ast.expr) -> object:
    """As ``ast.literal_eval``, without complex numbers, sets and bytes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand)
        if isinstance(value, int | float):
            return -value
    if isinstance(node, ast.List | ast.Tuple) and len(node.elts) <= _MAX_VALUES:
        return [_literal(one) for one in node.elts]
    if isinstance(node, ast.Dict) and len(node.keys) <= _MAX_VALUES:
        pairs = zip(node.keys, node.values, strict=True)
        return {str(_literal(key)): _literal(value) for key, value in pairs if key is not None}
    raise ValueError


def arguments_of(tree: ast.AST, callee: str, names: Mapping[str, Found]) -> dict[str, Found]:
    """Keyword arguments of the first call of ``callee`` (its last name); ``NOTHING``: no literal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_name(node) == callee:
            return {
                one.arg: Found(literal(one.value, names), one.value.lineno)
                for one in node.keywords
                if one.arg is not None
            }
    return {}


def called_name(call: ast.Call) -> str:
    """``c`` of ``a.b.c(…)``, and ``B.Config`` of ``B.Config(…)``."""
    function = call.func
    if isinstance(function, ast.Attribute):
        before = function.value
        if function.attr == "Config" and isinstance(before, ast.Name):
            return f"{before.id}.Config"
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
