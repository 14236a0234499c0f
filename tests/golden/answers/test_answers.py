"""Whole answers to forty-odd requests, value for value; UPDATE_GOLDEN=1 writes them anew.

Only what depends on the machine or the release is left out: ``elapsed_s`` and ``versions``, and the last
digits of a number, which differ with the vector instructions of the processor.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.service.cli.costs import profile_for
from meshwright.service.jobs.answers import answer_document
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.planner.plan import ask
from tests.draws import WHOLE

FOLDER = Path(__file__).parent
REQUESTS: dict[str, dict[str, Any]] = yaml.load((FOLDER / "requests.yaml").read_text(), yaml.CSafeLoader)
# Large ones, of kinds that others show: experts, no launcher's rules, schedules with a split backward pass,
# launchers that write Megatron-Core's arguments, products in 8 bits, and groups of nodes. Fronts are judged
# by tests/property, too, and why nothing fits by tests/unit. ``make fuzz`` asks all of them.
SELDOM = (
    "deepseek-v3-megatron", "fp8", "gpt3-none", "llama-8b-bridge", "llama-8b-llama-factory",
    "llama-8b-ms-swift", "llama-8b-zb-1p", "mixtral-8x7b-bridge-certified", "pareto", "three-groups",
    "deadline-missed", "infeasible-mixed", "llama-2-7b-torchtitan", "reserve",
)  # fmt: skip
LEFT_OUT = ("elapsed_s", "versions")
ROUNDING = 1e-10
RESIDUE = 1e-15  # of seconds that are taken from one another: 0.0 on one processor, 3e-17 on another


def answer_to(request: dict[str, Any]) -> str:
    """The answer as the command line prints it, one list element a line."""
    problem = parse_problem(request)
    document = answer_document(ask(problem, profile_for(problem, None)), problem)
    return json.dumps({k: v for k, v in document.items() if k not in LEFT_OUT}, indent=1) + "\n"


@pytest.mark.parametrize("name", [name for name in REQUESTS if WHOLE or name not in SELDOM])
def test_the_answer_is_the_one_that_was_reviewed(name: str) -> None:
    path = FOLDER / f"{name}.json"
    answer = answer_to(REQUESTS[name])
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(answer)
    found, reviewed = (dict(values_of(json.loads(text))) for text in (answer, path.read_text()))
    assert found.keys() == reviewed.keys()
    assert [at for at, value in found.items() if not same(value, reviewed[at])] == []


def values_of(document: object, at: str = "") -> Iterator[tuple[str, object]]:
    """Every value of a document with its place, in order; what is empty is a value."""
    if not document or not isinstance(document, dict | list):
        yield at, document
        return
    for name, part in document.items() if isinstance(document, dict) else enumerate(document):
        yield from values_of(part, f"{at}/{name}")


def same(one: object, other: object) -> bool:
    """Whether two values are equal, or numbers that differ by rounding alone."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=ROUNDING, abs_tol=RESIDUE)
    return type(one) is type(other) and one == other


def test_numbers_may_differ_in_their_last_digits_and_in_nothing_else() -> None:
    assert same(0.1 + 0.2, 0.3)
    assert not same(0.3, 0.3 * (1 + 1e-9))
    assert not same(3, 3.0)
    assert dict(values_of({"a": [], "b": [1, {"c": None}]})) == {"/a": [], "/b/0": 1, "/b/1/c": None}


def test_no_answer_is_kept_without_its_request() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(REQUESTS)
    assert {*SELDOM} <= set(REQUESTS)
