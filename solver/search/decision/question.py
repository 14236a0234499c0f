"""One decision, in a form that travels as JSON: rows with their values, and the limits that they keep.

Limits are trees: ``["name", variable]``, ``["number", value]``, ``["compare", [sign, …], [operand, …]]``,
or an operator of the request's language with its operands. Words and truth values are numbers here.
Loads nothing but the standard library: CP-SAT's process reads it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

KIND = "decision"  # of a message; certificates have none
LARGEST = 2**62  # beyond it a number is undefined, and what is undefined breaks a limit
Tree = list[Any]
PART = "part"  # variable: the search and the switches that a row is of

COMPARE: Mapping[str, Callable[[int, int], bool]] = {
    "<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
LOGIC: Mapping[str, Callable[..., int]] = {
    "and": lambda *values: int(all(values)),
    "or": lambda *values: int(any(values)),
    "not": lambda value: 1 - value,
    "=>": lambda left, right: int(not left or right),
}
ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One condition on the row that is chosen."""

    name: str  # as the request or the launcher states it
    tree: Tree
    parts: tuple[int, ...] = ()  # the parts of the rows that it concerns; (): all
    of_request: bool = True  # else it is a rule of the space or the launcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which row has the least value, of those that keep every limit?"""

    values: Sequence[int]  # of each row; times are billionths of the best step
    columns: Mapping[str, Sequence[int]]  # of each variable, by row
    limits: Sequence[Limit]
    seed: int
    time_limit_s: float
    deterministic_limit: float

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and numbers."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}  # ``asdict`` copies each number
        return {"kind": KIND, **own, "limits": [asdict(one) for one in self.limits]}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Question:
        """Return the question that ``to_json`` wrote."""
        own = {name: value for name, value in raw.items() if name != "kind"}
        limits = [Limit(**{**one, "parts": tuple(one["parts"])}) for one in raw["limits"]]
        return cls(**{**own, "limits": limits})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What CP-SAT decides."""

    status: str  # OPTIMAL, FEASIBLE, INFEASIBLE, UNKNOWN, MODEL_INVALID
    row: int | None = None
    cpu_s: float = 0.0  # of building and solving the model


def names_in(tree: Tree) -> Iterator[str]:
    """Yield every variable of a tree."""
    if tree[0] == "name":
        yield tree[1]
    elif tree[0] != "number":
        for operand in tree[-1] if tree[0] == "compare" else tree[1:]:
            yield from names_in(operand)


def value_of(tree: Tree, values: Mapping[str, int]) -> int:
    """Return the value of a tree for one row.

    Raises:
        ArithmeticError: a division by zero, or a number beyond ``LARGEST``.
    """
    sign, *operands = tree
    if sign == "name":
        return values[operands[0]]
    if sign == "number":
        return int(operands[0])
    if sign == "compare":
        found = [value_of(one, values) for one in operands[1]]
        pairs = zip(operands[0], pairwise(found), strict=True)
        return int(all(COMPARE[each](*pair) for each, pair in pairs))
    found = [value_of(one, values) for one in operands]
    if sign in LOGIC:
        return LOGIC[sign](*found)
    number = ARITHMETIC[sign](*found)
    if abs(number) > LARGEST:
        raise OverflowError
    return number


def keeps(tree: Tree, values: Mapping[str, int]) -> bool:
    """Return whether a row keeps a limit; what is undefined breaks it."""
    try:
        return bool(value_of(tree, values))
    except ArithmeticError:
        return False
