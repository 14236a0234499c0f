"""The test command of one mutant: run the tests that execute the line that it changes.

``python -m benchmarks.mutation.covering COVERAGE`` runs in a checkout in which one file is changed. Tests
that execute few lines come first, because they are fast and say most. Exits with 1 when a test fails, and
with 0 when all pass, when no test executes the line, or when the time is spent.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping

import pytest

MOST_S = 120.0
CHANGED = re.compile(r"^@@ -(\d+)(?:,(\d+))? ", re.MULTILINE)


def changed_lines() -> tuple[str, set[int]]:
    """Return the changed file, relative to the checkout, and the numbers its changed lines had before."""
    diff = subprocess.run(["git", "diff", "-U0"], capture_output=True, text=True, check=True).stdout
    name = re.search(r"^--- a/(.+)$", diff, re.MULTILINE)
    lines = set[int]()
    for start, count in CHANGED.findall(diff):
        lines |= set(range(int(start), int(start) + max(int(count or 1), 1)))
    return (name.group(1) if name else "", lines)


def covering_tests(
    tests_of: Mapping[str, Mapping[int, list[str]]], file: str, lines: set[int]
) -> list[str]:
    """Return the tests that execute a changed line, those that execute the fewest lines first.

    A line that runs when its module is imported belongs to no test: then all tests of that file count.

    Args:
        tests_of: By measured file and line, the names of the tests that execute it; "" is the import.
        file: The end of the changed file's path.
        lines: Numbers of its changed lines.
    """
    own = next((lines_of for path, lines_of in tests_of.items() if path.endswith(f"/{file}")), {})
    found = {test for line in lines for test in own.get(line, ()) if test}
    found = found or {test for tests in own.values() for test in tests if test}
    sizes = Counter(test for of in tests_of.values() for tests in of.values() for test in tests)
    return sorted(found, key=lambda test: (sizes[test], test))


class Deadline:
    """A plugin of pytest that starts no test after a time."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """End the session before the test when the time is spent."""
        if time.monotonic() > self.end:
            item.session.shouldstop = "the time is spent"
            pytest.skip("the time is spent")


def main() -> int:
    """Run them; 1 when one fails."""
    from coverage import CoverageData  # noqa: PLC0415 - in .venv-mutants

    data = CoverageData(sys.argv[1])
    data.read()
    measured = {path: data.contexts_by_lineno(path) for path in data.measured_files()}
    tests = [test.removesuffix("|run") for test in covering_tests(measured, *changed_lines())]
    if not tests:
        return 0
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=line"]
    code = pytest.main([*options, *tests], plugins=[Deadline(MOST_S)])
    return int(code not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED})


if __name__ == "__main__":
    sys.exit(main())
