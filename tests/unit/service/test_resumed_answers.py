"""A search that was broken off and is resumed gives the answer that it would have given anyway.

A space, the fewest GPUs and batches that grow begin with what was found; placed stages begin anew. What
they are given must change nothing.
"""

import time
from collections.abc import Mapping
from itertools import count
from types import SimpleNamespace

import pytest

from meshwright.service.db.database import Database
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Answer
from meshwright.solver.problem import Problem, ShouldStop
from meshwright.workers.checkpoint import checkpoint_of, known_in
from meshwright.workers.search import StoredSearch
from tests.job_records import TINY_PROBLEM

SMALL = {"name": "gpt-3-350m"}
WORKLOAD = {"global_batch_size": 64, "seq_length": 512}
MIXED = {
    "model": SMALL,
    "cluster": {
        "groups": [
            {"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 2},
            {"gpu": "a100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 2},
        ]
    },
    "workload": WORKLOAD,
    "launcher": "none",
    "search": {"top_k": 3, "certify": "none"},
}
FEWEST = {
    "model": {"name": "llama-3.1-8b"},
    "cluster": {"name": "dgx-h100", "num_nodes": 2},
    "workload": {"global_batch_size": 64, "seq_length": 2048},
    "launcher": "megatron-lm",
    "search": {"top_k": 3, "certify": "none", "gpus": "fewest"},
}
RAMP = {
    **TINY_PROBLEM,
    "workload": {
        "global_batch_size": 64,
        "seq_length": 512,
        "batch_ramp": [{"batch": 16, "until_tokens": 10**8}],
        "total_tokens": 10**9,
    },
}
PLAIN = {**TINY_PROBLEM, "search": {"top_k": 3, "certify": "none"}}
ASKED = {"one space": PLAIN, "placed stages": MIXED, "fewest GPUs": FEWEST, "a ramp": RAMP}


def never() -> bool:
    return False


def after(looks: int) -> ShouldStop:
    """Stops a search once it has asked so often."""
    asked = count()
    return lambda: next(asked) >= looks


def said(answer: Answer) -> Mapping[str, object]:
    """What an answer claims; how it came about (rows opened, seconds, warnings of a limit) may differ."""
    body = answer.to_json()
    names = ("status", "bound_step_time_s", "objective", "infeasible")
    plans = [{**plan, "rank": place} for place, plan in enumerate(body["plans"])]
    return {"plans": plans, **{name: body[name] for name in names}}


@pytest.mark.parametrize("asked", ASKED.values(), ids=list(ASKED))
def test_a_resumed_search_gives_the_answer_of_one_that_was_left_alone(
    asked: Mapping[str, object], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a first plan is sought for half a second: of CPU time here, so that a busy machine changes nothing
    monkeypatch.setattr("meshwright.solver.clock.time", SimpleNamespace(monotonic=time.process_time))
    problem: Problem = parse_problem(asked)
    search = StoredSearch(database)
    whole = search(problem, on_progress=lambda _: None, should_stop=never)
    assert whole.status == "optimal"
    broken = [search(problem, on_progress=lambda _: None, should_stop=after(looks)) for looks in (1, 3, 12)]
    kept = [known_in(checkpoint_of(answer)) for answer in broken]
    assert any(kept)  # some of them had found something to pass on
    for known in kept:
        again = search.knowing(known)(problem, on_progress=lambda _: None, should_stop=never)
        assert said(again) == said(whole)
