"""Jobs, answers and plans as pages."""

import dataclasses
import html
import json
import re
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from fastapi.testclient import TestClient

from meshwright.profiles.profile import default_profile
from meshwright.service.db.database import Database
from meshwright.service.jobs.answers import answer_from_json
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.queue import PollingQueue
from meshwright.service.jobs.sweeps import Sweeps
from meshwright.service.requests.parse import parse_problem
from meshwright.service.stores.verifications import Verifications, not_built
from meshwright.solver.answer import SkippedLauncher
from meshwright.solver.planner.plan import ask
from meshwright.workers.runner import Runner
from tests.served.answered_jobs import add_answered_job
from tests.served.job_records import TENANT, add_tiny_job, claimed
from tests.served.reports import Page, small_answer
from tests.served.sweep_jobs import an_answered_sweep


@pytest.fixture
def answered(database: Database) -> str:
    """A job with a real answer of three plans."""
    return add_answered_job(database, "answered", *small_answer())


def plan_ids(browser: TestClient, job_id: str) -> list[str]:
    return [plan["plan_id"] for plan in browser.get(f"/v1/jobs/{job_id}/plans").json()["plans"]]


def test_a_waiting_job_can_be_followed_and_cancelled(browser: TestClient, database: Database) -> None:
    add_tiny_job(database)
    page = browser.get("/jobs/job")
    assert 'data-follow="job"' in page.text
    answer = browser.post("/jobs/job/cancel")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/job")
    after = browser.get("/jobs/job")
    assert "data-follow" not in after.text
    assert "cancelled" in Page(after.text).text


def test_an_answer_has_its_verdict_table_and_links(browser: TestClient, answered: str) -> None:
    page = Page(browser.get(f"/jobs/{answered}").text)
    links = {link["href"] for link in page.all("a")}
    first, second, third = plan_ids(browser, answered)
    assert {f"/plans/{one}" for one in (first, second, third)} <= links
    assert {f"/v1/jobs/{answered}/report", f"/plans/{first}/files/megatron-lm.zip"} <= links
    assert "Time of a step" in page.text
    assert "Memory of a GPU" in page.text
    assert "How the search went" in page.text


def test_the_page_of_a_sweep_names_the_point_of_its_best_plan(
    browser: TestClient, database: Database
) -> None:
    engine = JobEngine(database, lease_s=30.0)
    parent = an_answered_sweep(Jobs(database, engine, PollingQueue(), queue_timeout_s=3600.0), engine)
    Sweeps(database, engine, worker="w").child_ended(parent.id)
    assert "The best point is batch 8." in Page(browser.get(f"/jobs/{parent.id}").text).text


def test_an_answer_names_every_launcher_without_a_plan_on_its_page_and_as_json(
    browser: TestClient, database: Database
) -> None:
    problem, answer = small_answer()
    skipped = (SkippedLauncher(launcher="nanotron", reasons=("nanotron cannot express experts",)),)
    add_answered_job(database, "open", problem, dataclasses.replace(answer, skipped_launchers=skipped))
    shown = Page(browser.get("/jobs/open").text).text
    assert "Launchers without a plan" in shown
    assert "nanotron: nanotron cannot express experts" in shown
    assert browser.get("/v1/jobs/open/plans").json()["skipped_launchers"] == [
        {"launcher": "nanotron", "reasons": ["nanotron cannot express experts"]}
    ]


def test_the_order_of_nodes_is_on_the_page_of_an_answer_and_of_a_plan(
    browser: TestClient, worker: Runner
) -> None:
    rates = [[0 if a == b else 5e10 for b in range(2)] for a in range(2)]
    links = {"hosts": ["gpu-a", "gpu-b"], "bytes_per_s": rates}
    problem = {
        "model": {"name": "llama-3.1-8b"}, "launcher": "megatron-lm",
        "search": {"top_k": 1, "certify": "none"},
        "cluster": {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 2, "links": links}]},
        "workload": {"global_batch_size": 64, "seq_length": 4096},
    }  # fmt: skip
    job_id = browser.post("/v1/jobs", json=problem).json()["id"]
    assert worker.run_next()
    for address in (f"/jobs/{job_id}", f"/plans/{plan_ids(browser, job_id)[0]}"):
        assert "Order of nodes: gpu-a gpu-b. A step takes" in Page(browser.get(address).text).text
    assert browser.get(f"/jobs/{job_id}/what-if").status_code == 200


def test_long_answers_are_paged(browser: TestClient, database: Database) -> None:
    problem, answer = small_answer()
    ranks = range(1, 61)
    many = tuple(dataclasses.replace(answer.plans[0], plan_id=f"plan{rank}", rank=rank) for rank in ranks)
    add_answered_job(database, "many", problem, dataclasses.replace(answer, plans=many))
    seen, address = [], "/jobs/many"
    while address:
        text = browser.get(address).text
        seen += re.findall(r'aria-label="Plan (\d+) in full"', text)
        found = re.search(r'href="(/jobs/many\?page_token=[^"]+)" rel="next"', text)
        address = found.group(1) if found else ""
    assert seen == [str(rank) for rank in ranks]


def test_a_plan_is_shown_in_full_and_its_pictures_are_there(browser: TestClient, answered: str) -> None:
    _, second, _ = plan_ids(browser, answered)
    page = Page(browser.get(f"/plans/{second}").text)
    assert "Plan 2" in page.text
    for part in ("Memory of each stage", "Where a step’s time goes", "The pipeline, to scale"):
        assert part in page.text
    assert f"/compare?first={plan_ids(browser, answered)[0]}&second={second}" in {
        link["href"] for link in page.all("a")
    }


def test_two_plans_stand_side_by_side(browser: TestClient, answered: str) -> None:
    first, _, third = plan_ids(browser, answered)
    page = Page(browser.get(f"/compare?first={first}&second={third}").text)
    assert "step time" in page.text
    assert "difference" in page.text
    assert browser.get(f"/compare?first={first}&second=none").status_code == 404


def test_a_plan_beside_itself_is_refused_with_a_page_that_says_why(
    browser: TestClient, answered: str
) -> None:
    first = plan_ids(browser, answered)[0]
    answer = browser.get(f"/compare?first={first}&second={first}")
    assert answer.status_code == 422
    assert "is the same plan as first: choose another one" in Page(answer.text).text


def test_launch_files_are_shown_and_saved_for_any_launcher(browser: TestClient, answered: str) -> None:
    (first, *_) = plan_ids(browser, answered)
    page = browser.get(f"/plans/{first}/export")
    name = re.findall(r"/files/megatron-lm/([^\"]+)\"", page.text)[0]
    saved = browser.get(f"/plans/{first}/files/megatron-lm/{name}")
    assert saved.headers["content-disposition"] == f'attachment; filename="{name}"'
    bundle = browser.get(f"/v1/plans/{first}/export?launcher=megatron-lm").json()
    assert saved.text == bundle["files"][name]
    assert browser.get(f"/plans/{first}/files/megatron-lm/none.sh").status_code == 404
    assert "torchtitan" in Page(browser.get(f"/plans/{first}/export?launcher=torchtitan").text).text
    refused = browser.get(f"/plans/{first}/export?launcher=flagscale").text
    assert "Get files for another launcher" in refused
    assert f'href="/plans/{first}/export?launcher=megatron-lm"' in refused


def test_all_launch_files_come_as_one_zip(browser: TestClient, answered: str) -> None:
    (first, *_) = plan_ids(browser, answered)
    saved = browser.get(f"/plans/{first}/files/megatron-lm.zip")
    assert saved.headers["content-type"] == "application/zip"
    assert f'filename="megatron-lm-{first[:8]}.zip"' in saved.headers["content-disposition"]
    with ZipFile(BytesIO(saved.content)) as archive:
        found = {name: archive.read(name).decode() for name in archive.namelist()}
        scripts = [one for one in archive.infolist() if one.filename.endswith(".sh")]
    assert found == browser.get(f"/v1/plans/{first}/export?launcher=megatron-lm").json()["files"]
    assert all(one.external_attr >> 16 == 0o755 for one in scripts if one.filename == "launch.sh")
    assert browser.get(f"/plans/{first}/files/none.zip").status_code == 422


KUBEFLOW = Path(__file__).parents[4] / "fixtures" / "kubernetes" / "kubeflow.json"
IMAGE = "registry.example/train:1"


def test_a_schedulers_file_is_shown_saved_and_valid_over_rest(browser: TestClient, answered: str) -> None:
    (first, *_) = plan_ids(browser, answered)
    start = f"scheduler=trainjob&image={IMAGE}"
    bundle = browser.get(f"/v1/plans/{first}/export?launcher=megatron-lm&{start}").json()
    assert "launch.sbatch" not in bundle["files"]
    schema = json.loads(KUBEFLOW.read_text())
    job = list(yaml.safe_load_all(bundle["files"]["trainjob.yaml"]))[1]
    kind = {"$ref": f"#/$defs/{schema['kinds']['TrainJob']}", "$defs": schema["$defs"]}
    jsonschema.Draft202012Validator(kind).validate(job)
    assert job["spec"]["trainer"]["image"] == IMAGE
    page = browser.get(f"/plans/{first}/export?launcher=megatron-lm&{start}").text
    address = html.unescape(re.findall(r'href="(/plans/[^"]+/trainjob.yaml[^"]*)"', page)[0])
    assert browser.get(address).text == bundle["files"]["trainjob.yaml"]
    one = browser.get(f"/v1/plans/{first}/export/trainjob.yaml?launcher=megatron-lm&{start}")
    assert one.text == bundle["files"]["trainjob.yaml"]


def test_a_start_that_cannot_be_written_is_refused_by_the_name_of_its_parameter(
    browser: TestClient, answered: str
) -> None:
    (first, *_) = plan_ids(browser, answered)
    for query, pointer, words in (
        ("scheduler=trainjbo", "/query/scheduler", "trainjob"),
        ("scheduler=pytorchjob", "/query/image", "is needed for a PyTorchJob"),
        (f"image={IMAGE}", "/query/image", "Slurm's script uses no image"),
    ):
        answer = browser.get(f"/v1/plans/{first}/export?launcher=megatron-lm&{query}")
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["pointer"] == pointer
        assert words in answer.text
    page = Page(browser.get(f"/plans/{first}/export?launcher=megatron-lm&scheduler=pytorchjob").text)
    assert "is needed for a PyTorchJob" in page.text


def test_each_change_that_would_fit_is_searched_by_its_button(
    browser: TestClient, database: Database, jobs: Jobs
) -> None:
    asked = {
        "model": {"name": "llama-3.1-70b"},
        "cluster": {"name": "dgx-h100", "num_nodes": 1},
        "workload": {"global_batch_size": 64, "seq_length": 4096},
        "launcher": "megatron-lm",
        "search": {"certify": "none"},
    }
    problem = parse_problem(asked)
    answer = ask(problem, default_profile(problem.cluster, problem.launcher))
    add_answered_job(database, "full", problem, answer)
    page = Page(browser.get("/jobs/full").text)
    assert "Nothing fits: the nearest plan lacks" in page.text
    assert answer.infeasible is not None
    remedies = answer.infeasible.remedies
    actions = [form["action"] for form in page.all("form") if "/remedies/" in form["action"]]
    assert actions == [f"/jobs/full/remedies/{number}" for number in range(len(remedies))]
    for number, remedy in enumerate(remedies):
        sent = browser.post(actions[number])
        assert sent.status_code == 303, remedy.change
        job = jobs.read(TENANT, sent.headers["location"].rpartition("/")[2])
        found = parse_problem(dict(job.request))
        assert found != problem
        if remedy.kind == "nodes":
            assert f"{found.cluster.num_nodes} nodes" == remedy.change
    assert browser.post("/jobs/full/remedies/99").status_code == 404


def test_what_if_is_predicted_on_the_page(browser: TestClient, answered: str) -> None:
    assert f"/jobs/{answered}/what-if" in {
        link["href"] for link in Page(browser.get(f"/jobs/{answered}").text).all("a")
    }
    assert "as asked" in Page(browser.get(f"/jobs/{answered}/what-if").text).text


def test_the_list_is_filtered_by_state(browser: TestClient, database: Database, jobs: Jobs) -> None:
    add_tiny_job(database, "one")
    add_tiny_job(database, "two")
    jobs.cancel("default", "two")

    def listed(address: str) -> list[str]:
        return re.findall(r'href="/jobs/(\w+)">', browser.get(address).text)

    assert sorted(listed("/jobs")) == ["one", "two"]
    assert listed("/jobs?state=cancelled") == ["two"]
    assert listed("/jobs?state=running") == []
    found = browser.get("/v1/jobs?state=queued").json()["jobs"]
    assert [job["id"] for job in found] == ["one"]
    assert browser.get("/jobs?state=nonsense").status_code == 422
    assert "gpt-3-350m on 1 × dgx-h100" in browser.get("/jobs").text


def test_a_wrong_id_is_a_page_for_people_and_a_problem_for_programs(browser: TestClient) -> None:
    for address in ("/jobs/none", "/plans/none", "/plans/none/export", "/models/none", "/nowhere"):
        answer = browser.get(address)
        assert answer.status_code == 404
        assert answer.headers["content-type"].startswith("text/html")
        assert "Nothing here" in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        plain = browser.get(address, headers={"accept": "application/json"})
        assert plain.headers["content-type"] == "application/problem+json"
    assert browser.get("/v1/jobs/none").headers["content-type"] == "application/problem+json"
    assert browser.get("/v1").headers["content-type"] == "application/problem+json"


def test_a_failed_job_says_why(browser: TestClient, database: Database, engine: JobEngine) -> None:
    add_tiny_job(database)
    engine.fail(claimed(engine), code="internal_error", detail="it broke in a known way")
    assert "it broke in a known way" in browser.get("/jobs/job").text


def test_answers_read_back_are_what_pages_show(browser: TestClient, answered: str) -> None:
    body = browser.get(f"/v1/jobs/{answered}/plans").json()
    answer = answer_from_json(body)
    assert f"{answer.plans[0].prediction.tokens_per_s_per_gpu:.0f}" in browser.get(f"/jobs/{answered}").text


def test_an_answer_shows_what_its_plans_were_measured_to_take(browser: TestClient, answered: str) -> None:
    assert "Measured" not in Page(browser.get(f"/jobs/{answered}").text).text
    first, _, third = browser.get(f"/v1/jobs/{answered}/plans").json()["plans"]
    seconds = 1.05 * first["prediction"]["step_time_s"]
    for plan, body in (
        (first, {"step_time_s": 1.02 * seconds}),
        (first, {"step_time_s": 0.98 * seconds, "peak_memory_bytes": 60 * 2**30}),
        (third, {"out_of_memory": True}),
    ):
        given = browser.post(f"/v1/plans/{plan['plan_id']}/measurements", json=body)
        assert given.status_code == 201, given.text
    shown = Page(browser.get(f"/jobs/{answered}").text).text
    assert "Measured, against the prediction: #1 " in shown
    assert "a step (+5.0 %), 60.0 GiB; #3 out of memory." in shown


def test_an_answer_says_what_launchers_made_of_its_plans(
    browser: TestClient, answered: str, database: Database, engine: JobEngine
) -> None:
    assert "launcher's own code" not in Page(browser.get(f"/jobs/{answered}").text).text
    first, _, third = plan_ids(browser, answered)
    queue = PollingQueue()
    store = Verifications(
        database, Jobs(database, engine, queue, queue_timeout_s=60.0), queue, lease_s=15.0, max_attempts=3
    )
    store.ask(TENANT, third)
    claim = store.claim()
    assert claim is not None
    store.settle(claim, not_built("no GPU"))
    store.ask(TENANT, first)
    shown = Page(browser.get(f"/jobs/{answered}").text)
    assert "without a GPU: #1 queued; #3 not built." in shown.text
    assert f"/v1/plans/{third}/verification" in {link["href"] for link in shown.all("a")}
