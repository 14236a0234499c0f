"""What a client of the API sends, and a worker's part in its answers."""

from dataclasses import replace
from typing import Any

from fastapi.testclient import TestClient

from meshwright.profiles.profile import default_profile
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.requests.parse import parse_problem
from meshwright.workers.outcome import outcome_of
from tests.builders import a_plan, an_answer
from tests.served.commands import known_answer
from tests.served.job_records import claimed

BODY: dict[str, Any] = {
    "model": {"name": "llama-3.1-8b"},
    "cluster": {"name": "dgx-h100", "num_nodes": 4},
    "workload": {"global_batch_size": 256, "seq_length": 8192},
}
PROBLEM_TYPE = "application/problem+json"


def submit(client: TestClient, **changes: object) -> str:
    answer = client.post("/v1/jobs", json={**BODY, **changes})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def answer_next(engine: JobEngine) -> None:
    """As a worker would, with two plans."""
    claim = claimed(engine)
    answer = an_answer(a_plan(plan_id="aaa"), a_plan(plan_id="bbb", rank=2))
    assert engine.complete(claim, outcome_of(answer, cache_key="k", cancelled=False))


def plan_next(engine: JobEngine, *, top_k: int = 2) -> None:
    """As a worker would that really searches, the same question once."""
    claim = claimed(engine)
    problem = parse_problem(claim.request)
    quick = replace(problem, options=replace(problem.options, top_k=top_k, certify="none"))
    answer = known_answer(quick, default_profile(problem.cluster, problem.launcher))
    assert engine.complete(claim, outcome_of(answer, cache_key="k", cancelled=False))
