"""Which tests can notice a mutant, and in which order they are run: the fastest first."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

FIRST_S, GROWTH = 1.0, 6.0  # the first batch of tests, and how much longer each next one is


def statement_lines(code: str, line: int) -> range:
    """Return the lines of the innermost statement at a line; of a compound statement, its head alone."""
    found = range(line, line + 1)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else (node.end_lineno or node.lineno)
            if line <= max(last, node.lineno):  # walked from the outside in: the last one is the innermost
                found = range(node.lineno, max(last, node.lineno) + 1)
    return found


def covering_tests(
    tests_of: Mapping[int, Sequence[str]],
    lines: Sequence[int],
    package: Callable[[], Collection[str]],
    seconds_of: Mapping[str, float],
) -> list[str]:
    """Return the passing tests that execute one of the lines, the fastest first.

    A line that runs when its module is imported belongs to no test: then all tests of its package count.

    Args:
        tests_of: By line of the changed file, the names of the tests that execute it; "" is the import.
        lines: Lines of the changed statement.
        package: Returns the tests that execute any line of the file's folder.
        seconds_of: Measured seconds of each test that passes without a mutant.
    """
    found = {test for line in lines for test in tests_of.get(line, ())} & seconds_of.keys()
    found = found or set(package()) & seconds_of.keys()
    return sorted(found, key=lambda test: (seconds_of[test], test))


def batches(tests: Sequence[str], seconds_of: Mapping[str, float], most_s: float) -> Iterator[list[str]]:
    """Yield the tests in batches of growing length: most mutants die in the first, which starts at once."""
    limit_s, batch, spent_s, total_s = FIRST_S, list[str](), 0.0, 0.0
    for test in tests:
        total_s += seconds_of[test]
        if total_s > most_s and test != tests[0]:
            break
        batch.append(test)
        spent_s += seconds_of[test]
        if spent_s >= limit_s:
            yield batch
            limit_s, batch, spent_s = limit_s * GROWTH, [], 0.0
    if batch:
        yield batch


def passed(times: Path) -> dict[str, float]:
    """Read the seconds of each test that passed from pytest's XML: no other can notice a mutant."""
    found = dict[str, float]()
    for case in ET.parse(times).iter("testcase"):  # noqa: S314 - written by our own pytest
        if not len(case) or all(child.tag in ("system-out", "system-err", "properties") for child in case):
            name = case.get("classname", "").replace(".", "/") + ".py::" + case.get("name", "")
            found[name] = float(case.get("time", "0"))
    return found
