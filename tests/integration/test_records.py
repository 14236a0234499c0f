"""Figures, quotas and definitions on both databases."""

import pytest
from sqlalchemy import delete

from meshwright.service.db.database import Database
from meshwright.service.db.metric_records import EndedSearch, job_figures, last_searches
from meshwright.service.db.records import NewChild, NewJob, insert_sweep
from meshwright.service.db.tables import jobs as job_table
from meshwright.service.errors import NotFoundError, TooManyRequestsError
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs, TenantLimits
from meshwright.service.jobs.queue import PollingQueue
from meshwright.service.jobs.submission import Submission
from meshwright.service.requests.fields import DEFAULT_PRIORITY
from meshwright.service.requests.parse import problem_to_mapping
from meshwright.service.stores.definitions import Definitions
from tests.builders import a_problem
from tests.served.job_records import SUCCESS, TENANT, add_job, claimed
from tests.served.sweep_jobs import children_in

POD = {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 2}]}


def test_figures_of_all_jobs_are_read(database: Database, engine: JobEngine) -> None:
    with database.read() as connection:
        before = job_figures(connection)
    add_job(database, "measured")
    claim = claimed(engine)
    engine.heartbeat(claim, {"stage": "done", "gap": 0.02, "explored": 5e9})
    engine.complete(claim, SUCCESS, cpu_s=3.0)
    add_job(database, "waiting")
    with database.read() as connection:
        after, (last, *_) = job_figures(connection), last_searches(connection, most=2)
    assert last == EndedSearch(end="optimal", cpu_s=3.0, rows=5e9, gap=0.02)
    assert after.by_state["succeeded"] == before.by_state.get("succeeded", 0) + 1
    assert 0 <= after.oldest_queued_age_s < 60
    assert after.attempts == before.attempts + 1
    assert after.solve_s.count == before.solve_s.count + 1
    assert after.gap.total == pytest.approx(before.gap.total + 0.02)
    steps = zip(after.gap.bounds, after.gap.at_most, before.gap.at_most, strict=True)
    assert [bound for bound, now, then in steps if now > then] == [0.03, 0.1, 0.3, 1.0]


@pytest.mark.parametrize(
    "limits", [TenantLimits(max_queued_jobs=2), TenantLimits(max_submits_per_minute=2)]
)
def test_a_tenant_gets_what_it_may_have(
    database: Database, engine: JobEngine, limits: TenantLimits
) -> None:
    jobs = Jobs(database, engine, PollingQueue(), queue_timeout_s=3600.0, limits=limits)
    tenant = f"bounded-{limits.max_queued_jobs}"
    submission = Submission(problem=a_problem(), body={}, fresh=True)
    for _ in range(2):
        jobs.submit(tenant, submission)
    with pytest.raises(TooManyRequestsError) as refused:
        jobs.submit(tenant, submission)
    assert 0 < refused.value.retry_after_s <= 60
    jobs.submit(f"{tenant}-other", submission)


def test_definitions_have_versions_pages_and_an_end(database: Database) -> None:
    definitions = Definitions(database)
    for nodes in (2, 2, 4):
        raw = {"groups": [{**POD["groups"][0], "num_nodes": nodes}]}
        record, _ = definitions.put("ours", "cluster", "pod", raw)
    assert record.version == 2
    definitions.put("ours", "cluster", "another", POD)
    first = definitions.page("ours", "cluster", after="", limit=1)
    rest = definitions.page("ours", "cluster", after=first[0].name, limit=5)
    assert [(one.name, one.version) for one in (*first, *rest)] == [("another", 1), ("pod", 2)]
    assert definitions.page("theirs", "cluster", after="", limit=5) == []
    definitions.delete("ours", "cluster", "pod", actor="test")
    with pytest.raises(NotFoundError):
        definitions.read("ours", "cluster", "pod", 1)


def test_a_point_that_was_answered_is_copied_and_one_that_is_forgotten_by_now_is_asked(
    database: Database, engine: JobEngine
) -> None:
    with database.write() as connection:
        connection.execute(delete(job_table).where(job_table.c.state == "queued"))  # of the tests before
    add_job(database, "asked before")
    known = claimed(engine)
    engine.complete(known, SUCCESS)
    request = problem_to_mapping(a_problem())
    new = NewJob(
        id="wide",
        tenant=TENANT,
        request=request,
        time_limit_s=30.0,
        queue_timeout_s=3600.0,
        priority=DEFAULT_PRIORITY,
    )
    points = [NewChild(values={}, request=request, known=name) for name in (known.job_id, "gone")]
    with database.write() as connection:
        insert_sweep(connection, new, points, "wide-")
    children = children_in(database, "wide")
    assert [child.state for child in children] == ["succeeded", "queued"]
    assert [(child.point or {})["reused_from"] for child in children] == [known.job_id, None]
    engine.cancel(TENANT, "wide")
