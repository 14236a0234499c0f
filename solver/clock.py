"""Clock of one search: its deadline, its reports, and requests to stop it.

Long array work does not pass the clock along: it calls ``look`` between two pieces of at most a quarter of
a second. Work that runs inside ``with watch.cut()`` ends there when the time is over; elsewhere ``look``
does nothing. A watch that is made inside such a block ends with it at the latest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import TracebackType

from meshwright.solver.problem import OnProgress, Progress, ShouldStop

_REPORT_EVERY_S = 0.2
_LOOK_EVERY_S = 0.002  # looks that come sooner cost a tenth of a look


class OutOfTime(Exception):  # noqa: N818 - not an error: the time is over
    """The watch that this work runs under is over; ``Watch.cut`` catches it."""


@dataclass(slots=True)
class _Stop:
    """Caller's wish to stop, with the moment at which it was first noticed."""

    asked: ShouldStop
    heard_s: float = math.inf  # of the monotonic clock

    def __call__(self) -> bool:
        if self.heard_s == math.inf and self.asked():
            self.heard_s = time.monotonic()
        return self.heard_s < math.inf


@dataclass(slots=True, kw_only=True)
class Watch:
    """Time, progress and interruption of one search."""

    time_limit_s: float
    on_progress: OnProgress | None = None
    should_stop: ShouldStop | None = None
    stopped: bool = False  # the time limit or the caller ended the search
    _outer: Watch | None = field(default_factory=lambda: _RUNNING.get())  # noqa: PLW0108 - defined below
    _last: Progress | None = None
    _start_s: float = field(default_factory=lambda: time.monotonic())  # noqa: PLW0108 - a test may set another clock
    _reported_s: float = -1.0
    _best_s: float = math.inf
    quiet_until_s: float = 0.0  # until then ``look`` takes the time to be left
    work: WorkWatch | None = None  # the limit of work that this runs in

    def __post_init__(self) -> None:
        """Remember when the caller asks to stop; watches that share ``should_stop`` share that moment."""
        if self.should_stop is not None and not isinstance(self.should_stop, _Stop):
            self.should_stop = _Stop(self.should_stop)
        if self.work is None and self._outer is not None:
            self.work = self._outer.work

    @property
    def elapsed_s(self) -> float:
        """Return seconds since the search began."""
        return time.monotonic() - self._start_s

    @property
    def left_s(self) -> float:
        """Return seconds until the time limit."""
        left_s = max(self.time_limit_s - self.elapsed_s, 0.0)
        return left_s if self._outer is None else min(left_s, self._outer.left_s)

    def is_due(self, score_s: float) -> bool:
        """Return whether to report now, given the best score: a better one is reported at once."""
        if self.on_progress is None:
            return False
        better, self._best_s = score_s < self._best_s, min(score_s, self._best_s)
        return better or self.elapsed_s - self._reported_s >= _REPORT_EVERY_S

    def interrupted(self, reserve_s: float = 0.0) -> bool:
        """Return whether to stop now, ``reserve_s`` before the time limit; stays true once it was."""
        if not self.stopped:
            asked = self.should_stop is not None and self.should_stop()
            asked = asked or (self._outer is not None and self._outer.interrupted())
            self.stopped = asked or self.left_s <= min(reserve_s, self.time_limit_s / 2.0)
        return self.stopped

    @property
    def ended_by(self) -> str:
        """Return what ended the search, in words."""
        stop = self.should_stop
        if not isinstance(stop, _Stop) or stop.heard_s == math.inf:
            return "the time limit came first"
        caller = getattr(stop.asked, "__self__", None)  # another clock, by its ``interrupted``
        return caller.ended_by if isinstance(caller, Watch) else "the search was cancelled"

    def at_least(self, seconds: float) -> Watch:
        """Return the same clock, ignoring limit and stop for so long, for necessary work."""

        def asked() -> bool:
            return self.elapsed_s > seconds and self.should_stop is not None and self.should_stop()

        return Watch(time_limit_s=max(self.left_s, seconds - self.elapsed_s), should_stop=asked)

    def closing(self, seconds: float = 0.5) -> Watch:
        """Return a clock that ends so long after the limit, or a stop, for reports on found plans.

        All of an answer's end at one moment, however many are made: they do not add up.
        """
        stop = self.should_stop

        def over() -> bool:
            return isinstance(stop, _Stop) and stop() and time.monotonic() - stop.heard_s >= seconds

        return Watch(time_limit_s=max(self.time_limit_s + seconds - self.elapsed_s, 0.0), should_stop=over)

    def cut(self) -> _Cut:
        """Return a block of work that ends with the time: all after its last ``look`` is left out.

        Nothing may be yielded to a caller from inside this block.
        """
        return _Cut(self)

    def report(
        self,
        stage: str,
        *,
        explored: int = 0,
        total: int = 0,
        incumbent_s: float | None = None,
        bound_s: float | None = None,
        now: bool = False,
    ) -> None:
        """Report progress, a few times a second, or ``now``; known values stay."""
        elapsed = self.elapsed_s
        if self.on_progress is None or (not now and elapsed - self._reported_s < _REPORT_EVERY_S):
            return
        self._reported_s = elapsed
        if self._last is not None:
            incumbent_s = self._last.incumbent_step_time_s if incumbent_s is None else incumbent_s
            bound_s = self._last.bound_step_time_s if bound_s is None else bound_s
        known = incumbent_s is not None and bound_s is not None
        self._last = Progress(
            stage=stage,
            explored=explored,
            total=total,
            incumbent_step_time_s=incumbent_s,
            bound_step_time_s=bound_s,
            gap=relative_gap(incumbent_s, bound_s) if known else None,
            elapsed_s=elapsed,
        )
        self.on_progress(self._last)

    def tick(self) -> None:
        """Report the last progress again while long array work has no news (``look``)."""
        last, elapsed = self._last, self.elapsed_s
        if self.on_progress is not None and last and elapsed - self._reported_s >= _REPORT_EVERY_S:
            self._reported_s = elapsed
            self.on_progress(replace(last, elapsed_s=elapsed))


class CpuWatch(Watch):
    """A limit in CPU seconds of the thread that made it: an answer does not depend on what else runs."""

    def __init__(self, *, time_limit_s: float) -> None:
        super().__init__(time_limit_s=time_limit_s, _start_s=time.thread_time())

    @property
    def elapsed_s(self) -> float:
        """Return CPU seconds since the work began."""
        return time.thread_time() - self._start_s


LOOKS_PER_S = 1000  # of work on one quiet core: 400 to 5000 were counted in searches of seven problems


class WorkWatch(Watch):
    """A limit of work, which ends at the same place on every machine: so many looks at the clock."""

    def __init__(self, *, looks: int) -> None:
        super().__init__(time_limit_s=math.inf)
        self.looks_left, self.work = looks, self

    @property
    def left_s(self) -> float:
        """Return 0 where the work is done, else the seconds of the block around it."""
        if self.looks_left < 0:
            return 0.0
        return math.inf if self._outer is None else self._outer.left_s


class _Cut:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        self._before = _RUNNING.set(self._watch)

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> bool:
        _RUNNING.reset(self._before)
        return isinstance(fault, OutOfTime)


_RUNNING: ContextVar[Watch | None] = ContextVar("running", default=None)


def running() -> Callable[[], bool]:
    """Return what says whether the ``Watch.cut`` block that this runs in is over, for other threads."""
    watch = _RUNNING.get()
    return (lambda: False) if watch is None else watch.interrupted


def look() -> None:
    """Look at the clock of the ``Watch.cut`` block that this runs in, if there is one.

    Raises:
        OutOfTime: its time is over, or its caller asked it to stop.
    """
    watch = _RUNNING.get()
    if watch is None:
        return
    if watch.work is not None:
        watch.work.looks_left -= 1
    if not watch.stopped:
        if (now_s := time.monotonic()) < watch.quiet_until_s:
            return
        watch.quiet_until_s = now_s + _LOOK_EVERY_S
    if watch.interrupted():
        raise OutOfTime
    watch.tick()


def relative_gap(value: float | None, bound: float | None) -> float | None:
    """Return (value - bound) / value, never negative; None if one of them is not known."""
    if value is None or bound is None or value <= 0.0:
        return None
    return max((value - bound) / value, 0.0)
