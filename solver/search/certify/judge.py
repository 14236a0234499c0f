"""CP-SAT as independent judge of the closed-form minimum, in a child process.

The child starts with the search, so that loading OR-Tools costs no time of its own. It is asked for the
least objective over the first plan's row and up to MAX_RIVALS rows that its objective does not rule out,
for the first plan's row alone where another has the least, and for each further plan's row
(``cp-sat-all``). Its proved minimum must be the exact program's, to the
microsecond it counts in; another value is a bug and raises. No answer in time means not certified.
Searches one after the other may take turns with one child (``kept_child``).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from meshwright.solver.clock import Watch
from meshwright.solver.configuration import FloatArray
from meshwright.solver.cost.stages import objective_s
from meshwright.solver.problem import ProofMismatchError, SearchOptions
from meshwright.solver.search.certify.request import (
    LARGEST,
    FieldRequest,
    PlacementRequest,
    Request,
    is_expressible,
    row_request,
    stays_exact,
)
from meshwright.solver.search.frontier import Frontier
from meshwright.solver.search.memory_limits import room_bytes
from meshwright.solver.search.placement.program import Best, Field, Placement, Program, Stop
from meshwright.solver.search.rows import RankCosts, Rows

MAX_RIVALS = 7  # rows in addition to the first plan's that CP-SAT chooses among
_DETERMINISTIC_LIMIT = 8.0  # CP-SAT's own clock: the same verdict on a busy machine
_POLL_S = 0.05
_GRACE_S = 0.3
_ROUNDING_S = 2e-6  # one microsecond of the objective, and nanosecond coefficients
_RELATIVE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Rows with a closed-form minimum that CP-SAT confirmed, and the reasons why others lack it."""

    rows: frozenset[int] = frozenset()
    warnings: tuple[str, ...] = ()


_KEPT: ContextVar[list[subprocess.Popen[bytes]] | None] = ContextVar("kept", default=None)
os.register_at_fork(after_in_child=lambda: _KEPT.set(None))  # it is the parent's


@contextmanager
def kept_child() -> Iterator[None]:
    """Share one child among the searches of this block; it ends with the outermost block."""
    if _KEPT.get() is not None:
        yield
        return
    waiting = list[subprocess.Popen[bytes]]()
    before = _KEPT.set(waiting)
    try:
        yield
    finally:
        _KEPT.reset(before)
        for child in waiting:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a child; it holds nothing worth saving."""
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:  # what was still buffered is not read
                continue


class Judge:
    """Child process of a search; a context manager that always ends it."""

    def __init__(self, options: SearchOptions, *, lazy: bool = False) -> None:
        """Create a judge; ``lazy`` starts the child when there is something to judge, not beforehand."""
        self._options, self._lazy = options, lazy
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if not self._lazy:
            self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        kept = _KEPT.get()
        if kind is None and kept is not None and self._child is not None:  # it waits for a question
            kept.append(self._child)
            self._child = None
        self._stop()

    def _start(self) -> None:
        """Start the child, or take a waiting one, if anything is to be judged."""
        if self._options.certify == "none":
            return
        kept = _KEPT.get()
        while kept:
            self._child = kept.pop()
            if self._child.poll() is None:
                return
            _end(self._child)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "meshwright.solver.search.certify.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )

    def certify(self, frontier: Frontier, survivors: tuple[int, ...], watch: Watch) -> Certificate:
        """Judge the first plan's row (the first of ``survivors``), and all K on request.

        Raises:
            ProofMismatchError: CP-SAT proves another minimum than the exact program.
        """
        if not survivors or not frontier.finished:
            return Certificate()
        if self._lazy:
            self._start()
        if self._child is None:
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
        """Return whether CP-SAT proves the exact program's minimum over ``rows``; False: not in time."""
        solved = frontier.solve(list(rows))
        best = min(solved, key=lambda s: (s.objective_s, s.row))
        asked = frontier.rows.take([s.row for s in solved])
        layout = asked.without_ends().layout
        request = Request(
            num_layers=layout.num_layers,
            cumulative=layout.cumulative.T.tolist(),
            rows=[row_request(asked, at) for at in range(len(solved))],
            hint_row=solved.index(best),
            hint_split=asked.layout.without_end_counts(best.split),
            seed=self._options.seed,
            time_limit_s=max(watch.left_s, _POLL_S),
            deterministic_limit=_DETERMINISTIC_LIMIT,
        )
        if not is_expressible(request):
            return False
        verdict = self.ask(request.to_json(), watch)
        if verdict is None:
            return False
        _compare(frontier, [s.row for s in solved], verdict, best.objective_s)
        return True

    @property
    def runs(self) -> bool:
        """Return whether a child is running."""
        return self._child is not None

    def ask(self, request: Mapping[str, Any], watch: Watch) -> Mapping[str, Any] | None:
        """Return the child's proved verdict; None if it is stopped, out of time or gone.

        Raises:
            ProofMismatchError: CP-SAT finds that a model with a known solution has none.
        """
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
                    return _proved(json.loads(line))
                break
            watch.report("certifying")
        self._stop()
        return None

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            _end(child)


def _proved(verdict: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if verdict["status"] in ("UNKNOWN", "FEASIBLE"):
        return None
    if verdict["status"] != "OPTIMAL":
        raise ProofMismatchError(f"CP-SAT calls a model with a known solution {verdict['status']}")
    return verdict


def _compare(frontier: Frontier, rows: list[int], verdict: Mapping[str, Any], exact_s: float) -> None:
    """Compare the verdict with the exact program: its value, and its split under our own formulas.

    Raises:
        ProofMismatchError: they differ.
    """
    found = frontier.rows.take([rows[verdict["row"]]]).without_ends()
    stages = found.stages([tuple(verdict["split"])])
    again_s = float(objective_s(found.prices, found.columns, stages)[0])
    proved_s = verdict["objective_us"] * 1e-6
    allowed = _ROUNDING_S + _RELATIVE * exact_s
    if max(abs(again_s - exact_s), abs(proved_s - exact_s)) > allowed:
        raise ProofMismatchError(
            f"exact program: {exact_s!r} s; CP-SAT: {proved_s!r} s, which its split makes {again_s!r} s"
        )


# --------------------------------------------------------------------------------------------------
# CP-SAT as independent judge of placements: the least closed form of ranked fields, in a child process.
#
# It chooses among the first plan's field and those of further plans with no larger a least closed form,
# and has to find the exact program's minimum; then each field of a plan to be certified alone (for
# ``cp-sat-all`` every one). Of unlike replicas it judges each class's stages for its own share of the
# batch. Another value than the exact program's is a bug and raises; no answer in time means not
# certified.

_LEAST_S = 0.05
_NS = 1e9


@dataclass(frozen=True, slots=True)
class Claimed:
    """Placement problem with the exact program's result."""

    field: Field
    best: Best

    @classmethod
    def of(cls, field: Field) -> Claimed:
        """Solve a field that is known to have a placement."""
        best = Program(field).solve()
        if best is None:
            raise ProofMismatchError("a ranked field without a placement")
        return cls(field, best)


def field_request(claimed: Claimed) -> FieldRequest:
    """Return a field in whole numbers."""
    one, scale, more = claimed.field, claimed.field.straggler, claimed.field.m - 1.0
    rows = [one.outer.rows[berth].take([one.row]) for berth in one.berths]
    layer = np.stack([row.layer_s[0] for row in rows])
    costs = [RankCosts.of_all(row) for row in rows]
    beside = np.stack([each.time_s[0] for each in costs])
    tail = np.stack([row.prices.tail_s[0, :-2] for row in rows])
    tails = np.stack([each.tail_s[0] for each in costs])
    memory = [_memory(one, row) for row in rows]
    return FieldRequest(
        num_stages=one.p,
        room=list(one.room),
        fixed=round(_NS * one.fixed_s),
        layer=_whole(scale * layer),
        beside=_whole(scale * beside),
        hop=_whole(scale * one.enter_s),
        own_layer=_whole(scale * (more * layer + tail)),
        own_beside=_whole(scale * (more * beside + tails)),
        own_hop=_whole(scale * more * one.enter_s),
        memory_layer=[layers for layers, _ in memory],
        memory_room=[room for _, room in memory],
        hint=[(stop.berth, stop.end - stop.start) for stop in claimed.best.placement],
    )


def _whole(seconds: FloatArray) -> list[list[int]]:
    """Return nanoseconds."""
    found: list[list[int]] = np.rint(_NS * seconds).astype(np.int64).tolist()
    return found


def _memory(one: Field, row: Rows) -> tuple[list[list[int]], list[int]]:
    """Return bytes of a layer by stage and kind, and the room of each stage of a berth."""
    held = row.held[0, : one.p].astype(np.float64)
    each = row.state_bytes[0, :-2] + held[:, None] * row.least_kept_bytes[0, :-2]
    room = room_bytes(row, held[None, None])[0]
    layers: list[list[int]] = np.rint(each).astype(np.int64).tolist()
    rooms: list[int] = np.floor(np.clip(room, -LARGEST, LARGEST)).astype(np.int64).tolist()
    return layers, rooms


@dataclass(slots=True)
class PlacedJudge:
    """Judge of fields, which asks the child."""

    judge: Judge
    watch: Watch
    seed: int

    def confirms(self, claims: Sequence[Claimed]) -> bool:
        """Return whether CP-SAT proves the least closed form over fields; False: not in time.

        Raises:
            ProofMismatchError: CP-SAT proves another minimum than the exact program.
        """
        best = min(range(len(claims)), key=lambda at: claims[at].best.objective_s)
        one = claims[best].field
        request = PlacementRequest(
            num_layers=one.num_layers,
            cumulative=one.outer.layout.cumulative.T.tolist(),
            fields=[field_request(claimed) for claimed in claims],
            hint_field=best,
            seed=self.seed,
            time_limit_s=max(self.watch.left_s, _LEAST_S),
            deterministic_limit=_DETERMINISTIC_LIMIT,
        )
        if not self.judge.runs or not stays_exact(request):
            return False
        verdict = self.judge.ask(request.to_json(), self.watch)
        if verdict is None:
            return False
        compare(claims, verdict, claims[best].best.objective_s)
        return True

    def certified(self, ranked: Sequence[Sequence[Field]], *, every: bool) -> Certificate:
        """Return which ranked plans are confirmed, by rank from 0: the first, or every one.

        Args:
            ranked: the fields of each plan: one, or one for each class of unlike replicas.
            every: whether all plans are asked about.
        """
        if not self.judge.runs or not ranked:
            return Certificate()
        asked = ranked if every else ranked[:1]
        done = [at for at, fields in enumerate(asked) if self._plan(at, fields, ranked)]
        missing = len(asked) - len(done)
        warning = f"CP-SAT did not finish in time for {missing} of {len(asked)} certificates"
        return Certificate(rows=frozenset(done), warnings=(warning,) if missing else ())

    def _plan(self, at: int, fields: Sequence[Field], ranked: Sequence[Sequence[Field]]) -> bool:
        own = [Claimed.of(one) for one in fields]
        if at or len(own) > 1:
            return all(self.confirms([claim]) for claim in own)
        others = [Claimed.of(some[0]) for some in ranked[1:] if len(some) == 1]
        rivals = [one for one in others if one.best.objective_s <= own[0].best.objective_s]
        rivals = sorted(rivals, key=lambda one: one.best.objective_s)[:MAX_RIVALS]
        return self.confirms([*own, *rivals]) and (not rivals or self.confirms(own))


def compare(claims: Sequence[Claimed], verdict: Mapping[str, Any], exact_s: float) -> None:
    """Compare the verdict with the exact program: its value, and its placement under our formulas.

    Raises:
        ProofMismatchError: they differ, or the placement does not fit.
    """
    field = claims[verdict["field"]].field
    placement = _placement(verdict["placement"])
    fits = all(field.fits[stop.berth, at, stop.start, stop.end] for at, stop in enumerate(placement))
    again_s, proved_s = field.objective_s(placement), verdict["objective_us"] * 1e-6
    allowed = _ROUNDING_S + _RELATIVE * exact_s
    if not fits or max(abs(again_s - exact_s), abs(proved_s - exact_s)) > allowed:
        raise ProofMismatchError(
            f"exact program: {exact_s!r} s; CP-SAT: {proved_s!r} s, which its placement makes {again_s!r} s"
        )


def _placement(stands: Sequence[Sequence[int]]) -> Placement:
    begin, stops = 0, list[Stop]()
    for berth, layers in stands:
        stops.append(Stop(berth, begin, begin + layers))
        begin += layers
    return tuple(stops)
