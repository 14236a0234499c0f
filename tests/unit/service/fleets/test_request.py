"""Fleets as files state them: every fault names its job and field, and a running fleet is planned again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli.main import app
from meshwright.service.fleets.request import FleetRequest, read_fleet
from meshwright.service.fleets.running import planned_again, read_state

PROBLEM = {
    "model": {"name": "llama-3.1-8b"}, "workload": {"global_batch_size": 64, "seq_length": 4096},
    "launcher": "megatron-lm",
}  # fmt: skip


def job(name: str, **fields: object) -> dict[str, Any]:
    return {"name": name, "problem": PROBLEM, "steps": 1000, **fields}


def fleet(*jobs: dict[str, Any], **fields: object) -> dict[str, Any]:
    return {"cluster": {"name": "dgx-h100", "num_nodes": 4}, "jobs": list(jobs), **fields}


def errors_of(raw: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidProblemError) as fault:
        read_fleet(raw)
    return {one.pointer: one.sentence() for one in fault.value.errors}


@pytest.mark.parametrize(
    ("one", "only"),
    [
        (job("a", due_hours=-1), "/jobs/0/due_hours"),  # 0 h in place of it is before its release
        (job("a", kinds=["mi300x"]), "/jobs/0/kinds"),  # no nodes of it, so none are enough
        (job("a") | {"problem": [1]}, "/jobs/0/problem"),
    ],
)
def test_a_field_at_fault_is_one_error(one: dict[str, Any], only: str) -> None:
    assert list(errors_of(fleet(one, job("b")))) == [only]


def test_jobs_that_are_not_a_list_are_one_error() -> None:
    for jobs in ({"a": 1}, [], [job(f"j{number}") for number in range(201)]):
        with pytest.raises(InvalidProblemError) as fault:
            read_fleet({**fleet(), "jobs": jobs})
        assert [one.pointer for one in fault.value.errors] == ["/jobs"]


def test_hours_become_minutes_and_dates_stay_on_the_safe_side() -> None:
    """A release is rounded up, a due date down: .99 h are 59.4 min."""
    (read,) = read_fleet(fleet(job("a", release_hours=0.99, due_hours=1.99))).fleet.jobs
    assert (read.release_min, read.due_min) == (60, 119)


@pytest.mark.parametrize(
    ("one", "pointer", "words"),
    [
        (job("a", least_nodes=5), "/jobs/0/least_nodes", "Allowed: 1 to 4. Nearest: 4"),
        (job("a", nodes=8), "/jobs/0/nodes", "Allowed: 1 to 4. Nearest: 4"),
        (
            job("a")
            | {"problem": {**PROBLEM, "workload": {"global_batch_size": [32, 64], "seq_length": 4096}}},
            "/jobs/0/problem/workload/global_batch_size", "32, 64: a job of a fleet has one batch size",
        ),
        (job("a", release_hours=3, due_hours=2), "/jobs/0/release_hours", "Allowed: below 2"),
        (job("a", as_many_nodes_as="a"), "/jobs/0/as_many_nodes_as", "cannot name itself"),
        (job("a", after=["b"]), "/jobs/0/after", 'unknown "b"'),
        (job("a", steps=0), "/jobs/0/steps", "Nearest: 1"),
        (job("start.sh"), "/jobs/0/name", "Allowed: another name"),
        (job("answer.json"), "/jobs/0/name", "Allowed: another name"),
        (job("a", nodes=1, node_counts=[2]), "/jobs/0/node_counts", "not both"),
        (job("a", weigth=2), "/jobs/0/weigth", "Nearest: weight"),
        (job("a") | {"problem": {**PROBLEM, "cluster": {}}}, "/jobs/0/problem/cluster", "fleet's cluster"),
        (
            job("a") | {"problem": {**PROBLEM, "search": {"objective": "energy_per_token"}}},
            "/jobs/0/problem/search/objective", "ranks plans by step time",
        ),
        (
            job("a") | {"problem": {**PROBLEM, "workload": {"global_batch_size": 0, "seq_length": 4096}}},
            "/jobs/0/problem/workload/global_batch_size", "Nearest: 1",
        ),
    ],
)  # fmt: skip
def test_a_fault_names_its_job_and_field(one: dict[str, Any], pointer: str, words: str) -> None:
    found = errors_of(fleet(one))
    assert words in found[pointer]


@pytest.mark.parametrize("begin", ["2026-01-05T20:00+05:00", "2026-01-05T20:00Z", "9999-12-31T23:59"])
def test_a_begin_that_slurm_cannot_keep_is_refused(begin: str) -> None:
    found = errors_of(fleet(job("a"), begin=begin))
    assert "Allowed: a time" in found["/begin"]


def test_a_cycle_is_named_as_a_whole() -> None:
    found = errors_of(fleet(job("a", after=["b"]), job("b", after=["a"])))
    assert "a after b after a is a cycle" in found["/jobs/0/after"]


def test_the_other_jobs_are_planned_on_request() -> None:
    """Job b is too large, and c waits for it: a is left."""
    raw = fleet(job("a"), job("b", least_nodes=9), job("c", after=["b"]))
    request = read_fleet(raw, skip_impossible=True)
    assert [one.name for one in request.fleet.jobs] == ["a"]
    assert {name: errors[0].pointer for name, errors in request.left_out.items()} == {
        "b": "/jobs/1/least_nodes", "c": "/jobs/2/after",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "pointer"),
    [
        ([job("bad", least_nodes=5)], "/jobs/1/least_nodes"),
        ([job("bad", node_counts=[8])], "/jobs/1/node_counts"),
        ([job("bad", as_many_nodes_as="bad")], "/jobs/1/as_many_nodes_as"),
        ([job("bad", release_hours=3, due_hours=2)], "/jobs/1/release_hours"),
        ([job("bad", after=["worse"]), job("worse", after=["bad"])], "/jobs/1/after"),
    ],
)
def test_a_job_at_fault_is_left_out_on_request_and_the_others_are_planned(
    bad: list[dict[str, Any]], pointer: str
) -> None:
    """Without the request, the fault refuses the whole fleet."""
    raw = fleet(job("good"), *bad, job("other"))
    assert pointer in errors_of(raw)
    request = read_fleet(raw, skip_impossible=True)
    assert [one.name for one in request.fleet.jobs] == ["good", "other"]
    assert set(request.left_out) == {one["name"] for one in bad}
    assert request.left_out["bad"][0].pointer == pointer


def test_prices_by_kind_are_hundredths() -> None:
    request = read_fleet(fleet(job("a"), node_hour_price=25.5))
    assert request.priced
    assert request.fleet.kinds[0].price == 2550


def running(state: dict[str, Any], *jobs: dict[str, Any]) -> FleetRequest:
    request = read_fleet(fleet(*jobs, begin="2026-01-05T20:00"))
    return planned_again(request, read_state(state, request))


def test_a_running_job_keeps_its_nodes_and_goes_on_from_its_steps() -> None:
    state = {"now_hours": 2, "lost_nodes": 1, "jobs": {"a": {"nodes": 2, "steps_done": 400}}}
    left = running(state, job("a", due_hours=3), job("b", release_hours=5, due_hours=9))
    a, b = left.fleet.jobs
    assert (a.start_min, a.node_counts, a.due_min) == (0, (2,), 60)
    assert (b.release_min, b.due_min) == (180, 420)
    assert left.problems["a"].steps == 600
    assert left.fleet.kinds[0].nodes == 3
    assert left.begin is not None
    assert left.begin.isoformat() == "2026-01-05T22:00:00"


def test_a_failed_job_waits_again_and_a_done_job_is_gone() -> None:
    state = {"now_hours": 1, "jobs": {"a": {"state": "failed", "steps_done": 400}, "b": {"state": "done"}}}
    left = running(state, job("a", after=["b"]), job("b"))
    (a,) = left.fleet.jobs
    assert (a.start_min, a.after, left.problems["a"].steps) == (None, (), 600)


def test_running_jobs_cannot_hold_nodes_that_are_lost() -> None:
    state = {"now_hours": 1, "lost_nodes": 1, "jobs": {"a": {"nodes": 4, "steps_done": 1}}}
    with pytest.raises(InvalidProblemError, match=r"running jobs hold 4 of 3 nodes \(a 4\)"):
        running(state, job("a"))


def test_a_state_names_what_is_wrong_in_it() -> None:
    state = {"now_hours": 1, "jobs": {"x": {}, "a": {"nodes": 9, "steps_done": 1000}}}
    with pytest.raises(InvalidProblemError) as fault:
        running(state, job("a"))
    assert {one.pointer for one in fault.value.errors} == {"/jobs/x", "/jobs/a/nodes", "/jobs/a/steps_done"}


def test_a_folder_that_cannot_be_written_is_named_by_its_option(tmp_path: Path) -> None:
    file, taken = tmp_path / "fleet.json", tmp_path / "taken"
    file.write_text(json.dumps(fleet(job("a"))))
    taken.mkdir()
    (taken / "notes.txt").write_text("ours")
    for folder, words in ((file, "Not a directory"), (taken, "another plan")):
        refused = CliRunner().invoke(app, ["fleet", str(file), "--out", str(folder)])
        (error,) = refused.exception.errors  # type: ignore[union-attr]
        assert error.pointer == "--out"
        assert words in error.message
