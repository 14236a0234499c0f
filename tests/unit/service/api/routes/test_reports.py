"""Reports and timelines over HTTP."""

import pytest
from fastapi.testclient import TestClient

from meshwright.service.jobs.engine import JobEngine
from meshwright.service.report.formatting import seconds
from tests.served.api_client import answer_next, plan_next, submit
from tests.served.reports import Page


@pytest.fixture
def job(client: TestClient, engine: JobEngine) -> str:
    """A job that a worker has really answered, with two plans."""
    job_id = submit(client)
    plan_next(engine)
    return job_id


def test_the_report_of_a_job_is_a_page_under_its_own_policy(client: TestClient, job: str) -> None:
    answer = client.get(f"/v1/jobs/{job}/report")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = Page(answer.text)
    inside = next(meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
    assert answer.headers["Content-Security-Policy"] == f"{inside}; frame-ancestors 'none'"
    assert len(page.all("article")) == 2
    assert "as asked" in page.text  # other hardware and batches are predicted
    assert "Optimal under our cost model" in page.text


def test_what_if_can_be_left_out(client: TestClient, job: str) -> None:
    page = Page(client.get(f"/v1/jobs/{job}/report", params={"what_if": "false"}).text)
    assert "what-if" not in {attributes.get("id") for _, attributes in page.elements}


def test_the_report_of_a_plan_claims_its_rank_and_no_more(client: TestClient, job: str) -> None:
    second = client.get(f"/v1/jobs/{job}/plans").json()["plans"][1]
    page = Page(client.get(f"/v1/plans/{second['plan_id']}/report").text)
    assert len(page.all("article")) == 1
    assert "rank 2" in page.text
    assert "proved optimal" not in page.text


def test_the_timeline_of_a_plan_takes_as_long_as_its_prediction(client: TestClient, job: str) -> None:
    first = client.get(f"/v1/jobs/{job}/plans").json()["plans"][0]
    trace = client.get(f"/v1/plans/{first['plan_id']}/timeline").json()
    step_s = first["prediction"]["step_time_s"]
    assert trace["otherData"]["step_time_s"] == pytest.approx(step_s)
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in events) == pytest.approx(step_s * 1e6)


def test_a_plan_that_other_costs_predicted_has_the_timeline_of_todays_and_both_times(
    client: TestClient, engine: JobEngine
) -> None:
    submit(client)
    answer_next(engine)
    made = client.get("/v1/plans/aaa/timeline").json()["otherData"]
    predicted_s = client.get("/v1/plans/aaa").json()["plan"]["prediction"]["step_time_s"]
    assert made["step_time_s"] != pytest.approx(predicted_s)
    assert f"predicted this plan: {seconds(predicted_s)} a step" in made["note"]
    assert f"give: {seconds(made['step_time_s'])}." in made["note"]
    page = Page(client.get("/v1/plans/aaa/report").text).text
    assert made["note"] in page
    assert f"One step, {seconds(made['step_time_s'])}, of each" in page


def test_what_is_not_there_or_not_finished_has_no_report(client: TestClient) -> None:
    assert client.get("/v1/plans/nothing/report").status_code == 404
    assert client.get("/v1/jobs/nothing/report").status_code == 404
    assert client.get(f"/v1/jobs/{submit(client)}/report").status_code == 409


def test_one_launch_file_is_had_by_its_name_as_text(client: TestClient, job: str) -> None:
    plan = client.get(f"/v1/jobs/{job}/plans").json()["plans"][0]["plan_id"]
    whole = client.get(f"/v1/plans/{plan}/export", params={"launcher": "megatron-lm"}).json()["files"]
    assert whole
    for name, text in whole.items():
        answer = client.get(f"/v1/plans/{plan}/export/{name}", params={"launcher": "megatron-lm"})
        assert answer.text == text
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    missing = client.get(f"/v1/plans/{plan}/export/no.sh", params={"launcher": "megatron-lm"})
    assert missing.status_code == 404
    assert missing.json()["detail"].endswith(f"It has {', '.join(whole)}")
    assert client.get(f"/v1/plans/{plan}/export/no.sh?launcher=nobody").status_code == 422
