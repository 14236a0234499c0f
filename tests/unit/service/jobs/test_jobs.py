"""Submitting, listing and reading, on a real SQLite file."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright import profiles
from meshwright.service.db.database import Database
from meshwright.service.errors import (
    BadPageTokenError,
    IdempotencyConflictError,
    NotFoundError,
    NotReadyError,
)
from meshwright.service.jobs.answers import cache_key_of, code_digest, versions_of
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import SHARE, Jobs, Room
from meshwright.service.jobs.states import Outcome
from meshwright.service.jobs.submission import Submission
from tests.builders import a_problem
from tests.reliability.figures import measured
from tests.served.job_records import SUCCESS, TENANT, RememberingQueue, claimed

PROBLEM = a_problem()
SUBMISSION = Submission(problem=PROBLEM, body={"any": "body"})


def answer_next(engine: JobEngine, *, versions: dict[str, str] | None = None) -> None:
    """As a worker of these versions would."""
    claim = claimed(engine)
    key = cache_key_of(claim.tenant, claim.request, versions or versions_of(PROBLEM))
    assert engine.complete(claim, replace(SUCCESS, cache_key=key))


def test_what_launchers_can_is_part_of_the_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profiles, "__path__", [str(tmp_path)])
    found = set()
    for able in ("zero_stages: [0]", "zero_stages: [0, 1]"):
        (tmp_path / "capabilities.yaml").write_text(able)
        found.add(code_digest.__wrapped__())
    assert len(found) == 2


def test_a_submitted_job_is_stored_before_a_worker_is_woken(jobs: Jobs, queue: RememberingQueue) -> None:
    job = jobs.submit(TENANT, SUBMISSION)
    assert jobs.read(TENANT, job.id).state == "queued"
    assert queue.woken == [job.id]


def test_the_same_key_and_body_give_the_same_job_and_wake_nobody_twice(
    jobs: Jobs, queue: RememberingQueue
) -> None:
    submission = replace(SUBMISSION, idempotency_key="key", fresh=True)
    assert jobs.submit(TENANT, submission).id == jobs.submit(TENANT, submission).id
    assert len(queue.woken) == 1


def test_the_order_of_the_bodys_keys_does_not_matter(jobs: Jobs) -> None:
    one = replace(SUBMISSION, idempotency_key="key", body={"a": 1, "b": 2})
    other = replace(SUBMISSION, idempotency_key="key", body={"b": 2, "a": 1})
    assert jobs.submit(TENANT, one).id == jobs.submit(TENANT, other).id


def test_the_same_key_with_another_body_is_refused_and_stores_nothing(jobs: Jobs) -> None:
    jobs.submit(TENANT, replace(SUBMISSION, idempotency_key="key"))
    with pytest.raises(IdempotencyConflictError):
        jobs.submit(TENANT, replace(SUBMISSION, idempotency_key="key", body={"other": "body"}))
    assert len(jobs.page(TENANT, page_size=10, page_token=None).items) == 1


def test_fifty_clients_with_one_key_make_one_job(jobs: Jobs) -> None:
    submission = replace(SUBMISSION, idempotency_key="key")
    ids: list[str] = []
    threads = [
        threading.Thread(target=lambda: ids.append(jobs.submit(TENANT, submission).id)) for _ in range(50)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(ids), len(set(ids))) == (50, 1)
    measured(16, "jobs made", len(set(ids)))


def test_a_known_answer_is_given_again_unless_a_fresh_one_is_asked_for(
    jobs: Jobs, engine: JobEngine
) -> None:
    first = jobs.submit(TENANT, SUBMISSION)
    assert jobs.submit(TENANT, SUBMISSION).id != first.id  # nothing is known yet
    answer_next(engine)
    again = jobs.submit(TENANT, SUBMISSION)
    assert (again.id, again.state) == (first.id, "succeeded")
    assert jobs.submit(TENANT, replace(SUBMISSION, fresh=True)).id != first.id


def test_an_answer_that_is_forgotten_at_that_moment_is_asked_for_again(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.service.db.records.answered_job", lambda *_: "forgotten")
    assert jobs.submit(TENANT, SUBMISSION).state == "queued"


def test_answers_are_not_shared_between_tenants_or_time_limits(jobs: Jobs, engine: JobEngine) -> None:
    first = jobs.submit(TENANT, SUBMISSION)
    answer_next(engine)
    longer = Submission(problem=a_problem(time_limit_s=60.0), body={})
    assert jobs.submit(TENANT, longer).id != first.id
    assert jobs.submit("another", SUBMISSION).id != first.id


def test_an_answer_of_another_version_is_not_given_again(jobs: Jobs, engine: JobEngine) -> None:
    first = jobs.submit(TENANT, SUBMISSION)
    answer_next(engine, versions={**versions_of(PROBLEM), "profile": "measured last year"})
    assert jobs.submit(TENANT, SUBMISSION).id != first.id


def test_a_failed_job_is_never_given_again(jobs: Jobs, engine: JobEngine) -> None:
    first = jobs.submit(TENANT, SUBMISSION)
    claim = claimed(engine)
    key = cache_key_of(claim.tenant, claim.request, versions_of(PROBLEM))
    engine.complete(claim, Outcome(state="failed", cache_key=key))
    assert jobs.submit(TENANT, SUBMISSION).id != first.id


def test_pages_hold_every_job_once_newest_first(jobs: Jobs) -> None:
    ids = [jobs.submit(TENANT, SUBMISSION).id for _ in range(5)]
    seen: list[str] = []
    token = None
    while True:
        page = jobs.page(TENANT, page_size=2, page_token=token)
        seen += [job.id for job in page.items]
        token = page.next_page_token
        if token is None:
            break
    assert sorted(seen) == sorted(ids)
    times = [jobs.read(TENANT, job_id).created_at_s for job_id in seen]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("token", ["x", "e30", "WzFd", "\ud800", "é", "W" * 300])
def test_a_page_token_of_somebody_elses_is_refused(jobs: Jobs, token: str) -> None:
    with pytest.raises(BadPageTokenError):
        jobs.page(TENANT, page_size=2, page_token=token)


def test_a_foreign_job_is_not_there(jobs: Jobs) -> None:
    job = jobs.submit(TENANT, SUBMISSION)
    for use in (jobs.read, jobs.cancel):
        with pytest.raises(NotFoundError):
            use("another", job.id)
    assert jobs.page("another", page_size=10, page_token=None).items == ()


def test_the_same_key_and_the_same_plan_belong_to_each_tenant_on_its_own(
    jobs: Jobs, engine: JobEngine
) -> None:
    submission = replace(SUBMISSION, idempotency_key="key")
    ours = jobs.submit(TENANT, submission)
    answer_next(engine)
    time.sleep(0.01)  # SQLite's clock has milliseconds
    theirs = jobs.submit("another", submission)
    answer_next(engine)  # the newest plan "bbb" is theirs
    assert theirs.id != ours.id
    assert jobs.plan(TENANT, "bbb")[0].id == ours.id
    assert jobs.plan("another", "bbb")[0].id == theirs.id


def test_plans_come_with_the_answer_page_by_page(jobs: Jobs, engine: JobEngine) -> None:
    job = jobs.submit(TENANT, SUBMISSION)
    with pytest.raises(NotReadyError):
        jobs.plans(TENANT, job.id, page_size=1, page_token=None)
    answer_next(engine)
    answered, first = jobs.plans(TENANT, job.id, page_size=1, page_token=None)
    _, second = jobs.plans(TENANT, job.id, page_size=1, page_token=first.next_page_token)
    assert answered.answer == {"status": "optimal"}
    assert [plan["plan_id"] for plan in (*first.items, *second.items)] == ["aaa", "bbb"]
    assert second.next_page_token is None
    with pytest.raises(NotFoundError):
        jobs.plans("another", job.id, page_size=1, page_token=None)


def test_a_plan_belongs_to_the_newest_job_that_found_it_and_to_its_tenant(
    jobs: Jobs, engine: JobEngine, database: Database
) -> None:
    jobs.submit(TENANT, SUBMISSION)
    answer_next(engine)
    time.sleep(0.01)  # SQLite's clock has milliseconds
    newer = jobs.submit(TENANT, replace(SUBMISSION, fresh=True))
    answer_next(engine)
    assert jobs.plan(TENANT, "bbb")[0].id == newer.id
    with pytest.raises(NotFoundError):
        jobs.plan("another", "bbb")
    assert database.dialect == "sqlite"


# Room in a queue is counted seldom while there is much of it, and hardly overdrawn.


def test_much_room_is_counted_once_for_many_jobs() -> None:
    room, counts = Room(), []

    def count() -> int:
        counts.append(1)
        return 10 * SHARE + 1  # (161 - 1) // 16 = 10 places beside the one that was asked for

    assert all(room.admits("ours", count) for _ in range(11))
    assert len(counts) == 1
    assert room.admits("ours", count)
    assert len(counts) == 2


def test_little_room_is_counted_for_every_job() -> None:
    room, left = Room(), [3, 2, 1, 0, 1]
    assert [room.admits("ours", lambda: left.pop(0)) for _ in range(5)] == [True, True, True, False, True]


def test_one_process_never_overdraws() -> None:
    limit, queued, room = 100, list[int](), Room()
    for turn in range(500):
        if room.admits("ours", lambda: limit - len(queued)):
            queued.append(turn)
    assert len(queued) == limit


def test_a_further_process_overdraws_by_its_share_at_most() -> None:
    limit, queued = 160, list[int]()
    first, second = Room(), Room()

    def fill(room: Room, turns: int) -> None:
        for turn in range(turns):
            if room.admits("ours", lambda: limit - len(queued)):
                queued.append(turn)

    fill(second, 1)  # has counted, and may fill (160 - 1) // 16 = 9 places more
    fill(first, 500)
    assert len(queued) == limit
    fill(second, 500)
    assert len(queued) == limit + 9


def test_one_tenants_room_is_not_anothers() -> None:
    room = Room()
    assert room.admits("ours", lambda: 1000)
    assert not room.admits("theirs", lambda: 0)
