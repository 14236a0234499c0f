"""What a client of the API sends, and a worker's part in its answers."""

from typing import Any

from fastapi.testclient import TestClient

from meshwright.service.jobs.engine import JobEngine
from meshwright.workers.outcome import outcome_of
from tests.builders import a_plan, an_answer
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
