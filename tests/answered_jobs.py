"""Jobs that were answered, as a worker would have answered them."""

from service.db.database import Database
from service.db.records import NewJob, insert_job
from service.engine.job_engine import JobEngine
from service.request import problem_to_mapping
from solver.plan import Answer
from solver.problem import Problem
from tests.job_records import TENANT
from workers.outcome import outcome_of


def add_answered_job(
    database: Database, job_id: str, problem: Problem, answer: Answer, *, tenant: str = TENANT
) -> str:
    """A job with this answer; no other job may be waiting."""
    engine = JobEngine(database, lease_s=30.0)
    new = NewJob(
        id=job_id,
        tenant=tenant,
        request=problem_to_mapping(problem),
        time_limit_s=30.0,
        queue_timeout_s=3600.0,
    )
    with database.write() as connection:
        insert_job(connection, new)
    claim = engine.claim_one("worker")
    assert claim is not None
    assert claim.job_id == job_id
    assert engine.complete(claim, outcome_of(answer, cache_key=job_id, cancelled=False))
    return job_id
