"""Measured plans and stored profiles, over a real database."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from meshwright.profiles.calibration import Calibration
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import default_profile
from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from meshwright.service.db.tables import jobs, profiles
from meshwright.service.db.tables import measurements as measured_runs
from meshwright.service.errors import IdempotencyConflictError, NotFoundError
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.retention import Retention
from meshwright.service.jobs.submission import Submission
from meshwright.service.requests.profiles import profile_with
from meshwright.service.stores.measurements import Measurements
from meshwright.service.stores.profiles import ProfileStore, scope_of
from meshwright.solver.answer import Plan
from meshwright.solver.calibration.credible import require_credible
from meshwright.solver.planner.plan import ask
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from meshwright.workers.outcome import outcome_of
from meshwright.workers.search import StoredSearch
from tests.builders import a_cluster, a_model, a_plan, a_problem, an_answer
from tests.served.job_records import TENANT, RememberingQueue, claimed

PROBLEM = a_problem()
# one of 128 GPUs in 4 stages, the other in 2
PLANS = (
    a_plan(plan_id="aaa"),
    a_plan(
        plan_id="bbb",
        rank=2,
        pipeline_parallel_size=2,
        data_parallel_size=8,
        zero_shard_size=8,
        num_microbatches=64,
        stage_layers=(8,) * 10,
    ),
)


def expected_s(problem: Problem, plan: Plan) -> float:
    return predict(problem, default_profile(problem.cluster, problem.launcher), plan.config).step_time_s


@pytest.fixture
def store(database: Database) -> ProfileStore:
    return ProfileStore(database)


@pytest.fixture
def measurements(database: Database, engine: JobEngine) -> Measurements:
    """With one finished job on 16 nodes that found both plans."""
    jobs = Jobs(database, engine, RememberingQueue(), queue_timeout_s=3600.0)
    jobs.submit(TENANT, Submission(problem=PROBLEM, body={}))
    assert engine.complete(claimed(engine), outcome_of(an_answer(*PLANS), cache_key="k", cancelled=False))
    return Measurements(database, jobs)


def test_a_measured_plan_corrects_its_own_prediction_and_its_neighbours(
    measurements: Measurements, store: ProfileStore
) -> None:
    before = expected_s(PROBLEM, PLANS[0])
    learnt = measurements.add(TENANT, "aaa", {"step_time_s": 1.3 * before}, key=None)
    assert learnt.num_runs == 1
    # measured 30 % slower: the corrected prediction lies near it, and not beyond
    assert 1.15 * before < learnt.prediction.step_time_s < 1.32 * before
    record, document = store.read(TENANT, learnt.profile_id)
    assert (record.kind, record.gpu, document["num_runs"]) == ("calibration", "h100-sxm-80gb", 1)


def test_every_run_of_the_cluster_teaches(measurements: Measurements) -> None:
    first = measurements.add(TENANT, "aaa", {"step_time_s": 1.3 * expected_s(PROBLEM, PLANS[0])}, key=None)
    second = measurements.add(TENANT, "bbb", {"step_time_s": 1.3 * expected_s(PROBLEM, PLANS[1])}, key=None)
    assert (first.num_runs, second.num_runs) == (1, 2)
    assert first.profile_id != second.profile_id


def test_runs_that_contradict_each_other_are_named(measurements: Measurements) -> None:
    seconds = expected_s(PROBLEM, PLANS[0])
    for factor in (1.0, 1.01, 0.99, 1.0):
        measurements.add(TENANT, "aaa", {"step_time_s": factor * seconds}, key=None)
    learnt = measurements.add(TENANT, "aaa", {"step_time_s": 3.0 * seconds}, key=None)
    assert any("aaa" in finding for finding in learnt.findings)


def test_the_same_key_keeps_one_measurement_and_gives_the_same_answer(measurements: Measurements) -> None:
    body = {"step_time_s": 1.1 * expected_s(PROBLEM, PLANS[0])}
    first = measurements.add(TENANT, "aaa", body, key="run-1")
    assert measurements.add(TENANT, "aaa", body, key="run-1") == first
    assert measurements.add(TENANT, "bbb", body, key="run-2").num_runs == 2


def test_a_measurement_that_is_sent_again_when_its_job_is_forgotten_gets_the_same_answer(
    measurements: Measurements, database: Database
) -> None:
    body = {"step_time_s": 1.1 * expected_s(PROBLEM, PLANS[0])}
    first = measurements.add(TENANT, "aaa", body, key="run-1")
    with database.write() as connection:
        connection.execute(update(jobs).values(finished_at_s=0.0))
    assert Retention(database, keep_jobs_days=1.0, idempotency_ttl_s=60.0).prune().jobs == 1
    assert measurements.add(TENANT, "aaa", body, key="run-1") == first


def write_as_another_release(database: Database, profile_id: str) -> None:
    """Take the last feature off every run of a stored calibration."""
    with database.write() as connection:
        here = profiles.c.id == profile_id
        document = connection.execute(select(profiles.c.document).where(here)).scalar_one()
        residual = document["residual"]
        shorter = {**residual, "points": [point[:-1] for point in residual["points"]]}
        connection.execute(update(profiles).where(here).values(document={**document, "residual": shorter}))


def test_a_calibration_that_another_release_wrote_is_learnt_again_from_its_runs(
    measurements: Measurements, store: ProfileStore, database: Database
) -> None:
    before = expected_s(PROBLEM, PLANS[0])
    body = {"step_time_s": 1.3 * before}
    first = measurements.add(TENANT, "aaa", body, key="run-1")
    measurements.add(TENANT, "bbb", {"step_time_s": 1.1 * expected_s(PROBLEM, PLANS[1])}, key=None)
    asked = replace(PROBLEM, profile=first.profile_id)
    corrected = store.profile_of(asked)
    write_as_another_release(database, first.profile_id)
    assert measurements.add(TENANT, "aaa", body, key="run-1") == first
    # the first run alone: the second came later, and led to another calibration
    assert store.profile_of(asked) == corrected


def test_a_calibration_of_another_release_whose_runs_are_gone_says_what_to_do(
    measurements: Measurements, store: ProfileStore, database: Database
) -> None:
    body = {"step_time_s": 1.3 * expected_s(PROBLEM, PLANS[0])}
    learnt = measurements.add(TENANT, "aaa", body, key=None)
    write_as_another_release(database, learnt.profile_id)
    with database.write() as connection:
        connection.execute(delete(measured_runs))
    with pytest.raises(InvalidProblemError, match="written by another version: calibrate again") as fault:
        store.profile_of(replace(PROBLEM, profile=learnt.profile_id))
    assert fault.value.errors[0].pointer == "/profile"


def test_a_key_is_bound_to_its_plan_and_body(measurements: Measurements) -> None:
    body = {"step_time_s": 1.1 * expected_s(PROBLEM, PLANS[0])}
    measurements.add(TENANT, "aaa", body, key="run-1")
    for plan_id, other in (("aaa", {"step_time_s": 99.0}), ("bbb", body)):
        with pytest.raises(IdempotencyConflictError):
            measurements.add(TENANT, plan_id, other, key="run-1")


def test_a_run_out_of_memory_is_a_label_without_a_time(measurements: Measurements) -> None:
    learnt = measurements.add(TENANT, "aaa", {"out_of_memory": True}, key=None)
    plain = predict(PROBLEM, default_profile(PROBLEM.cluster, PROBLEM.launcher), PLANS[0].config)
    assert learnt.num_runs == 0
    assert learnt.prediction.peak_memory_bytes > plain.peak_memory_bytes


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, ""),
        ({"step_time_s": "fast"}, "/step_time_s"),
        ({"step_time_s": -1.0}, "/step_time_s"),
        ({"step_time_s": 30.0, "memory_kind": "all"}, "/memory_kind"),
        ({"step_time_s": 30.0, "step_time": 1}, "/step_time"),
        ({"peak_memory_bytes": 1.5}, "/peak_memory_bytes"),
        ({"out_of_memory": True, "step_time_s": 30.0}, "/step_time_s"),
        # 70 billion weights, 6 FLOPs each, 4.2 million tokens on 128 H100s: 14 s at their peak
        ({"step_time_s": 1.0}, "/step_time_s"),
        ({"peak_memory_bytes": 2**40}, "/peak_memory_bytes"),
    ],
)
def test_what_cannot_be_is_refused_and_teaches_nothing(
    measurements: Measurements, store: ProfileStore, body: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(InvalidProblemError) as raised:
        measurements.add(TENANT, "aaa", body, key=None)
    assert raised.value.errors[0].pointer == pointer
    assert store.page(TENANT, page_size=10, page_token=None).items == ()


def test_a_plan_of_nobody_is_not_there(measurements: Measurements) -> None:
    for tenant, plan_id in ((TENANT, "ccc"), ("other", "aaa")):
        with pytest.raises(NotFoundError):
            measurements.add(tenant, plan_id, {"step_time_s": 30.0}, key=None)


def test_more_nodes_of_a_cluster_share_its_calibration_and_another_launcher_does_not() -> None:
    assert scope_of(a_problem(cluster=a_cluster(num_nodes=4))) == scope_of(PROBLEM)
    assert scope_of(a_problem()) != scope_of(
        Problem(
            model=PROBLEM.model, cluster=PROBLEM.cluster, workload=PROBLEM.workload, launcher="deepspeed"
        )
    )


def test_equal_documents_are_one_profile_of_each_tenant(
    measurements: Measurements, store: ProfileStore
) -> None:
    learnt = measurements.add(TENANT, "aaa", {"step_time_s": 40.0}, key=None)
    _, document = store.read(TENANT, learnt.profile_id)
    shuffled = dict(reversed(list(document.items())))
    assert store.add(TENANT, shuffled).id == learnt.profile_id
    assert len(store.page(TENANT, page_size=10, page_token=None).items) == 1
    with pytest.raises(NotFoundError):
        store.read("other", learnt.profile_id)
    assert store.add("other", document).id == learnt.profile_id


def test_profiles_come_in_pages_newest_first(measurements: Measurements, store: ProfileStore) -> None:
    ids = [
        measurements.add(TENANT, "aaa", {"step_time_s": seconds}, key=None).profile_id
        for seconds in (40.0, 41.0, 42.0)
    ]
    first = store.page(TENANT, page_size=2, page_token=None)
    second = store.page(TENANT, page_size=2, page_token=first.next_page_token)
    assert [one.id for one in (*first.items, *second.items)] == ids[::-1]
    assert second.next_page_token is None


def test_a_worker_searches_with_the_profile_that_the_problem_names(
    measurements: Measurements, store: ProfileStore, database: Database
) -> None:
    seconds = 1.5 * expected_s(PROBLEM, PLANS[0])
    learnt = measurements.add(TENANT, "aaa", {"step_time_s": seconds}, key=None)
    model = a_model(num_layers=8, hidden_size=4096, num_attention_heads=32, ffn_hidden_size=14336)
    named = a_problem(model=model, cluster=a_cluster(num_nodes=1), top_k=1, certify="none")
    named = Problem(
        model=named.model,
        cluster=named.cluster,
        workload=named.workload,
        options=named.options,
        profile=learnt.profile_id,
    )
    answer = StoredSearch(database)(named, on_progress=lambda _: None, should_stop=lambda: False)
    assert answer.versions["profile"] == store.profile_of(named).version
    assert answer.versions["profile"] != default_profile(named.cluster, named.launcher).version


def test_a_problem_must_name_a_profile_that_is_there(store: ProfileStore) -> None:
    named = Problem(
        model=PROBLEM.model, cluster=PROBLEM.cluster, workload=PROBLEM.workload, profile="0" * 32
    )
    with pytest.raises(InvalidProblemError) as raised:
        store.require(TENANT, named)
    assert raised.value.errors[0].pointer == "/profile"


def test_a_step_faster_than_the_stack_has_ever_been_is_refused_and_not_stored(
    measurements: Measurements,
) -> None:
    """75 % MFU; Megatron-Core's best catalogued run in 16 bits, DGXC-0188, reaches 55.6 %."""
    flops = PROBLEM.model.model_flops_per_token(8192) * 8192 * 512 / 128
    with pytest.raises(InvalidProblemError, match=r"75% MFU\. The best catalogued run") as raised:
        measurements.add(TENANT, "aaa", {"step_time_s": flops / (0.75 * 989e12)}, key=None)
    assert raised.value.errors[0].pointer == "/step_time_s"


def test_a_problem_of_another_stack_cannot_name_what_was_learnt(
    measurements: Measurements, store: ProfileStore
) -> None:
    learnt = measurements.add(TENANT, "aaa", {"step_time_s": 30.0}, key=None)
    store.require(TENANT, replace(PROBLEM, profile=learnt.profile_id))
    with pytest.raises(InvalidProblemError, match="stack megatron-core, but you asked for fsdp") as raised:
        store.require(TENANT, replace(PROBLEM, launcher="torchtitan", profile=learnt.profile_id))
    assert raised.value.errors[0].pointer == "/profile"


def test_a_plan_that_the_calibration_makes_incredibly_fast_is_refused_with_the_runs() -> None:
    """A file that halves every GEMM's and attention's time: no run taught it that."""
    problem, plan = PROBLEM, PLANS[0]
    offsets = dict.fromkeys(("gemm", "attention"), 0.7)
    calibration = Calibration(
        cluster="ours", stack="megatron-core", gpu="h100-sxm-80gb", num_runs=2, log_offsets=offsets,
        residual=None, memory_residual=None, log_memory_sigma=None, runs=("tuesday", "friday"),
    )  # fmt: skip
    profile, _ = profile_with(problem, [calibration])
    found = [(plan.config, predict(problem, profile, plan.config))]
    with pytest.raises(InvalidProblemError, match=r"runs tuesday, friday predicts .*DGXC-0188") as raised:
        require_credible(problem, profile, found)
    assert raised.value.errors[0].pointer == "/profile"
    require_credible(
        problem,
        profile,
        [(plan.config, predict(problem, default_profile(problem.cluster, "none"), plan.config))],
    )
    with pytest.raises(InvalidProblemError, match="tuesday"):
        ask(a_problem(cluster=a_cluster(num_nodes=8), batch=128), profile)


def test_a_problem_is_answered_with_the_latest_calibration_of_its_cluster(
    measurements: Measurements, store: ProfileStore
) -> None:
    assert store.resolved(TENANT, PROBLEM).profile is None  # nothing was measured yet
    first = measurements.add(TENANT, "aaa", {"step_time_s": 40.0}, key=None)
    second = measurements.add(TENANT, "bbb", {"step_time_s": 41.0}, key=None)
    assert (first.profile_version, second.profile_version) == (1, 2)
    eight_nodes = replace(PROBLEM, cluster=a_cluster(num_nodes=8))
    for problem in (
        PROBLEM,
        eight_nodes,
        replace(PROBLEM, profile="latest"),
        replace(PROBLEM, launcher="any"),
    ):
        resolved = store.resolved(TENANT, problem)
        assert resolved.profile == f"latest:{second.profile_id}"
        assert store.profile_of(resolved).title.endswith(
            "calibrated on 2 runs (version 2 of this cluster's)"
        )


def test_a_problem_may_ask_for_another_profile_or_for_none(
    measurements: Measurements, store: ProfileStore
) -> None:
    first = measurements.add(TENANT, "aaa", {"step_time_s": 40.0}, key=None)
    measurements.add(TENANT, "bbb", {"step_time_s": 41.0}, key=None)
    plain = store.resolved(TENANT, replace(PROBLEM, profile="catalog"))
    assert (plain.profile, store.relearnt(TENANT, plain).profile) == ("catalog", "catalog")
    assert store.profile_of(plain).version == store.profile_of(PROBLEM).version
    assert store.resolved(TENANT, replace(PROBLEM, profile=first.profile_id)).profile == first.profile_id
    with pytest.raises(InvalidProblemError, match=r"no such profile: Latest.*catalog.*Nearest: latest"):
        store.resolved(TENANT, replace(PROBLEM, profile="Latest"))


def test_others_and_other_frameworks_learn_nothing_from_it(
    measurements: Measurements, store: ProfileStore
) -> None:
    measurements.add(TENANT, "aaa", {"step_time_s": 40.0}, key=None)
    assert store.resolved("somebody", PROBLEM).profile is None
    assert store.resolved(TENANT, replace(PROBLEM, launcher="torchtitan")).profile is None


def test_versions_survive_a_downgrade_and_an_upgrade(
    database: Database, measurements: Measurements, store: ProfileStore
) -> None:
    measurements.add(TENANT, "aaa", {"step_time_s": 40.0}, key=None)
    second = measurements.add(TENANT, "bbb", {"step_time_s": 41.0}, key=None)
    migrations.downgrade(database, "0011")
    migrations.upgrade(database)
    assert store.read(TENANT, second.profile_id)[0].version == 2
    assert store.resolved(TENANT, PROBLEM).profile == f"latest:{second.profile_id}"
