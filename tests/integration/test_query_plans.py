"""Every statement of the service over 100 000 jobs (SQLite: 20 000): how both databases find its rows.

``query_plans.json`` lists the allowed plans of each function that sends statements: the accesses to tables,
and the sorts. A list has no reason to read a table, or all rows of a tenant, so look twice at a new line.
``UPDATE_GOLDEN=1`` writes them anew.
"""

import inspect
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass, replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Self, get_args

import pytest
import yaml
from sqlalchemy import event, text

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.api.schemas import PlanSort
from meshwright.service.auth.access import begin_session, end_session
from meshwright.service.auth.keys import Keys, NewKey
from meshwright.service.db import (
    event_records,
    key_records,
    metric_records,
    plan_records,
    profile_records,
    records,
    usage_records,
)
from meshwright.service.db.database import Database
from meshwright.service.db.plan_records import PlanFilter
from meshwright.service.db.records import JobFilter
from meshwright.service.db.tables import job_events, jobs, plans
from meshwright.service.errors import NotFoundError
from meshwright.service.jobs import claiming, idempotency, retention, sweep_jobs, sweeper
from meshwright.service.jobs import engine as engines
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.idempotency import ONCE, Repeatable
from meshwright.service.jobs.jobs import Jobs, TenantLimits
from meshwright.service.jobs.pagination import encode_token
from meshwright.service.jobs.queue import PollingQueue
from meshwright.service.jobs.retention import Retention
from meshwright.service.jobs.states import AnsweredPart
from meshwright.service.jobs.submission import FleetAsked, Submission
from meshwright.service.jobs.sweeps import Sweeps
from meshwright.service.requests.parse import parse_problem
from meshwright.service.stores import definitions as definition_store
from meshwright.service.stores import deletion, verifications
from meshwright.service.stores import replans as replan_store
from meshwright.service.stores import shares as share_store
from meshwright.service.stores.definitions import Definitions
from meshwright.service.stores.deletion import Deletion
from meshwright.service.stores.profiles import ProfileStore
from meshwright.service.stores.replans import Replans
from meshwright.service.stores.shares import ShareLinks
from meshwright.service.stores.verifications import Verifications, not_built
from tests.integration.conftest import new_postgres
from tests.served.job_records import SUCCESS, TENANT, TINY_PROBLEM
from tests.served.many_jobs import fill
from tests.served.sweep_jobs import a_sweep

NUM_JOBS = {"sqlite": 20_000, "postgresql": 100_000}  # SQLite's plans depend little on sizes
ALLOWED = Path(__file__).with_name("query_plans.json")
MODULES: tuple[ModuleType, ...] = (
    records, plan_records, event_records, profile_records, key_records, metric_records,
    usage_records, definition_store, replan_store, share_store, deletion, claiming, engines, idempotency,
    retention, sweep_jobs, sweeper, verifications,
)  # fmt: skip
JOB_LISTS = (
    *(JobFilter(state=state) for state in (None, "failed", "queued", "succeeded")),
    JobFilter(model="gpt-3-350m"),
    JobFilter(owner="k7"),
    JobFilter(owner="k7", model="none", state="failed"),
    JobFilter(model="none", state="succeeded"),
    JobFilter(labels={"team": "team-7"}),
    JobFilter(labels={"team": "team-7", "run": "run-7"}, model="none", owner="k7"),
    JobFilter(fleets=True),
    JobFilter(fleets=True, state="failed"),
    JobFilter(fleets=True, labels={"team": "team-7"}),
)
Given = Any  # the parameters of a statement, as its driver takes them
Plans = dict[str, set[str]]


class Recorder:
    """Remembers each statement of a database by the function that sent it, and every function that ran."""

    def __init__(self, database: Database) -> None:
        self.sent: dict[str, dict[str, Given]] = defaultdict(dict)
        self.ran = set[str]()
        self._files = {inspect.getsourcefile(one): one.__name__.rpartition(".")[2] for one in MODULES}
        event.listen(database._engine, "before_cursor_execute", self._note)

    def _note(
        self, _connection: object, _cursor: object, sql: str, given: Given, _context: object, many: bool
    ) -> None:
        if sql.split(maxsplit=1)[0] in {"SELECT", "WITH", "INSERT", "UPDATE", "DELETE"}:
            self.sent[self._sender()][sql] = given[0] if many else given

    def _sender(self) -> str:
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename not in self._files:
            frame = frame.f_back
        return self._name(frame) or "others"

    def _name(self, frame: FrameType) -> str | None:
        file = self._files.get(frame.f_code.co_filename)
        return None if file is None else f"{file}.{frame.f_code.co_name}"

    def __enter__(self) -> Self:
        sys.setprofile(self._trace)
        return self

    def __exit__(self, *_fault: object) -> None:
        sys.setprofile(None)

    def _trace(self, frame: FrameType, _what: str, _argument: object) -> None:
        if frame.f_code.co_filename in self._files:
            self.ran.add(str(self._name(frame)))


def functions() -> set[str]:
    """The functions and methods with a connection, which send the statements of the service."""
    found = set[str]()
    for module in MODULES:
        kinds = [module, *(one for one in vars(module).values() if inspect.isclass(one))]
        for kind in kinds:
            if getattr(kind, "__module__", module.__name__) != module.__name__ or is_dataclass(kind):
                continue
            for name, one in vars(kind).items():
                own = inspect.isfunction(one) and one.__module__ == module.__name__
                sends = own and {"connection", "self", "database"} & set(inspect.signature(one).parameters)
                if sends and not name.startswith("__"):
                    found.add(f"{module.__name__.rpartition('.')[2]}.{name}")
    return found


def use_everything(database: Database) -> None:
    """Ask for everything that a client, a worker or an operator can ask for."""
    engine = JobEngine(database, lease_s=30.0, max_running_jobs=1000)
    limits = TenantLimits(max_submits_per_minute=10_000)
    jobs = Jobs(database, engine, PollingQueue(), queue_timeout_s=3600.0, limits=limits)
    use_jobs(database, engine, jobs)
    use_plans(jobs)
    use_verifications(database, jobs)
    use_stores(database, jobs)
    Deletion(database, actor="me").job(TENANT, jobs.page(TENANT, page_size=1, page_token=None).items[0].id)
    Deletion(database, actor="me").tenant("theirs")
    with database.write() as connection:
        deletion._add_closing_key(connection)
        usage_records.used_today(connection, TENANT, "k7")
        usage_records.usage_of(connection, TENANT, days=30, limit=50, after=(20_000, "k"))
        usage_records.total_usage(connection, TENANT, days=30)
        metric_records.leader_figures(connection)
        metric_records.open_verifications(connection)
        metric_records.open_fleets(connection)
        metric_records.workers_alive(connection)
        metric_records.cpu_by_tenant(connection, most=5)
        metric_records.cpu_today(connection)
        usage_records.note_worker(connection, "worker", kind="search", version="1")
        usage_records.live_workers(connection)
        usage_records.forget_worker(connection, "worker")
    with database.read() as connection:
        metric_records.job_figures(connection)
        metric_records.last_searches(connection, most=100)
        event_records.newest_event_ids(connection, ["many-5", "many-6"])


def use_jobs(database: Database, engine: JobEngine, jobs: Jobs) -> None:
    sweeps = Sweeps(database, engine, worker="sweeper")
    problem = parse_problem(dict(TINY_PROBLEM))
    for fresh in (True, False):
        key, labels = f"own {fresh}", {"team": "nlp"}
        submission = Submission(problem=problem, body={}, fresh=fresh, idempotency_key=key, labels=labels)
        jobs.submit(TENANT, submission)
    known = engine.claim_one("worker", min_age_s=0.5)
    assert known is not None
    engine.heartbeat(known, {"stage": "searching", "gap": 0.5})
    engine.look(known)
    engine.complete(known, SUCCESS)
    for leave in (engine.release, engine.abandon):
        claim = engine.claim_one("worker")
        assert claim is not None
        leave(claim)
    claim = engine.claim_one("worker")
    assert claim is not None
    part = AnsweredPart(job_id="part", name="a", request={}, answer={}, plans=SUCCESS.plans, cache_key=None)
    engine.complete(claim, replace(SUCCESS, parts=[part]))
    jobs.parts(TENANT, jobs.read(TENANT, claim.job_id))
    claim = engine.claim_one("worker")
    assert claim is not None
    engine.fail(claim, code="poison", detail="")
    fleet = FleetAsked(request={}, versions={}, time_limit_s=1.0)
    planned = jobs.submit(TENANT, Submission(fleet=fleet, body={}))
    again = FleetAsked(request={}, versions={}, time_limit_s=1.0, replans=planned.id)
    jobs.submit(TENANT, Submission(fleet=again, body={}, fresh=True))
    sweep = jobs.submit(TENANT, a_sweep(global_batch_size=[104, 112], key="of a sweep"))
    sweeps.child_ended(sweep.id)
    jobs.children(TENANT, sweep.id, page_size=50, page_token=None)
    with database.write() as connection:
        connection.execute(text("UPDATE jobs SET cache_key = 'known' WHERE id = 'many-5'"))
        records._copy(connection, TENANT, "many-5", {**a_child(), "id": "copied"})
        records.child_keys(connection, sweep.id)
        records.child_at(connection, sweep.id, 0)
        sweeper.move_moments(connection, 0.0, age_s=0.0, longest_lease_s=30.0)
        sweeper._note_moved(connection, 0.0)
    jobs.cancel(TENANT, sweep.id, key="of a cancel")
    sweeps.join_ready()
    for wanted in JOB_LISTS:
        first = jobs.page(TENANT, wanted, page_size=50, page_token=None)
        if first.next_page_token:
            jobs.page(TENANT, wanted, page_size=50, page_token=first.next_page_token)
        jobs.headings(TENANT, [one.id for one in first.items])
    jobs.look(TENANT, "many-5")
    jobs.events(TENANT, "many-5", after=0)
    jobs.plans(TENANT, "many-5", page_size=50, page_token=None)
    engine.leads("worker", 30.0)
    engine.leads("worker", 30.0)
    engine.sweep()
    Retention(database, keep_jobs_days=79.9, idempotency_ttl_s=86_400.0).prune()


def a_child() -> dict[str, Any]:
    return {
        "request": {}, "time_limit_s": 1.0, "priority": 5, "created_at_s": 1.0, "expires_at_s": 1.0,
        "parent_id": "sweep", "position": 0, "point": {"values": {}, "reused_from": "many-5"},
    }  # fmt: skip


def use_plans(jobs: Jobs) -> None:
    for sort in get_args(PlanSort):
        every = PlanFilter(sort=sort)
        token = jobs.plans_like(TENANT, every, page_size=50, page_token=None).next_page_token
        jobs.plans_like(TENANT, every, page_size=50, page_token=token)
        wanted = PlanFilter(
            sort=sort, equal={"model": "none"}, at_most={"peak_memory_bytes": 1e9}, at_least={"mfu": 0.5},
            measured=False,
        )  # fmt: skip
        page = jobs.plans_like(TENANT, wanted, page_size=50, page_token=None)
        if page.next_page_token:
            jobs.plans_like(TENANT, wanted, page_size=50, page_token=page.next_page_token)
    jobs.plans_like(TENANT, PlanFilter(equal={"job_id": "many-5"}), page_size=50, page_token=None)
    jobs.plan(TENANT, "plan-7")


def use_verifications(database: Database, jobs: Jobs) -> None:
    store = Verifications(database, jobs, PollingQueue(), lease_s=30.0, max_attempts=3)
    for plan_id in ("plan-5", "plan-6"):  # known to be there; their bodies cannot be read
        store.ask(TENANT, plan_id, repeatable=Repeatable(key=plan_id, digest="x"))
    store.find(TENANT, "plan-5")
    store.verdicts(TENANT, ["plan-5"])
    row = store._next()
    assert row is not None
    claim = verifications.VerificationClaim(tenant=row.tenant, plan_id=row.plan_id, fence=row.fence)
    store.keep(claim)
    store.spent(claim, 1.0)
    store.give_back(claim)
    store.settle(claim, not_built("no"))
    assert store.claim() is None


def use_stores(database: Database, jobs: Jobs) -> None:
    profiles, definitions = ProfileStore(database), Definitions(database)
    keys = Keys(database, actor="me")
    for page in (profiles.page, keys.page, keys.trail):
        token = page(TENANT, page_size=50, page_token=None).next_page_token
        page(TENANT, page_size=50, page_token=token)
    for name in ("no-such", "profile-5"):
        with suppress(NotFoundError):
            profiles.read(TENANT, name)
            profiles.delete(TENANT, name, actor="me")
    with database.write() as connection:
        profile_records.version_of(connection, "profile-6")
        profile_records.latest_calibration(connection, TENANT, ["scope-1", "scope-2"])
        facts = {"kind": "calibration", "gpu": None, "title": "", "scope": "scope-1"}
        version = profile_records.next_version(connection, TENANT, "scope-1")
        profile_records.insert_profile(connection, TENANT, "own", document={}, version=version, **facts)
        profile_records.find_measurement(connection, TENANT, "key")
        run = profile_records.newest_measurements(connection, TENANT, "scope-1", limit=64)[0]
        values = {"request": {}, "config": {}, "body": {}, "profile_id": "own", "scope": "scope-1"}
        profile_records.insert_measurement(connection, TENANT, "own", plan_id=run.plan_id, **values)
        plan_records.note_measured(connection, TENANT, [run.plan_id])
        profile_records.runs_behind(connection, "own", limit=64)
        profile_records.is_full(connection, TENANT, 10_000)
    for num_nodes in (2, 3):  # the second is a new version
        raw = {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": num_nodes}]}
        definitions.put(TENANT, "cluster", "own", raw)
    definitions.read(TENANT, "cluster", "own", 1)
    definitions.page(TENANT, "model", after="model-5", limit=50)
    with pytest.raises(InvalidProblemError):  # its document is empty, as of all these rows
        definitions.filled_in(TENANT, {"model": {"name": "model-5"}})
    definitions.delete(TENANT, "cluster", "own", actor="me")
    newest = jobs.page(TENANT, page_size=1, page_token=None).items[0].id
    use_replans(Replans(database), newest)
    answered = JobFilter(state="succeeded")
    use_links(ShareLinks(database), jobs.page(TENANT, answered, page_size=1, page_token=None).items[0].id)
    record, _ = keys.create(NewKey(tenant=TENANT))
    session = begin_session(database, record.id)
    with database.write() as connection:
        key_records.secret_of(connection, "sign-in")
    with database.read() as connection:
        key_records.any_key(connection)
        key_records.session_key(connection, key_records_hash(session))
    end_session(database, session)
    keys.revoke(record.id, tenant=TENANT, with_links=True)
    keys.revoke_since(1.0, seen_in=database)


def use_replans(replans: Replans, job_id: str) -> None:
    once = Repeatable(key="of a re-plan", digest="x")
    for _ in range(2):
        replans.keep(TENANT, job_id, {}, {}, key_id=None, repeatable=ONCE)
    kept, _answer = replans.keep(TENANT, job_id, {}, {}, key_id=None, repeatable=once)
    assert replans.earlier(TENANT, job_id, once) == (kept, {})
    token = replans.page(TENANT, job_id, page_size=1, page_token=None).next_page_token
    replans.page(TENANT, job_id, page_size=1, page_token=token)
    replans.read(TENANT, job_id, kept.id)


def use_links(shares: ShareLinks, job_id: str) -> None:
    made, token = shares.create(TENANT, job_id, days=1.0, key_id=None, repeatable=ONCE)
    assert token is not None
    assert shares.opened(token) == made
    assert shares.of_job(TENANT, job_id) == [made]
    token = shares.page(TENANT, page_size=1, page_token=None).next_page_token
    shares.page(TENANT, page_size=1, page_token=encode_token(made.created_at_s + 1, "a"), key_id="k7")
    assert token is None
    shares.revoke(TENANT, job_id, made.id, actor="me")


def key_records_hash(token: str) -> str:
    from meshwright.service.auth.keys import hash_of  # noqa: PLC0415 - its only use

    return hash_of(token)


def plans_of(database: Database, sent: dict[str, dict[str, Given]]) -> Plans:
    """How the database finds the rows of each statement, by the function that sends it."""
    explained: Plans = defaultdict(set)
    for sender, statements in sent.items():
        for sql, given in statements.items():
            if database.dialect == "sqlite":
                lines = sqlite_lines(database, sql, given)
            else:
                lines = postgresql_lines(database, sql, given)
            explained[sender].update(lines)
    return {sender: lines for sender, lines in explained.items() if lines}


def sqlite_lines(database: Database, sql: str, given: Given) -> Iterator[str]:
    with database.read() as connection:
        for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", given):
            if row.detail.startswith(("SCAN", "SEARCH", "USE TEMP")):
                yield re.sub(r"\(subquery-\d+\)|SUBQUERY \d+", "subquery", row.detail)


def postgresql_lines(database: Database, sql: str, given: Given) -> Iterator[str]:
    with database.read() as connection:
        (whole,) = connection.exec_driver_sql(f"EXPLAIN (FORMAT YAML) {sql}", given).scalars()
    yield from nodes(yaml.safe_load(whole)[0]["Plan"])


def nodes(plan: dict[str, Any]) -> Iterator[str]:
    kind = plan["Node Type"]
    if "Scan" in kind and (name := plan.get("Index Name") or plan.get("Relation Name")):
        how = "scan" if kind == "Seq Scan" else "index"
        condition = re.sub(r"\(([a-z_]+)\)::\w+|::\w+", r"\1", plan.get("Index Cond", ""))
        columns = sorted(set(re.findall(r"\b([a-z_]+)(?=\)* (?:=|<|>|IS|IN))", condition)))
        yield f"{how} {name}" + (f" ({', '.join(columns)})" if columns else "")
    elif "Sort" in kind:
        yield kind.lower()
    for child in plan.get("Plans", ()):
        yield from nodes(child)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Many jobs; PostgreSQL has looked at them, as it does by itself after a minute."""
    if request.param == "sqlite":
        made = Database(f"sqlite:///{tmp_path_factory.mktemp('many') / 'meshwright.db'}")
        fill(made, NUM_JOBS["sqlite"])
        yield made
        made.close()
        return
    with new_postgres(request.getfixturevalue("postgres_server")) as made, no_autovacuum(made):
        fill(made, NUM_JOBS["postgresql"])
        with made.read() as connection:
            alone = connection.execution_options(isolation_level="AUTOCOMMIT")
            alone.execute(text("SET default_statistics_target = 1000"))  # every row, no drawn ones
            alone.execute(text("VACUUM (ANALYZE)"))
            alone.execute(text("RESET default_statistics_target"))
        yield made


@contextmanager
def no_autovacuum(database: Database) -> Iterator[None]:
    """Keep PostgreSQL from other statistics, of drawn rows, while plans are read: they change the plans."""
    set_up(database, "ALTER SYSTEM SET autovacuum = off")
    try:
        yield
    finally:
        set_up(database, "ALTER SYSTEM RESET autovacuum")


def set_up(database: Database, statement: str) -> None:
    with database.read() as connection:
        alone = connection.execution_options(isolation_level="AUTOCOMMIT")
        alone.execute(text(statement))
        alone.execute(text("SELECT pg_reload_conf()"))


def looks_at_all_jobs(found: dict[str, set[str]]) -> set[str]:
    """Return the accesses that pass every row of a table that grows with jobs: none is allowed."""
    few = {
        index.name
        for table in (jobs, plans, job_events)
        for index in table.indexes
        if index.dialect_options["sqlite"]["where"] is not None
    }
    every = re.compile(r"(?i:scan) (?:jobs|plans|job_events)(?: .*INDEX (\w+))?$")
    passed = ((line, every.match(line)) for lines in found.values() for line in lines)
    return {line for line, match in passed if match and match[1] not in few}


@pytest.mark.timeout(900)
def test_every_statement_finds_its_rows_by_an_allowed_plan(filled: Database) -> None:
    recorder = Recorder(filled)
    with recorder:
        use_everything(filled)
    assert functions() - recorder.ran == set()
    found = plans_of(filled, recorder.sent)
    if filled.dialect == "sqlite":  # with statistics and without
        filled.note_statistics()
        filled._engine.dispose()
        for sender, lines in plans_of(filled, recorder.sent).items():
            found.setdefault(sender, set()).update(lines)
    assert looks_at_all_jobs(found) == set()
    allowed = json.loads(ALLOWED.read_text(encoding="utf-8")) if ALLOWED.exists() else {}
    if os.environ.get("UPDATE_GOLDEN"):
        allowed[filled.dialect] = {sender: sorted(lines) for sender, lines in sorted(found.items())}
        ALLOWED.write_text(json.dumps(allowed, indent=1) + "\n", encoding="utf-8")
    surprising = {
        sender: sorted(lines - set(allowed[filled.dialect].get(sender, ())))
        for sender, lines in found.items()
    }
    assert {sender: lines for sender, lines in surprising.items() if lines} == {}
