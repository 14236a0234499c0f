"""Jobs that were answered, as a worker would have answered them."""

from service.db.database import Database
from service.db.records import NewJob, insert_job
from service.engine.claiming import claim_first
from service.engine.job_engine import JobEngine
from service.request import problem_to_mapping
from solver.plan import Answer
from solver.problem import Problem
from tests.job_records import TENANT
from workers.outcome import outcome_of

LEASE_S = 30.0


def add_answered_job(
    database: Database, job_id: str, problem: Problem, answer: Answer, *, tenant: str = TENANT
) -> str:
    """A job with this answer; none of the tenant's other jobs may be waiting.

    It is claimed in the transaction that inserts it, so that no worker of a running service takes it.
    """
    engine = JobEngine(database, lease_s=LEASE_S)
    new = NewJob(
        id=job_id,
        tenant=tenant,
        request=problem_to_mapping(problem),
        time_limit_s=30.0,
        queue_timeout_s=3600.0,
    )
    with database.write() as connection:
        insert_job(connection, new)
        claim = claim_first(connection, tenant, "worker", lease_s=LEASE_S, min_age_s=0.0)
    assert claim is not None
    assert claim.job_id == job_id
    assert engine.complete(claim, outcome_of(answer, cache_key=job_id, cancelled=False))
    return job_id
