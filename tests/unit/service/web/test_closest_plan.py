"""The pages of an answer in which nothing fits lead to its closest plan, and to files once accepted."""

from fastapi.testclient import TestClient

from meshwright.service.jobs.engine import JobEngine
from meshwright.workers.outcome import outcome_of
from tests.problems.tight import TIGHT, tight_answer
from tests.served.api_client import submit
from tests.served.job_records import claimed
from tests.served.reports import Page


def test_the_pages_lead_to_the_closest_plan_and_to_its_files(
    browser: TestClient, engine: JobEngine
) -> None:
    job_id, answer = submit(browser, **TIGHT), tight_answer()
    assert engine.complete(claimed(engine), outcome_of(answer, cache_key="k", cancelled=False))
    assert answer.infeasible is not None
    assert answer.infeasible.closest is not None
    address = f"/plans/{answer.infeasible.closest.plan_id}"
    page = Page(browser.get(f"/jobs/{job_id}").text)
    assert page.text.count("Nothing fits within an out-of-memory risk of 1 %") == 1
    assert address in {attributes.get("href") for attributes in page.all("a")}
    assert "Closest plan" in browser.get(address).text
    asked = browser.get(f"{address}/export")
    assert "Accept the risk and show the files" in asked.text
    assert browser.get(f"{address}/files/trl.zip").status_code == 422
    shown = Page(browser.get(f"{address}/export", params={"accept_risk": "true"}).text)
    zipped = f"{address}/files/trl.zip?accept_risk=true"
    assert zipped in {attributes.get("href") for attributes in shown.all("a")}
    assert browser.get(zipped).status_code == 200
