"""Limits of a request: pins, forbidden values, bounds and side constraints."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, reduce
from typing import Any, Literal

import numpy as np

from meshwright.profiles.cluster import power_of
from meshwright.solver.configuration import (
    ALL_LAYERS,
    LOGICAL_VARIABLES,
    SHORT_NAMES,
    VARIABLES,
    WORDS,
    BoolArray,
    Columns,
    Configuration,
    IntArray,
)
from meshwright.solver.problem import DERIVED_VARIABLES, Problem
from meshwright.solver.space.expressions import (
    GROUP_ENDS,
    GROUP_NUMBERS,
    ExpressionError,
    Node,
    names_in,
    parse,
    term_of,
    written_term,
)
from meshwright.solver.space.rule import Rule
from meshwright.solver.splits import Prescribed


def without_limits(problem: Problem, names: Sequence[str]) -> Problem:
    """Return the problem without those of its own limits, named as its rules are."""
    options, parts = problem.options, iter([rule.name not in names for rule in request_rules(problem)])
    pin = {name: value for name, value in sorted(options.pin.items()) if next(parts)}
    forbid = {name: values for name, values in sorted(options.forbid.items()) if next(parts)}
    bounds = {name: ends for name, ends in sorted(options.bounds.items()) if next(parts)}
    keeps_split = bool(options.stage_layers) and next(parts)
    split = options.stage_layers if keeps_split else ()
    constraints = tuple(text for text in options.constraints if next(parts))
    changed = replace(
        options, pin=pin, forbid=forbid, bounds=bounds, stage_layers=split, constraints=constraints,
        max_power_kw=options.max_power_kw if options.max_power_kw and next(parts) else None,
    )  # fmt: skip
    return replace(problem, options=changed)


# --------------------------------------------------------------------------------------------------
# Side constraints of a request: what their words mean, and which rows break them.
#
# In the row table that the search and CP-SAT share a constraint is exact: it is one rule more
# (``rules.rules_of``), and a row that breaks it is in neither. Arithmetic is exact in 64 bits; what is
# undefined (a division by zero, a number beyond ``LARGEST``) breaks the constraint.


LARGEST = 2**62
_LOGIC: Mapping[str, Callable[..., Any]] = {
    "and": operator.and_,
    "or": operator.or_,
    "not": lambda value: 1 - value,
    "=>": lambda left, right: (1 - left) | right,
}
Sort = Literal["logical", "number", "word"]
NAMES = (*VARIABLES, *DERIVED_VARIABLES)
COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Vocabulary:
    """The names that constraints may use."""

    names: tuple[str, ...]  # numbers, but for those that are logical or words
    logical: frozenset[str] = frozenset()
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of each variable that has words
    number_terms: tuple[str, ...] = ()
    logical_terms: tuple[str, ...] = ()
    long_names: Mapping[str, str] = field(default_factory=dict)  # by short ones

    def sort_of(self, node: Node) -> Sort:
        """Return what a name is.

        Raises:
            ExpressionError: it is unknown.
        """
        name = str(node.value)
        term = term_of(name)
        if term is not None and term[0] in (*self.number_terms, *self.logical_terms):
            return "logical" if term[0] in self.logical_terms else "number"
        if term is not None:
            allowed = ", ".join((*self.number_terms, *self.logical_terms))
            raise ExpressionError(node.at, f"{term[0]} is not a term here", allowed=allowed)
        if name in self.logical or name in self.words:
            return "logical" if name in self.logical else "word"
        if name in self.names:
            return "number"
        near = difflib.get_close_matches(name.lower()[:64], self.names, n=1, cutoff=0.5)
        message, allowed_names = f"{name[:64]} is not a variable", None if near else ", ".join(self.names)
        raise ExpressionError(node.at, message, allowed=allowed_names, nearest=next(iter(near), None))


LAYOUT = Vocabulary(
    names=NAMES, logical=frozenset(LOGICAL_VARIABLES), words=WORDS,
    number_terms=GROUP_NUMBERS, logical_terms=GROUP_ENDS,
    long_names={short: name for name, short in SHORT_NAMES.items()},
)  # fmt: skip


@lru_cache(maxsize=1024)
def constraint_of(text: str, of: Vocabulary = LAYOUT) -> Node:
    """Return the checked tree of a constraint.

    Raises:
        ExpressionError: it is not an expression, names unknowns, or mixes numbers, words and logic.
    """
    node = _written_out(parse(text), of)
    if _sort(node, of) != "logical":
        raise ExpressionError(node.at, "a constraint is one comparison, or several with and, or, not, =>")
    return node


def _written_out(node: Node, of: Vocabulary) -> Node:
    if node.sign == "name":
        return replace(node, value=of.long_names.get(str(node.value), node.value))
    return replace(node, operands=tuple(_written_out(one, of) for one in node.operands))


@lru_cache(maxsize=1024)
def names_of(texts: tuple[str, ...]) -> frozenset[str]:
    """Return every variable that some constraint of a request names."""
    return frozenset(name for text in texts for name in names_in(constraint_of(text)))


def limited_by(problem: Problem) -> frozenset[str]:
    """Return variables that a request limits: by pin, prohibition or bound, or in a constraint."""
    return problem.options.named | names_of((*problem.options.constraints, *power_texts(problem)))


def names_groups(text: str) -> bool:
    """Return whether a constraint has terms of node groups, so that it concerns a whole placement."""
    return any(term_of(name) for name in names_of((text,)))


def group_constraints(problem: Problem) -> tuple[str, ...]:
    """Return the constraints of a request that have terms of node groups."""
    every = (*problem.options.constraints, *power_texts(problem))
    return tuple(text for text in every if names_groups(text))


def power_texts(problem: Problem) -> tuple[str, ...]:
    """Return the power budget as a constraint; none without one, or where a part cannot keep it alone.

    What stages draw depends on their groups, so that milliwatts of all groups are added up. One mesh over
    unlike groups is counted at the power of the GPU that draws most.
    """
    kw = problem.options.max_power_kw
    if kw is None or problem.among_unlike:
        return ()
    named = problem.cluster.group_named
    draws_mw = {
        name: round(power_of(group.gpu, problem.power_limit_w).busy_w * 1e3)
        for name, group in named.items()
    }
    most_mw = round(kw * 1e6)
    if not problem.places_stages:
        return (f"num_gpus <= {most_mw // max(draws_mw.values())}",)
    drawn = (f"{each} * {written_term('gpus', name)}" for name, each in draws_mw.items())
    return (f"{' + '.join(drawn)} <= {most_mw}",)


def counts_kept(problem: Problem, counts: IntArray) -> BoolArray:
    """Return which numbers of GPUs keep the power budget and the constraints on these alone."""
    texts = (*problem.options.constraints, *power_texts(problem))
    own = [one for one in map(constraint_of, texts) if set(names_in(one)) == {"num_gpus"}]
    if not own:
        return np.ones(len(counts), dtype=np.bool_)
    plain = Columns.of([Configuration()]).take(np.zeros(len(counts), dtype=np.int64))
    rows, layers = replace(plain, data_parallel_size=counts), problem.model.num_layers
    broken = [broken_by(one, rows, num_layers=layers) for one in own]
    return np.asarray(~np.logical_or.reduce(broken))


def names_unknown_group(problem: Problem, text: str) -> bool:
    """Return whether a constraint names a node group that the cluster lacks; then nothing keeps it."""
    terms = filter(None, map(term_of, names_of((text,))))
    return any(group not in problem.cluster.group_named for _, group in terms)


def with_group_renamed(constraints: Sequence[str], old: str, new: str) -> tuple[str, ...]:
    """Return constraints that name a node group by another name."""
    return tuple(re.sub(rf"(['\"]){re.escape(old)}\1", rf"\g<1>{new}\g<1>", text) for text in constraints)


def _sort(node: Node, of: Vocabulary) -> Sort:
    if node.sign == "name":
        return of.sort_of(node)
    if node.sign in ("number", "word", "logical"):
        return node.sign  # type: ignore[return-value]
    if node.sign in ("and", "or", "not", "=>"):
        _require("logical", node.operands, of)
        return "logical"
    if node.sign == "compare":
        _check_comparison(node, of)
        return "logical"
    _require("number", node.operands, of)
    return "number"


def _require(sort: Sort, operands: tuple[Node, ...], of: Vocabulary) -> None:
    words = {"logical": "a comparison or a logical variable", "number": "a number", "word": "a word"}
    for operand in operands:
        if _sort(operand, of) != sort:
            raise ExpressionError(operand.at, f"{words[sort]} is expected here")


def _check_comparison(node: Node, of: Vocabulary) -> None:
    """Check comparisons: equal types; words and truth values only (un)equal, and words known."""
    sort = _sort(node.operands[0], of)
    if sort == "word" and node.operands[0].sign == "word":
        sort = _sort(node.operands[-1], of)
    _require(sort, node.operands, of)
    if sort != "number" and (set(node.signs) - {"==", "!="} or len(node.signs) > 1):
        raise ExpressionError(node.at, "words and truth values are compared by == or != alone")
    if sort == "word":
        if all(operand.sign == "name" for operand in node.operands):
            raise ExpressionError(node.operands[1].at, "a word in quotes is expected here")
        for one, other in (node.operands, node.operands[::-1]):
            _check_word(one, other, of)


def _check_word(variable: Node, word: Node, of: Vocabulary) -> None:
    if word.sign != "word":
        return
    if variable.sign != "name":
        raise ExpressionError(variable.at, "a quoted word needs a variable next to it")
    known = of.words[str(variable.value)]
    if word.value not in known:
        near = difflib.get_close_matches(str(word.value).lower()[:64], known, n=1, cutoff=0.5)
        message = f"{str(word.value)[:64]!r} is none of {', '.join(known)}"
        raise ExpressionError(word.at, message, nearest=next(iter(near), known[0]))


def broken_by(
    node: Node, columns: Columns, num_layers: int, terms: Mapping[str, IntArray] | None = None
) -> BoolArray:
    """Mark rows that break a constraint, shape (n,).

    ``terms``: what each row takes of node groups; without them a constraint on node groups is broken.
    """
    if terms is None and any(map(term_of, names_in(node))):
        return np.ones(len(columns), dtype=np.bool_)
    rows = _Rows(columns, num_layers, terms or {})
    holds = rows.value(node) != 0
    return np.broadcast_to(~holds | rows.undefined, rows.undefined.shape)


class _Rows:
    """Evaluates expressions over all rows at once, and remembers where one is undefined.

    Every value is an int64 array: numbers, codes of words, 0 and 1 for false and true.
    """

    def __init__(self, columns: Columns, num_layers: int, terms: Mapping[str, IntArray]) -> None:
        self._columns, self._terms = columns, terms
        self._num_layers = num_layers
        self.undefined: BoolArray = np.zeros(len(columns), dtype=np.bool_)

    def value(self, node: Node, word_of: str = "") -> IntArray:
        """Return values of an expression; a word is one of the variable ``word_of``."""
        if node.sign == "name":
            term = self._terms.get(str(node.value))
            return column_of(self._columns, str(node.value), self._num_layers) if term is None else term
        if node.sign == "word":
            return np.array(WORDS[word_of].index(str(node.value)))
        if not node.operands:
            return np.array(int(node.value))
        named = next((str(one.value) for one in node.operands if one.sign == "name"), "")
        values = [self.value(operand, named) for operand in node.operands]
        if node.sign == "compare":
            pairs = zip(node.signs, values, values[1:], strict=False)
            holds = [np.asarray(COMPARE[sign](left, right)) for sign, left, right in pairs]
            return np.asarray(reduce(np.logical_and, holds), dtype=np.int64)
        if node.sign in _LOGIC:
            return np.asarray(_LOGIC[node.sign](*values))
        return self._number(node.sign, *values)

    def _number(self, sign: str, left: IntArray, right: IntArray) -> IntArray:
        """Apply an operation, 0 where it is undefined."""
        if sign in ("//", "%"):
            zero = np.asarray(right == 0)
            self.undefined = self.undefined | zero
            return np.asarray(ARITHMETIC[sign](left, np.where(zero, 1, right)))
        size = ARITHMETIC[sign](left.astype(np.float64), right.astype(np.float64))
        lost = np.abs(size) > 1.5 * LARGEST  # safely between what is allowed and what overflows
        exact = ARITHMETIC[sign](np.where(lost, 0, left), np.where(lost, 0, right))
        lost = lost | (np.abs(exact) > LARGEST)
        self.undefined = self.undefined | lost
        return np.where(lost, 0, exact)


def column_of(columns: Columns, name: str, num_layers: int) -> IntArray:
    """Return a variable as a request means it, shape (n,)."""
    values: IntArray = getattr(columns, "recompute" if name == "recompute_granularity" else name)
    # of a configuration that recomputes every layer: all
    return np.where(values >= ALL_LAYERS, num_layers, values) if name == "recompute_layers" else values


_DERIVED_FROM = {
    "num_gpus": (
        "tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "data_parallel_size",
    ),
    "global_batch_size": ("data_parallel_size", "micro_batch_size", "num_microbatches"),
}  # fmt: skip


def columns_named(names: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that decide variables, as ``column_of`` reads them."""
    variables = (name for name in names if not term_of(name))
    columns = (_DERIVED_FROM.get(name) or (VARIABLES[name].column or name,) for name in variables)
    return tuple(sorted({column for some in columns for column in some}))


def holds_for(node: Node, values: Mapping[str, int | str | bool]) -> bool:
    """Return whether one configuration keeps a constraint; evaluated on plain integers for the check."""
    try:
        return bool(_plain(node, values))
    except ArithmeticError:
        return False


def _plain(node: Node, values: Mapping[str, int | str | bool]) -> int | str | bool:
    """Return the value of an expression; ArithmeticError where it is undefined.

    Every operand is evaluated: an undefined part breaks a constraint.
    """
    if not node.operands:
        return values[str(node.value)] if node.sign == "name" else node.value
    operands = [_plain(operand, values) for operand in node.operands]
    if node.sign == "compare":
        pairs = zip(node.signs, operands, operands[1:], strict=False)
        return all(COMPARE[sign](left, right) for sign, left, right in pairs)
    if node.sign in _LOGIC:
        return bool(_LOGIC[node.sign](*map(int, operands)))
    found = int(ARITHMETIC[node.sign](*operands))
    if abs(found) > LARGEST:
        raise OverflowError
    return found


def coded(variable: str, value: int | str) -> int:
    """Return a word as columns store it; -1 for an unknown word. Numbers stay."""
    words = WORDS.get(variable)
    if words is None:
        return int(value)
    return words.index(str(value)) if value in words else -1


def request_rules(problem: Problem) -> Iterator[Rule]:
    """Yield pins, forbidden values, bounds and constraints of the request."""
    layers, options = problem.model.num_layers, problem.options

    def rule(name: str, variable: str, breaks: Callable[[IntArray], BoolArray]) -> Rule:
        return Rule(
            name=name,
            reason="the request asks for it",
            reads=columns_named([variable]),
            violated=lambda c: breaks(column_of(c, variable, layers)),
            of_request=True,
        )

    for variable, value in sorted(options.pin.items()):
        yield rule(f"pin {variable} = {value}", variable, partial(np.not_equal, coded(variable, value)))
    for variable, values in sorted(options.forbid.items()):
        words = ", ".join(str(value) for value in values)
        taboo = np.array([coded(variable, value) for value in values], dtype=np.int64)
        yield rule(f"forbid {variable} = {words}", variable, partial(np.isin, test_elements=taboo))
    for variable, (low, high) in sorted(options.bounds.items()):
        name = f"bounds {low} <= {variable} <= {high}"
        yield rule(name, variable, partial(_outside, low=low, high=high))
    if options.stage_layers:
        yield Rule(
            name=f"pin stage_layers with {len(options.stage_layers)} chunks",
            reason="the request asks for it",
            reads=Prescribed.READS,
            violated=Prescribed.of(problem).lacking,
            of_request=True,
        )
    yield from _constraint_rules(problem)


def _constraint_rules(problem: Problem) -> Iterator[Rule]:
    """Yield the request's expressions, and its limit of power as an expression."""
    layers, options = problem.model.num_layers, problem.options
    constraints = [
        (f"constraint {text}", "the request asks for it", text)
        for text in options.constraints
        if not (problem.among_unlike and names_groups(text))  # ``mixed.limits`` and the check hold those
    ]
    limited = f", each at most {problem.power_limit_w:g} W" if problem.power_limit_w else ""
    constraints += [
        (
            f"max_power_kw = {options.max_power_kw:g}",
            f"the request asks for it: GPUs at full load, without hosts{limited}",
            text,
        )
        for text in power_texts(problem)
    ]
    for name, reason, text in constraints:
        yield Rule(
            name=name,
            reason=reason,
            reads=columns_named(names_in(constraint_of(text))),
            violated=partial(broken_by, constraint_of(text), num_layers=layers),
            of_request=True,
        )


def _outside(values: IntArray, low: int, high: int) -> BoolArray:
    return (values < low) | (values > high)
