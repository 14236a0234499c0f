"""Plans of all jobs, filtered and sorted, over a real database."""

from dataclasses import replace
from itertools import pairwise
from typing import get_args

import pytest
from fastapi.testclient import TestClient

from meshwright.profiles.units import GIB
from meshwright.service.api.schemas import PlanSort
from meshwright.service.db import migrations, plan_records
from meshwright.service.db.database import Database
from meshwright.service.db.plan_figures import PlanFigures, sorted_figures
from meshwright.service.db.plan_records import PlanFilter
from meshwright.service.errors import BadPageTokenError
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.submission import Submission
from meshwright.service.stores.measurements import Measurements
from meshwright.solver.answer import Plan
from meshwright.workers.outcome import outcome_of
from tests.builders import a_cluster, a_plan, a_prediction, a_problem, an_answer
from tests.served.api_client import PROBLEM_TYPE
from tests.served.job_records import TENANT, claimed
from tests.served.sweep_jobs import a_sweep


def a_timed_plan(plan_id: str, rank: int, step_time_s: float, gib: int, **changes: object) -> Plan:
    prediction = a_prediction(step_time_s=step_time_s, peak_memory_bytes=gib * GIB)
    return replace(a_plan(plan_id=plan_id, rank=rank, **changes), prediction=prediction)


def found(jobs: Jobs, engine: JobEngine, *plans: Plan, num_nodes: int = 16) -> str:
    problem = a_problem(cluster=a_cluster(num_nodes=num_nodes))
    job = jobs.submit(TENANT, Submission(problem=problem, body={}, fresh=True))
    assert engine.complete(claimed(engine), outcome_of(an_answer(*plans), cache_key="k", cancelled=False))
    return job.id


def listed(jobs: Jobs, **wanted: object) -> list[PlanFigures]:
    """All that a filter finds, on pages of two."""
    items: list[PlanFigures] = []
    token: str | None = None
    while True:
        page = jobs.plans_like(TENANT, PlanFilter(**wanted), page_size=2, page_token=token)  # type: ignore[arg-type]
        items += page.items
        token = page.next_page_token
        if token is None:
            return items


@pytest.fixture
def two_jobs(jobs: Jobs, engine: JobEngine) -> tuple[str, str]:
    """Five plans; ``bbb`` was found twice."""
    first = found(
        jobs,
        engine,
        a_timed_plan("aaa", 1, 30.0, 70),
        a_timed_plan("bbb", 2, 31.0, 59),
        a_timed_plan("ccc", 3, 33.0, 40, tensor_parallel_size=4, data_parallel_size=8),
    )
    second = found(
        jobs, engine, a_timed_plan("ddd", 1, 29.0, 65), a_timed_plan("bbb", 2, 31.0, 59), num_nodes=8
    )
    return first, second


def test_the_fastest_plan_under_60_gib_over_all_jobs(jobs: Jobs, two_jobs: tuple[str, str]) -> None:
    plans = listed(jobs, at_most={"peak_memory_bytes": 60 * GIB}, sort="step_time_s")
    assert [(one.plan_id, one.step_time_s) for one in plans] == [("bbb", 31.0), ("ccc", 33.0)]
    assert plans[0].job_id == two_jobs[1]  # told once, of the newest job that found it
    # tp 8, pp 4, dp 4 and no cp: 8 · 4 · 4 = 128 GPUs
    assert (plans[0].num_gpus, plans[0].model, plans[0].cluster) == (128, "llama-3.1-70b", "dgx-h100")


def test_the_api_offers_every_figure_that_has_an_index_as_an_order_both_ways() -> None:
    """No index serves another, and nobody could ask for one that is left out."""
    assert set(get_args(PlanSort)) == {f"{sign}{name}" for name in sorted_figures() for sign in ("", "-")}


@pytest.mark.usefixtures("two_jobs")
@pytest.mark.parametrize("column", sorted_figures())
def test_every_order_is_an_order_and_pages_leave_nothing_out(jobs: Jobs, column: str) -> None:
    up, down = listed(jobs, sort=column), listed(jobs, sort=f"-{column}")
    values = [getattr(one, column) for one in up]
    assert len(values) == (0 if column.startswith("measured") or column == "cost" else 4)
    assert all(one <= other for one, other in pairwise(values))
    assert down == up[::-1]


@pytest.mark.usefixtures("two_jobs")
def test_a_job_that_ends_between_two_pages_takes_no_plan_from_the_second(
    jobs: Jobs, engine: JobEngine
) -> None:
    first = jobs.plans_like(TENANT, PlanFilter(), page_size=2, page_token=None)
    found(jobs, engine, a_timed_plan("aaa", 1, 30.0, 70))  # the newest now, before the first page
    second = jobs.plans_like(TENANT, PlanFilter(), page_size=2, page_token=first.next_page_token)
    assert [one.plan_id for one in (*first.items, *second.items)] == ["bbb", "ddd", "ccc", "aaa"]
    assert [one.plan_id for one in listed(jobs)] == ["aaa", "bbb", "ddd", "ccc"]


def test_one_job_is_told_with_all_its_plans(jobs: Jobs, two_jobs: tuple[str, str]) -> None:
    plans = listed(jobs, equal={"job_id": two_jobs[0]}, sort="step_time_s")
    assert [one.plan_id for one in plans] == ["aaa", "bbb", "ccc"]


@pytest.mark.usefixtures("two_jobs")
def test_sizes_are_asked_for(jobs: Jobs) -> None:
    (plan,) = listed(jobs, equal={"tensor_parallel_size": 4})
    assert (plan.plan_id, plan.data_parallel_size) == ("ccc", 8)


@pytest.mark.usefixtures("two_jobs")
def test_what_was_measured_on_this_cluster(database: Database, jobs: Jobs) -> None:
    measurements = Measurements(database, jobs)
    for seconds in (40.0, 36.0, 37.0):
        measurements.add(TENANT, "bbb", {"step_time_s": seconds, "peak_memory_bytes": 60 * GIB}, key=None)
    measurements.add(TENANT, "ddd", {"out_of_memory": True}, key=None)
    plans = listed(jobs, equal={"cluster": "dgx-h100"}, measured=True, sort="step_time_s")
    # the median of 36, 37 and 40
    assert [(one.plan_id, one.measured_step_time_s, one.num_measurements) for one in plans] == [
        ("ddd", None, 1),
        ("bbb", 37.0, 3),
    ]
    assert [one.measured_out_of_memory for one in plans] == [True, False]
    assert {one.plan_id for one in listed(jobs, measured=False)} == {"aaa", "ccc"}


@pytest.mark.usefixtures("two_jobs")
def test_a_plan_that_is_found_again_brings_what_was_measured_of_it(
    database: Database, jobs: Jobs, engine: JobEngine
) -> None:
    Measurements(database, jobs).add(TENANT, "aaa", {"step_time_s": 35.0}, key=None)
    again = found(jobs, engine, a_timed_plan("aaa", 1, 30.0, 70))
    (plan,) = listed(jobs, equal={"job_id": again})
    assert plan.measured_step_time_s == 35.0


def test_the_figures_survive_a_downgrade_and_an_upgrade(
    database: Database, jobs: Jobs, two_jobs: tuple[str, str]
) -> None:
    Measurements(database, jobs).add(TENANT, "bbb", {"step_time_s": 35.0}, key=None)
    before = {
        (one.job_id, one.rank): one for job in two_jobs for one in listed(jobs, equal={"job_id": job})
    }
    migrations.downgrade(database, "0010")
    migrations.upgrade(database)
    after = {(one.job_id, one.rank): one for job in two_jobs for one in listed(jobs, equal={"job_id": job})}
    assert len(before) == 5
    for place, one in before.items():  # an older schema knows when the job ended, not the plan's own moment
        assert after[place].found_at_s == pytest.approx(one.found_at_s, abs=5.0)
        assert replace(after[place], found_at_s=None) == replace(one, found_at_s=None)


def test_a_sweep_that_ranks_its_points_plans_does_not_repeat_them(jobs: Jobs, engine: JobEngine) -> None:
    parent = jobs.submit(TENANT, a_sweep(global_batch_size=[104, 112]))
    for name in ("aaa", "bbb"):
        answer = an_answer(a_timed_plan(name, 1, 30.0, 70))
        claim = claimed(engine)
        assert engine.complete(claim, outcome_of(answer, cache_key=name, cancelled=False))
        jobs._sweeps.child_ended(parent.id)
    assert jobs.plans(TENANT, parent.id, page_size=10, page_token=None)[1].items  # it ranks the best one
    assert sorted(one.plan_id for one in listed(jobs)) == ["aaa", "bbb"]
    assert {one.job_id for one in listed(jobs)} != {parent.id}


@pytest.mark.usefixtures("two_jobs")
def test_a_token_of_another_order_is_refused(jobs: Jobs) -> None:
    token = jobs.plans_like(TENANT, PlanFilter(sort="mfu"), page_size=1, page_token=None).next_page_token
    with pytest.raises(BadPageTokenError):
        jobs.plans_like(TENANT, PlanFilter(sort="-mfu"), page_size=1, page_token=token)


def test_another_tenant_sees_nothing(jobs: Jobs, two_jobs: tuple[str, str]) -> None:
    wanted = PlanFilter(equal={"job_id": two_jobs[0]})
    assert jobs.plans_like("somebody", wanted, page_size=9, page_token=None).items == ()


@pytest.mark.usefixtures("two_jobs")
def test_the_api_filters_sorts_and_pages(client: TestClient) -> None:
    query: dict[str, str | int] = {"max_peak_memory_bytes": 60 * GIB, "sort": "step_time_s", "page_size": 1}
    first = client.get("/v1/plans", params=query).json()
    assert [one["plan_id"] for one in first["plans"]] == ["bbb"]
    assert first["plans"][0]["measured"] is None
    second = client.get("/v1/plans", params={**query, "page_token": first["next_page_token"]}).json()
    assert [one["plan_id"] for one in second["plans"]] == ["ccc"]
    assert second["next_page_token"] is None


@pytest.mark.usefixtures("two_jobs")
def test_the_api_filters_by_short_names_too(client: TestClient) -> None:
    found = [client.get("/v1/plans", params={name: 4}).json() for name in ("tp", "tensor_parallel_size")]
    assert found[0]["plans"] == found[1]["plans"] != []


@pytest.mark.parametrize(
    ("query", "field", "told"),
    [
        ("sort=step_time", "sort", ("step_time", "-measured_step_time_s", "Nearest: step_time_s")),
        ("verified=partly", "verified", ("partly", "not built", "Nearest: partly verified")),
        ("max_peak_memory=60", "max_peak_memory", ("unknown field", "Nearest: max_peak_memory_bytes")),
        ("max_step_time_s=soon", "max_step_time_s", ("soon", "above 0")),
        ("max_step_time_s=nan", "max_step_time_s", ('"nan" is not a finite number', "above 0")),
        ("measured=maybe", "measured", ("maybe", "neither true nor false", "true or false")),
        ("page_token=WyJ4Il0", "page_token", ("not issued by this service", "next_page_token")),
        ("model=a%00b", "model", ("not such a name",)),
        ("model=", "model", ("not such a name",)),
        (f"launcher={'a' * 65}", "launcher", ("is too long", "up to 64 characters")),
        (f"tp={2**40}", "tensor_parallel_size", ("from 1 to 2147483647", "Nearest: 2147483647")),
        ("tp=4&tensor_parallel_size=8", "tp", ("is given too", "one of them")),
        ("sort=mfu&sort=-mfu", "sort", ("2 times", "once")),
        ("launcher=megatron-ml", "launcher", ("megatron-ml", "megatron-lm")),
        ("page_size=0", "page_size", ("0 is out of range", "from 1 to 200", "Nearest: 1")),
    ],
)
def test_a_wrong_query_is_refused_with_field_value_and_what_would_be_right(
    client: TestClient, query: str, field: str, told: tuple[str, ...]
) -> None:
    answer = client.get(f"/v1/plans?{query}")
    assert (answer.status_code, answer.headers["content-type"]) == (422, PROBLEM_TYPE)
    (fault,) = answer.json()["errors"]
    assert fault["pointer"] == f"/query/{field}"
    parts = (fault["message"], fault.get("allowed"), f"Nearest: {fault.get('nearest')}")
    said = " ".join(str(part) for part in parts)
    assert all(part in said for part in told), said


def test_plans_that_are_equal_in_what_is_sorted_by_are_told_once_each_on_any_pages(
    jobs: Jobs, engine: JobEngine
) -> None:
    """Seven plans of 30 s from two jobs, on pages of two."""
    found(jobs, engine, *(a_timed_plan(f"a{rank}", rank, 30.0, 60) for rank in range(1, 5)))
    found(jobs, engine, *(a_timed_plan(f"b{rank}", rank, 30.0, 60) for rank in range(1, 4)), num_nodes=8)
    for sort in ("step_time_s", "-step_time_s", "found_at_s", "-found_at_s"):
        names = [one.plan_id for one in listed(jobs, sort=sort)]
        assert sorted(names) == ["a1", "a2", "a3", "a4", "b1", "b2", "b3"]


@pytest.mark.parametrize("sort", ["step_time_s", "-step_time_s", "found_at_s", "-found_at_s"])
def test_a_filter_that_few_plans_match_gives_short_pages_that_go_on(
    jobs: Jobs, engine: JobEngine, monkeypatch: pytest.MonkeyPatch, sort: str
) -> None:
    """Two of nine plans match, and each page looks at three."""
    monkeypatch.setattr(plan_records, "MAX_LOOKED_AT", 3)
    found(jobs, engine, *(a_timed_plan(f"a{rank}", rank, 30.0 + rank, 60) for rank in range(1, 8)))
    found(jobs, engine, a_timed_plan("few", 1, 31.5, 40), a_timed_plan("last", 2, 50.0, 40))
    wanted = PlanFilter(at_most={"peak_memory_bytes": 50 * GIB}, sort=sort)
    sizes, token, names = [], None, []
    while True:
        page = jobs.plans_like(TENANT, wanted, page_size=5, page_token=token)
        names += [one.plan_id for one in page.items]
        sizes.append(len(page.items))
        if (token := page.next_page_token) is None:
            break
    assert sorted(names) == ["few", "last"]
    assert len(sizes) in {3, 4}  # nine plans, three at a time, and perhaps an empty page at the end


@pytest.mark.parametrize("sort", ["step_time_s", "-step_time_s"])
def test_plans_found_again_between_two_pages_hide_none_that_are_not_looked_at_yet(
    jobs: Jobs, engine: JobEngine, monkeypatch: pytest.MonkeyPatch, sort: str
) -> None:
    """Twelve plans, of which the first and the last five match; each page looks at three."""
    monkeypatch.setattr(plan_records, "MAX_LOOKED_AT", 3)
    sign = -1 if sort.startswith("-") else 1
    gib = [40, *[60] * 6, *[40] * 5]
    plans = [a_timed_plan(f"a{at:02}", at, 50.0 + sign * at, gib[at - 1]) for at in range(1, 13)]
    found(jobs, engine, *plans)
    wanted = PlanFilter(at_most={"peak_memory_bytes": 50 * GIB}, sort=sort)
    page = jobs.plans_like(TENANT, wanted, page_size=1, page_token=None)
    names = [one.plan_id for one in page.items]
    found(jobs, engine, *(replace(plans[at], rank=rank) for rank, at in enumerate((10, 11), 1)))
    while page.next_page_token is not None:
        page = jobs.plans_like(TENANT, wanted, page_size=1, page_token=page.next_page_token)
        names += [one.plan_id for one in page.items]
    assert names == ["a01", "a08", "a09", "a10", "a11", "a12"]
