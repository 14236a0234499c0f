"""A timeline as Perfetto reads it: microseconds, a process per pipeline, a thread per rank."""

import json

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.service.report.trace import trace_of
from meshwright.solver.explain.timeline import timelines_of
from meshwright.solver.predict import predict
from tests.builders import a_configuration, a_problem


def a_trace() -> tuple[dict[str, object], float]:
    problem, config = a_problem(), a_configuration()
    profile = default_profile(problem.cluster, problem.launcher)
    trace = trace_of(timelines_of(problem, profile, config), title="a plan")
    return json.loads(json.dumps(trace, allow_nan=False)), predict(problem, profile, config).step_time_s


def test_every_event_has_what_the_format_asks_for() -> None:
    trace, _ = a_trace()
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:  # type: ignore[attr-defined]
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ph"] in ("X", "M")
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] > 0
        else:
            assert event["name"] in ("process_name", "thread_name")
            assert event["args"]["name"]


def test_the_last_event_ends_with_the_predicted_step() -> None:
    trace, step_s = a_trace()
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]  # type: ignore[attr-defined]
    assert max(event["ts"] + event["dur"] for event in events) == pytest.approx(step_s * 1e6)
    # 4 ranks, 5 chunks each, 128 micro-batches, forward and backward
    assert sum("args" in event for event in events) == 4 * 5 * 128 * 2


def test_events_of_one_rank_do_not_overlap() -> None:
    trace, _ = a_trace()
    for rank in range(4):
        mine = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["tid"] == rank]  # type: ignore[attr-defined]
        ends = [event["ts"] + event["dur"] for event in mine]
        starts = [event["ts"] for event in mine]
        assert all(start >= end - 1e-3 for start, end in zip(starts[1:], ends[:-1], strict=True))
