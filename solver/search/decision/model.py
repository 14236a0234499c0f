"""CP-SAT's model of the decision: a variable for every dimension and switch, and the row that links them.

Each variable is the entry of the chosen row in its column (``element`` constraints); the limits of the
request and the launcher are stated over the variables, from the words of the request, so that nothing here
depends on the masks of the search. The value of a row comes from the exact programs, which price its
splits. Runs in CP-SAT's own process.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from math import prod
from typing import NamedTuple, cast

from ortools.sat.python import cp_model

from meshwright.solver.search.cp_sat import solver_within
from meshwright.solver.search.decision.question import PART, Limit, Question, Tree, Verdict, keeps, names_in

MOST_TABULATED = 64  # values of a rule's variables that are tried one by one
LARGEST_STATED = 2**40  # sums and products that may be larger are tabulated by row instead


class Number(NamedTuple):
    """An expression with the least and the most that it can be."""

    term: cp_model.LinearExpr | int
    low: int
    high: int


class UnstatableError(ArithmeticError):
    """Sums or products of a limit may be too large for the solver."""


class Statements:
    """Limits stated over the variables of a model."""

    def __init__(self, model: cp_model.CpModel, variables: Mapping[str, Number]) -> None:
        self._model, self._variables = model, variables
        self._defined: list[cp_model.LiteralT] = []  # divisors of the limit at hand that are not zero

    def state(self, tree: Tree, when: Sequence[cp_model.LiteralT] = ()) -> None:
        """Require a limit, if all of ``when`` holds.

        Raises:
            UnstatableError: its numbers may be too large.
        """
        if tree[0] == "and" and not when:
            for operand in tree[1:]:
                self.state(operand)
            return
        self._defined = []
        holds = self.literal(tree)
        for each in (holds, *self._defined):
            if when:
                self._model.add_bool_or([each, *(~one for one in when)])
            else:
                self._model.add_bool_and([each])

    def literal(self, tree: Tree) -> cp_model.LiteralT:
        """Return a literal that is true where a logical tree is."""
        sign, *operands = tree
        if sign == "compare":
            numbers = [self.number(one) for one in operands[1]]
            return self._all([
                self._compared(each, left, right)
                for each, (left, right) in zip(operands[0], pairwise(numbers), strict=True)
            ])  # fmt: skip
        if sign == "not":
            return ~self.literal(operands[0])
        if sign == "and":
            return self._all([self.literal(one) for one in operands])
        if sign == "or":
            return ~self._all([~self.literal(one) for one in operands])
        if sign == "=>":
            left, right = (self.literal(one) for one in operands)
            return ~self._all([left, ~right])
        return self._compared("!=", self.number(tree), Number(0, 0, 0))  # a logical variable

    def number(self, tree: Tree) -> Number:
        """Return a tree as a number; truth is 1."""
        sign, *operands = tree
        if sign == "name":
            return self._variables[operands[0]]
        if sign == "number":
            return Number(operands[0], operands[0], operands[0])
        if sign in ("compare", "and", "or", "not", "=>"):
            return Number(cast("cp_model.LinearExpr", self.literal(tree)), 0, 1)
        left, right = (self.number(one) for one in operands)
        if sign == "+":
            return _within(Number(left.term + right.term, left.low + right.low, left.high + right.high))
        if sign == "-":
            return _within(Number(left.term - right.term, left.low - right.high, left.high - right.low))
        return self._product(left, right) if sign == "*" else self._divided(sign, left, right)

    def _all(self, literals: Sequence[cp_model.LiteralT]) -> cp_model.LiteralT:
        if len(literals) == 1:
            return literals[0]
        every = self._model.new_bool_var("")
        self._model.add_bool_and(literals).only_enforce_if(every)
        self._model.add_bool_or([every, *(~one for one in literals)])
        return every

    def _compared(self, sign: str, left: Number, right: Number) -> cp_model.LiteralT:
        holds, model = self._model.new_bool_var(""), self._model
        difference = left.term - right.term
        if isinstance(difference, int):
            model.add_bool_and([holds if _SIGNS[sign](difference) else ~holds])
            return holds
        if sign in ("==", "!="):
            model.add(difference == 0).only_enforce_if(holds)
            model.add(difference != 0).only_enforce_if(~holds)
            return holds if sign == "==" else ~holds
        if sign in ("<=", ">"):
            model.add(difference <= 0).only_enforce_if(holds)
            model.add(difference >= 1).only_enforce_if(~holds)
            return holds if sign == "<=" else ~holds
        model.add(difference >= 0).only_enforce_if(holds)
        model.add(difference <= -1).only_enforce_if(~holds)
        return holds if sign == ">=" else ~holds

    def _product(self, left: Number, right: Number) -> Number:
        ends = [a * b for a in left[1:] for b in right[1:]]
        if left.low == left.high or right.low == right.high:
            known, other = (left, right) if left.low == left.high else (right, left)
            return _within(Number(other.term * known.low, min(ends), max(ends)))
        low, high = _within(Number(0, min(ends), max(ends)))[1:]
        product = self._model.new_int_var(low, high, "")
        self._model.add_multiplication_equality(product, [left.term, right.term])
        return Number(product, low, high)

    def _divided(self, sign: str, left: Number, right: Number) -> Number:
        """Return ``left // right`` or ``left % right``, which round down: left = q * right + rest."""
        model = self._model
        if right.low <= 0 <= right.high:
            right = self._not_zero(right)
        most = max(abs(left.low), abs(left.high)) + 1
        size = max(abs(right.low), abs(right.high))
        quotient = Number(model.new_int_var(-most, most, ""), -most, most)
        rest = model.new_int_var(min(right.low + 1, 0), max(right.high - 1, 0), "")
        whole = self._product(quotient, right)
        model.add(left.term == whole.term + rest)
        positive = self._compared(">", right, Number(0, 0, 0))
        model.add(rest >= 0).only_enforce_if(positive)
        model.add(rest - right.term <= -1).only_enforce_if(positive)
        model.add(rest <= 0).only_enforce_if(~positive)
        model.add(rest - right.term >= 1).only_enforce_if(~positive)
        return quotient if sign == "//" else Number(rest, -size, size)

    def _not_zero(self, divisor: Number) -> Number:
        """Return a divisor that is 1 where it would be 0; there the limit is not defined, and broken."""
        defined, model = self._compared("!=", divisor, Number(0, 0, 0)), self._model
        self._defined.append(defined)
        other = model.new_int_var(min(divisor.low, 1), max(divisor.high, 1), "")
        model.add(other == divisor.term).only_enforce_if(defined)
        model.add(other == 1).only_enforce_if(~defined)
        model.add(other != 0)
        return Number(other, min(divisor.low, 1), max(divisor.high, 1))


_SIGNS = {
    "<=": lambda n: n <= 0, "<": lambda n: n < 0, ">=": lambda n: n >= 0, ">": lambda n: n > 0,
    "==": lambda n: n == 0, "!=": lambda n: n != 0,
}  # fmt: skip


def _within(number: Number) -> Number:
    if max(abs(number.low), abs(number.high)) > LARGEST_STATED:
        raise UnstatableError
    return number


def decide(question: Question) -> Verdict:
    """Return the row of least value that keeps every limit, proved, in one thread and reproducibly.

    Rows are numbered by value, so that the least number is the least value: a variable of its own for the
    value takes as long as all others together.
    """
    start_s = time.process_time()
    order = sorted(range(len(question.values)), key=question.values.__getitem__)
    columns = {name: [column[at] for at in order] for name, column in question.columns.items()}
    model = cp_model.CpModel()
    row = model.new_int_var(0, len(order) - 1, "row")
    variables = {name: _element(model, row, name, column) for name, column in columns.items()}
    statements, tables = Statements(model, variables), Tables(model, variables, columns, len(order))
    of_part = dict[tuple[int, ...], cp_model.LiteralT]()
    for limit in question.limits:
        try:
            when = _when(statements, limit, of_part)
            if limit.of_request:
                statements.state(limit.tree, when)
            else:
                tables.state(limit, when)
        except UnstatableError:
            tables.restrict(limit)
    if not any(tables.able):
        return Verdict(status="INFEASIBLE", cpu_s=time.process_time() - start_s)
    if not all(tables.able):
        able = [at for at, is_able in enumerate(tables.able) if is_able]
        model.add_linear_expression_in_domain(row, cp_model.Domain.from_values(able))
    model.minimize(row)
    if model.validate():
        return Verdict(status="MODEL_INVALID")
    solver: cp_model.CpSolver = solver_within(cp_model, question.deterministic_limit, question.seed)
    solver.parameters.max_time_in_seconds = question.time_limit_s
    solver.parameters.cp_model_probing_level = 0  # it tries every row, in two thirds of the time
    status = solver.solve(model)
    found = order[solver.value(row)] if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None
    return Verdict(status=solver.status_name(status), row=found, cpu_s=time.process_time() - start_s)


class Tables:
    """Rules stated as tables of the values that keep them: products and remainders would cost too much."""

    def __init__(
        self, model: cp_model.CpModel, variables: Mapping[str, Number],
        columns: Mapping[str, Sequence[int]], rows: int,
    ) -> None:  # fmt: skip
        self._model, self._variables, self._columns = model, variables, columns
        self._values = {name: sorted({*column}) for name, column in columns.items()}
        self.able = [True] * rows  # that keep what is stated of rows alone

    def state(self, limit: Limit, when: Sequence[cp_model.LiteralT]) -> None:
        """Require a rule: of the values of its variables, or of the rows where those are many."""
        names = list(dict.fromkeys(names_in(limit.tree)))
        if prod(len(self._values[name]) for name in names) > MOST_TABULATED:
            self.restrict(limit)
            return
        every = list(product(*(self._values[name] for name in names)))
        kept = [one for one in every if keeps(limit.tree, dict(zip(names, one, strict=True)))]
        terms = [self._variables[name].term for name in names]
        if len(kept) == len(every):
            return
        if not kept:
            self._model.add_bool_or([~one for one in when])
        elif len(terms) == 1:
            known = cp_model.Domain.from_values([one for (one,) in kept])
            self._model.add_linear_expression_in_domain(terms[0], known).only_enforce_if(*when)
        else:
            free = [(0, *one) for one in every] if when else []
            self._model.add_allowed_assignments(
                [*(when or [1]), *terms], [*((1, *one) for one in kept), *free]
            )

    def restrict(self, limit: Limit) -> None:
        """Require a limit of every row; combinations of values that rows share are judged once."""
        names = list(dict.fromkeys(names_in(limit.tree)))
        rows = list(zip(*(self._columns[name] for name in names), strict=True)) or [()] * len(self.able)
        parts = self._columns[PART] if limit.parts else [0] * len(rows)
        kept = {one: keeps(limit.tree, dict(zip(names, one, strict=True))) for one in {*rows}}
        for at, (one, part) in enumerate(zip(rows, parts, strict=True)):
            self.able[at] &= kept[one] or (bool(limit.parts) and part not in limit.parts)


def _element(model: cp_model.CpModel, row: cp_model.IntVar, name: str, column: Sequence[int]) -> Number:
    """Return the variable of a column: the entry of the chosen row."""
    known = sorted(set(column))
    if len(known) == 1:
        return Number(known[0], known[0], known[0])
    variable = model.new_int_var_from_domain(cp_model.Domain.from_values(known), name)
    model.add_element(row, column, variable)
    return Number(variable, known[0], known[-1])


def _when(
    statements: Statements, limit: Limit, known: dict[tuple[int, ...], cp_model.LiteralT]
) -> list[cp_model.LiteralT]:
    """Return the condition that the chosen row is of a part that the limit concerns."""
    if not limit.parts:
        return []
    if limit.parts not in known:
        equal = [["compare", ["=="], [["name", PART], ["number", part]]] for part in limit.parts]
        known[limit.parts] = statements.literal(["or", *equal])
    return [known[limit.parts]]
