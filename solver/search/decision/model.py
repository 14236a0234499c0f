"""CP-SAT's model of the decision: variables for dimensions and switches, and the row that links them.

Each dimension or switch that a limit reads has a variable, the entry of the chosen row in its column
(``element`` constraints); the limits of the request and the launcher are stated over the variables, from
the words of the request, so that nothing here depends on the masks of the search. The value of a row comes
from the exact programs, which price its splits. Runs in CP-SAT's own process.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
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

    Of rows that agree in all that limits read, the one of least value stands for the others. Rows are
    numbered by value, so that the least number is the least value: a variable of its own for the value
    takes as long as all others together.
    """
    start_s = time.process_time()
    stated, able = _stated(question)
    order, columns = _told_apart(question, stated, able)
    if not order:
        return Verdict(status="INFEASIBLE", cpu_s=time.process_time() - start_s)
    kept = [True] * len(order)
    model = cp_model.CpModel()
    row = model.new_int_var(0, len(order) - 1, "row")
    variables = {name: _element(model, row, name, column) for name, column in columns.items()}
    statements, of_part = Statements(model, variables), dict[tuple[int, ...], cp_model.LiteralT]()
    for limit, table in stated:
        when = _when(statements, limit, of_part)
        try:
            if table:
                table.state(model, variables, when)
            else:
                statements.state(limit.tree, when)
        except UnstatableError:
            kept = _restricted(limit, columns, kept)
    if not any(kept):
        return Verdict(status="INFEASIBLE", cpu_s=time.process_time() - start_s)
    if not all(kept):
        known = [at for at, is_kept in enumerate(kept) if is_kept]
        model.add_linear_expression_in_domain(row, cp_model.Domain.from_values(known))
    model.minimize(row)
    if model.validate():
        return Verdict(status="MODEL_INVALID")
    solver: cp_model.CpSolver = solver_within(cp_model, question.deterministic_limit, question.seed)
    solver.parameters.max_time_in_seconds = question.time_limit_s
    solver.parameters.cp_model_probing_level = 0  # it tries every row, in two thirds of the time
    status = solver.solve(model)
    found = order[solver.value(row)] if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None
    return Verdict(status=solver.status_name(status), row=found, cpu_s=time.process_time() - start_s)


class Table(NamedTuple):
    """A rule as a table of the values that keep it: products and remainders would cost too much."""

    names: Sequence[str]  # of its variables
    every: Sequence[tuple[int, ...]]  # combinations of their values
    kept: Sequence[tuple[int, ...]]  # those that keep the rule

    def state(
        self, model: cp_model.CpModel, variables: Mapping[str, Number], when: Sequence[cp_model.LiteralT]
    ) -> None:
        """Require the rule, if all of ``when`` holds."""
        terms = [variables[name].term for name in self.names]
        if not self.kept:
            model.add_bool_or([~one for one in when])
        elif len(terms) == 1:
            known = cp_model.Domain.from_values([one for (one,) in self.kept])
            model.add_linear_expression_in_domain(terms[0], known).only_enforce_if(*when)
        else:
            free = [(0, *one) for one in self.every] if when else []
            model.add_allowed_assignments(
                [*(when or [1]), *terms], [*((1, *one) for one in self.kept), *free]
            )


def _stated(question: Question) -> tuple[list[tuple[Limit, Table | None]], list[bool]]:
    """Return the limits to state, rules with their tables, and which rows keep the rules of many values."""
    values = {name: sorted({*column}) for name, column in question.columns.items()}
    stated, able = list[tuple[Limit, Table | None]](), [True] * len(question.values)
    for limit in question.limits:
        names = list(dict.fromkeys(names_in(limit.tree)))
        if limit.of_request:
            stated.append((limit, None))
        elif prod(len(values[name]) for name in names) > MOST_TABULATED:
            able = _restricted(limit, question.columns, able)
        else:
            every = list(product(*(values[name] for name in names)))
            kept = [one for one in every if keeps(limit.tree, dict(zip(names, one, strict=True)))]
            if len(kept) < len(every):
                stated.append((limit, Table(names, every, kept)))
    return stated, able


def _restricted(limit: Limit, columns: Mapping[str, Sequence[int]], able: Sequence[bool]) -> list[bool]:
    """Return which able rows keep a limit; combinations of values that rows share are judged once."""
    names = list(dict.fromkeys(names_in(limit.tree)))
    rows = list(zip(*(columns[name] for name in names), strict=True)) or [()] * len(able)
    parts = columns[PART] if limit.parts else [0] * len(rows)
    kept = {one: keeps(limit.tree, dict(zip(names, one, strict=True))) for one in {*rows}}
    return [
        is_able and (kept[one] or (bool(limit.parts) and part not in limit.parts))
        for is_able, one, part in zip(able, rows, parts, strict=True)
    ]


def _told_apart(
    question: Question, stated: Iterable[tuple[Limit, Table | None]], able: Sequence[bool]
) -> tuple[list[int], dict[str, list[int]]]:
    """Return the indices of the rows to choose among, by value, and their columns that limits read.

    Of able rows with equal entries in these columns, the one of least value is among them.
    """
    read = {PART: question.columns[PART]} if any(limit.parts for limit, _ in stated) else {}
    read |= {name: question.columns[name] for limit, _ in stated for name in names_in(limit.tree)}
    least = dict[tuple[int, ...], int]()
    for at in sorted(range(len(able)), key=question.values.__getitem__):
        if able[at]:
            least.setdefault(tuple(column[at] for column in read.values()), at)
    rows = list(least.values())
    return rows, {name: [column[at] for at in rows] for name, column in read.items()}


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
