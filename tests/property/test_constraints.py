"""Random side constraints mean what Python means by them."""

import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.solver.configuration import Columns
from meshwright.solver.space.expressions import MAX_LENGTH, MAX_WORDS
from meshwright.solver.space.request_rules import broken_by, constraint_of, holds_for
from tests.builders import a_configuration
from tests.draws import draws

NAMES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "zero_stage")
numbers = st.recursive(
    st.one_of(st.sampled_from(NAMES), st.integers(0, 9).map(str)),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
    ),
    max_leaves=4,
)


Both = tuple[str, str]  # the text, and what Python makes of it: 0 or 1, every operand evaluated


def comparison(parts: tuple[list[str], list[str]]) -> Both:
    """A chain of two or three numbers."""
    terms, signs = parts
    text = " ".join([terms[0], *(f"{sign} {term}" for sign, term in zip(signs, terms[1:], strict=False))])
    links = [f"({left} {sign} {right})" for left, sign, right in zip(terms, signs, terms[1:], strict=False)]
    return text, f"({' & '.join(links)})"


def joined(parts: tuple[Both, str, Both]) -> Both:
    """Two operands with a word between them."""
    (left, python_left), word, (right, python_right) = parts
    python = {"and": f"({python_left} & {python_right})", "or": f"({python_left} | {python_right})",
              "=>": f"((1 - {python_left}) | {python_right})"}[word]  # fmt: skip
    return f"({left}) {word} ({right})", python


signs = st.lists(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), min_size=2, max_size=2)
comparisons = st.tuples(st.lists(numbers, min_size=2, max_size=3), signs).map(comparison)
logic = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        inner.map(lambda both: (f"not ({both[0]})", f"(1 - {both[1]})")),
        st.tuples(inner, st.sampled_from(["and", "or", "=>"]), inner).map(joined),
    ),
    max_leaves=4,
).filter(lambda both: len(both[0]) <= MAX_LENGTH and len(re.findall(r"\w+|[^\w\s]", both[0])) <= MAX_WORDS)
sizes = st.integers(1, 8)


def by_python(text: str, values: dict[str, int]) -> bool:
    """Python's verdict; what is undefined does not hold."""
    scope: dict[str, object] = {**values, "__builtins__": {}}
    try:
        return bool(eval(text, scope))  # noqa: S307 - text of this file's own strategies
    except ZeroDivisionError:
        return False


@settings(max_examples=draws(50, of_more=150), deadline=None)
@given(both=logic, tp=sizes, pp=sizes, dp=sizes, zero=st.integers(0, 3))
def test_columns_check_and_python_agree(both: Both, tp: int, pp: int, dp: int, zero: int) -> None:
    text, python = both
    values = dict(zip(NAMES, (tp, pp, dp, zero), strict=True))
    config = a_configuration(**values)
    node = constraint_of(text)
    expected = by_python(python, values)
    columns = Columns.of([config, a_configuration(), config])
    broken = broken_by(node, columns, 80)
    assert broken.shape == (3,)
    assert np.array_equal(broken[[0, 2]], [not expected] * 2)
    assert holds_for(node, values) == expected
