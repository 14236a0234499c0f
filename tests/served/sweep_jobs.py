"""Sweeps of small problems, for tests of what happens to their points."""

from meshwright.service.db.database import Database
from meshwright.service.db.records import JobRecord, JobSummary, children_of, find_job
from meshwright.service.jobs.answers import cache_key_of, versions_of
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.submission import Submission
from meshwright.service.requests.jobs import read_job_request
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Answer
from meshwright.workers.outcome import outcome_of
from tests.builders import an_answer
from tests.served.job_records import TENANT, TINY_PROBLEM, claimed

BATCHES: list[object] = [8, 16, 32]


def a_sweep(*, fresh: bool = False, key: str | None = None, **axes: list[object]) -> Submission:
    """A sweep over ``BATCHES``, unless other axes are given."""
    body = {**TINY_PROBLEM, "sweep": axes or {"global_batch_size": BATCHES}}
    asked = read_job_request(body, parse_problem)
    return Submission(problem=asked.problem, body=body, sweep=asked.sweep, fresh=fresh, idempotency_key=key)


def children_in(database: Database, parent_id: str) -> list[JobSummary]:
    with database.read() as connection:
        return children_of(connection, TENANT, parent_id, after=-1, limit=1000)


def record_in(database: Database, job_id: str) -> JobRecord:
    with database.read() as connection:
        job = find_job(connection, TENANT, job_id)
    assert job is not None
    return job


def answer_child(engine: JobEngine, answer: Answer | None = None) -> str:
    """As a worker would answer the next job; its id."""
    claim = claimed(engine)
    versions = versions_of(parse_problem(claim.request))
    key = cache_key_of(claim.tenant, claim.request, versions, is_part=claim.parent_id is not None)
    outcome = outcome_of(answer or an_answer(), cache_key=key, cancelled=False)
    assert engine.complete(claim, outcome)
    return claim.job_id


def an_answered_sweep(jobs: Jobs, engine: JobEngine) -> JobRecord:
    """A sweep all of whose points are answered, and that nobody has joined."""
    parent = jobs.submit(TENANT, a_sweep())
    for _ in BATCHES:
        answer_child(engine)
    return parent
