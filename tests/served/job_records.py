"""Jobs in a database, for tests of what happens to them."""

from sqlalchemy import func, select, update

from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.records import JobRecord, NewChild, NewJob, find_job, insert_job, insert_sweep
from meshwright.service.db.tables import jobs, plans
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.queue import QueueHealth
from meshwright.service.jobs.states import Claim, Outcome
from meshwright.service.requests.fields import DEFAULT_PRIORITY
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from tests.builders import a_problem

TENANT = "default"
# On all GPUs this objective ranks as step time does, and searches no levers, which take a CPU second.
TINY_SEARCH: dict[str, object] = {"top_k": 1, "certify": "none", "objective": "tokens_per_s_per_gpu"}
TINY_PROBLEM: dict[str, object] = {
    "model": {"name": "gpt-3-350m"},
    "cluster": {"name": "dgx-h100", "num_nodes": 1},
    "workload": {"global_batch_size": 16, "seq_length": 512},
    "launcher": "megatron-lm",
    "search": TINY_SEARCH,
}
PLANS = [{"plan_id": "aaa", "rank": 1}, {"plan_id": "bbb", "rank": 2}]
SUCCESS = Outcome(state="succeeded", answer={"status": "optimal"}, plans=PLANS, cache_key="k")


class RememberingQueue:
    """Remembers whom it was to wake."""

    def __init__(self) -> None:
        self.woken: list[str] = []

    def wake_verifier(self, plan_id: str) -> None:
        """Nobody verifies here."""

    def wake(self, job_id: str) -> None:
        self.woken.append(job_id)

    def health(self) -> QueueHealth:
        return "ok"


def add_job(
    database: Database, job_id: str = "job", *, queue_timeout_s: float = 3600.0, kind: str | None = None,
    tenant: str = TENANT,
) -> str:  # fmt: skip
    with database.write() as connection:
        new = NewJob(
            id=job_id,
            tenant=tenant,
            request=problem_to_mapping(a_problem()),
            time_limit_s=30.0,
            queue_timeout_s=queue_timeout_s,
            priority=DEFAULT_PRIORITY,
            kind=kind,
        )
        insert_job(connection, new)
    return job_id


def add_tiny_job(
    database: Database, job_id: str = "job", *, tenant: str = TENANT, batch: int = 16, limit_s: float = 30.0
) -> str:
    """A job whose search takes about 0.15 s of one core."""
    problem = parse_problem({**TINY_PROBLEM, "workload": {"global_batch_size": batch, "seq_length": 512}})
    with database.write() as connection:
        new = NewJob(
            id=job_id,
            tenant=tenant,
            request=problem_to_mapping(problem),
            time_limit_s=limit_s,
            queue_timeout_s=3600.0,
            priority=DEFAULT_PRIORITY,
        )
        insert_job(connection, new)
    return job_id


def add_tiny_sweep(database: Database, name: str, *, num_points: int) -> None:
    """A sweep and its points, whose ids are the sweep's with -0000, -0001, …."""
    request = problem_to_mapping(parse_problem(dict(TINY_PROBLEM)))
    with database.write() as connection:
        new = NewJob(
            id=name,
            tenant=TENANT,
            request=request,
            time_limit_s=30.0,
            queue_timeout_s=3600.0,
            priority=DEFAULT_PRIORITY,
        )
        points = [NewChild(values={"point": at}, request=request) for at in range(num_points)]
        insert_sweep(connection, new, points, f"{name}-")


def job_in(database: Database, job_id: str = "job") -> JobRecord:
    with database.read() as connection:
        job = find_job(connection, TENANT, job_id)
    assert job is not None
    return job


def num_plans(database: Database) -> int:
    with database.read() as connection:
        return connection.scalar(select(func.count()).select_from(plans)) or 0


def claimed(engine: JobEngine, worker: str = "worker") -> Claim:
    claim = engine.claim_one(worker)
    assert claim is not None
    return claim


def let_lease_run_out(database: Database) -> None:
    """As if the worker had been silent for longer than its lease."""
    with database.write() as connection:
        connection.execute(update(jobs).values(lease_expires_at_s=now_s() - 1))
