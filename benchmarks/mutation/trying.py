"""Try mutants: run the tests that execute the changed line, the fastest first, until one fails.

``python -m benchmarks.mutation.trying SESSION COVERAGE TIMES SECONDS`` runs in a checkout and tries the
mutants of a Cosmic Ray session that have no result, in the order of their ids. Each mutant is tried in a
fork of this process, which has imported the packages that the product depends on and nothing of the
product: starting costs milliseconds and the changed module is always read anew.
"""

from __future__ import annotations

import ast
import os
import resource
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from cosmic_ray.mutating import use_mutation
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkResult
from coverage import CoverageData

from benchmarks.mutation.covering import batches, covering_tests, passed, statement_lines

START_S, SLOWER = 15.0, 5.0  # CPU seconds of a batch: imports, and how much slower than unchanged it may be
WAITING = 20.0  # seconds a batch may take for each of its CPU seconds, on a busy machine
KILLED = (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED, pytest.ExitCode.USAGE_ERROR)
PLUGINS_LEFT_OUT = ("no:cacheprovider", "no:xdist", "no:cov")
OPTIONS = ["-x", "-q", "--no-header", "--tb=line", *(f"-p{name}" for name in PLUGINS_LEFT_OUT)]
OURS = ("meshwright", "meshwright_client", "tests", "benchmarks", "conftest")
PRODUCT = ("tests.builders", "meshwright.service.library", "meshwright.launchers.registry")


def import_others() -> None:
    """Import what the product imports from others, found by a process that imports the product."""
    command = [sys.executable, "-c", f"import {', '.join(PRODUCT)}, sys; print(*sys.modules)"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    for name in names:
        if name.split(".")[0] not in OURS:
            import_module(name)


def killed(tests: list[str], seconds: float) -> bool:
    """Run tests in a fork; return whether one failed or they took far longer than without the mutant."""
    limit_s = START_S + SLOWER * seconds
    child = os.fork()
    if child == 0:
        _be_a_test_process(tests, int(limit_s) + 1)
    end = time.monotonic() + WAITING * limit_s
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return True
        time.sleep(0.02)
    _end_group(child)
    return os.waitstatus_to_exitcode(status) != 0


def _be_a_test_process(tests: list[str], limit_s: int) -> None:
    os.setpgid(0, 0)  # a group that can be ended; Linux would give a session a priority of its own
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(quiet, stream)
    code = 1
    try:
        code = int(pytest.main([*OPTIONS, *tests]) in KILLED)
    finally:
        os._exit(code)


def _end_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


class Lines:
    """Which passing tests execute which line, as pytest-cov measured it."""

    def __init__(self, coverage: Path, times: Path) -> None:
        self._data = CoverageData(str(coverage))
        self._data.read()
        measured = sorted(self._data.measured_files())
        root = os.path.commonpath(measured)  # of the checkout that was measured, which may be another one
        self._paths = {Path(path).relative_to(root): path for path in measured}
        self.seconds_of = passed(times)

    def tests(self, mutation: MutationSpec) -> list[str]:
        """Return the tests that execute the changed statement, the fastest first."""
        file = Path(mutation.module_path)
        lines = statement_lines(file.read_text(encoding="utf-8"), mutation.start_pos[0])
        return covering_tests(self._of(file), lines, lambda: self._of_folder(file.parent), self.seconds_of)

    def _of(self, file: Path) -> dict[int, list[str]]:
        measured = self._data.contexts_by_lineno(self._paths.get(file, ""))
        return {line: [name.split("|")[0] for name in names] for line, names in measured.items()}

    def _of_folder(self, folder: Path) -> set[str]:
        files = [file for file in self._paths if file.parent == folder]
        return {test for file in files for tests in self._of(file).values() for test in tests}


def outcome(mutation: MutationSpec, lines: Lines, most_s: float) -> WorkResult:
    """Return what became of one mutant; a mutant that is not Python is skipped."""
    operator = get_operator(mutation.operator_name)(**mutation.operator_args)
    tests = lines.tests(mutation)
    with use_mutation(Path(mutation.module_path), operator, mutation.occurrence) as (_, code):
        try:
            ast.parse(code or "(")
        except SyntaxError:
            return WorkResult(WorkerOutcome.SKIPPED)
        for batch in batches(tests, lines.seconds_of, most_s):
            if killed(batch, sum(lines.seconds_of[test] for test in batch)):
                return WorkResult(WorkerOutcome.NORMAL, test_outcome=TestOutcome.KILLED)
    return WorkResult(WorkerOutcome.NORMAL, f"{len(tests)} tests", TestOutcome.SURVIVED)


def main() -> int:
    """Try each mutant without a result."""
    session, coverage, times = map(Path, sys.argv[1:4])
    most_s = float(sys.argv[4])
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the tests have it
    import_others()
    lines = Lines(coverage, times)
    with use_db(session, WorkDB.Mode.open) as database:
        for item in sorted(database.pending_work_items, key=lambda item: item.job_id):
            database.set_result(item.job_id, outcome(item.mutations[0], lines, most_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
