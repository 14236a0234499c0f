"""CP-SAT as independent judge of the closed-form minimum, in a child process.

The child starts with the search, so that loading OR-Tools costs no time of its own. It is asked for the
least objective over the first plan's row and up to MAX_RIVALS rows that its objective leaves standing,
for the first plan's row alone where another has the least, and for each further plan's row
(``cp-sat-all``). Its proved minimum must be the exact program's, to the
microsecond it counts in; another value is a bug and raises. No answer in time means not certified.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from solver.cost.assemble import objective_s
from solver.errors import ProofMismatchError
from solver.options import SearchOptions
from solver.search.cp.request import Request, is_expressible, row_request
from solver.search.frontier import Frontier
from solver.search.watch import Watch

MAX_RIVALS = 7  # rows beside the first plan's that CP-SAT chooses among
_DETERMINISTIC_LIMIT = 8.0  # CP-SAT's own clock: the same verdict on a busy machine
_POLL_S = 0.05
_GRACE_S = 0.3
_ROUNDING_S = 2e-6  # one microsecond of the objective, and nanosecond coefficients
_RELATIVE = 1e-9
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Rows whose closed-form minimum CP-SAT confirmed, and why others lack it."""

    rows: frozenset[int] = frozenset()
    warnings: tuple[str, ...] = ()


class Judge:
    """The child process; a context manager that never leaves one behind."""

    def __init__(self, options: SearchOptions) -> None:
        self._options = options
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if self._options.certify != "none":
            environment = {
                **os.environ,
                "PYTHONPATH": f"{_ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            }
            self._child = subprocess.Popen(
                [sys.executable, "-m", "solver.search.cp.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def certify(self, frontier: Frontier, survivors: tuple[int, ...], watch: Watch) -> Certificate:
        """Judge the first plan's row among ``survivors`` (it comes first), and all K if asked to.

        Raises:
            ProofMismatchError: CP-SAT proves another minimum than the exact program.
        """
        if self._child is None or not survivors or not frontier.finished:
            return Certificate()
        watch.report("certifying", now=True, incumbent_s=frontier.ranked[0].score_s)
        among = survivors[: 1 + MAX_RIVALS]
        overall = self._confirms(frontier, among, watch)
        rows = [one.row for one in frontier.ranked]
        if self._options.certify != "cp-sat-all":
            rows = rows[:1]
        least = min(among, key=lambda row: frontier.solved[row].objective_s)
        judged = {least} if overall else set()
        confirmed = {
            row for row in rows if overall and (row in judged or self._confirms(frontier, (row,), watch))
        }
        missing = len(rows) - len(confirmed)
        warning = f"CP-SAT did not finish in time for {missing} of {len(rows)} certificates"
        return Certificate(rows=frozenset(confirmed), warnings=(warning,) if missing else ())

    def _confirms(self, frontier: Frontier, rows: tuple[int, ...], watch: Watch) -> bool:
        """Whether CP-SAT proves the exact program's minimum over ``rows``; False: not in time."""
        solved = frontier.solve(list(rows))
        best = min(solved, key=lambda s: (s.objective_s, s.row))
        layout = frontier.rows.layout
        request = Request(
            num_layers=layout.num_layers,
            cumulative=layout.cumulative.T.tolist(),
            rows=[row_request(frontier.rows.take([s.row]), 0) for s in solved],
            hint_row=solved.index(best),
            hint_split=best.split,
            seed=self._options.seed,
            time_limit_s=max(watch.left_s, _POLL_S),
            deterministic_limit=_DETERMINISTIC_LIMIT,
        )
        if not is_expressible(request):
            return False
        verdict = self.ask(request.to_json(), watch)
        if verdict is None or verdict["status"] in ("UNKNOWN", "FEASIBLE"):
            return False
        if verdict["status"] != "OPTIMAL":
            raise ProofMismatchError(f"CP-SAT calls a model with a known plan {verdict['status']}")
        _compare(frontier, [s.row for s in solved], verdict, best.objective_s)
        return True

    @property
    def runs(self) -> bool:
        """Whether there is a child to ask."""
        return self._child is not None

    def ask(self, request: Mapping[str, Any], watch: Watch) -> Mapping[str, Any] | None:
        """The child's verdict; None when it is stopped, out of time or gone."""
        child = self._child
        if child is None or child.stdin is None or child.stdout is None:
            return None
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            self._stop()
            return None
        deadline = time.monotonic() + watch.left_s + _GRACE_S
        while time.monotonic() < deadline and not (watch.interrupted() and watch.left_s > 0.0):
            if select.select([child.stdout], [], [], _POLL_S)[0]:
                line = child.stdout.readline()
                if line:
                    verdict: Mapping[str, Any] = json.loads(line)
                    return verdict
                break
            watch.report("certifying")
        self._stop()
        return None

    def _stop(self) -> None:
        """Kill the child, if there is one; it holds nothing worth saving."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:  # what was still buffered has no reader
                    continue


def _compare(frontier: Frontier, rows: list[int], verdict: Mapping[str, Any], exact_s: float) -> None:
    """Hold the verdict against the exact program: its value, and its split under our own formulas.

    Raises:
        ProofMismatchError: they differ.
    """
    found = frontier.rows.take([rows[verdict["row"]]])
    stages = found.stages([tuple(verdict["split"])])
    again_s = float(objective_s(found.prices, found.columns, stages)[0])
    proved_s = verdict["objective_us"] * 1e-6
    allowed = _ROUNDING_S + _RELATIVE * exact_s
    if max(abs(again_s - exact_s), abs(proved_s - exact_s)) > allowed:
        raise ProofMismatchError(
            f"exact program: {exact_s!r} s; CP-SAT: {proved_s!r} s, which its split makes {again_s!r} s"
        )
