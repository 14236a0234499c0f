"""A timeline in the Trace Event Format, as Perfetto and ``chrome://tracing`` open it.

Format: "Trace Event Format" (Google, catapult project): complete events (``ph: X``) with ``ts`` and ``dur``
in microseconds; a process per pipeline, a thread per rank, named by metadata events (``ph: M``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from meshwright.solver.explanation import RankTimeline, Timeline, slowest_step_s, window
from meshwright.solver.schedules.simulate import KINDS

MOST_EVENTS = 60_000  # passes of a trace; longer steps lose their middle, with a note
_US = 1e6  # microseconds of a second
_AFTER = "once per step"


def trace_of(timelines: Sequence[Timeline], *, title: str, note: str = "") -> dict[str, Any]:
    """Return the trace of a plan's step.

    Args:
        timelines: one, or one of each class of unlike replicas.
        title: what the trace is of.
        note: what a reader has to know of its times.
    """
    most = max(MOST_EVENTS // max(len(timelines), 1), 1)
    shown = [window(timeline, most) for timeline in timelines]
    events: list[dict[str, Any]] = []
    for number, one in enumerate(shown):
        events += _pipeline(number, one.timeline, title)
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "title": title,
            **({"note": note} if note else {}),
            "step_time_s": slowest_step_s(timelines),
            "left_out_s": [list(one.gap_s) for one in shown if one.gap_s],
            "micro_batches": [one.num_microbatches for one in timelines],
            "micro_batches_shown": [one.simulated for one in timelines],
        },
        "traceEvents": events,
    }


def _pipeline(number: int, timeline: Timeline, title: str) -> Iterator[dict[str, Any]]:
    """Yield one process: its name, its ranks, and what follows all of them."""
    name = f"{title}: {timeline.title}" if timeline.title else title
    yield _named("process_name", name, pid=number)
    for rank in timeline.ranks:
        yield _named("thread_name", f"pipeline rank {rank.rank}", pid=number, tid=rank.rank)
        yield from _rank(rank, number)
    last, end_s = len(timeline.ranks), timeline.end_s - timeline.after_s
    if timeline.after_s > 0:
        yield _named("thread_name", _AFTER, pid=number, tid=last)
        yield _event(_AFTER, "after", end_s, timeline.after_s, pid=number, tid=last)


def _rank(rank: RankTimeline, pid: int) -> Iterator[dict[str, Any]]:
    rows = zip(
        rank.kind.tolist(),
        rank.chunk.tolist(),
        rank.micro_batch.tolist(),
        rank.start_s.tolist(),
        rank.seconds.tolist(),
        rank.critical.tolist(),
        strict=True,
    )
    for kind, chunk, micro, start_s, seconds, critical in rows:
        event = _event(KINDS[kind].replace("_", " "), KINDS[kind], start_s, seconds, pid=pid, tid=rank.rank)
        yield {**event, "args": {"micro_batch": micro, "chunk": chunk, "critical_path": critical}}
    at_s = rank.end_s
    for name, seconds in (("gradients", rank.gradients_s), ("optimizer", rank.optimizer_s)):
        if seconds > 0:
            yield _event(name, name, at_s, seconds, pid=pid, tid=rank.rank)
        at_s += seconds


def _event(
    name: str, category: str, start_s: float, seconds: float, *, pid: int, tid: int
) -> dict[str, Any]:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": start_s * _US,
        "dur": seconds * _US,
        "pid": pid,
        "tid": tid,
    }


def _named(what: str, name: str, *, pid: int, tid: int = 0) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
