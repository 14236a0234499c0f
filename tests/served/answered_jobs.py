"""Jobs that were answered, as a worker would have answered them."""

from meshwright.service.db.database import Database
from meshwright.service.db.records import NewJob, insert_job
from meshwright.service.jobs.claiming import claim_first
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.requests.fields import DEFAULT_PRIORITY
from meshwright.service.requests.parse import problem_to_mapping
from meshwright.solver.answer import Answer
from meshwright.solver.problem import Problem
from meshwright.workers.outcome import outcome_of
from tests.served.job_records import TENANT

LEASE_S = 600.0  # ten thousand plans are stored within it, however busy the machine


def add_answered_job(
    database: Database, job_id: str, problem: Problem, answer: Answer, *, tenant: str = TENANT
) -> str:
    """A job with this answer; none of the tenant's other jobs may be waiting.

    It is claimed in the transaction that inserts it, so that no worker of a running service takes it.
    """
    engine = JobEngine(database, lease_s=LEASE_S)
    outcome = outcome_of(answer, cache_key=job_id, cancelled=False)
    new = NewJob(
        id=job_id,
        tenant=tenant,
        request=problem_to_mapping(problem),
        time_limit_s=30.0,
        queue_timeout_s=3600.0,
        priority=DEFAULT_PRIORITY,
    )
    with database.write() as connection:
        insert_job(connection, new)
        claim = claim_first(connection, tenant, "worker", lease_s=LEASE_S, min_age_s=0.0)
    assert claim is not None
    assert claim.job_id == job_id
    assert engine.complete(claim, outcome)
    return job_id
