"""Writes expressions of a request's constraints into models of CP-SAT."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

from meshwright.solver.configuration import WORDS
from meshwright.solver.space.expressions import Node
from meshwright.solver.space.request_rules import COMPARE

Expression: TypeAlias = Any  # a linear expression of OR-Tools, which this module loads when it is asked
_MOST = 2**40  # numbers beyond this are left to the check


class BeyondModelError(Exception):
    """A number is too large for the model."""


@dataclass(frozen=True, slots=True)
class Number:
    """A linear expression with its least and its most."""

    of: Expression
    low: int
    high: int

    @classmethod
    def constant(cls, value: int) -> Number:
        """Return a number that the model doesn't choose."""
        return cls(value, value, value)


class ExpressionWriter:
    """Writes expressions into a model; ``names`` holds what each of their variables is in it."""

    def __init__(
        self, api: ModuleType, model: Expression, words: Mapping[str, Sequence[str]] = WORDS
    ) -> None:
        self._api, self._model, self._words = api, model, words
        self.names = dict[str, Number]()

    def literal(self, node: Node) -> Expression:
        """Return a literal that is true exactly where an expression holds and is defined."""
        defined = list[Expression]()
        holds = self._logical(node, defined)
        return self._all([holds, *defined]) if defined else holds

    def _all(self, literals: list[Expression]) -> Expression:
        every = self._model.new_bool_var("")
        self._model.add_bool_and(literals).only_enforce_if(every)
        self._model.add_bool_or([*(~one for one in literals), every])
        return every

    def _logical(self, node: Node, defined: list[Expression]) -> Expression:
        if node.sign == "compare":
            return self._compared(node, defined)
        if node.sign in ("name", "logical"):
            value = self._number(node, defined)
            return self._holds("==", Number(value.of - 1, value.low - 1, value.high - 1))
        parts = [self._logical(one, defined) for one in node.operands]
        if node.sign == "not":
            return ~parts[0]
        if node.sign == "and":
            return self._all(parts)
        left = ~parts[0] if node.sign == "=>" else parts[0]
        return ~self._all([~left, ~parts[1]])

    def _compared(self, node: Node, defined: list[Expression]) -> Expression:
        word_of = next((str(one.value) for one in node.operands if one.sign == "name"), "")
        values = [self._number(one, defined, word_of) for one in node.operands]
        pairs = zip(node.signs, values, values[1:], strict=False)
        found = [
            self._holds(sign, Number(one.of - other.of, one.low - other.high, one.high - other.low))
            for sign, one, other in pairs
        ]
        return self._all(found) if len(found) > 1 else found[0]

    def _holds(self, sign: str, number: Number) -> Expression:
        """Return a literal that is true exactly where a number compares so with 0."""
        if number.low == number.high:
            return self._model.new_constant(int(COMPARE[sign](number.low, 0)))
        least, most = -_MOST, _MOST
        true = {"<=": (least, 0), "<": (least, -1), ">=": (0, most), ">": (1, most)}.get(sign)
        literal = self._model.new_bool_var("")
        if true is not None:
            inside = self._api.Domain(*true)
        else:
            inside = self._api.Domain(0, 0)
            inside = inside if sign == "==" else inside.complement()
        for domain, on in ((inside, literal), (inside.complement(), ~literal)):
            self._model.add_linear_expression_in_domain(number.of, domain).only_enforce_if(on)
        return literal

    def _number(self, node: Node, defined: list[Expression], word_of: str = "") -> Number:
        if node.sign == "name":
            return self.names[str(node.value)]
        if node.sign == "word":
            return Number.constant(self._words[word_of].index(str(node.value)))
        if node.sign in ("compare", "and", "or", "not", "=>"):
            return Number(self._logical(node, defined), 0, 1)
        if not node.operands:
            return Number.constant(int(node.value))
        left, right = (self._number(one, defined) for one in node.operands)
        if node.sign in ("//", "%"):
            defined.append(self._holds("!=", right))
            return self.divided(left, right)[0 if node.sign == "//" else 1]
        return self._bounded(node.sign, left, right)

    def _bounded(self, sign: str, left: Number, right: Number) -> Number:
        """Return a sum, a difference or a product."""
        operate: Callable[[Any, Any], Any] = {"+": operator.add, "-": operator.sub, "*": operator.mul}[sign]
        ends = [operate(a, b) for a in (left.low, left.high) for b in (right.low, right.high)]
        if max(map(abs, ends)) > _MOST:
            raise BeyondModelError
        if sign != "*" or left.low == left.high or right.low == right.high:
            return Number(operate(left.of, right.of), min(ends), max(ends))
        product = self._model.new_int_var(min(ends), max(ends), "")
        self._model.add_multiplication_equality(product, [left.of, right.of])
        return Number(product, min(ends), max(ends))

    def divided(self, left: Number, right: Number) -> tuple[Number, Number]:
        """Return quotient and rest, rounded down; free where the divisor is 0."""
        most = max(abs(left.low), abs(left.high)) + 1
        largest = max(abs(right.low), abs(right.high))
        quotient = self._model.new_int_var(-most, most, "")
        rest = self._model.new_int_var(-largest, largest, "")
        whole = self._bounded("*", Number(quotient, -most, most), right)
        positive, negative = self._holds(">", right), self._holds("<", right)
        for on in (positive, negative):
            self._model.add(whole.of + rest == left.of).only_enforce_if(on)
        self._model.add_linear_constraint(rest, 0, largest).only_enforce_if(positive)
        self._model.add(rest - right.of <= -1).only_enforce_if(positive)
        self._model.add_linear_constraint(rest, -largest, 0).only_enforce_if(negative)
        self._model.add(rest - right.of >= 1).only_enforce_if(negative)
        return Number(quotient, -most, most), Number(rest, -largest, largest)
