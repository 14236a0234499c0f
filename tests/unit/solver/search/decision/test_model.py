"""Limits as CP-SAT's constraints against their evaluation row by row, and the row of least value."""

from random import Random
from typing import Any

import pytest

from meshwright.solver.search.cp_sat import without_pandas

without_pandas()

from meshwright.solver.search.decision.model import LARGEST_STATED, decide  # noqa: E402 - without pandas
from meshwright.solver.search.decision.question import (  # noqa: E402 - the same
    COMPARE,
    PART,
    Limit,
    Question,
    Tree,
    keeps,
)

NAMES = ("a", "b", "c")


def a_number(random: Random, depth: int) -> Tree:
    """A drawn number."""
    if not depth or random.random() < 0.3:
        return ["name", random.choice(NAMES)] if random.random() < 0.6 else ["number", random.randint(0, 9)]
    return [
        random.choice(["+", "-", "*", "//", "%"]),
        a_number(random, depth - 1),
        a_number(random, depth - 1),
    ]


def a_condition(random: Random, depth: int) -> Tree:
    """A drawn condition."""
    kind = random.random()
    if not depth or kind < 0.4:
        count = random.choice((2, 2, 3))
        signs = [random.choice(list(COMPARE)) for _ in range(count - 1)]
        return ["compare", signs, [a_number(random, 2) for _ in range(count)]]
    left, right = (a_condition(random, depth - 1) for _ in range(2))
    if kind < 0.5:
        return ["not", left]
    return (
        ["compare", ["=="], [left, right]]
        if kind < 0.6
        else [random.choice(["and", "or", "=>"]), left, right]
    )


def a_question(seed: int) -> Question:
    """A drawn question: some rows, negative and zero values, limits of some parts."""
    random = Random(seed)
    count = random.randint(1, 12)
    columns = {name: [random.randint(-3 * (name == "c"), 8) for _ in range(count)] for name in NAMES}
    columns[PART] = [random.randint(0, 2) for _ in range(count)]
    limits = [
        Limit(
            name=str(at),
            tree=a_condition(random, 2),
            parts=tuple(sorted(random.sample(range(3), random.choice((0, 1, 2))))),
            of_request=random.random() < 0.5,
        )
        for at in range(random.randint(1, 2))
    ]
    values = random.sample(range(1000), count)
    return asked(values=values, columns=columns, limits=limits)


def asked(**parts: Any) -> Question:  # noqa: ANN401 - the parts of a question
    """A question with limits of time."""
    return Question(seed=0, time_limit_s=10.0, deterministic_limit=10.0, **parts)


def kept(question: Question, row: int) -> bool:
    """Whether a row keeps every limit, evaluated."""
    values = {name: column[row] for name, column in question.columns.items()}
    return all(
        (one.parts and values[PART] not in one.parts) or keeps(one.tree, values) for one in question.limits
    )


def test_the_choice_is_the_least_row_that_keeps_every_limit_as_evaluated() -> None:
    for seed in range(150):
        question = a_question(seed)
        able = [row for row in range(len(question.values)) if kept(question, row)]
        found = decide(Question.from_json(question.to_json()))
        assert (found.status, found.row) == (
            ("OPTIMAL", min(able, key=lambda row: question.values[row])) if able else ("INFEASIBLE", None)
        ), seed


@pytest.mark.parametrize("factor", [1, LARGEST_STATED, 2**62])
def test_numbers_too_large_for_the_solver_are_tabulated_and_undefined_ones_break_a_limit(
    factor: int,
) -> None:
    tree: Tree = ["compare", ["<"], [["number", 2], ["*", ["name", "a"], ["number", factor]]]]
    columns = {"a": [1, 2, 3], PART: [0, 0, 0]}
    found = decide(asked(values=[1, 2, 3], columns=columns, limits=[Limit(name="", tree=tree)]))
    assert found.row == {1: 2, LARGEST_STATED: 0, 2**62: 0}[factor]
